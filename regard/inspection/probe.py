"""`probe`: what every attention of a model saw, by name, without changing what it says."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from regard.attention import Attention, Mask, observing


@dataclass(frozen=True)
class Seen:
    """The last call of one attention: how much each query gave to each key, (B, H, T, S)."""

    weights: Tensor


@contextmanager
def probe(model: nn.Module, names: Collection[str] | None = None) -> Iterator[dict[str, Seen]]:
    """Records the attention weights of a model while the block runs, by the attention's name in the model.

    A `Translator` called within the block reads its best translations once more, so that each record holds whole
    sentences: row t of the weights is target position t.

    Args:
        model: any model that is built from `Attention`.
        names: which attentions to record, such as "decoder.3.cross"; all unless given.
    """
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    unknown = set(names or ()) - attentions.keys()
    if unknown:
        raise KeyError(f"no attention is called {sorted(unknown)[0]!r}; this model has {', '.join(attentions)}")
    chosen = {module: name for name, module in attentions.items() if names is None or name in names}
    seen: dict[str, Seen] = {}

    def observe(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
        seen[chosen[attention]] = Seen(attention.kind.weights(q, k, mask).detach())

    with observing(chosen, observe):
        yield seen
