"""The Swin Transformer of "Hierarchical Vision Transformer using Shifted Windows".

Attention is computed within windows of the grid of patches; every second block shifts the windows, so that information
crosses their borders. Between stages, four tokens are merged into one. Images of any size are supported: a grid that is
not a whole number of windows is padded with zeros, to which tokens attend as in the libraries that weights come from.

Shapes: B batch, C channels, N tokens of a stage in row-major order, n windows, T tokens of a window, W width of a
stage.
"""

import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention.biased import Relative
from regard.attention.multi_head import Attention, grid_positions
from regard.config import Settings, Size
from regard.layers import FeedForward, ImageModel, PatchEmbedding, ResidualBlock, drop_path_rates, make_head
from regard.masks import Mask
from regard.ops import dispatch, fused
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear

Grid = tuple[int, int]
WindowPadding = Literal["transformers", "timm"]


class SwinConfig(Settings):
    """Configuration of a `Swin`. The defaults are the tiny model of the paper without a head."""

    kind: Literal["swin"] = "swin"
    image: Size = Field((224, 224), description="usual height and width in pixels; images of any size are accepted")
    channels: int = Field(3, gt=0, description="image channels: 3 for colour, 1 for grey")
    patch: Size = Field((4, 4), description="height and width of a patch: one number, or [height, width]")
    window: Size = Field((7, 7), description="rows and columns of a window, in tokens: one number, or [rows, columns]")
    window_padding: WindowPadding = Field(
        "transformers",
        description="a grid that is not a whole number of windows is padded with zeros, to which tokens attend: before "
        "it is shifted, as in transformers, or after, as in timm",
    )
    classes: int = Field(0, ge=0, description="number of classes; 0: no head, features only")
    width: int = Field(96, gt=0, description="width of the first stage; each further stage has twice the width")
    layers: tuple[Annotated[int, Field(gt=0, le=1000)], ...] = Field(
        (2, 2, 6, 2), min_length=1, max_length=8, description="number of blocks of each stage"
    )
    heads: tuple[PositiveInt, ...] = Field((3, 6, 12, 24), description="number of attention heads of each stage")
    expansion: int = Field(4, gt=0, description="hidden features of the feed-forward layers as a multiple of the width")
    qkv_bias: bool = Field(True, description="whether queries, keys and values have a bias")
    qk_scale: float | None = Field(None, description="factor on the scores; 1/√(head width) by default")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of the norms")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of embeddings and of the output of each sublayer")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout of attention weights")
    drop_path: float = Field(
        0.0, ge=0, lt=1, description="stochastic depth of the last layer; earlier layers have less"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.heads) != len(self.layers):
            raise ValueError(f"heads has {len(self.heads)} entries, but layers has {len(self.layers)} stages")
        for stage, heads in enumerate(self.heads):
            if self.stage_width(stage) % heads:
                raise ValueError(
                    f"width {self.stage_width(stage)} of stage {stage + 1} is not divisible by heads {heads}"
                )
        if self.window_padding == "timm" and any(a % b for a, b in zip(self.image, self.patch, strict=True)):
            image, patch = (f"{rows}×{columns}" for rows, columns in (self.image, self.patch))
            raise ValueError(f"image {image} is no multiple of patch {patch}: timm would drop the incomplete patches")
        return self

    def stage_width(self, stage: int) -> int:
        """Return the width of a stage; the first stage is 0."""
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
        """A model for images of 28 to 64 pixels, 5.9 million parameters."""
        sizes = {"patch": 2, "window": 4, "layers": (2, 4, 2), "heads": (3, 6, 12)}
        return cls.tiny(classes, **{"image": image, "channels": channels} | sizes | changes)


class Swin(ImageModel):
    """Stages of windowed attention with decreasing resolution and increasing width, and a linear classification head.

    Images are (B, C, H, W) in floating point, normalised as in training, and of any size.
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
        """Return the encoded tokens of the last stage, (B, N, W), in row-major order."""
        images = _pad_to_patches(images, self.config.patch)
        grid = self.patches.grid(images)
        x = self.dropout(self.patch_norm(self.patches(images)))
        for stage in self.stages:
            x, grid = stage(x, grid)
        y: Tensor = self.norm(x)
        return y

    def pool(self, tokens: Tensor) -> Tensor:
        """Return the features of each image, (B, N, W) to (B, W)."""
        return tokens.mean(1)

    def resized(self, image: int | tuple[int, int]) -> "Swin":
        """Return a copy whose config has another image size; the weights do not depend on it."""
        model = copy.deepcopy(self)
        model.config = self.config.changed(image=image)
        return model

    def windows(self, image: Grid) -> "dict[str, Windows]":
        """Return the windows of each attention, by module name, for images of this height and width."""
        grid = tuple(-(-size // part) for size, part in zip(image, self.config.patch, strict=True))
        windows: dict[str, Windows] = {}
        for number, module in enumerate(self.stages):
            stage = cast(SwinStage, module)
            grid = stage.grid(cast(Grid, grid))
            for layer in range(len(stage.blocks)):
                windows[f"stages.{number}.blocks.{layer}.attention"] = stage.windows(grid, layer)
        return windows


class SwinStage(nn.Module):
    """Blocks of one width, every second one with shifted windows; all stages but the first begin by merging tokens."""

    def __init__(self, config: SwinConfig, number: int, drop_paths: Iterator[float]) -> None:
        super().__init__()
        c, width = config, config.stage_width(number)
        self.window, self.window_padding = c.window, c.window_padding
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
        """Process the tokens of a grid, (B, N, W). Return the tokens and the grid of this stage."""
        if self.merge is not None:
            x = self.merge(x, grid)
        grid = self.grid(grid)
        windows = [self.windows(grid, layer, x.device) for layer in range(2)]
        masks = [some.mask(x.shape[0]) for some in windows]
        for layer, block in enumerate(self.blocks):
            x = block(x, windows[layer % 2], masks[layer % 2])
        return x, grid

    def grid(self, grid: Grid) -> Grid:
        """Return rows and columns of this stage, given those of the previous stage."""
        return grid if self.merge is None else (-(-grid[0] // 2), -(-grid[1] // 2))

    def windows(self, grid: Grid, layer: int, device: torch.device | None = None) -> "Windows":
        """Return the windows of a layer. A dimension that fits into one window is not shifted."""
        fits = [cells <= size for cells, size in zip(grid, self.window, strict=True)]
        if any(fits) and self.window_padding == "transformers":
            fits = [True, True]  # transformers shifts both dimensions or none
        shift = [size // 2 if layer % 2 and not fit else 0 for fit, size in zip(fits, self.window, strict=True)]
        # torch.compile ignores the cache, but with a warning.
        split = split_windows if torch.compiler.is_compiling() else _cached_windows
        return split(grid, self.window, (shift[0], shift[1]), self.window_padding, device or torch.device("cpu"))


class SwinBlock(ResidualBlock):
    """Self-attention within windows and feed-forward, each with a residual connection and pre-LayerNorm."""

    def __init__(
        self, attention: Attention, feed_forward: FeedForward, dropout: float, eps: float, drop_path: float
    ) -> None:
        super().__init__("pre", dropout, drop_path)
        self.attention, self.feed_forward = attention, feed_forward
        self.norm1, self.norm2 = (nn.LayerNorm(attention.width, eps) for _ in range(2))
        self.scale1 = self.scale2 = None

    def forward(self, x: Tensor, windows: "Windows", mask: Mask) -> Tensor:
        if dispatch.fused_block_applies(self, x):
            return fused.swin_block(self, x, windows, mask)
        y = windows.join(self.attention(windows.split(self.norm1(x)), mask=mask))
        x = x + self.branch(y, self.scale1)
        return x + self.branch(self.feed_forward(self.norm2(x)), self.scale2)


class PatchMerging(nn.Module):
    """Merge 2×2 neighbouring tokens into one of twice the width, (B, N, W) to (B, N / 4, 2W)."""

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
        # The two tokens of the left column come first, as in the published weights.
        x = x.view(B, rows, 2, columns, 2, W).permute(0, 1, 3, 4, 2, 5).reshape(B, rows * columns, 4 * W)
        y: Tensor = self.linear(self.norm(x))
        return y


class Windows(NamedTuple):
    """A grid of N tokens divided into windows.

    Attributes:
        tokens: Index of the token in each cell of the windows, (n, T); N for padding.
        cells: Index of the cell of each token among the cells of all windows, (N,).
        allowed: Which cell may attend to which, (n, T, T): not across the seam where shifted windows join opposite
            edges of the grid. None: all to all.
    """

    tokens: Tensor
    cells: Tensor
    allowed: Tensor | None

    def split(self, x: Tensor) -> Tensor:
        """Arrange tokens in windows, with zeros as padding, (B, N, W) to (B · n, T, W)."""
        if self.tokens.numel() > len(self.cells):
            x = F.pad(x, (0, 0, 0, 1))
        return x[:, self.tokens.flatten()].view(-1, self.tokens.shape[1], x.shape[-1])

    def join(self, x: Tensor) -> Tensor:
        """Invert `split`: (B · n, T, W) to (B, N, W)."""
        return x.view(-1, self.tokens.numel(), x.shape[-1])[:, self.cells]

    def mask(self, batch: int) -> Mask:
        """Return the attention mask for the windows of a batch of images."""
        return Mask() if self.allowed is None else Mask(allowed=self.allowed.repeat(batch, 1, 1)[:, None])


def split_windows(grid: Grid, window: Grid, shift: Grid, padding: WindowPadding, device: torch.device) -> Windows:
    """Divide a grid of tokens into windows that start at `shift` and wrap around its edges.

    The grid is padded to a whole number of windows before it is shifted, or after it for "timm". The last `shift` rows
    and columns of the padded grid do not attend to the others; in timm, these need not be the ones that were shifted.
    """
    (rows, columns), (height, width) = grid, window
    across = -(-columns // width)
    padded = (-(-rows // height) * height, across * width)
    shifted = grid if padding == "timm" else padded
    with torch.inference_mode(False):  # the result is cached and may later be used in training
        # The cell of each token in the padded and shifted grid, and its window.
        y, x = grid_positions(*grid, device).unbind(-1)
        y, x = ((axis - by) % size for axis, by, size in zip((y, x), shift, shifted, strict=True))
        cells = (y // height * across + x // width) * height * width + y % height * width + x % width
        tokens = torch.full((padded[0] * padded[1],), rows * columns, device=device)
        tokens = tokens.index_copy(0, cells, torch.arange(rows * columns, device=device)).view(-1, height * width)
        # The part of the grid, before or after the seam, of each cell.
        y, x = grid_positions(*padded, device).unbind(-1)
        parts = 2 * (y >= padded[0] - shift[0]) + (x >= padded[1] - shift[1])
        parts = parts.view(-1, height, across, width).transpose(1, 2).reshape(-1, height * width)
        allowed = None if shift == (0, 0) else parts[:, :, None] == parts[:, None, :]
    return Windows(tokens, cells, allowed)


_cached_windows = lru_cache(maxsize=64)(split_windows)


def _pad_to_patches(images: Tensor, patch: Grid) -> Tensor:
    """Pad images with zeros at the bottom and the right to a multiple of the patch size."""
    bottom, right = -images.shape[-2] % patch[0], -images.shape[-1] % patch[1]
    return F.pad(images, (0, right, 0, bottom)) if bottom or right else images
