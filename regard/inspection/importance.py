"""Which heads matter: how much worse a model becomes without each of them."""

from __future__ import annotations

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
    """How much the loss rises when a head is switched off, (H,) by the attention's name. One call of `loss` a head.

    Args:
        model: whose heads are judged.
        loss: computes the loss with the model as it is, always on the same data.
        names: which attentions; all unless given.

    Raises:
        UserError: the model has no attention of such a name.
    """
    usual = float(loss())
    rises: dict[str, Floats] = {}
    for name, attention in find_attentions(model, names).items():
        rises[name] = np.zeros(attention.heads)
        for head in range(attention.heads):
            with ablate(model, {name: [head]}):
                rises[name][head] = float(loss()) - usual
    return rises


def importance_by_gradient(
    model: nn.Module, losses: Callable[[], Tensor], names: Collection[str] | None = None
) -> dict[str, Floats]:
    """How strongly each loss hangs on each head, |∂ loss / ∂ factor of the head|, mean over the losses, (H,) by name.

    One pass forward, and one backward a loss, however many heads there are: an estimate of what
    `importance_by_ablation` measures. The gradients of the model's own parameters are left alone.

    Args:
        model: whose heads are judged.
        losses: computes one loss, or several in one tensor, such as one a sentence: their signs then do not cancel.
        names: which attentions; all unless given.

    Raises:
        UserError: the model has no attention of such a name.
    """
    attentions = find_attentions(model, names)
    factors = {
        name: torch.ones(attention.heads, device=attention.out.weight.device, requires_grad=True)
        for name, attention in attentions.items()
    }
    with torch.enable_grad(), use_head_scales({attentions[name]: factor for name, factor in factors.items()}):
        values = losses().flatten()
        slopes = [
            torch.autograd.grad(value, list(factors.values()), retain_graph=True, allow_unused=True) for value in values
        ]
    sums: dict[str, Floats] = {name: np.zeros(len(factor)) for name, factor in factors.items()}
    for slope in slopes:
        for name, one in zip(factors, slope, strict=True):
            if one is not None:  # None: this loss did not use the attention
                sums[name] += one.abs().cpu().double().numpy()
    return {name: total / max(1, len(slopes)) for name, total in sums.items()}
