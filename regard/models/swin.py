"""The Swin Transformer of "Hierarchical Vision Transformer using Shifted Windows".

Attention stays within windows of the grid of patches; every second block shifts them, so that neighbours meet. From one
stage to the next, four tokens are merged into one. It is a partition, a bias and a mask round the same attention as
everywhere; any size of image fits, because places that a grid lacks to whole windows are never attended to.

Shapes: B batch, C channels, N tokens of a stage row after row, n windows, T places of a window, W width of a stage.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.multi_head import Attention
from regard.attention.positions import grid_positions
from regard.attention.relative import Relative
from regard.config import Settings
from regard.layers import FeedForward, PatchEmbedding, Residual, drop_path_rates
from regard.models.base import ImageModel, Size, make_head
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear

Grid = tuple[int, int]


class SwinConfig(Settings):
    """Everything that a `Swin` is built from. The defaults are the paper's tiny model without a head."""

    kind: Literal["swin"] = "swin"
    image: Size = Field((224, 224), description="the usual height and width in pixels; images of any size are read")
    channels: int = Field(3, gt=0, description="3 for colour, 1 for grey")
    patch: Size = Field((4, 4), description="height and width of a patch: one number, or [height, width]")
    window: Size = Field((7, 7), description="rows and columns of a window, in tokens: one number, or [rows, columns]")
    classes: int = Field(0, ge=0, description="how many classes the head tells apart; 0: no head, features alone")
    width: int = Field(96, gt=0, description="of the first stage; it doubles from stage to stage")
    layers: tuple[Annotated[int, Field(gt=0, le=1000)], ...] = Field(
        (2, 2, 6, 2), min_length=1, max_length=8, description="of each stage"
    )
    heads: tuple[PositiveInt, ...] = Field((3, 6, 12, 24), description="of each stage")
    expansion: int = Field(4, gt=0, description="how many times wider the feed-forward is inside")
    qkv_bias: bool = Field(True, description="whether queries, keys and values have a bias")
    qk_scale: float | None = Field(None, description="factor on the scores; 1/√(width of a head) unless given")
    norm_eps: float = Field(1e-5, gt=0, description="keeps the norms from dividing by nothing")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the embedded patches and on what each sublayer adds")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    drop_path: float = Field(
        0.0, ge=0, lt=1, description="how often the last layer is left out for an image, in training; earlier less"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.heads) != len(self.layers):
            raise ValueError(f"{len(self.heads)} numbers of heads for {len(self.layers)} stages of layers")
        for stage, heads in enumerate(self.heads):
            if self.stage_width(stage) % heads:
                raise ValueError(
                    f"width {self.stage_width(stage)} of stage {stage + 1} is not divisible by heads {heads}"
                )
        return self

    def stage_width(self, stage: int) -> int:
        """The width of a stage, counted from 0."""
        return self.width << stage

    @classmethod
    def tiny(cls, classes: int = 1000, **changes: Any) -> Self:
        """Swin-T, 28.3 million parameters."""
        return cls.parse({"classes": classes} | changes, cls.__name__)

    @classmethod
    def small(cls, classes: int = 1000, **changes: Any) -> Self:
        """Swin-S, 49.6 million parameters."""
        return cls.tiny(classes, **{"layers": (2, 2, 18, 2)} | changes)

    @classmethod
    def base(cls, classes: int = 1000, **changes: Any) -> Self:
        """Swin-B, 87.8 million parameters."""
        return cls.small(classes, **{"width": 128, "heads": (4, 8, 16, 32)} | changes)

    @classmethod
    def mini(cls, classes: int, image: int | tuple[int, int] = 32, channels: int = 3, **changes: Any) -> Self:
        """For images of 28 to 64 pixels, 5.9 million parameters."""
        sizes = {"patch": 2, "window": 4, "layers": (2, 4, 2), "heads": (3, 6, 12)}
        return cls.tiny(classes, **{"image": image, "channels": channels} | sizes | changes)


class Swin(ImageModel):
    """Stages of windowed attention over ever fewer and wider tokens, and a linear head on their mean.

    Images are (B, C, H, W), in floating point, normalised as the caller trained them, and of any size.
    """

    config: SwinConfig

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        self.patches = PatchEmbedding(c.channels, c.patch, c.width)
        self.patch_norm = nn.LayerNorm(c.width, c.norm_eps)
        self.dropout = Dropout(c.dropout)
        rates = iter(drop_path_rates(c.drop_path, sum(c.layers)))
        self.stages = nn.ModuleList(SwinStage(c, stage, rates) for stage in range(len(c.layers)))
        self.width = c.stage_width(len(c.layers) - 1)
        self.norm = nn.LayerNorm(self.width, c.norm_eps)
        self.head = make_head(self.width, c.classes)

    def tokens(self, images: Tensor) -> Tensor:
        """The encoded tokens of the last stage, (B, N, W), row after row.

        Raises:
            UserError: the images have other channels than the model reads.
        """
        images = _pad(images, self.config.patch)
        grid = self.patches.grid(images)
        x = self.dropout(self.patch_norm(self.patches(images)))
        for stage in self.stages:
            x, grid = stage(x, grid)
        y: Tensor = self.norm(x)
        return y

    def resized(self, image: int | tuple[int, int]) -> Swin:
        """A copy for images of another size, which it reads anyway: only its config says so."""
        model = copy.deepcopy(self)
        model.config = self.config.changed(image=image)
        return model

    def pool(self, tokens: Tensor) -> Tensor:
        """What stands for the whole image, (B, N, W) to (B, W)."""
        return tokens.mean(1)

    def windows(self, image: Grid) -> dict[str, Windows]:
        """How each attention, by its name, cuts up an image of this height and width."""
        rows, columns = (-(-size // part) for size, part in zip(image, self.config.patch, strict=True))
        cut: dict[str, Windows] = {}
        for number, module in enumerate(self.stages):
            stage = cast(SwinStage, module)
            rows, columns = stage.grid((rows, columns))
            for layer in range(len(stage.blocks)):
                cut[f"stages.{number}.blocks.{layer}.attention"] = stage.windows((rows, columns), layer)
        return cut


class SwinStage(nn.Module):
    """Blocks of one width, every second of them shifted, after tokens have been merged in all stages but the first."""

    def __init__(self, config: SwinConfig, number: int, drop_paths: Iterator[float]) -> None:
        super().__init__()
        c, width = config, config.stage_width(number)
        self.window = c.window
        self.merge = PatchMerging(width // 2, c.norm_eps) if number else None
        self.blocks = nn.ModuleList(
            SwinBlock(
                Attention(
                    width,
                    c.heads[number],
                    qkv_bias=c.qkv_bias,
                    attention_dropout=c.attention_dropout,
                    kind=Relative(c.window, c.heads[number], c.qk_scale),
                ),
                FeedForward(width, c.expansion * width, "gelu"),
                c.dropout,
                c.norm_eps,
                next(drop_paths),
            )
            for _ in range(c.layers[number])
        )

    def forward(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        """Tokens (B, N, W) of a grid, to those of the grid that this stage makes of it."""
        if self.merge is not None:
            x = self.merge(x, grid)
        grid = self.grid(grid)
        cuts = [self.windows(grid, layer, x.device) for layer in range(2)]
        masks = [cut.mask(x.shape[0]) for cut in cuts]
        for layer, block in enumerate(self.blocks):
            x = block(x, cuts[layer % 2], masks[layer % 2])
        return x, grid

    def grid(self, grid: Grid) -> Grid:
        """Rows and columns of this stage, given those before it."""
        return grid if self.merge is None else (-(-grid[0] // 2), -(-grid[1] // 2))

    def windows(self, grid: Grid, layer: int, device: torch.device | None = None) -> Windows:
        """The windows of a layer; a side that fits into one window is not shifted."""
        shift = [
            size // 2 if layer % 2 and places > size else 0 for places, size in zip(grid, self.window, strict=True)
        ]
        # A compiler sees through the memory of earlier cuts, but not without a warning.
        cut = cut_windows if torch.compiler.is_compiling() else _known_windows
        return cut(grid, self.window, (shift[0], shift[1]), device or torch.device("cpu"))


class SwinBlock(nn.Module):
    """Self-attention within windows, then feed-forward, each within a residual connection."""

    def __init__(
        self, attention: Attention, feed_forward: FeedForward, dropout: float, eps: float, drop_path: float
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.around_attention = Residual(attention.width, "pre", dropout, eps, drop_path)
        self.around_feed_forward = Residual(attention.width, "pre", dropout, eps, drop_path)

    def forward(self, x: Tensor, windows: Windows, mask: Mask) -> Tensor:
        x = self.around_attention(x, lambda y: windows.join(self.attention(windows.cut(y), mask=mask)))
        y: Tensor = self.around_feed_forward(x, self.feed_forward)
        return y


class PatchMerging(nn.Module):
    """Four neighbouring tokens become one of twice the width: (B, N, W) to (B, N / 4, 2 · W)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width, eps)
        self.linear = Linear(4 * width, 2 * width, bias=False)
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        B, _, W = x.shape
        rows, columns = -(-grid[0] // 2), -(-grid[1] // 2)
        x = x.view(B, *grid, W)
        if grid[0] % 2 or grid[1] % 2:
            x = F.pad(x, (0, 0, 0, grid[1] % 2, 0, grid[0] % 2))
        # Of the four, the two of the left column come first: the order of the published weights.
        x = x.view(B, rows, 2, columns, 2, W).permute(0, 1, 3, 4, 2, 5).reshape(B, rows * columns, 4 * W)
        y: Tensor = self.linear(self.norm(x))
        return y


class Windows(NamedTuple):
    """A grid cut into windows: which token stands at each place of them, and where each token went."""

    tokens: Tensor
    """The number of the token at each place, (n, T); where the grid lacks one stands another, which nobody sees."""
    places: Tensor
    """Where among the places of all windows each token stands, (N,)."""
    may: Tensor | None
    """Who may attend to whom, (n, T, T): not across the seam where shifted windows join opposite edges, and not to what
    is lacking. None where all see all."""

    def cut(self, x: Tensor) -> Tensor:
        """(B, N, W) to (B · n, T, W)."""
        return x[:, self.tokens.flatten()].view(-1, self.tokens.shape[1], x.shape[-1])

    def join(self, x: Tensor) -> Tensor:
        """(B · n, T, W) to (B, N, W)."""
        return x.view(-1, self.tokens.numel(), x.shape[-1])[:, self.places]

    def mask(self, batch: int) -> Mask:
        """Who may attend to whom in the windows of so many images."""
        return Mask() if self.may is None else Mask(allowed=self.may.repeat(batch, 1, 1)[:, None])


def cut_windows(grid: Grid, window: Grid, shift: Grid, device: torch.device) -> Windows:
    """Cuts a grid of tokens into windows that begin `shift` rows and columns into it and go round its edges."""
    (rows, columns), (height, width) = grid, window
    across = -(-columns // width)
    whole = (-(-rows // height) * height, across * width)
    with torch.inference_mode(False):  # they are kept, and training may come after
        # The place in the grid, (y, x), of what stands in each window.
        y, x = grid_positions(*whole, device).unbind(-1)
        y, x = ((part + by) % size for part, by, size in zip((y, x), shift, whole, strict=True))
        y, x = (part.view(-1, height, across, width).transpose(1, 2).reshape(-1, height * width) for part in (y, x))
        real = (y < rows) & (x < columns)
        tokens = y.clamp(max=rows - 1) * columns + x.clamp(max=columns - 1)
        may = (_apart(y) < height) & (_apart(x) < width) & real[:, None, :]
        # And the other way: the window of each token of the grid, and the place within it.
        y, x = grid_positions(*grid, device).unbind(-1)
        y, x = ((part - by) % size for part, by, size in zip((y, x), shift, whole, strict=True))
        places = (y // height * across + x // width) * height * width + y % height * width + x % width
    return Windows(tokens, places, None if shift == (0, 0) and grid == whole else may)


_known_windows = lru_cache(maxsize=64)(cut_windows)


def _apart(places_nT: Tensor) -> Tensor:
    """How far apart any two places of a window lie in the grid, (n, T, T)."""
    return (places_nT[:, :, None] - places_nT[:, None, :]).abs()


def _pad(images: Tensor, patch: Grid) -> Tensor:
    """Images with dark rows and columns added at the far edges, up to whole patches."""
    below, right = -images.shape[-2] % patch[0], -images.shape[-1] % patch[1]
    return F.pad(images, (0, right, 0, below)) if below or right else images
