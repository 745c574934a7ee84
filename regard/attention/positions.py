"""Where a token stands: encodings that are added to the embeddings, and rotations of queries and keys.

Every encoding takes explicit integer positions, so that packed rows, cached steps and image patches are all the same to
it. Added ones map positions (B, T) to (B, T, width); rotary ones turn q or k, (B, H, T, D). On a grid a position is a
pair (y, x), the row first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError


class Sinusoidal(nn.Module):
    """The paper's encoding: sines and cosines of geometrically falling frequency, for sequences of any length.

    Args:
        width: of the embedding it is added to.
        order: "interleaved" puts each sine beside its cosine, as the paper does; "halves" puts all sines first.
    """

    def __init__(self, width: int, order: Literal["interleaved", "halves"] = "interleaved") -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {width}")
        self.width, self.order = width, order
        self.table: Tensor
        self.register_buffer("table", sinusoid(torch.arange(256), width, order), persistent=False)
        # Tables that were outgrown, by their length: a step that a GPU has recorded still reads where its table was.
        self._outgrown: dict[int, Tensor] = {}

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """The encoding of each position; `longest` bounds them, known without asking the device."""
        return self.up_to(longest)[positions]

    def up_to(self, longest: int) -> Tensor:
        """The encodings of so many places or more."""
        if longest > len(self.table):
            self._outgrown[len(self.table)] = self.table
            grown = torch.arange(max(longest, 2 * len(self.table)), device=self.table.device)
            self.table = sinusoid(grown, self.width, self.order).to(self.table.dtype)
        return self.table


def sinusoid(positions: Tensor, width: int, order: str = "interleaved") -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/width)), PE(p, 2i+1) = cos(...), computed in float64: far positions stay exact."""
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
    angle = positions[..., None].double() * frequency
    pair = (angle.sin(), angle.cos())
    table = torch.stack(pair, -1).flatten(-2) if order == "interleaved" else torch.cat(pair, -1)
    return table.float()


class Sinusoidal2D(nn.Module):
    """Sines and cosines on a grid, for any size of it: one half of the features tells the column, the other the row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 4:
            raise ValueError(f"sinusoidal positions on a grid need a width divisible by 4, not {width}")
        self.axis = Sinusoidal(width // 2, "halves")

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """The encoding of each (y, x), (…, 2) to (…, width); `longest` bounds rows and columns."""
        y, x = positions.unbind(-1)
        return torch.cat((self.axis(x, longest), self.axis(y, longest)), -1)


class Learned(nn.Module):
    """One trained vector for each position up to a limit; anything longer is refused."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        if longest > len(self.weight):
            raise UserError(
                f"a sequence of {longest} tokens is longer than this model's {len(self.weight)} learned positions; "
                "split it, or train a model with sinusoidal or rotary positions"
            )
        return self.weight[positions]


class Diagonal(nn.Module):
    """The plain toy form: position p is the p-th unit vector. Distinct, but it says nothing of distance.

    A teaching contrast to `Sinusoidal`: it ends at `width` positions, and every two of them are equally far apart.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        if longest > self.width:
            raise UserError(
                f"the diagonal encoding of width {self.width} ends at {self.width} positions, not {longest}"
            )
        return torch.eye(self.width, device=positions.device)[positions]


class Rotary(nn.Module):
    """Rotary positions in one dimension: each pair of features turns by an angle that grows with the position.

    The product of a rotated query and a rotated key depends only on how far apart they stand. Feature i is paired with
    feature i + D/2.
    """

    def __init__(self, head_width: int, base: float = 10_000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"rotary positions need an even head width, not {head_width}")
        self.head_width, self.base = head_width, base
        self.frequency: Tensor
        self.register_buffer("frequency", self._frequency(), persistent=False)

    def _frequency(self, device: torch.device | None = None) -> Tensor:
        exponent = -torch.arange(0, self.head_width, 2, dtype=torch.float64, device=device) / self.head_width
        return (self.base**exponent).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves with its model but stays in float32: in half precision the angle of a far position would be wrong."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.frequency = self._frequency(self.frequency.device)
        return self

    def forward(self, x_BHTD: Tensor, positions: Tensor) -> Tensor:
        """Turns q or k; positions are (B, T) or (1, T)."""
        return _turn(x_BHTD, positions[:, None, :, None].float() * self.frequency)


class Rotary2D(nn.Module):
    """Rotary positions on a grid: the first half of each head turns with the row y, the second with the column x."""

    def __init__(self, head_width: int, base: float = 100.0) -> None:
        super().__init__()
        if head_width % 4:
            raise ValueError(f"rotary positions on a grid need a head width divisible by 4, not {head_width}")
        self.axis = Rotary(head_width // 2, base)

    @property
    def frequency(self) -> Tensor:
        """Of rows and of columns."""
        return self.axis.frequency

    def forward(self, x_BHTD: Tensor, positions: Tensor) -> Tensor:
        """Turns q or k; positions are (B, T, 2) or (1, T, 2), each (y, x)."""
        angle = positions[:, None, :, :, None].float() * self.axis.frequency
        by_axis = x_BHTD.reshape(*x_BHTD.shape[:-1], 2, -1)
        return _turn(by_axis, angle).flatten(-2)


def _turn(x: Tensor, angle: Tensor) -> Tensor:
    """Features i and i + D/2 of the last axis as a pair, turned by angle i."""
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def grid_positions(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """The (y, x) of every place of a grid, row after row, (rows · columns, 2)."""
    y, x = torch.arange(rows, device=device), torch.arange(columns, device=device)
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)


def resize_grid(table: Tensor, old: tuple[int, int], new: tuple[int, int], antialias: bool = True) -> Tensor:
    """Learned positions of one grid, (rows · columns, width), brought to another by bicubic interpolation.

    Args:
        table: the positions, row after row.
        old: rows and columns that the table is for.
        new: rows and columns wanted.
        antialias: whether a smaller grid is smoothed, as timm does; others do not.
    """
    if old == new:
        return table
    image = table.float().view(1, *old, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(image, new, mode="bicubic", align_corners=False, antialias=antialias)
    return resized.permute(0, 2, 3, 1).flatten(0, 2).to(table.dtype)
