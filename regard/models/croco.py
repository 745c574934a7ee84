"""CroCo: cross-view completion, from "CroCo" and "CroCo v2" (Weinzaepfel et al. 2022, 2023).

One encoder reads both views, of the first only the few patches that are not masked. A decoder fills in the rest of the
first view while it looks at the second: self-attention, cross-attention to the other view, feed-forward. What it learns
from that is where the views match, and so the geometry of the scene; with another head it is trained further for dense
tasks, such as the disparity of two stereo views.

Shapes: B pairs, N patches of a view, K patches of the first view that are seen, W width of the encoder, V of the
decoder.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.attention.positions import Rotary2D, Sinusoidal2D, grid_positions
from regard.config import Settings
from regard.layers import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    PatchEmbedding,
    drop_path_rates,
    gather_tokens,
    patchify,
    unpatchify,
)
from regard.models.base import Model
from regard.ops.linear import Linear

TARGET_EPS = 1e-4
"""Added to the variance of a patch: a patch of one colour is not blown up to noise."""


class CroCoConfig(Settings):
    """Everything that a `CroCo` is built from. The defaults are the paper's ViT-B encoder with a Base decoder."""

    kind: Literal["croco"] = "croco"
    channels: int = Field(3, gt=0, description="of the images")
    patch: int = Field(16, gt=0, description="pixels along the edge of a patch")
    mean: float = Field(0.5, description="of the pixels, which lie between 0 and 1; taken away before all else")
    std: float = Field(0.25, gt=0, description="of the pixels, which are divided by it")
    width: int = Field(768, gt=0, description="of the encoder")
    heads: int = Field(12, gt=0, description="of the encoder")
    layers: int = Field(12, gt=0, le=1000, description="of the encoder")
    hidden: int | None = Field(None, gt=0, description="inside its feed-forwards; four times the width unless given")
    decoder_width: int = Field(768, gt=0)
    decoder_heads: int = Field(12, gt=0)
    decoder_layers: int = Field(12, gt=0, le=1000)
    decoder_hidden: int | None = Field(None, gt=0, description="four times the decoder's width unless given")
    positions: Literal["rotary", "sincos"] = Field(
        "rotary", description="q and k turned by row and column, in cross-attention too; or sines and cosines added"
    )
    norm_eps: float = Field(1e-6, gt=0)
    drop_path: float = Field(0.0, ge=0, lt=1, description="stochastic depth, rising to this at each stack's last layer")
    head: Literal["pixels", "dense"] = Field(
        "pixels", description="pixels: those of each patch, for completion; dense: outputs for every pixel"
    )
    outputs: int = Field(1, gt=0, description="for dense: how many numbers a pixel, such as its disparity")
    head_width: int = Field(64, gt=0, description="for dense: channels at full resolution; more where it is coarser")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for width, heads, whose in (
            (self.width, self.heads, ""),
            (self.decoder_width, self.decoder_heads, "decoder_"),
        ):
            if width % heads:
                raise ValueError(f"{whose}width {width} is not divisible by {whose}heads {heads}")
            if self.positions == "rotary" and width // heads % 4:
                raise ValueError(f"rotary positions need a head width divisible by 4, not {width // heads}")
            if self.positions == "sincos" and width % 4:
                raise ValueError(f"sincos positions need a {whose}width divisible by 4, not {width}")
        if self.head == "dense" and self.patch & (self.patch - 1):
            raise ValueError(f"the dense head doubles its resolution step by step: patch {self.patch} is no power of 2")
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
        """For views of 64 to 128 pixels, 10 million parameters."""
        encoder = {"patch": 8, "width": 256, "heads": 4, "layers": 4}
        return cls.base(**encoder | {"decoder_width": 256, "decoder_heads": 4, "decoder_layers": 6} | changes)

    @classmethod
    def micro(cls, **changes: Any) -> Self:
        """For such views where there is no GPU, 0.7 million parameters."""
        encoder = {"width": 96, "heads": 3, "layers": 2}
        return cls.mini(**encoder | {"decoder_width": 96, "decoder_heads": 3, "decoder_layers": 3} | changes)


class CroCo(Model):
    """An encoder for both views, and a decoder that completes the first one from the second."""

    config: CroCoConfig

    def __init__(self, config: CroCoConfig) -> None:
        super().__init__()
        self.config = c = config
        self.patch_embedding = PatchEmbedding(c.channels, (c.patch, c.patch), c.width)
        self.encoder = nn.ModuleList(self._encoder_block(rate) for rate in drop_path_rates(c.drop_path, c.layers))
        self.encoder_norm = nn.LayerNorm(c.width, c.norm_eps)
        self.bridge = Linear(c.width, c.decoder_width)
        self.mask_token = nn.Parameter(torch.empty(c.decoder_width))
        self.decoder = nn.ModuleList(
            self._decoder_block(rate) for rate in drop_path_rates(c.drop_path, c.decoder_layers)
        )
        self.decoder_norm = nn.LayerNorm(c.decoder_width, c.norm_eps)
        self.head = PixelHead(c) if c.head == "pixels" else DenseHead(c)
        added = c.positions == "sincos"
        self.encoder_positions = Sinusoidal2D(c.width) if added else None
        self.decoder_positions = Sinusoidal2D(c.decoder_width) if added else None
        nn.init.xavier_uniform_(self.bridge.weight)
        nn.init.zeros_(self.bridge.bias)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, view1: Tensor, view2: Tensor, seen: Tensor | None = None) -> Tensor:
        """What the head makes of the first view, next to the second.

        Args:
            view1: pixels between 0 and 1, (B, C, H, W).
            view2: the same of the other view; it may have another size.
            seen: which patches of the first view the encoder sees, (B, K); all unless given.

        Returns:
            The pixels of every patch, (B, N, C · patch · patch), each patch in its own mean and deviation; or, of a
            dense head, its outputs for every pixel, (B, outputs, H, W).
        """
        rows, columns = self.patch_embedding.grid(view1)
        y: Tensor = self.head(self.both(view1, view2, seen), rows, columns)
        return y

    def embed(self, images: Tensor) -> Tensor:
        """The encoder's features of all patches, (B, N, W): those of one view by itself."""
        return self._encode(images)

    def both(self, view1: Tensor, view2: Tensor, seen: Tensor | None = None) -> Tensor:
        """The decoder's features of all patches of the first view, which know of the second, (B, N, V)."""
        memory, positions2 = self.bridge(self._encode(view2)), self._places(view2)
        positions1 = self._places(view1)
        # Under autocast, what residual connections add to stays in the weights' precision, here and in the encoder.
        x = self.bridge(self._encode(view1, seen)).to(self.mask_token.dtype)
        x = self._with_masks(x, seen, positions1.shape[1])
        if self.decoder_positions is not None:
            x = x + self.decoder_positions(positions1, _longest(view1))
            memory = memory + self.decoder_positions(positions2, _longest(view2))
        for block in self.decoder:
            x = block(x, memory, positions=positions1, memory_positions=positions2)
        y: Tensor = self.decoder_norm(x)
        return y

    def patches(self, images: Tensor) -> Tensor:
        """What the pixel head is to say of images: each patch in its own mean and deviation, (B, N, C · patch²)."""
        pixels = patchify(images, self.patch_embedding.patch)
        variance, mean = torch.var_mean(pixels, -1, keepdim=True)
        return (pixels - mean) / (variance + TARGET_EPS).sqrt()

    def paint(self, said: Tensor, images: Tensor) -> Tensor:
        """Images from what the pixel head said, with the mean and deviation of each patch of `images`, (B, C, H, W)."""
        size = self.patch_embedding.patch
        variance, mean = torch.var_mean(patchify(images, size), -1, keepdim=True)
        return unpatchify(said * (variance + TARGET_EPS).sqrt() + mean, self.patch_embedding.grid(images), size)

    def _encode(self, images: Tensor, seen: Tensor | None = None) -> Tensor:
        """The patches of the images, or those that are seen, in context, (B, N or K, W)."""
        x = self.patch_embedding((images - self.config.mean) / self.config.std).to(self.mask_token.dtype)
        positions = self._places(images)
        if self.encoder_positions is not None:
            x = x + self.encoder_positions(positions, _longest(images))
        if seen is not None:
            x, positions = gather_tokens(x, seen), gather_tokens(positions.expand(len(x), -1, -1), seen)
        for block in self.encoder:
            x = block(x, None, positions)
        y: Tensor = self.encoder_norm(x)
        return y

    def _with_masks(self, x: Tensor, seen: Tensor | None, count: int) -> Tensor:
        """Seen patches at their places, and the mask everywhere else, (B, N, V)."""
        if seen is None:
            return x
        masks = self.mask_token.expand(len(x), count, -1)
        return masks.scatter(1, seen[..., None].expand(-1, -1, x.shape[-1]), x)

    def _places(self, images: Tensor) -> Tensor:
        """The (y, x) of every patch, (1, N, 2)."""
        return grid_positions(*self.patch_embedding.grid(images), images.device)[None]

    def _encoder_block(self, drop_path: float) -> EncoderBlock:
        c = self.config
        hidden = FeedForward(c.width, c.hidden or 4 * c.width, "gelu")
        attention = self._attention(c.width, c.heads)
        return EncoderBlock(attention, hidden, "pre", eps=c.norm_eps, drop_path=drop_path)

    def _decoder_block(self, drop_path: float) -> DecoderBlock:
        c = self.config
        width, heads = c.decoder_width, c.decoder_heads
        attention, cross = self._attention(width, heads), self._attention(width, heads)
        hidden = FeedForward(width, c.decoder_hidden or 4 * width, "gelu")
        return DecoderBlock(attention, cross, hidden, "pre", eps=c.norm_eps, drop_path=drop_path, context_norm=True)

    def _attention(self, width: int, heads: int) -> Attention:
        rotary = Rotary2D(width // heads) if self.config.positions == "rotary" else None
        return Attention(width, heads, rotary=rotary)


class PixelHead(nn.Module):
    """Each patch's pixels, from its features alone."""

    def __init__(self, config: CroCoConfig) -> None:
        super().__init__()
        self.linear = Linear(config.decoder_width, config.channels * config.patch**2)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        y: Tensor = self.linear(x)
        return y


class DenseHead(nn.Module):
    """Numbers for every pixel: features are brought to twice their resolution, and smoothed, until that is full."""

    def __init__(self, config: CroCoConfig) -> None:
        super().__init__()
        doublings = config.patch.bit_length() - 1
        widths = [min(config.decoder_width, config.head_width * 2**power) for power in range(doublings, -1, -1)]
        self.first = nn.Conv2d(config.decoder_width, widths[0], 1)
        self.steps = nn.ModuleList(
            nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
                nn.Conv2d(before, after, 3, padding=1),
                nn.GELU(),
                nn.Conv2d(after, after, 3, padding=1),
                nn.GELU(),
            )
            for before, after in pairwise(widths)
        )
        self.last = nn.Conv2d(widths[-1], config.outputs, 3, padding=1)

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        x = self.first(x.transpose(1, 2).reshape(len(x), -1, rows, columns))
        for step in self.steps:
            x = step(x)
        y: Tensor = self.last(x)
        return y


def _longest(images: Tensor) -> int:
    """More than any row or column of patches can be."""
    return max(images.shape[-2:])
