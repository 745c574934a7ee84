"""Building blocks of models: base classes, position encodings, feed-forward layers, blocks, patch embeddings.

Shapes: B batch, T tokens, S source tokens, W width. A packed batch is a single row (B = 1) holding all tokens.
"""

import inspect
import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.kinds import Cache, KeyValues
from regard.attention.multi_head import Attention
from regard.config import Settings
from regard.errors import UserError
from regard.masks import Mask
from regard.ops import dispatch, fused
from regard.ops.add_norm import add_norm
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear, linear, linear_activation
from regard.registry import Registry, name_of_settings

Activation = Literal["relu", "gelu", "silu", "swiglu"]
Norm = Literal["post", "pre"]
InputType = Literal["text", "images", "pairs", "sentences"]
"""What a model processes: text to translate, images, pairs of views, or sentences to embed."""


class Model(nn.Module):
    """A module with the configuration it was built from, which a model folder stores.

    A subclass is built from its configuration alone. It declares the class of the configuration as `config`; the field
    `kind` of this class is the name of the model, by which recipes refer to it after `regard.register`.

    Attributes:
        config: Configuration.
        input_type: What the model processes, which decides about the commands that accept it.
        task: Name of the task that trains it, unless a recipe sets `training.task`; None for imported models.
    """

    registry: ClassVar[Registry[type["Model"]]] = Registry("model", lambda cls: name_of_settings(cls.config_type()))
    input_type: ClassVar[InputType]
    task: ClassVar[str | None] = None
    config: Settings

    @classmethod
    def config_type(cls) -> type[Settings]:
        """Return the class of the configuration, as declared by the model or its base class."""
        annotations = (inspect.get_annotations(base, eval_str=True) for base in cls.__mro__ if issubclass(base, Model))
        config: type[Settings] = next(found["config"] for found in annotations if "config" in found)
        return config


# Position encodings, which are added to embeddings
#
# They map positions (B, T) to (B, T, width). A position on a grid is a pair (y, x).


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
    if positions.is_meta:  # only the shape is of interest, and arithmetic would import torch's compiler
        return torch.empty(*positions.shape, width, device="meta")
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


# Blocks


class FeedForward(nn.Module):
    """Two linear layers with an activation in between, applied to every token.

    Args:
        width: Width of the input and the output.
        hidden: Number of hidden features.
        activation: Activation; "swiglu" multiplies two groups of hidden features, of which one is activated by SiLU.
        dropout: Dropout probability of the hidden features.
    """

    def __init__(self, width: int, hidden: int, activation: Activation = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.inner = Linear(width, 2 * hidden if activation == "swiglu" else hidden)
        self.dropout = Dropout(dropout)
        self.outer = Linear(hidden, width)
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every token by itself, (B, T, W) to (B, T, W)."""
        y: Tensor = self.outer(self.hidden(x))
        return y

    def hidden(self, x: Tensor) -> Tensor:
        """Return the hidden features after activation and dropout, (B, T, hidden)."""
        if self.activation == "swiglu":
            gate, value = self.inner(x).chunk(2, -1)
            x = F.silu(gate) * value
        else:
            x = linear_activation(x, self.inner, self.activation)
        return self.dropout(x) if self.training else x


class DropPath(nn.Module):
    """Stochastic depth: in training, set the output of a sublayer to zero for randomly chosen rows of the batch."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.draw(x) if self.training and self.rate else x

    def draw(self, x: Tensor) -> Tensor:
        """Return a random factor for each row, (B, 1, ...): 0, or 1 / (1 - rate), which preserves the mean."""
        keep = 1 - self.rate
        return x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


def drop_path_rates(last: float, layers: int) -> list[float]:
    """Return rates of stochastic depth that increase linearly from 0 in the first layer to `last` in the last one."""
    return [last * layer / max(1, layers - 1) for layer in range(layers)]


class ResidualBlock(nn.Module):
    """Base class of blocks whose sublayers have residual connections; see `EncoderBlock` for the arguments."""

    def __init__(self, norm: Norm, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.pre_norm = norm == "pre"
        self.dropout = Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def branch(self, y: Tensor, scale: Tensor | None) -> Tensor:
        """Apply dropout, layer scale and stochastic depth to the output of a sublayer."""
        if self.training:  # in inference, modules that return their input are not called
            y = self.dropout(y)
        if scale is not None:
            y = y * scale
        return self.drop_path(y) if self.training else y


class EncoderBlock(ResidualBlock):
    """Self-attention and feed-forward, each with a residual connection and LayerNorm.

    Args:
        attention: Self-attention.
        feed_forward: Feed-forward layer.
        norm: "post" for norm(x + sublayer(x)), as in the original paper; "pre" for x + sublayer(norm(x)).
        dropout: Dropout probability of the output of each sublayer.
        eps: Epsilon of the norms.
        drop_path: Rate of stochastic depth.
        layer_scale: Initial value of a learned factor on each feature that a sublayer adds; no factors by default.
    """

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward,
        norm: Norm = "post",
        dropout: float = 0.0,
        eps: float = 1e-5,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
    ) -> None:
        super().__init__(norm, dropout, drop_path)
        self.attention, self.feed_forward = attention, feed_forward
        self.norm1, self.norm2 = (nn.LayerNorm(attention.width, eps) for _ in range(2))
        self.scale1, self.scale2 = (_layer_scale(attention.width, layer_scale) for _ in range(2))

    def forward(self, x: Tensor, mask: Mask | None = None, positions: Tensor | None = None) -> Tensor:
        """Return the tokens in context, (B, T, W); positions are for rotary embeddings."""
        if dispatch.fused_block_applies(self, x):
            return fused.encoder_block(self, x, mask, positions)
        if self.pre_norm:
            x = x + self.branch(self.attention(self.norm1(x), mask=mask, positions=positions), self.scale1)
            return x + self.branch(self.feed_forward(self.norm2(x)), self.scale2)
        x = add_norm(x, self.branch(self.attention(x, mask=mask, positions=positions), self.scale1), self.norm1)
        return add_norm(x, self.branch(self.feed_forward(x), self.scale2), self.norm2)

    def class_token(self, x: Tensor, mask: Mask | None = None, positions: Tensor | None = None) -> Tensor:
        """Return the first token of the result of `forward`, (B, 1, W), of a pre-norm block."""
        if dispatch.fused_block_applies(self, x):
            return fused.class_token_block(self, x, mask, positions)
        y, first_position = self.norm1(x), None if positions is None else positions[:, :1]
        context = self.attention(y[:, :1], y, mask=mask, positions=first_position, source_positions=positions)
        x = x[:, :1] + self.branch(context, self.scale1)
        return x + self.branch(self.feed_forward(self.norm2(x)), self.scale2)


class DecoderBlock(ResidualBlock):
    """Self-attention, cross-attention and feed-forward, each with a residual connection and LayerNorm.

    The block exists in four forms with the same results:

    - `DecoderBlock.forward` is the reference. It runs where no other form applies.
    - `ops.fused.decoder_block`: in training on a GPU; `forward` calls it if `dispatch.fused_block_applies`.
    - `decoding.cpu_blocks.FusedDecoderBlock`: in a decoding step on a CPU; `Transformer.step` calls it if
      `fuse_cpu_blocks` has replaced the blocks.
    - `decoding.cpu_blocks.SingleLayer`: in a decoding step of a single hypothesis on a CPU; `SingleStep` calls it.

    The arguments that are not listed are those of `EncoderBlock`.

    Args:
        cross: Cross-attention to the source.
        source_norm: Whether the block normalises the source, as in the two-view decoder of CroCo.
    """

    def __init__(
        self,
        attention: Attention,
        cross: Attention,
        feed_forward: FeedForward,
        norm: Norm = "post",
        dropout: float = 0.0,
        eps: float = 1e-5,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        source_norm: bool = False,
    ) -> None:
        super().__init__(norm, dropout, drop_path)
        self.attention, self.cross, self.feed_forward = attention, cross, feed_forward
        self.source_norm = nn.LayerNorm(cross.width, eps) if source_norm else None
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(attention.width, eps) for _ in range(3))
        self.scale1, self.scale2, self.scale3 = (_layer_scale(attention.width, layer_scale) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        source: Tensor | KeyValues,
        mask: Mask | None = None,
        source_mask: Mask | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        source_positions: Tensor | None = None,
    ) -> Tensor:
        """Return the tokens in context, (B, T, W).

        Args:
            x: Target tokens, (B, T, W).
            source: Encoder output, (B, S, W), or its keys and values from `Attention.project`.
            mask: Mask of self-attention.
            source_mask: Mask of cross-attention.
            positions: Positions of the target for rotary embeddings.
            cache: Cache of self-attention in decoding.
            source_positions: Positions of the source, needed if cross-attention has a rotary embedding.
        """
        if self.source_norm is not None:
            assert isinstance(source, Tensor), "projected keys and values cannot be normalised"
            source = self.source_norm(source)
        if cache is None and isinstance(source, Tensor) and dispatch.fused_block_applies(self, x):
            return fused.decoder_block(self, x, source, mask, source_mask, positions, source_positions)
        rotary = {"positions": positions, "source_positions": source_positions}
        if self.pre_norm:
            y = self.attention(self.norm1(x), mask=mask, positions=positions, cache=cache)
            x = x + self.branch(y, self.scale1)
            x = x + self.branch(self.cross(self.norm2(x), source, mask=source_mask, **rotary), self.scale2)
            return x + self.branch(self.feed_forward(self.norm3(x)), self.scale3)
        y = self.attention(x, mask=mask, positions=positions, cache=cache)
        x = add_norm(x, self.branch(y, self.scale1), self.norm1)
        x = add_norm(x, self.branch(self.cross(x, source, mask=source_mask, **rotary), self.scale2), self.norm2)
        return add_norm(x, self.branch(self.feed_forward(x), self.scale3), self.norm3)


def _layer_scale(width: int, value: float | None) -> nn.Parameter | None:
    return None if value is None else nn.Parameter(torch.full((width,), value))


class AttentionUnit(nn.Module):
    """The smallest complete unit of a Transformer: self-attention, residual connection, LayerNorm, Linear.

    Args:
        width: Width of the input and the output, W.
        heads: Number of heads; must divide the width.
        dropout: Dropout probability of the attention weights.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(width, heads, attention_dropout=dropout)
        self.norm = nn.LayerNorm(width)
        self.linear = Linear(width, width)

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """Return the tokens in context, (B, T, W) to (B, T, W)."""
        y: Tensor = self.linear(self.norm(x + self.attention(x, mask=mask)))
        return y


# Images


class ImageModel(Model):
    """A model that converts an image to tokens, the tokens to features, and the features to class logits.

    Its configuration has the keys `image`, `channels` and `classes`, as `ViTConfig` does.
    """

    input_type = "images"
    task = "classification"
    head: nn.Module

    def forward(self, images: Tensor) -> Tensor:
        """Return the class logits of images, (B, C, H, W) to (B, classes), or features, (B, W), without a head."""
        logits: Tensor = self.head(self.embed(images))
        return logits

    def embed(self, images: Tensor) -> Tensor:
        """Return the features of each image, (B, C, H, W) to (B, W)."""
        return self.pool(self.tokens(images))

    def tokens(self, images: Tensor) -> Tensor:
        """Return the encoded tokens of images, (B, C, H, W) to (B, N, W)."""
        raise NotImplementedError

    def pool(self, tokens: Tensor) -> Tensor:
        """Return the features of each image, (B, N, W) to (B, W)."""
        raise NotImplementedError

    def resized(self, image: int | tuple[int, int]) -> "ImageModel":
        """Return a copy for images of another size.

        Raises:
            UserError: The model supports only its own size.
        """
        own = getattr(self.config, "image", None)
        if own != ((image, image) if isinstance(image, int) else image):
            raise UserError(f"a model of kind {type(self).__name__} supports only images of size {own}, not {image}")
        return self


def make_head(width: int, classes: int) -> nn.Module:
    """Return a linear classification head, or the identity if there are no classes."""
    if not classes:
        return nn.Identity()
    head = Linear(width, classes)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


class ImageEmbedding(nn.Module):
    """Base class of modules that embed the patches of an image, (B, C, H, W) to (B, patches, W), in row-major order."""

    def __init__(self, channels: int, patch: tuple[int, int]) -> None:
        super().__init__()
        self.channels, self.patch = channels, patch

    def check(self, images: Tensor) -> None:
        """Check that images have the right number of channels and a size that is a multiple of the patch size."""
        if images.shape[1] != self.channels:
            raise UserError(f"images have {images.shape[1]} channels, but the model expects {self.channels}")
        check_image_size((images.shape[2], images.shape[3]), self.patch)

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Return the number of rows and columns of patches."""
        return images.shape[-2] // self.patch[0], images.shape[-1] // self.patch[1]


class PatchEmbedding(ImageEmbedding):
    """Linear projection of patches: a convolution whose stride is the size of its kernel, computed as one matmul.

    Args:
        channels: Number of image channels.
        patch: Height and width of a patch in pixels.
        width: Width of the embeddings.
    """

    def __init__(self, channels: int, patch: tuple[int, int], width: int) -> None:
        super().__init__(channels, patch)
        self.weight = nn.Parameter(torch.empty(width, channels, *patch))
        self.bias = nn.Parameter(torch.empty(width))
        nn.init.xavier_uniform_(self.weight.view(width, -1))
        # Initialised as in nn.Conv2d, not with zeros: a patch of the mean colour would otherwise be a zero vector, for
        # which LayerNorm multiplies gradients by a thousand.
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, images: Tensor) -> Tensor:
        """Embed the patches of images, (B, C, H, W) to (B, patches, W), in row-major order.

        Raises:
            UserError: The images have another number of channels, or their size is not a multiple of the patch size.
        """
        self.check(images)
        return linear(patchify(images, self.patch), self.weight.flatten(1), self.bias)

    def extra_repr(self) -> str:
        width, channels, patch_height, patch_width = self.weight.shape
        return f"{channels}, {width}, patch={patch_height}×{patch_width}"


def gather_tokens(x: Tensor, indices: Tensor) -> Tensor:
    """Return the tokens at the given indices of each row: (B, T, W) and (B, K) to (B, K, W)."""
    return x.gather(1, indices[..., None].expand(-1, -1, x.shape[-1]))


def patchify(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Return the pixels of each patch in row-major order, (B, C, H, W) to (B, patches, C · height · width)."""
    B, C, H, W = images.shape
    check_image_size((H, W), patch)
    rows, columns = H // patch[0], W // patch[1]
    pixels = images.reshape(B, C, rows, patch[0], columns, patch[1])
    return pixels.permute(0, 2, 4, 1, 3, 5).reshape(B, rows * columns, -1)


def unpatchify(pixels: Tensor, grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Invert `patchify`: (B, patches, C · height · width) to (B, C, H, W)."""
    (rows, columns), (height, width) = grid, patch
    patches = pixels.reshape(len(pixels), rows, columns, -1, height, width)
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(len(pixels), -1, rows * height, columns * width)


def check_image_size(image: tuple[int, int], patch: tuple[int, int]) -> None:
    """Check that an image can be divided into patches; the error suggests sizes."""
    if any(size < part or size % part for size, part in zip(image, patch, strict=True)):
        smaller = [max(1, size // part) * part for size, part in zip(image, patch, strict=True)]
        larger = [-(-size // part) * part for size, part in zip(image, patch, strict=True)]
        suggested = " or ".join(dict.fromkeys(f"{height}×{width}" for height, width in (smaller, larger)))
        raise UserError(
            f"an image of {image[0]}×{image[1]} pixels cannot be divided into patches of {patch[0]}×{patch[1]}; "
            f"{suggested} would fit"
        )
