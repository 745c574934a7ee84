"""CroCo: cross-view completion, from "CroCo" and "CroCo v2" (Weinzaepfel et al. 2022, 2023).

One encoder processes both views; of the first view it sees only a few patches. A decoder completes the first view with
cross-attention to the second. To do so it must find corresponding points of the views, and so it learns the geometry of
the scene. With another head, the model is fine-tuned for dense tasks such as stereo disparity.

Shapes: B pairs, N patches of a view, K visible patches of the first view, W width of the encoder, V width of the
decoder.
"""

from itertools import pairwise
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.multi_head import Attention, Rotary2D, grid_positions
from regard.config import Settings
from regard.layers import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    Model,
    PatchEmbedding,
    Sinusoidal2D,
    drop_path_rates,
    gather_tokens,
    patchify,
    unpatchify,
)
from regard.ops.linear import Linear

TARGET_EPS = 1e-4
"""Added to the variance of a patch, so that the noise of a uniform patch is not amplified."""


class CroCoConfig(Settings):
    """Configuration of a `CroCo`. The defaults are the ViT-B encoder of the paper with the Base decoder."""

    kind: Literal["croco"] = "croco"
    channels: int = Field(3, gt=0, description="image channels")
    patch: int = Field(16, gt=0, description="height and width of a patch in pixels")
    mean: float = Field(0.5, description="subtracted from the pixels, which are between 0 and 1")
    std: float = Field(0.25, gt=0, description="divisor of the pixels after the mean is subtracted")
    width: int = Field(768, gt=0, description="width of the encoder")
    heads: int = Field(12, gt=0, description="attention heads of the encoder")
    layers: int = Field(12, gt=0, le=1000, description="blocks of the encoder")
    hidden: int | None = Field(
        None, gt=0, description="hidden features of the encoder's feed-forward layers; four times the width by default"
    )
    decoder_width: int = Field(768, gt=0)
    decoder_heads: int = Field(12, gt=0)
    decoder_layers: int = Field(12, gt=0, le=1000)
    decoder_hidden: int | None = Field(None, gt=0, description="four times the width of the decoder by default")
    positions: Literal["rotary", "sincos"] = Field(
        "rotary", description="2-D rotary embeddings, also in cross-attention; or sines and cosines that are added"
    )
    qkv_bias: bool = Field(True, description="whether queries, keys and values have a bias")
    qk_scale: float | None = Field(None, description="factor on the scores; 1/√(head width) by default")
    norm_eps: float = Field(1e-6, gt=0)
    drop_path: float = Field(
        0.0, ge=0, lt=1, description="stochastic depth of the last block of each stack; earlier blocks have less"
    )
    head: Literal["pixels", "dense"] = Field(
        "pixels", description="pixels: the pixels of each patch, for completion; dense: outputs for every pixel"
    )
    outputs: int = Field(1, gt=0, description="for dense: outputs per pixel, such as the disparity")
    head_width: int = Field(64, gt=0, description="for dense: channels at full resolution; more at lower resolutions")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for width, heads, prefix in (
            (self.width, self.heads, ""),
            (self.decoder_width, self.decoder_heads, "decoder_"),
        ):
            if width % heads:
                raise ValueError(f"{prefix}width {width} is not divisible by {prefix}heads {heads}")
            if self.positions == "rotary" and width // heads % 4:
                raise ValueError(f"rotary positions need a head width divisible by 4, not {width // heads}")
            if self.positions == "sincos" and width % 4:
                raise ValueError(f"sincos positions need a {prefix}width divisible by 4, not {width}")
        if self.head == "dense" and self.patch & (self.patch - 1):
            raise ValueError(f"head dense needs a patch size that is a power of 2, not {self.patch}")
        return self

    @classmethod
    def base(cls, **changes: Any) -> Self:
        """CroCo v2 with the encoder ViT-B and the Base decoder, 200 million parameters."""
        return cls.parse(changes, cls.__name__)

    @classmethod
    def small(cls, **changes: Any) -> Self:
        """CroCo v2 with the encoder ViT-B and the Small decoder, 120 million parameters."""
        return cls.base(**{"decoder_width": 512, "decoder_heads": 16, "decoder_layers": 8} | changes)

    @classmethod
    def large(cls, **changes: Any) -> Self:
        """CroCo v2 with the encoder ViT-L and the Base decoder, 418 million parameters."""
        return cls.base(**{"width": 1024, "heads": 16, "layers": 24} | changes)

    @classmethod
    def mini(cls, **changes: Any) -> Self:
        """A model for views of 64 to 128 pixels, 10 million parameters."""
        encoder = {"patch": 8, "width": 256, "heads": 4, "layers": 4}
        return cls.base(**encoder | {"decoder_width": 256, "decoder_heads": 4, "decoder_layers": 6} | changes)

    @classmethod
    def micro(cls, **changes: Any) -> Self:
        """A small model for views of 64 to 128 pixels and training on a CPU, 0.7 million parameters."""
        encoder = {"width": 96, "heads": 3, "layers": 2}
        return cls.mini(**encoder | {"decoder_width": 96, "decoder_heads": 3, "decoder_layers": 3} | changes)


class CroCo(Model):
    """An encoder of both views, and a decoder that completes the first view from the second."""

    input_type = "pairs"
    task = "croco"
    config: CroCoConfig

    def __init__(self, config: CroCoConfig) -> None:
        super().__init__()
        self.config = c = config
        self.patch_embedding = PatchEmbedding(c.channels, (c.patch, c.patch), c.width)
        self.encoder = nn.ModuleList(self._encoder_block(rate) for rate in drop_path_rates(c.drop_path, c.layers))
        self.encoder_norm = nn.LayerNorm(c.width, c.norm_eps)
        self.bridge = Linear(c.width, c.decoder_width)
        self.mask_token = nn.Parameter(torch.empty(c.decoder_width))
        decoder_rates = drop_path_rates(c.drop_path, c.decoder_layers)
        self.decoder = nn.ModuleList(self._decoder_block(rate) for rate in decoder_rates)
        self.decoder_norm = nn.LayerNorm(c.decoder_width, c.norm_eps)
        self.head = PixelHead(c) if c.head == "pixels" else DenseHead(c)
        added = c.positions == "sincos"
        self.encoder_positions = Sinusoidal2D(c.width) if added else None
        self.decoder_positions = Sinusoidal2D(c.decoder_width) if added else None
        nn.init.xavier_uniform_(self.bridge.weight)
        nn.init.zeros_(self.bridge.bias)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, view1: Tensor, view2: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the output of the head for the first view, given the second.

        Args:
            view1: Pixels between 0 and 1, (B, C, H, W).
            view2: Pixels of the other view, which may have another size.
            visible: Indices of the patches of the first view that the encoder sees, (B, K); all by default.

        Returns:
            The normalised pixels of every patch, (B, N, C · patch · patch), as in `normalised_patches`; or the outputs
            of a dense head for every pixel, (B, outputs, H, W).
        """
        rows, columns = self.patch_embedding.grid(view1)
        y: Tensor = self.head(self.decode_views(view1, view2, visible), rows, columns)
        return y

    def embed(self, images: Tensor) -> Tensor:
        """Return the encoder's features of all patches of one view, (B, C, H, W) to (B, N, W)."""
        return self._encode(images)

    def decode_views(self, view1: Tensor, view2: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return the decoder's features of all patches of the first view, (B, N, V)."""
        source, positions2 = self.bridge(self._encode(view2)), self._positions(view2)
        positions1 = self._positions(view1)
        # Under autocast, the residual stream stays in the dtype of the weights, here and in the encoder.
        x = self.bridge(self._encode(view1, visible)).to(self.mask_token.dtype)
        x = self._insert_mask_tokens(x, visible, positions1.shape[1])
        if self.decoder_positions is not None:
            x = x + self.decoder_positions(positions1, _max_positions(view1))
            source = source + self.decoder_positions(positions2, _max_positions(view2))
        for block in self.decoder:
            x = block(x, source, positions=positions1, source_positions=positions2)
        y: Tensor = self.decoder_norm(x)
        return y

    def normalised_patches(self, images: Tensor) -> Tensor:
        """Return the target of the pixel head: the pixels of each patch with zero mean and unit variance.

        Images are (B, C, H, W), the result is (B, N, C · patch · patch).
        """
        pixels = patchify(images, self.patch_embedding.patch)
        variance, mean = torch.var_mean(pixels, -1, keepdim=True)
        return (pixels - mean) / (variance + TARGET_EPS).sqrt()

    def unnormalise_patches(self, patches: Tensor, images: Tensor) -> Tensor:
        """Invert `normalised_patches` with the mean and variance of each patch of `images`: return (B, C, H, W)."""
        size = self.patch_embedding.patch
        variance, mean = torch.var_mean(patchify(images, size), -1, keepdim=True)
        return unpatchify(patches * (variance + TARGET_EPS).sqrt() + mean, self.patch_embedding.grid(images), size)

    def _encode(self, images: Tensor, visible: Tensor | None = None) -> Tensor:
        """Encode all patches or the visible ones, (B, N or K, W)."""
        x = self.patch_embedding((images - self.config.mean) / self.config.std).to(self.mask_token.dtype)
        positions = self._positions(images)
        if self.encoder_positions is not None:
            x = x + self.encoder_positions(positions, _max_positions(images))
        if visible is not None:
            x, positions = gather_tokens(x, visible), gather_tokens(positions.expand(len(x), -1, -1), visible)
        for block in self.encoder:
            x = block(x, None, positions)
        y: Tensor = self.encoder_norm(x)
        return y

    def _insert_mask_tokens(self, x: Tensor, visible: Tensor | None, patches: int) -> Tensor:
        """Put visible patches at their indices and mask tokens everywhere else, (B, K, V) to (B, N, V)."""
        if visible is None:
            return x
        masks = self.mask_token.expand(len(x), patches, -1)
        return masks.scatter(1, visible[..., None].expand(-1, -1, x.shape[-1]), x)

    def _positions(self, images: Tensor) -> Tensor:
        """Return row and column of every patch, (1, N, 2)."""
        return grid_positions(*self.patch_embedding.grid(images), images.device)[None]

    def _encoder_block(self, drop_path: float) -> EncoderBlock:
        c = self.config
        feed_forward = FeedForward(c.width, c.hidden or 4 * c.width, "gelu")
        attention = self._attention(c.width, c.heads)
        return EncoderBlock(attention, feed_forward, "pre", eps=c.norm_eps, drop_path=drop_path)

    def _decoder_block(self, drop_path: float) -> DecoderBlock:
        c = self.config
        width, heads = c.decoder_width, c.decoder_heads
        attention, cross = self._attention(width, heads), self._attention(width, heads)
        feed_forward = FeedForward(width, c.decoder_hidden or 4 * width, "gelu")
        return DecoderBlock(
            attention, cross, feed_forward, "pre", eps=c.norm_eps, drop_path=drop_path, source_norm=True
        )

    def _attention(self, width: int, heads: int) -> Attention:
        rotary = Rotary2D(width // heads) if self.config.positions == "rotary" else None
        return Attention(width, heads, qkv_bias=self.config.qkv_bias, qk_scale=self.config.qk_scale, rotary=rotary)


class PixelHead(nn.Module):
    """Linear layer from the features of a patch to its pixels."""

    def __init__(self, config: CroCoConfig) -> None:
        super().__init__()
        self.linear = Linear(config.decoder_width, config.channels * config.patch**2)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        y: Tensor = self.linear(x)
        return y


class DenseHead(nn.Module):
    """Convolutions that double the resolution of the features step by step, up to one output vector per pixel."""

    def __init__(self, config: CroCoConfig) -> None:
        super().__init__()
        doublings = config.patch.bit_length() - 1
        widths = [min(config.decoder_width, config.head_width * 2**power) for power in range(doublings, -1, -1)]
        self.first = nn.Conv2d(config.decoder_width, widths[0], 1)
        self.steps = nn.ModuleList(
            nn.Sequential(
                DoubleResolution(),
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.GELU(),
                nn.Conv2d(outputs, outputs, 3, padding=1),
                nn.GELU(),
            )
            for inputs, outputs in pairwise(widths)
        )
        self.last = nn.Conv2d(widths[-1], config.outputs, 3, padding=1)

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        x = self.first(x.transpose(1, 2).reshape(len(x), -1, rows, columns))
        for step in self.steps:
            x = step(x)
        y: Tensor = self.last(x)
        return y


class DoubleResolution(nn.Module):
    """Bilinear interpolation to twice the resolution, (B, C, H, W) to (B, C, 2 H, 2 W).

    Unlike that of `nn.Upsample` on a GPU, its backward pass adds gradients in a fixed order.
    """

    def forward(self, x: Tensor) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return _double(_double(exact, 2), 3).to(x.dtype)


def _double(x: Tensor, axis: int) -> Tensor:
    """Double the resolution along an axis: pixels are a quarter of a pixel from those that they are made from."""
    size = x.shape[axis]
    previous = torch.cat((x.narrow(axis, 0, 1), x.narrow(axis, 0, size - 1)), axis)
    following = torch.cat((x.narrow(axis, 1, size - 1), x.narrow(axis, size - 1, 1)), axis)
    near = 0.75 * x
    return torch.stack((near + 0.25 * previous, near + 0.25 * following), axis + 1).flatten(axis, axis + 1)


def _max_positions(images: Tensor) -> int:
    """Return an upper bound of the rows and columns of patches."""
    return max(images.shape[-2:])
