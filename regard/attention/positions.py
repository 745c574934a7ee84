"""Position encodings: additive ones for embeddings, and rotary ones for queries and keys.

All of them take explicit integer positions, so packed rows, cached steps and image patches need no special treatment.
Additive encodings map positions (B, T) to (B, T, width); rotary embeddings rotate q or k, (B, H, T, D). A position on a
grid is a pair (y, x).

Shapes: B batch, T tokens, H heads, D head width.
"""

from collections.abc import Callable
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UserError


class Sinusoidal(nn.Module):
    """Sinusoidal encoding of "Attention Is All You Need", for sequences of any length.

    Args:
        width: Width of the embedding.
        order: "interleaved" alternates sines and cosines, as the paper does; "halves" puts all sines first.
    """

    def __init__(self, width: int, order: Literal["interleaved", "halves"] = "interleaved") -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {width}")
        self.width, self.order = width, order
        self.table: Tensor
        self.register_buffer("table", sinusoid(torch.arange(256), width, order), persistent=False)
        # Captured CUDA graphs read the table at its address, so tables that were replaced by longer ones are kept.
        self._outgrown: dict[int, Tensor] = {}

    def extra_repr(self) -> str:
        return f"{self.width}, order={self.order}"

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """Return the encoding of each position, (B, T) to (B, T, width); all positions are below `longest`."""
        return self.up_to(longest)[positions]

    def up_to(self, longest: int) -> Tensor:
        """Return a table of at least `longest` positions, (positions, width)."""
        if longest > len(self.table):
            self._outgrown[len(self.table)] = self.table
            positions = torch.arange(max(longest, 2 * len(self.table)), device=self.table.device)
            self.table = sinusoid(positions, self.width, self.order).to(self.table.dtype)
        return self.table


def sinusoid(positions: Tensor, width: int, order: str = "interleaved") -> Tensor:
    """Compute PE(p, 2i) = sin(p / 10000^(2i/width)) and PE(p, 2i+1) = cos(...), in float64 for large positions."""
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width)
    angle = positions[..., None].double() * frequency
    pair = (angle.sin(), angle.cos())
    table = torch.stack(pair, -1).flatten(-2) if order == "interleaved" else torch.cat(pair, -1)
    return table.float()


class Sinusoidal2D(nn.Module):
    """Sinusoidal encoding on a grid of any size: the first half of the features encodes x, the second half y."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % 4:
            raise ValueError(f"sinusoidal positions on a grid need a width divisible by 4, not {width}")
        self.axis = Sinusoidal(width // 2, "halves")

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """Return the encoding of each (y, x), (..., 2) to (..., width); all coordinates are below `longest`."""
        y, x = positions.unbind(-1)
        return torch.cat((self.axis(x, longest), self.axis(y, longest)), -1)


class Learned(nn.Module):
    """A learned vector for each position up to a maximum length."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width))
        nn.init.normal_(self.weight, std=0.02)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """Return the encoding of each position, (B, T) to (B, T, width).

        Raises:
            UserError: The sequence is longer than the maximum length.
        """
        if longest > len(self.weight):
            raise UserError(
                f"a sequence of {longest} tokens is longer than this model's {len(self.weight)} learned positions; "
                "split it, or train a model with sinusoidal or rotary positions"
            )
        return self.weight[positions]


class Diagonal(nn.Module):
    """Diagonal encoding for teaching: position p is the p-th unit vector, or p times this vector.

    In contrast to `Sinusoidal` it supports only `width` positions. All pairs of unit vectors are equally distant;
    scaled vectors grow with the position, and position 0 is the zero vector.

    Args:
        width: Width of the embedding, and number of positions.
        scaled: Whether the vector of position p is multiplied by p.
    """

    def __init__(self, width: int, scaled: bool = False) -> None:
        super().__init__()
        self.table: Tensor
        diagonal = torch.arange(width, dtype=torch.float32) if scaled else torch.ones(width)
        self.register_buffer("table", diagonal.diag(), persistent=False)

    def extra_repr(self) -> str:
        return f"{len(self.table)}, scaled={bool(self.table[0, 0] == 0)}"

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """Return the encoding of each position, (B, T) to (B, T, width); all positions are below `longest`."""
        return self.up_to(longest)[positions]

    def up_to(self, longest: int) -> Tensor:
        """Return the table of all positions, (width, width).

        Raises:
            UserError: The sequence is longer than the width.
        """
        width = len(self.table)
        if longest > width:
            raise UserError(f"the diagonal encoding of width {width} ends at {width} positions, not {longest}")
        return self.table


class Rotary(nn.Module):
    """Rotary embedding (RoPE): rotate each pair of features by an angle proportional to the position.

    The product of a rotated query and a rotated key depends only on the distance between them. Feature i is paired with
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
        """Keep the frequencies in float32 when the model is converted: half precision is too coarse for the angles."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.frequency = self._frequency(self.frequency.device)
        return self

    def extra_repr(self) -> str:
        return f"{self.head_width}, base={self.base:g}"

    def forward(self, x_BHTD: Tensor, positions: Tensor) -> Tensor:
        """Rotate q or k, (B, H, T, D); positions are (B, T) or (1, T)."""
        return _rotate(x_BHTD, positions[:, None, :, None].float() * self.frequency)


class Rotary2D(nn.Module):
    """Rotary embedding on a grid: the first half of each head is rotated by y, the second half by x."""

    def __init__(self, head_width: int, base: float = 100.0) -> None:
        super().__init__()
        if head_width % 4:
            raise ValueError(f"rotary positions on a grid need a head width divisible by 4, not {head_width}")
        self.axis = Rotary(head_width // 2, base)

    @property
    def frequency(self) -> Tensor:
        """Frequencies of either axis, (D/4,)."""
        return self.axis.frequency

    def forward(self, x_BHTD: Tensor, positions: Tensor) -> Tensor:
        """Rotate q or k, (B, H, T, D); positions are (B, T, 2) or (1, T, 2), each (y, x)."""
        angle = positions[:, None, :, :, None].float() * self.axis.frequency
        by_axis = x_BHTD.reshape(*x_BHTD.shape[:-1], 2, -1)
        return _rotate(by_axis, angle).flatten(-2)


def _rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate features i and i + D/2 of the last dimension by angle i."""
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def grid_positions(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """Return the (y, x) of every cell of a grid in row-major order, (rows · columns, 2)."""
    y, x = torch.arange(rows, device=device), torch.arange(columns, device=device)
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)


def resize_grid(table: Tensor, old: tuple[int, int], new: tuple[int, int], antialias: bool = True) -> Tensor:
    """Resize the learned positions of a grid by bicubic interpolation.

    Args:
        table: Positions in row-major order, (rows · columns, width).
        old: Rows and columns of the table.
        new: Rows and columns of the result.
        antialias: Whether to smooth when the grid becomes smaller, as timm does.
    """
    if old == new:
        return table
    image = table.float().view(1, *old, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(image, new, mode="bicubic", align_corners=False, antialias=antialias)
    return resized.permute(0, 2, 3, 1).flatten(0, 2).to(table.dtype)
