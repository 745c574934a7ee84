"""The attentions of a model and their heads, by name; a name or a head that is not there is refused with what is."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from regard.attention.multi_head import Attention
from regard.errors import UserError


def find_attentions(model: nn.Module, names: Collection[str] | None = None) -> dict[str, Attention]:
    """The attentions of these names, such as "decoder.3.cross", in the model's order; all unless given.

    Raises:
        UserError: the model has none of such a name.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    if names is None:
        return found
    if isinstance(names, str):
        raise UserError(f"give a list of names, such as [{names!r}]")
    for name in names:
        if name not in found:
            raise UserError(f"no attention is called {name!r}; this model has {', '.join(found) or 'none'}")
    return {name: attention for name, attention in found.items() if name in names}


def check_heads(name: str, attention: Attention, heads: Collection[int]) -> list[int]:
    """The heads as a list, each of which this attention has.

    Raises:
        UserError: one of them does not exist.
    """
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < attention.heads:
            count = "the one head 0" if attention.heads == 1 else f"heads 0 to {attention.heads - 1}"
            raise UserError(f"{name} has no head {head!r}; it has {count}")
    return list(heads)
