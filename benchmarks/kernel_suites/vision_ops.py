"""Operations of a small ViT with a convolutional stem, for batches of 256 images of 32×32 pixels."""

from functools import partial
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.multi_head import Rotary2D, grid_positions
from regard.ops import norm_gelu, rotary

from .bench import Bench, Row, relative_error

IMAGES = 256
CHANNELS = {32: 64, 16: 128, 8: 256}
"""Number of channels of the stem, by image size."""


def measure_stem(bench: Bench) -> None:
    """Bias, LayerNorm and GELU after a convolution, in torch and as a kernel with other tiles; then convolutions."""
    for size, channels in {4: 16}.items() if bench.toy else CHANNELS.items():
        x = torch.randn(2 if bench.toy else IMAGES, size, size, channels, device=bench.device, dtype=bench.dtype)
        norm = nn.LayerNorm(channels).to(bench.device)
        inputs = [x.requires_grad_(), torch.zeros(channels, device=bench.device, requires_grad=True)]
        with torch.autocast(bench.device.type, bench.dtype, enabled=not bench.toy):
            bench.time_gradients("stem", f"{size}×{size}, PyTorch", partial(_norm_gelu_torch, norm), inputs)
        for tile, warps, programs in (
            (1024, 4, 5), (1024, 2, 6), (2048, 4, 3), (512, 2, 10), (1024, 4, 4), (2048, 8, 2)
        ):  # fmt: skip
            name = f"{size}×{size}, kernel {(tile, warps, programs)}"
            with patch.multiple(norm_gelu, TILE=tile, WARPS=warps, PROGRAMS=programs):
                bench.time_gradients("stem", name, partial(_norm_gelu_kernel, norm), inputs)
        bench.measure("stem", f"{size}×{size}, error", partial(_measure_error, norm, inputs))
    for channels_in, channels_out, size in ((3, 64, 32), (8, 64, 32), (64, 64, 32), (128, 128, 16), (256, 256, 8)):
        _measure_convolution(bench, channels_in, channels_out, 4 if bench.toy else size)


def _norm_gelu_torch(norm: nn.LayerNorm, x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(norm(x + bias.to(x.dtype))).to(x.dtype)


def _norm_gelu_kernel(norm: nn.LayerNorm, x: Tensor, bias: Tensor) -> Tensor:
    return norm_gelu.norm_gelu_kernel(x, norm, bias)


def _measure_error(norm: nn.LayerNorm, inputs: list[Tensor]) -> Row:
    x, bias = (tensor.detach() for tensor in inputs)
    exact = F.gelu(F.layer_norm(x.double(), norm.normalized_shape, norm.weight.double(), norm.bias.double(), norm.eps))
    return {"relative": relative_error(_norm_gelu_kernel(norm, x, bias).detach(), exact.detach())}


def _measure_convolution(bench: Bench, channels_in: int, channels_out: int, size: int) -> None:
    x = torch.randn(2 if bench.toy else IMAGES, channels_in, size, size, device=bench.device, dtype=bench.dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(channels_out, channels_in, 3, 3, device=bench.device, dtype=bench.dtype).requires_grad_()
    inputs = [weight] if channels_in < 16 else [weight, x.requires_grad_()]  # images need no gradient

    def convolve(weight: Tensor, x: Tensor = x) -> Tensor:
        return F.conv2d(x, weight, padding=1)

    name = f"convolution {channels_in} to {channels_out}, {size}×{size}"
    bench.time_gradients("stem", name, convolve, inputs)


def measure_rotary(bench: Bench) -> None:
    """Rotary positions of a grid of 8×8 tokens, 4 heads of 64, by the formula and as a kernel with other tiles."""
    positions = grid_positions(8, 8, bench.device)[None]
    embedding = Rotary2D(64).to(bench.device)
    qkv = torch.randn(2 if bench.toy else IMAGES, 64, 3 * 256, device=bench.device, dtype=bench.dtype)

    def formula(qkv: Tensor) -> Tensor:
        qk, v = qkv.split_with_sizes([512, 256], -1)
        rotated = embedding(qk.view(*qk.shape[:2], 8, 64).transpose(1, 2), positions)
        return torch.cat((*rotated.chunk(2, 1), v.view(*v.shape[:2], 4, 64).transpose(1, 2)), 1)

    def kernel(qkv: Tensor) -> Tensor:
        return torch.cat(rotary.rotate_qkv(qkv, positions, embedding.frequency, 4), 1)

    inputs = [qkv.requires_grad_()]
    bench.time_gradients("rotary", "formula", formula, inputs)
    for pairs, warps in ((512, 4), (256, 2), (1024, 4), (1024, 8), (256, 4)):
        with patch.multiple(rotary, PAIRS=pairs, WARPS=warps):
            bench.time_gradients("rotary", f"kernel {(pairs, warps)}", kernel, inputs)
    difference = (formula(qkv) - kernel(qkv)).detach().abs().max() / qkv.detach().abs().max()
    bench.add("rotary", "largest difference", relative=float(difference))
