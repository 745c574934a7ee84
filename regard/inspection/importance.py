"""Importance of attention heads: how much the loss depends on each of them.

Shapes: H heads.
"""

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.attention.multi_head import use_head_scales
from regard.inspection.interventions import ablate
from regard.inspection.probe import find_attentions

Floats = npt.NDArray[np.floating]


def importance_by_ablation(
    model: nn.Module, loss: Callable[[], float | Tensor], names: Collection[str] | None = None
) -> dict[str, Floats]:
    """Return the increase of the loss when each head is ablated, (H,) by attention module.

    Args:
        loss: Computes the loss of the model, always on the same data. Called once per head.
    """
    baseline = float(loss())
    increases: dict[str, Floats] = {}
    for name, attention in find_attentions(model, names).items():
        increases[name] = np.zeros(attention.heads)
        for head in range(attention.heads):
            with ablate(model, {name: [head]}):
                increases[name][head] = float(loss()) - baseline
    return increases


def importance_by_gradient(
    model: nn.Module, losses: Callable[[], Tensor], names: Collection[str] | None = None
) -> dict[str, Floats]:
    """Return |∂ loss / ∂ head scale| averaged over the losses, (H,) by attention module.

    Estimates `importance_by_ablation` with one forward pass, and one backward pass per loss. Gradients of the model's
    parameters are not changed.

    Args:
        losses: Computes one or several losses in one tensor. Separate losses, such as one per sentence, keep their
            signs from cancelling.
    """
    attentions = find_attentions(model, names)
    scales = {
        name: torch.ones(attention.heads, device=attention.out.weight.device, requires_grad=True)
        for name, attention in attentions.items()
    }
    with torch.enable_grad(), use_head_scales({attentions[name]: scale for name, scale in scales.items()}):
        values = losses().flatten()
        gradients = [
            torch.autograd.grad(value, list(scales.values()), retain_graph=True, allow_unused=True) for value in values
        ]
    sums: dict[str, Floats] = {name: np.zeros(len(scale)) for name, scale in scales.items()}
    for gradients_of_loss in gradients:
        for name, gradient in zip(scales, gradients_of_loss, strict=True):
            if gradient is not None:  # None if the loss does not depend on this module
                sums[name] += gradient.abs().cpu().double().numpy()
    return {name: total / max(1, len(gradients)) for name, total in sums.items()}
