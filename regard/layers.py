"""What stands between attention and a model: feed-forward, residual connections, blocks, patches of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.cache import Cache, KeyValues
from regard.attention.masks import Mask
from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.ops import dispatch
from regard.ops.add_norm import add_norm, sum_and_norm
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear, feed_forward, linear, pass_on

Activation = Literal["relu", "gelu", "silu", "swiglu"]


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, for every token by itself.

    "swiglu" multiplies the activated half of the first map with its other half; `hidden` is the width of one half.
    """

    def __init__(self, width: int, hidden: int, activation: Activation = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation, self.gated = activation, activation == "swiglu"
        self.inner = Linear(width, 2 * hidden if self.gated else hidden)
        self.dropout = Dropout(dropout)
        self.outer = Linear(hidden, width)
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.activation == "relu" or self.activation == "gelu":
            dropout = self.dropout.p if self.training else 0.0
            return feed_forward(x, self.inner, self.outer, self.activation, dropout)
        if self.gated:
            gate, x = self.inner(x).chunk(2, -1)
            x = F.silu(gate) * x
        else:
            x = F.silu(self.inner(x))
        y: Tensor = self.outer(self.dropout(x) if self.training else x)
        return y


class DropPath(nn.Module):
    """Stochastic depth: in training, a sublayer adds nothing to some of the batch's rows, and more to the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.draw(x) if self.training and self.rate else x

    def draw(self, x: Tensor) -> Tensor:
        """By what each row of the batch is multiplied in training, (B, 1, …)."""
        keep = 1 - self.rate
        return x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


def drop_path_rates(most: float, layers: int) -> list[float]:
    """The rates of stochastic depth, from nothing at the first layer to the most at the last."""
    return [most * layer / max(1, layers - 1) for layer in range(layers)]


class Residual(nn.Module):
    """Add & Norm round a sublayer: norm(x + sublayer(x)), the paper's "post"; or x + sublayer(norm(x)), "pre".

    Args:
        width: of x.
        norm: which of the two.
        dropout: on what the sublayer adds.
        eps: of the norm.
        drop_path: how often the sublayer is left out for a row of the batch, in training (stochastic depth).
        layer_scale: the first value of a learned factor for every feature of what is added; none unless given.
    """

    def __init__(
        self,
        width: int,
        norm: Literal["post", "pre"],
        dropout: float = 0.0,
        eps: float = 1e-5,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps)
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"
        self.scale = None if layer_scale is None else nn.Parameter(torch.full((width,), layer_scale))
        self.drop_path = DropPath(drop_path) if drop_path else None

    def forward(self, x: Tensor | Sum, sublayer: Callable[[Tensor], Tensor], last: Linear | None = None) -> Tensor:
        """Where all that is left is done at once, the bias of the sublayer's last product is, too.

        Of a sublayer that makes the first tokens alone, only these are left.
        """
        if self.pre:
            x, y = self._normalise(x)
            added = sublayer(y)
            return self._add(_first(x, added.shape[1]), added)
        assert isinstance(x, Tensor), "what is not added up yet was left to a norm before a sublayer"
        if last is None or not self._plain or not dispatch.add_norm_kernel_applies(x, self.norm):
            added, x = pass_on(x, sublayer)
            x, dropout = _first(x, added.shape[1]), self.dropout.p if self.training and self._plain else 0.0
            return add_norm(x, added if self._plain else self._shape(added), self.norm, dropout)
        (added, dropout), x = pass_on(x, lambda y: self._unbiased(y, sublayer, last))
        return add_norm(_first(x, added.shape[1]), added, self.norm, dropout, last.bias)

    def open(self, x: Tensor | Sum, sublayer: Callable[[Tensor], Tensor], last: Linear | None) -> Tensor | Sum:
        """`forward` whose sum may be left to the next sublayer's norm, where that does both in one pass."""
        stream = x.x if isinstance(x, Sum) else x
        if (
            not self.pre
            or self.scale is not None
            or last is None
            or not dispatch.add_norm_kernel_applies(stream, self.norm)
        ):
            closed: Tensor = self(x, sublayer, last)
            return closed
        stream, y = self._normalise(x)
        added, dropout = self._unbiased(y, sublayer, last)
        factors = self.drop_path.draw(added).flatten() if self.drop_path is not None and self.training else None
        return Sum(_first(stream, added.shape[1]), added, last.bias, dropout, factors)

    @property
    def _plain(self) -> bool:
        """Whether nothing but dropout is done to what is added."""
        return self.scale is None and self.drop_path is None

    def _normalise(self, x: Tensor | Sum) -> tuple[Tensor, Tensor]:
        """What flows on, and its norm."""
        if isinstance(x, Sum):
            return sum_and_norm(x.x, x.added, self.norm, x.dropout, x.bias, x.factors)
        return sum_and_norm(x, None, self.norm) if dispatch.add_norm_kernel_applies(x, self.norm) else (x, self.norm(x))

    def _unbiased(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], last: Linear) -> tuple[Tensor, float]:
        """What is added, but for the bias of the last product, and how much of it is to be dropped."""
        with last.without_bias():
            return sublayer(x), self.dropout.p if self.training else 0.0

    def _add(self, x: Tensor, added: Tensor) -> Tensor:
        """x and what is added in the end; with stochastic depth in one pass over both."""
        if self.drop_path is None or not self.training or added.dtype != x.dtype:
            return x + self._shape(added)
        return torch.addcmul(x, self._weigh(added), self.drop_path.draw(added))

    def _shape(self, added: Tensor) -> Tensor:
        added = self._weigh(added)
        return added if self.drop_path is None else self.drop_path(added)

    def _weigh(self, added: Tensor) -> Tensor:
        if self.training:
            added = self.dropout(added)
        return added if self.scale is None else added * self.scale


class Sum(NamedTuple):
    """x and what a sublayer adds to it, not added up yet."""

    x: Tensor
    added: Tensor
    bias: Tensor
    """Of the sublayer's last product; it is part of what is added."""
    dropout: float
    factors: Tensor | None
    """By which what is added is multiplied, one for each row of the batch."""


def _first(x: Tensor, count: int) -> Tensor:
    """The first so many tokens; where these are all, x itself, since a cut costs its gradient two passes over it."""
    return x if count == x.shape[1] else x[:, :count]


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward, each within a residual connection."""

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward,
        norm: Literal["post", "pre"] = "post",
        dropout: float = 0.0,
        eps: float = 1e-5,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.around_attention = Residual(attention.width, norm, dropout, eps, drop_path, layer_scale)
        self.around_feed_forward = Residual(attention.width, norm, dropout, eps, drop_path, layer_scale)

    def forward(
        self, x: Tensor, mask: Mask | None = None, positions: Tensor | None = None, count: int | None = None
    ) -> Tensor:
        """Tokens (B, T, W) in context; or only the first so many, which see all, if nobody reads what others become."""
        z = self.around_attention.open(x, lambda y: self._attend(y, mask, positions, count), self.attention.last)
        y: Tensor = self.around_feed_forward(z, self.feed_forward, self.feed_forward.outer)
        return y

    def _attend(self, x: Tensor, mask: Mask | None, positions: Tensor | None, count: int | None) -> Tensor:
        queries, places, context = x, positions, {}
        if count is not None:
            queries, places = x[:, :count], None if positions is None else positions[:, :count]
            context = {"source": x, "source_positions": positions}
        y: Tensor = self.attention(queries, mask=mask, positions=places, **context)
        return y


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention to the encoder's output, then feed-forward, each within a residual connection.

    With `context_norm` the encoder's output has a norm of its own in every block, as in the two-view decoder of CroCo.
    """

    def __init__(
        self,
        attention: Attention,
        cross: Attention,
        feed_forward: FeedForward,
        norm: Literal["post", "pre"] = "post",
        dropout: float = 0.0,
        eps: float = 1e-5,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        context_norm: bool = False,
    ) -> None:
        super().__init__()
        self.attention, self.cross, self.feed_forward = attention, cross, feed_forward
        self.context_norm = nn.LayerNorm(cross.width, eps) if context_norm else None
        self.around_attention = Residual(attention.width, norm, dropout, eps, drop_path, layer_scale)
        self.around_cross = Residual(attention.width, norm, dropout, eps, drop_path, layer_scale)
        self.around_feed_forward = Residual(attention.width, norm, dropout, eps, drop_path, layer_scale)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeyValues,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        memory_positions: Tensor | None = None,
    ) -> Tensor:
        """Positions are for rotary attention; where cross-attention is rotary too, the memory's are needed as well."""
        if self.context_norm is not None:
            assert isinstance(memory, Tensor), "what is projected beforehand would have missed its norm"
            memory = self.context_norm(memory)
        z = self.around_attention.open(
            x, lambda y: self.attention(y, mask=mask, positions=positions, cache=cache), self.attention.last
        )
        places = {"positions": positions, "source_positions": memory_positions}
        z = self.around_cross.open(z, lambda y: self.cross(y, memory, mask=memory_mask, **places), self.cross.last)
        y: Tensor = self.around_feed_forward(z, self.feed_forward, self.feed_forward.outer)
        return y


class AttentionUnit(nn.Module):
    """The smallest complete unit: self-attention, residual connection, LayerNorm, Linear."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(width, heads, attention_dropout=dropout)
        self.norm = nn.LayerNorm(width)
        self.linear = Linear(width, width)

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        y: Tensor = self.linear(self.norm(x + self.attention(x, mask=mask)))
        return y


class ImageEmbedding(nn.Module):
    """What makes a vector of every patch of an image: (B, C, H, W) to (B, patches, width), row after row.

    Args:
        channels: of the images.
        patch: height and width of a patch in pixels.
    """

    def __init__(self, channels: int, patch: tuple[int, int]) -> None:
        super().__init__()
        self.channels, self.patch = channels, patch

    def check(self, images: Tensor) -> None:
        """Refuses images that cannot be read.

        Raises:
            UserError: the images have other channels or a size that is not a whole number of patches.
        """
        if images.shape[1] != self.channels:
            raise UserError(f"images of {images.shape[1]} channels for a model that reads {self.channels}")
        check_image_size((images.shape[2], images.shape[3]), self.patch)

    def grid(self, images: Tensor) -> tuple[int, int]:
        """How many rows and columns of patches these images have."""
        return images.shape[-2] // self.patch[0], images.shape[-1] // self.patch[1]


class PatchEmbedding(ImageEmbedding):
    """Images cut into patches, each mapped to a vector: the convolution whose stride is its size, as one product.

    Args:
        channels: of the images.
        patch: height and width of a patch in pixels.
        width: of the vectors.
    """

    def __init__(self, channels: int, patch: tuple[int, int], width: int) -> None:
        super().__init__(channels, patch)
        self.weight = nn.Parameter(torch.empty(width, channels, *patch))
        self.bias = nn.Parameter(torch.empty(width))
        nn.init.xavier_uniform_(self.weight.view(width, -1))
        # As a convolution's, never zero: a patch of nothing but the mean colour would be the zero vector, through which
        # every norm sends gradients a thousand times as large as they came.
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, patches, width), row after row.

        Raises:
            UserError: the images have other channels or a size that is not a whole number of patches.
        """
        self.check(images)
        return linear(patchify(images, self.patch), self.weight.flatten(1), self.bias)

    def extra_repr(self) -> str:
        width, channels, height, across = self.weight.shape
        return f"{channels}, {width}, patch={height}×{across}"


def gather_tokens(x: Tensor, places: Tensor) -> Tensor:
    """The vectors (B, N, D) at these places, (B, K), as (B, K, D)."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def patchify(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """The pixels of every patch, (B, C, H, W) to (B, patches, C · height · width), patches row after row.

    Raises:
        UserError: the size of the images is not a whole number of patches.
    """
    B, C, H, W = images.shape
    check_image_size((H, W), patch)
    rows, columns = H // patch[0], W // patch[1]
    pixels = images.reshape(B, C, rows, patch[0], columns, patch[1])
    return pixels.permute(0, 2, 4, 1, 3, 5).reshape(B, rows * columns, -1)


def unpatchify(pixels: Tensor, grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """The images of which `patchify` made these, (B, patches, C · height · width) to (B, C, H, W)."""
    (rows, columns), (height, width) = grid, patch
    parts = pixels.reshape(len(pixels), rows, columns, -1, height, width)
    return parts.permute(0, 3, 1, 4, 2, 5).reshape(len(pixels), -1, rows * height, columns * width)


def check_image_size(image: tuple[int, int], patch: tuple[int, int]) -> None:
    """Refuses images that cannot be cut into whole patches.

    Raises:
        UserError: says which sizes near this one would do.
    """
    if any(size < part or size % part for size, part in zip(image, patch, strict=True)):
        smaller = [max(1, size // part) * part for size, part in zip(image, patch, strict=True)]
        larger = [-(-size // part) * part for size, part in zip(image, patch, strict=True)]
        fitting = " or ".join(dict.fromkeys(f"{height}×{width}" for height, width in (smaller, larger)))
        raise UserError(
            f"an image of {image[0]}×{image[1]} pixels cannot be cut into patches of {patch[0]}×{patch[1]}; "
            f"{fitting} would fit"
        )
