"""The way back through a product and the activation before it: y = activation(x) · weight, so what is x's gradient?

By itself the product would write what the next pass reads, lets through the activation, and writes again; and of a
feed-forward that is the largest tensor there is. For ReLU, one kernel lets it through before it writes anything, and
adds up the columns as well, which is the gradient of the bias that x ends with: in the same order every time. GELU's
slope takes so much arithmetic that two passes are faster.

Shapes: M rows, K width of y, N width of x.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.ops.column_sum import add_up, pass_gelu, pass_relu
from regard.ops.dispatch import feed_forward_backward_kernel_applies, multiprocessors, on_device

Activation = Literal["relu", "gelu"]


class Tile(NamedTuple):
    """How the kernel cuts the product."""

    rows: int
    columns: int
    depth: int
    """Of a step of the product."""
    stages: int
    """Steps that are read ahead, and the one that is computed."""
    warps: int
    programs: int
    """For each multiprocessor of the device."""


TILE = Tile(rows=128, columns=128, depth=64, stages=3, warps=4, programs=2)
"""The fastest that benchmarks/kernels.py found on an H200: one program writes while the other's product is made."""
BY_KERNEL = True
"""Where it applies; otherwise product and activation are two passes everywhere."""


def pass_product(
    grad: Tensor, weight: Tensor, seen: Tensor, activation: Activation, growth: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The gradient of x, (M, N), and the sum of its rows in single precision or better.

    Args:
        grad: of y, (M, K).
        weight: (K, N).
        seen: for "relu" what it made, for "gelu" x itself; (M, N).
        activation: what was made of x.
        growth: by which what the activation made was multiplied, if that is a number at all: dropout after ReLU made
            nothing of the others, and so they are no more above 0 than what ReLU left out.
    """
    if activation == "relu" and BY_KERNEL and feed_forward_backward_kernel_applies(grad, weight, seen, TILE.columns):
        return pass_by_kernel(grad, weight, seen, growth)
    product = grad @ weight if growth == 1 else torch.addmm(grad.new_zeros(1), grad, weight, beta=0, alpha=growth)
    return pass_relu(product, seen) if activation == "relu" else pass_gelu(product, seen)


def pass_by_kernel(grad: Tensor, weight: Tensor, seen: Tensor, growth: float = 1.0) -> tuple[Tensor, Tensor]:
    """`pass_product` for ReLU in one pass, but for the sums of parts."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

    from regard.ops.triton import feed_forward_backward as kernels

    grad, weight, seen = grad.contiguous(), weight.contiguous(), seen.contiguous()
    (M, K), N, tile = grad.shape, weight.shape[1], TILE
    groups = -(-M // tile.rows)
    passed, parts = torch.empty_like(seen), grad.new_empty(groups, N, dtype=torch.float32)
    programs = min(groups * (N // tile.columns), tile.programs * multiprocessors(grad.device))
    with on_device(grad):
        kernels.multiply_and_pass[(programs,)](
            TensorDescriptor.from_tensor(grad, [tile.rows, tile.depth]),
            TensorDescriptor.from_tensor(weight, [tile.depth, tile.columns]),
            seen.view(torch.int32), passed, parts, M,
            N=N, K=K, GROWTH=growth, R=tile.rows, C=tile.columns, D=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return passed, add_up(parts)
