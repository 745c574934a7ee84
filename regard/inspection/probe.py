"""`probe`: what every attention of a model saw, by name, without changing what it says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.multi_head import Attention, use_qkv_hook
from regard.errors import UserError
from regard.inspection.attentions import check_heads, find_attentions

Quantity = Literal["weights", "scores", "q", "k", "v", "context"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
WEIGHTS_ALONE: tuple[Quantity, ...] = ("weights",)


@dataclass
class Seen:
    """What one attention saw. The quantities are those of its last call; `joined` puts all kept calls together.

    Attributes:
        heads: which heads were recorded, in the order of the tensors' second dimension.
        calls: the quantities of every call that was kept, the last call last.
    """

    heads: list[int]
    calls: list[dict[Quantity, Tensor]] = field(default_factory=list)

    @property
    def weights(self) -> Tensor:
        """How much each query gave to each key, (B, H, T, S)."""
        return self._last("weights")

    @property
    def scores(self) -> Tensor:
        """What the weights were made of, (B, H, T, S): scaled and masked, by -inf before a softmax, else by 0."""
        return self._last("scores")

    @property
    def q(self) -> Tensor:
        """The queries, turned where positions are rotary, (B, H, T, D)."""
        return self._last("q")

    @property
    def k(self) -> Tensor:
        """The keys, likewise, (B, H, S, D)."""
        return self._last("k")

    @property
    def v(self) -> Tensor:
        """The values, (B, H, S, D)."""
        return self._last("v")

    @property
    def context(self) -> Tensor:
        """What the heads made of the values, before the output projection joins them, (B, H, T, D)."""
        return self._last("context")

    def joined(self, quantity: Quantity) -> Tensor:
        """A quantity over all kept calls, as steps of decoding make them: their queries one behind the other.

        Keys that a step did not have yet got no weight from it. Of k and v the last step has them all.
        """
        last = self._last(quantity)
        if quantity in ("k", "v"):
            return last
        parts = [call[quantity] for call in self.calls]
        if quantity in ("weights", "scores"):
            absent = float("-inf") if quantity == "scores" else 0.0
            parts = [F.pad(part, (0, last.shape[-1] - part.shape[-1]), value=absent) for part in parts]
        return torch.cat(parts, 2)

    def _last(self, quantity: Quantity) -> Tensor:
        last = self.calls[-1]
        if quantity not in last:
            raise UserError(f"{quantity} was not recorded; ask for it: probe(model, record=[{quantity!r}])")
        return last[quantity]


@contextmanager
def probe(
    model: nn.Module,
    names: Collection[str] | None = None,
    heads: Collection[int] | Mapping[str, Collection[int]] | None = None,
    record: Collection[Quantity] = WEIGHTS_ALONE,
    keep: int | None = 1,
) -> Iterator[dict[str, Seen]]:
    """Records what the attentions of a model see while the block runs, by the attention's name in the model.

    A `Translator` called within the block reads its best translations once more, so that each record holds whole
    sentences: row t of the weights is target position t. Whoever decodes step by step themselves asks for every call
    with keep=None, and for the whole with `Seen.joined`. Of two probes, one within the other, the inner one sees.

    Args:
        model: any model that is built from `Attention`.
        names: which attentions to record, such as "decoder.3.cross"; all unless given.
        heads: which heads of each, or of each name; all unless given.
        record: which of weights, scores, q, k, v and context; the weights unless given.
        keep: how many of the last calls are kept: memory grows with every one. None keeps all.

    Raises:
        UserError: a name, a head or a quantity is unknown.
    """
    attentions = find_attentions(model, names)
    chosen = _choose_heads(attentions, heads)
    for quantity in record:
        if quantity not in QUANTITIES:
            raise UserError(f"record: {quantity!r} is none of {', '.join(QUANTITIES)}")
    if keep is not None and keep < 1:
        raise UserError(f"keep: {keep} calls cannot be kept; give 1 or more, or None for all")
    recorder = _Recorder({attention: name for name, attention in attentions.items()}, chosen, record, keep)
    with ExitStack() as stack:
        stack.enter_context(use_qkv_hook(attentions.values(), recorder.observe))
        if "context" in record:
            for attention in attentions.values():
                handle = attention.out.register_forward_pre_hook(recorder.hook(attention))
                stack.callback(handle.remove)
        yield recorder.seen


class _Recorder:
    """Fills `seen` as the attentions are called."""

    def __init__(
        self,
        names: dict[Attention, str],
        heads: dict[str, list[int]],
        record: Collection[Quantity],
        keep: int | None,
    ) -> None:
        self.names, self.heads, self.record, self.keep = names, heads, record, keep
        self.seen: dict[str, Seen] = {}
        self._awaited: dict[Attention, torch.Size] = {}  # attentions that were seen to begin: the shape of q

    def observe(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
        name = self.names[attention]
        heads = self.heads[name]
        make: dict[Quantity, Callable[[], Tensor]] = {
            "weights": lambda: attention.kind.weights(q, k, mask),
            "scores": lambda: attention.kind.scores(q, k, mask),
            "q": lambda: q,
            "k": lambda: k,
            "v": lambda: v,
        }
        with torch.no_grad():
            call = {name: _pick(make[name](), heads) for name in QUANTITIES if name in self.record and name in make}
        seen = self.seen.setdefault(name, Seen(heads))
        seen.calls.append(call)
        if self.keep is not None:
            del seen.calls[: -self.keep]
        if "context" in self.record:
            self._awaited[attention] = q.shape

    def hook(self, attention: Attention) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        """What the output projection is given is the context, its heads side by side."""

        def receive(_: nn.Module, given: tuple[Any, ...]) -> None:
            shape = self._awaited.pop(attention, None)
            if shape is not None:  # None: nobody was to see this call
                B, H, T, D = shape
                name = self.names[attention]
                context = given[0].detach().reshape(B, T, H, D).transpose(1, 2)
                self.seen[name].calls[-1]["context"] = _pick(context, self.heads[name])

        return receive


def _choose_heads(
    attentions: Mapping[str, Attention], heads: Collection[int] | Mapping[str, Collection[int]] | None
) -> dict[str, list[int]]:
    if isinstance(heads, Mapping):
        unknown = [name for name in heads if name not in attentions]
        if unknown:
            raise UserError(f"heads: {unknown[0]!r} is not among what is probed: {', '.join(attentions)}")
        wanted = {name: heads.get(name, range(attention.heads)) for name, attention in attentions.items()}
    else:
        wanted = {name: range(attention.heads) if heads is None else heads for name, attention in attentions.items()}
    return {name: check_heads(name, attentions[name], some) for name, some in wanted.items()}


def _pick(x: Tensor, heads: list[int]) -> Tensor:
    """These heads of (B, H, …), without keeping the others in memory."""
    return x.detach() if heads == list(range(x.shape[1])) else x.detach()[:, heads]
