"""The convolutional stem of "Early Convolutions Help Transformers See Better": small steps in place of one cut."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers import ImageEmbedding
from regard.ops import dispatch
from regard.ops.linear import Linear
from regard.ops.norm_gelu import norm_gelu, norm_gelu_by_kernel

NARROWEST = 4
"""The fewest channels that the first convolution may make: a norm over fewer leaves next to nothing of a pixel."""


def check_stem(patch: tuple[int, int], width: int) -> None:
    """Refuses sizes that no stem has.

    Raises:
        ValueError: says which sizes it has.
    """
    height, across = patch
    if height != across or height.bit_count() != 1 or height == 1:
        raise ValueError(f"stem convolutions needs a patch of 2, 4, 8, 16, ... pixels each way, not {height}×{across}")
    if width % height or width < NARROWEST * height:
        around = (max(NARROWEST, factor) * height for factor in (width // height, -(-width // height)))
        raise ValueError(
            f"stem convolutions needs a width of {NARROWEST} or more times the patch; for a patch of {height}, not "
            f"{width} but {' or '.join(map(str, dict.fromkeys(around)))} would fit"
        )


class ConvolutionalStem(ImageEmbedding):
    """Convolutions of 3×3 pixels, some at full size and then some for each halving, and a linear map to the tokens.

    At each size there are twice the channels of the one before, at the last as many as a token is wide. A convolution
    is followed by a norm over the channels of every pixel by itself, so that no image knows of its batch, and by GELU.

    Args:
        channels: of the images.
        patch: height and width of what becomes one token: the same power of two.
        width: of the tokens, a multiple of the patch.
        eps: of the norms.
        depth: how many convolutions there are at each size.
    """

    def __init__(self, channels: int, patch: tuple[int, int], width: int, eps: float, depth: int = 1) -> None:
        super().__init__(channels, patch)
        sizes = [width // patch[0] << step for step in range(patch[0].bit_length()) for _ in range(depth)]
        halving = [step % depth == 0 and step > 0 for step in range(len(sizes))]
        self.convolutions = nn.ModuleList(
            _convolution(before, after, stride=2 if halves else 1)
            for before, after, halves in zip([channels, *sizes], sizes, halving, strict=False)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size, eps) for size in sizes)
        self.projection = Linear(width, width)
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, patches, width), row after row.

        Raises:
            UserError: the images have other channels or a size that is not a whole number of patches.
        """
        self.check(images)
        # A pixel's channels lie side by side from here on: its norm reads one row, and a GPU likes to convolve so.
        x = images.contiguous(memory_format=torch.channels_last)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = _follow(convolution, norm, x).permute(0, 3, 1, 2)
        y: Tensor = self.projection(x.permute(0, 2, 3, 1).flatten(1, 2))
        return y


def _follow(convolution: nn.Module, norm: nn.Module, x: Tensor) -> Tensor:
    """A convolution, its norm and GELU, (B, C, H, W) to (B, H, W, C); all but the convolution as one where that is."""
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.LayerNorm)
    if not dispatch.add_norm_kernel_applies(x, norm):
        return norm_gelu(convolution(x).permute(0, 2, 3, 1), norm)
    assert convolution.bias is not None
    made = F.conv2d(x, convolution.weight, None, convolution.stride, convolution.padding)
    return norm_gelu_by_kernel(made.permute(0, 2, 3, 1), norm, convolution.bias)


def _convolution(before: int, after: int, stride: int) -> nn.Conv2d:
    """Of 3×3 pixels; its bias stays as PyTorch draws it, never zero, for the reason that `PatchEmbedding` gives."""
    convolution = nn.Conv2d(before, after, 3, stride, padding=1)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return convolution
