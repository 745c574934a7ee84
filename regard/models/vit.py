"""The Vision Transformer of "An Image is Worth 16x16 Words" and its common variants.

An image is divided into patches, each of which becomes a token. A class token and register tokens may precede them. A
Transformer encoder processes the tokens.

Shapes: B batch, C channels, N patches, T tokens (class token, registers, then patches), W width.
"""

import copy
from typing import Any, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.kinds import AttentionSettings, FullSettings
from regard.attention.multi_head import Attention, Rotary2D, grid_positions
from regard.config import Settings, Size
from regard.errors import UserError
from regard.layers import (
    Activation,
    EncoderBlock,
    FeedForward,
    ImageEmbedding,
    ImageModel,
    PatchEmbedding,
    Sinusoidal2D,
    check_image_size,
    drop_path_rates,
    gather_tokens,
    make_head,
    resize_grid,
)
from regard.masks import Mask
from regard.ops import dispatch
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear
from regard.ops.norm_gelu import conv_norm_gelu

MIN_CHANNELS = 4
"""Minimum number of output channels of the first convolution: a norm over fewer channels removes most information."""


class ViTConfig(Settings):
    """Configuration of a `ViT`. The defaults are the base model of the paper without a head."""

    kind: Literal["vit"] = "vit"
    image: Size = Field((224, 224), description="height and width in pixels: one number, or [height, width]")
    channels: int = Field(3, gt=0, description="image channels: 3 for colour, 1 for grey")
    patch: Size = Field((16, 16), description="height and width of a patch: one number, or [height, width]")
    stem: Literal["patches", "convolutions"] = Field(
        "patches", description="patch embedding: a linear projection of each patch, or 3×3 convolutions"
    )
    stem_depth: int = Field(1, ge=1, le=8, description="for convolutions: number of layers per resolution")
    classes: int = Field(0, ge=0, description="number of classes; 0: no head, features only")
    width: int = Field(768, gt=0, description="width of each token")
    layers: int = Field(12, ge=0, le=1000, description="number of encoder blocks")
    heads: int = Field(12, gt=0, description="number of attention heads; must divide the width")
    hidden: int = Field(3072, gt=0, description="hidden features of the feed-forward layers")
    activation: Activation = Field("gelu", description="activation of the feed-forward layers")
    pooling: Literal["class", "mean", "sequence"] = Field(
        "class",
        description="features of the image: the class token, the mean of the patches, or a mean with learned weights",
    )
    registers: int = Field(0, ge=0, description="number of register tokens, which pooling ignores")
    positions: Literal["learned", "sincos", "rotary"] = Field(
        "learned", description="added: learned, or 2-D sines and cosines; or 2-D rotary embeddings of q and k"
    )
    attention: AttentionSettings = Field(
        FullSettings(), description="full, local, linear or routing, with its own keys; tokens are in row-major order"
    )
    qkv_bias: bool = Field(True, description="whether queries, keys and values have a bias")
    qk_scale: float | None = Field(None, description="factor on the scores; 1/√(head width) by default")
    norm_eps: float = Field(1e-6, gt=0, description="epsilon of the norms")
    layer_scale: float | None = Field(
        None, description="initial value of a learned factor on the output of each sublayer; none by default"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of embeddings and of the output of each sublayer")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of attention weights")
    drop_path: float = Field(
        0.0, ge=0, lt=1, description="stochastic depth of the last layer; earlier layers have less"
    )
    patch_dropout: float = Field(0.0, ge=0, lt=1, description="fraction of the patches dropped in training")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if self.positions == "sincos" and self.width % 4:
            raise ValueError(f"sincos positions need a width divisible by 4, not {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 4:
            raise ValueError(f"rotary positions need a head width divisible by 4, not {self.width // self.heads}")
        self.attention.check(self.qk_scale, self.attention_dropout)
        try:
            check_image_size(self.image, self.patch)
        except UserError as error:
            raise ValueError(str(error)) from None
        if self.stem == "convolutions":
            check_stem(self.patch, self.width)
        elif self.stem_depth > 1:
            raise ValueError("stem_depth is the depth of a convolutional stem; set stem=convolutions")
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before the patches."""
        return (self.pooling == "class") + self.registers

    @classmethod
    def base(cls, classes: int = 1000, **changes: Any) -> Self:
        """ViT-B/16, 86.6 million parameters."""
        return cls.parse({"classes": classes} | changes, cls.__name__)

    @classmethod
    def tiny(cls, classes: int = 1000, **changes: Any) -> Self:
        """ViT-Ti/16, 5.7 million parameters."""
        return cls.base(classes, **{"width": 192, "heads": 3, "hidden": 768} | changes)

    @classmethod
    def small(cls, classes: int = 1000, **changes: Any) -> Self:
        """ViT-S/16, 22 million parameters."""
        return cls.base(classes, **{"width": 384, "heads": 6, "hidden": 1536} | changes)

    @classmethod
    def large(cls, classes: int = 1000, **changes: Any) -> Self:
        """ViT-L/16, 304 million parameters."""
        return cls.base(classes, **{"width": 1024, "layers": 24, "heads": 16, "hidden": 4096} | changes)

    @classmethod
    def huge(cls, classes: int = 1000, **changes: Any) -> Self:
        """ViT-H/14, 632 million parameters."""
        sizes = {"patch": 14, "width": 1280, "layers": 32, "heads": 16, "hidden": 5120}
        return cls.base(classes, **sizes | changes)

    @classmethod
    def mini(cls, classes: int, image: int | tuple[int, int] = 32, channels: int = 3, **changes: Any) -> Self:
        """A model for images of 28 to 64 pixels, 5.6 million parameters."""
        sizes = {"width": 256, "layers": 7, "heads": 4, "hidden": 1024, "patch": 4, "pooling": "mean"}
        return cls.base(classes, **{"image": image, "channels": channels} | sizes | changes)

    @classmethod
    def micro(cls, classes: int, image: int | tuple[int, int] = 32, channels: int = 3, **changes: Any) -> Self:
        """A small model for images of 28 to 64 pixels and training on a CPU, 0.8 million parameters."""
        return cls.mini(classes, image, channels, **{"width": 128, "layers": 6, "hidden": 256} | changes)


class ViT(ImageModel):
    """A Transformer encoder over the patches of an image, with a linear classification head.

    Images are (B, C, H, W) in floating point, normalised as in training. Their size may differ from the configured one:
    learned positions are interpolated, other positions extend to any size.
    """

    config: ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        rows, columns = c.grid
        self.patches = self._patch_embedding()
        self.class_token = _small_parameter(1, c.width) if c.pooling == "class" else None
        self.registers = _small_parameter(c.registers, c.width) if c.registers else None
        # The position of the class token comes first; registers have no position.
        learned = (c.pooling == "class") + rows * columns
        self.positions = _small_parameter(learned, c.width) if c.positions == "learned" else None
        self.sincos = Sinusoidal2D(c.width) if c.positions == "sincos" else None
        self.dropout = Dropout(c.dropout)
        self.encoder = nn.ModuleList(self._block(rate) for rate in drop_path_rates(c.drop_path, c.layers))
        self.norm = nn.LayerNorm(c.width, c.norm_eps)
        self.pool_scores = Linear(c.width, 1) if c.pooling == "sequence" else None
        self.head = make_head(c.width, c.classes)

    def tokens(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the encoded tokens, (B, T, W): class token, registers, then patches in row-major order.

        Args:
            images: Images, (B, C, H, W).
            keep: Indices of the patches to encode, (B, K). By default all; in training, `patch_dropout` drops some.
        """
        x, positions = self._embed_patches(images, keep)
        mask = Mask()
        for block in self.encoder:
            x = block(x, mask, positions)
        y: Tensor = self.norm(x)
        return y

    def embed(self, images: Tensor) -> Tensor:
        """Return the features of each image, (B, W)."""
        c = self.config
        one_token = c.pooling == "class" and c.attention.kind == "full" and c.layers > 0
        if one_token and dispatch.class_token_block_applies(self.encoder):
            return self.pool(self._encode_class_token(images))
        return self.pool(self.tokens(images))

    def pool(self, tokens: Tensor) -> Tensor:
        """Return the features of each image, (B, T, W) to (B, W)."""
        if self.config.pooling == "class":
            return tokens[:, 0]
        patches_BNW = tokens[:, self.config.prefix_tokens :]
        if self.pool_scores is None:
            return patches_BNW.mean(1)
        weights_BN1: Tensor = self.pool_scores(patches_BNW).float().softmax(1)
        return (weights_BN1.to(patches_BNW) * patches_BNW).sum(1)

    def resized(self, image: int | tuple[int, int], antialias: bool = True) -> "ViT":
        """Return a copy for images of another size, with interpolated positions if these are learned.

        Args:
            image: Height and width in pixels, or one number for both.
            antialias: Whether to smooth positions that are interpolated to a smaller grid, as timm does.
        """
        model = copy.deepcopy(self)
        model.config = self.config.changed(image=image)
        if self.positions is not None:
            model.positions = nn.Parameter(self._interpolated_positions(model.config.grid, antialias).detach().clone())
        return model

    def _embed_patches(self, images: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the input of the encoder, (B, T, W), and positions for rotary embeddings, (B, T, 2) or (1, T, 2)."""
        x = self.patches(images)
        grid = self.patches.grid(images)
        coordinates = grid_positions(*grid, x.device)[None] if self.config.positions != "learned" else None
        x = self._add_positions(x, grid, coordinates)
        if keep is None and self.training and self.config.patch_dropout:
            keep = self._draw_kept_patches(x)
        if keep is not None:
            x = gather_tokens(x, keep)
            coordinates = None if coordinates is None else gather_tokens(coordinates.expand(len(x), -1, -1), keep)
        x = self._prepend_tokens(x)
        if self.training:
            x = self.dropout(x)
        if self.config.positions != "rotary" or coordinates is None:
            return x, None
        return x, self._prepend_origin(coordinates)

    def _encode_class_token(self, images: Tensor) -> Tensor:
        """Return the encoded class token, (B, 1, W); the last block computes no other token."""
        x, positions = self._embed_patches(images)
        mask = Mask()
        for block in self.encoder[:-1]:
            x = block(x, mask, positions)
        last: Any = self.encoder[-1]
        y: Tensor = self.norm(last.class_token(x, mask, positions))
        return y

    def _add_positions(self, x: Tensor, grid: tuple[int, int], coordinates: Tensor | None) -> Tensor:
        """Add learned or sinusoidal positions to the patches."""
        if self.positions is not None:
            return x + self._interpolated_positions(grid)[-x.shape[1] :]
        if self.sincos is not None and coordinates is not None:
            x = x + self.sincos(coordinates, max(grid))
        return x

    def _interpolated_positions(self, grid: tuple[int, int], antialias: bool = True) -> Tensor:
        """Return the learned positions of a grid; the position of the class token, which is first, is kept."""
        assert self.positions is not None
        if grid == self.config.grid:
            return self.positions
        first = self.positions.shape[0] - self.config.grid[0] * self.config.grid[1]
        patches = resize_grid(self.positions[first:], self.config.grid, grid, antialias)
        return torch.cat((self.positions[:first], patches))

    def _prepend_tokens(self, x: Tensor) -> Tensor:
        """Put the class token and the registers before the patches."""
        tokens = [x]
        if self.registers is not None:
            tokens.insert(0, self.registers.expand(x.shape[0], -1, -1))
        if self.class_token is not None:
            class_token = self.class_token if self.positions is None else self.class_token + self.positions[:1]
            tokens.insert(0, class_token.expand(x.shape[0], -1, -1))
        return torch.cat(tokens, 1) if len(tokens) > 1 else x

    def _prepend_origin(self, coordinates: Tensor) -> Tensor:
        """Give the tokens before the patches the coordinates (0, 0), for which the rotary embedding is the identity."""
        return torch.cat((coordinates.new_zeros(len(coordinates), self.config.prefix_tokens, 2), coordinates), 1)

    def _draw_kept_patches(self, x: Tensor) -> Tensor:
        """Draw the patches that patch dropout keeps, independently for each image, (B, K)."""
        B, N, _ = x.shape
        kept = max(1, round(N * (1 - self.config.patch_dropout)))
        return torch.rand(B, N, device=x.device).argsort(1)[:, :kept].sort(1).values

    def _patch_embedding(self) -> ImageEmbedding:
        c = self.config
        if c.stem == "convolutions":
            return ConvolutionalStem(c.channels, c.patch, c.width, c.norm_eps, c.stem_depth)
        return PatchEmbedding(c.channels, c.patch, c.width)

    def _block(self, drop_path: float) -> EncoderBlock:
        c = self.config
        head_width = c.width // c.heads
        attention = Attention(
            c.width,
            c.heads,
            qkv_bias=c.qkv_bias,
            attention_dropout=c.attention_dropout,
            rotary=Rotary2D(head_width) if c.positions == "rotary" else None,
            kind=c.attention.build(c.heads, head_width, c.qk_scale),
        )
        feed_forward = FeedForward(c.width, c.hidden, c.activation)
        return EncoderBlock(attention, feed_forward, "pre", c.dropout, c.norm_eps, drop_path, c.layer_scale)


def _small_parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=0.02))


# The convolutional stem of "Early Convolutions Help Transformers See Better"


def check_stem(patch: tuple[int, int], width: int) -> None:
    """Raise ValueError unless a convolutional stem can produce tokens of this patch size and width."""
    height, across = patch
    if height != across or height.bit_count() != 1 or height == 1:
        raise ValueError(f"stem convolutions needs a square patch of 2, 4, 8, 16, ... pixels, not {height}×{across}")
    if width % height or width < MIN_CHANNELS * height:
        valid = (max(MIN_CHANNELS, factor) * height for factor in (width // height, -(-width // height)))
        raise ValueError(
            f"stem convolutions needs a width of at least {MIN_CHANNELS} times the patch size and divisible by it; "
            f"for a patch of {height}, not {width} but {' or '.join(map(str, dict.fromkeys(valid)))} would fit"
        )


class ConvolutionalStem(ImageEmbedding):
    """3×3 convolutions that halve the resolution step by step, followed by a linear projection to tokens.

    Each halving doubles the channels, up to the width of the tokens. A convolution is followed by a LayerNorm over the
    channels of each pixel, which does not depend on other images of the batch, and by GELU.

    Args:
        channels: Number of image channels.
        patch: Height and width of the pixels that become one token: the same power of two.
        width: Width of the tokens, a multiple of the patch size.
        eps: Epsilon of the norms.
        depth: Number of convolutions per resolution.
    """

    def __init__(self, channels: int, patch: tuple[int, int], width: int, eps: float, depth: int = 1) -> None:
        super().__init__(channels, patch)
        widths = [width // patch[0] << step for step in range(patch[0].bit_length()) for _ in range(depth)]
        strides = [2 if layer % depth == 0 and layer > 0 else 1 for layer in range(len(widths))]
        self.convolutions = nn.ModuleList(
            _convolution(inputs, outputs, stride)
            for inputs, outputs, stride in zip([channels, *widths], widths, strides, strict=False)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(channels, eps) for channels in widths)
        self.projection = Linear(width, width)
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images; see `ImageEmbedding`."""
        self.check(images)
        # With channels last, LayerNorm reads contiguous rows, and convolutions are faster on a GPU.
        x = images.contiguous(memory_format=torch.channels_last)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            y = conv_norm_gelu(x, cast(nn.Conv2d, convolution), cast(nn.LayerNorm, norm))  # (B, H, W, C)
            x = y.permute(0, 3, 1, 2)
        tokens: Tensor = self.projection(x.permute(0, 2, 3, 1).flatten(1, 2))
        return tokens


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    """Return a 3×3 convolution. Its bias keeps PyTorch's initialisation, for the reason given in `PatchEmbedding`."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return convolution
