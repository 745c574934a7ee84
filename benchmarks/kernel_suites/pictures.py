"""What a small ViT with a stem of convolutions does beside products, in batches of 256 images of 32×32 pixels."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.positions import Rotary2D, grid_positions
from regard.ops import norm_gelu as activated
from regard.ops import rotary as turning

from .bench import Bench

IMAGES = 256
CHANNELS = {32: 64, 16: 128, 8: 256}
"""How many there are where the stem has made the side of a picture so many pixels."""


def measure_stem(bench: Bench) -> None:
    """Bias, norm and GELU behind a convolution, beside PyTorch's own, and with other tiles; then convolutions alone."""
    for side, channels in {4: 16}.items() if bench.toy else CHANNELS.items():
        x = torch.randn(2 if bench.toy else IMAGES, side, side, channels, device=bench.device, dtype=bench.dtype)
        norm = nn.LayerNorm(channels).to(bench.device)
        inputs = [x.requires_grad_(), torch.zeros(channels, device=bench.device, requires_grad=True)]
        with torch.autocast(bench.device.type, bench.dtype, enabled=not bench.toy):
            bench.compare("stem", f"{side}×{side}, PyTorch", partial(_plain, norm), inputs)
        usual = activated.TILE, activated.WARPS, activated.PROGRAMS
        for choice in ((1024, 4, 5), (1024, 2, 6), (2048, 4, 3), (512, 2, 10), (1024, 4, 4), (2048, 8, 2)):
            activated.TILE, activated.WARPS, activated.PROGRAMS = choice
            bench.compare("stem", f"{side}×{side}, ours {choice}", partial(_ours, norm), inputs)
        activated.TILE, activated.WARPS, activated.PROGRAMS = usual
        bench.attempt("stem", f"{side}×{side}, how far from float64", partial(_difference, norm, inputs))
    for before, after, side in ((3, 64, 32), (8, 64, 32), (64, 64, 32), (128, 128, 16), (256, 256, 8)):
        _measure_convolution(bench, before, after, 4 if bench.toy else side)


def measure_turning(bench: Bench) -> None:
    """Rotary positions on a grid of 8×8 tokens, 4 heads of 64, beside the formula."""
    positions = grid_positions(8, 8, bench.device)[None]
    rotary = Rotary2D(64).to(bench.device)
    together = torch.randn(2 if bench.toy else IMAGES, 64, 3 * 256, device=bench.device, dtype=bench.dtype)

    def plain(together: Tensor) -> Tensor:
        both, v = together.split_with_sizes([512, 256], -1)
        turned = rotary(both.view(*both.shape[:2], 8, 64).transpose(1, 2), positions)
        return torch.cat((*turned.chunk(2, 1), v.view(*v.shape[:2], 4, 64).transpose(1, 2)), 1)

    def ours(together: Tensor) -> Tensor:
        return torch.cat(turning.rotate_qkv(together, positions, rotary.frequency, 4), 1)

    inputs = [together.requires_grad_()]
    bench.compare("turning", "formula", plain, inputs)
    usual = turning.PAIRS, turning.WARPS
    for choice in ((512, 4), (256, 2), (1024, 4), (1024, 8), (256, 4)):
        turning.PAIRS, turning.WARPS = choice
        bench.compare("turning", f"ours {choice}", ours, inputs)
    turning.PAIRS, turning.WARPS = usual
    gap = (plain(together) - ours(together)).detach().abs().max() / together.detach().abs().max()
    bench.note("turning", "largest difference", relative=float(gap))


def _measure_convolution(bench: Bench, before: int, after: int, side: int) -> None:
    x = torch.randn(2 if bench.toy else IMAGES, before, side, side, device=bench.device, dtype=bench.dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(after, before, 3, 3, device=bench.device, dtype=bench.dtype).requires_grad_()
    inputs = [weight] if before < 16 else [weight, x.requires_grad_()]  # nobody asks how images should have been

    def convolve(weight: Tensor, x: Tensor = x) -> Tensor:
        return F.conv2d(x, weight, padding=1)

    bench.compare("stem", f"convolution {before} to {after}, {side}×{side}", convolve, inputs)


def _plain(norm: nn.LayerNorm, x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(norm(x + bias.to(x.dtype))).to(x.dtype)


def _ours(norm: nn.LayerNorm, x: Tensor, bias: Tensor) -> Tensor:
    return activated.norm_gelu_kernel(x, norm, bias)


def _difference(norm: nn.LayerNorm, inputs: list[Tensor]) -> dict[str, object]:
    x, bias = (tensor.detach() for tensor in inputs)
    exact = F.gelu(F.layer_norm(x.double(), norm.normalized_shape, norm.weight.double(), norm.bias.double(), norm.eps))
    return {"relative": float(((_ours(norm, x, bias).double() - exact).norm() / exact.norm()).detach())}
