"""The Vision Transformer of "An Image is Worth 16x16 Words", and its usual variations.

An image is cut into patches, each of which becomes a token; a class token and registers may stand before them. From
there on it is the encoder of the Transformer.

Shapes: B batch, C channels, N patches, T tokens (class token, registers, then patches), W width.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.kinds import AttentionSettings, FullSettings, check_attention
from regard.attention.masks import Mask
from regard.attention.multi_head import Attention
from regard.attention.positions import Rotary2D, Sinusoidal2D, grid_positions, resize_grid
from regard.config import Settings
from regard.errors import UserError
from regard.layers import (
    Activation,
    EncoderBlock,
    FeedForward,
    ImageEmbedding,
    PatchEmbedding,
    check_image_size,
    drop_path_rates,
    gather_tokens,
)
from regard.models.base import ImageModel, Size, make_head
from regard.models.stem import ConvolutionalStem, check_stem
from regard.ops.dropout import Dropout


class ViTConfig(Settings):
    """Everything that a `ViT` is built from. The defaults are the paper's base model without a head."""

    kind: Literal["vit"] = "vit"
    image: Size = Field((224, 224), description="height and width in pixels: one number, or [height, width]")
    channels: int = Field(3, gt=0, description="3 for colour, 1 for grey")
    patch: Size = Field((16, 16), description="height and width of a patch: one number, or [height, width]")
    stem: Literal["patches", "convolutions"] = Field(
        "patches", description="what makes tokens of pixels: one linear map of each patch, or 3×3 convolutions"
    )
    stem_depth: int = Field(1, ge=1, le=8, description="for convolutions: how many at each size of the picture")
    classes: int = Field(0, ge=0, description="how many classes the head tells apart; 0: no head, features alone")
    width: int = Field(768, gt=0, description="of every token")
    layers: int = Field(12, ge=0, le=1000, description="blocks of attention and feed-forward")
    heads: int = Field(12, gt=0, description="of every attention; they must divide the width")
    hidden: int = Field(3072, gt=0, description="width inside the feed-forward")
    activation: Activation = Field("gelu", description="inside the feed-forward: relu, gelu or swiglu")
    pooling: Literal["class", "mean"] = Field(
        "class", description="what stands for the image: a class token of its own, or the mean of the patches"
    )
    registers: int = Field(0, ge=0, description="further tokens that belong to no patch, and that no pooling reads")
    positions: Literal["learned", "sincos", "rotary"] = Field(
        "learned", description="added: learned, or sines and cosines of row and column; or q and k turned by both"
    )
    attention: AttentionSettings = Field(
        FullSettings(), description="full, local, linear or routing, with its own keys; tokens count row after row"
    )
    qkv_bias: bool = Field(True, description="whether queries, keys and values have a bias")
    qk_scale: float | None = Field(None, description="factor on the scores; 1/√(width of a head) unless given")
    norm_eps: float = Field(1e-6, gt=0, description="keeps the norms from dividing by nothing")
    layer_scale: float | None = Field(
        None, description="first value of a learned factor on what each sublayer adds; none unless given"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="on the embedded patches and on what each sublayer adds")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    drop_path: float = Field(
        0.0, ge=0, lt=1, description="how often the last layer is left out for an image, in training; earlier less"
    )
    patch_dropout: float = Field(0.0, ge=0, lt=1, description="share of the patches that are left out, in training")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if self.positions == "sincos" and self.width % 4:
            raise ValueError(f"sincos positions need a width divisible by 4, not {self.width}")
        if self.positions == "rotary" and self.width // self.heads % 4:
            raise ValueError(f"rotary positions need a head width divisible by 4, not {self.width // self.heads}")
        check_attention(self.attention, self.qk_scale, self.attention_dropout)
        try:
            check_image_size(self.image, self.patch)
        except UserError as error:
            raise ValueError(str(error)) from None
        if self.stem == "convolutions":
            check_stem(self.patch, self.width)
        elif self.stem_depth > 1:
            raise ValueError("stem_depth counts convolutions, and there are none; set stem=convolutions")
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image[0] // self.patch[0], self.image[1] // self.patch[1]

    @property
    def leading(self) -> int:
        """How many tokens stand before the patches."""
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
        """For images of 28 to 64 pixels, 5.6 million parameters."""
        sizes = {"width": 256, "layers": 7, "heads": 4, "hidden": 1024, "patch": 4, "pooling": "mean"}
        return cls.base(classes, **{"image": image, "channels": channels} | sizes | changes)

    @classmethod
    def micro(cls, classes: int, image: int | tuple[int, int] = 32, channels: int = 3, **changes: Any) -> Self:
        """For images of 28 to 64 pixels where there is no GPU, 0.8 million parameters."""
        return cls.mini(classes, image, channels, **{"width": 128, "layers": 6, "hidden": 256} | changes)


class ViT(ImageModel):
    """An encoder over the patches of an image, and a linear head on what stands for the whole of it.

    Images are (B, C, H, W), in floating point, normalised as the caller trained them. Their size need not be the
    config's: learned positions are interpolated, the others know every place anyway.
    """

    config: ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        rows, columns = c.grid
        self.patches = self._embedding()
        self.class_token = _small(1, c.width) if c.pooling == "class" else None
        self.registers = _small(c.registers, c.width) if c.registers else None
        # The class token's position comes first; registers have none.
        self.positions = _small((c.pooling == "class") + rows * columns, c.width) if c.positions == "learned" else None
        self.sincos = Sinusoidal2D(c.width) if c.positions == "sincos" else None
        self.dropout = Dropout(c.dropout)
        self.encoder = nn.ModuleList(self._block(rate) for rate in drop_path_rates(c.drop_path, c.layers))
        self.norm = nn.LayerNorm(c.width, c.norm_eps)
        self.head = make_head(c.width, c.classes)

    def tokens(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """The encoded tokens of each image, (B, T, W): class token, registers, then patches row after row.

        Args:
            images: (B, C, H, W).
            keep: the numbers of the patches to be read, (B, kept); all unless given, or, in training, all but those
                that `patch_dropout` takes.

        Raises:
            UserError: the images have other channels or a size that is not a whole number of patches.
        """
        return self._encode(images, keep)

    def embed(self, images: Tensor) -> Tensor:
        """One vector of features for each image, (B, W)."""
        return self.pool(self._encode(images, count=1 if self._reads_one() else None))

    def _reads_one(self) -> bool:
        """Whether what the last block makes of all tokens but the first is read by nobody.

        Kinds of attention other than full are left alone: to them it matters where a query stands.
        """
        observed = any(cast(EncoderBlock, block).attention.qkv_hook is not None for block in self.encoder)
        return self.config.pooling == "class" and self.config.attention.kind == "full" and not observed

    def _encode(self, images: Tensor, keep: Tensor | None = None, count: int | None = None) -> Tensor:
        """`tokens`, or at least the first so many of them."""
        x = self.patches(images)
        grid = self.patches.grid(images)
        places = grid_positions(*grid, x.device)[None] if self.config.positions != "learned" else None
        x = self._place(x, grid, places)
        if keep is None and self.training and self.config.patch_dropout:
            keep = self._spared(x)
        if keep is not None:
            x = gather_tokens(x, keep)
            places = None if places is None else gather_tokens(places.expand(len(x), -1, -1), keep)
        x = self.dropout(self._lead(x))
        mask = Mask()
        turns = self._lead_places(places) if self.config.positions == "rotary" and places is not None else None
        for block in self.encoder:
            x = block(x, mask, turns, count if block is self.encoder[-1] else None)
        y: Tensor = self.norm(x)
        return y

    def pool(self, tokens: Tensor) -> Tensor:
        """What stands for the whole image, (B, T, W) to (B, W)."""
        return tokens[:, 0] if self.config.pooling == "class" else tokens[:, self.config.leading :].mean(1)

    def resized(self, image: int | tuple[int, int], antialias: bool = True) -> ViT:
        """A copy for images of another size: learned positions are interpolated, all else is the same.

        Args:
            image: height and width in pixels, or one number for both.
            antialias: whether positions of a smaller grid are smoothed, as timm does.
        """
        model = copy.deepcopy(self)
        model.config = self.config.changed(image=image)
        if self.positions is not None:
            model.positions = nn.Parameter(self._learned(model.config.grid, antialias).detach().clone())
        return model

    def _place(self, x: Tensor, grid: tuple[int, int], places: Tensor | None) -> Tensor:
        """Patches with their positions added, unless these are rotary."""
        if self.positions is not None:
            return x + self._learned(grid)[-x.shape[1] :]
        if self.sincos is not None and places is not None:
            x = x + self.sincos(places, max(grid))
        return x

    def _learned(self, grid: tuple[int, int], antialias: bool = True) -> Tensor:
        """The learned positions for a grid, that of the class token first; it is never interpolated."""
        assert self.positions is not None
        if grid == self.config.grid:
            return self.positions
        first = self.positions.shape[0] - self.config.grid[0] * self.config.grid[1]
        patches = resize_grid(self.positions[first:], self.config.grid, grid, antialias)
        return torch.cat((self.positions[:first], patches))

    def _lead(self, x: Tensor) -> Tensor:
        """The tokens that belong to no patch, put before the patches."""
        parts = [x]
        if self.registers is not None:
            parts.insert(0, self.registers.expand(x.shape[0], -1, -1))
        if self.class_token is not None:
            first = self.class_token if self.positions is None else self.class_token + self.positions[:1]
            parts.insert(0, first.expand(x.shape[0], -1, -1))
        return torch.cat(parts, 1) if len(parts) > 1 else x

    def _lead_places(self, places: Tensor) -> Tensor:
        """Places for all tokens; those that belong to no patch stand at the origin, where nothing is turned."""
        return torch.cat((places.new_zeros(len(places), self.config.leading, 2), places), 1)

    def _spared(self, x: Tensor) -> Tensor:
        """The numbers of patches left when some are dropped by chance, other ones for each image, (B, kept)."""
        B, N, _ = x.shape
        kept = max(1, round(N * (1 - self.config.patch_dropout)))
        return torch.rand(B, N, device=x.device).argsort(1)[:, :kept].sort(1).values

    def _embedding(self) -> ImageEmbedding:
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


def _small(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=0.02))
