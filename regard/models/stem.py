"""The convolutional stem of "Early Convolutions Help Transformers See Better"."""

from typing import cast

import torch
from torch import Tensor, nn

from regard.layers import ImageEmbedding
from regard.ops.linear import Linear
from regard.ops.norm_gelu import conv_norm_gelu

MIN_CHANNELS = 4
"""Minimum number of output channels of the first convolution: a norm over fewer channels removes most information."""


def check_stem(patch: tuple[int, int], width: int) -> None:
    """Check that a convolutional stem can produce tokens of this patch size and width.

    Raises:
        ValueError: It cannot; the message names valid sizes.
    """
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
            y = conv_norm_gelu(x, cast(nn.Conv2d, convolution), cast(nn.LayerNorm, norm))
            x = y.permute(0, 3, 1, 2)
        tokens: Tensor = self.projection(x.permute(0, 2, 3, 1).flatten(1, 2))
        return tokens


def _convolution(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    """Return a 3×3 convolution. Its bias keeps PyTorch's initialisation, for the reason given in `PatchEmbedding`."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return convolution
