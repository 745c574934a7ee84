"""`probe`: record attention weights, scores, queries, keys, values and contexts by layer name.

Shapes: B batch, H recorded heads, T queries, S keys, D head width.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.multi_head import Attention, use_qkv_hook
from regard.errors import UserError
from regard.masks import Mask

Quantity = Literal["weights", "scores", "q", "k", "v", "context"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
WEIGHTS_ONLY: tuple[Quantity, ...] = ("weights",)


@dataclass
class AttentionRecord:
    """Recorded quantities of one attention module. The properties return those of the last call.

    Attributes:
        heads: Indices of the recorded heads, in the order of the tensors' second dimension.
        calls: Quantities of each kept call, last call last.
    """

    heads: list[int]
    calls: list[dict[Quantity, Tensor]] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return the heads, the number of calls, and the shapes of the last one."""
        shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in self.calls[-1].items()] if self.calls else []
        return f"AttentionRecord({', '.join([f'heads={self.heads}', f'calls={len(self.calls)}', *shapes])})"

    def _repr_html_(self) -> str:
        """Return the attention maps of all heads, for a notebook."""
        from regard.inspection.html import render_records

        return render_records({"attention": self})

    @property
    def weights(self) -> Tensor:
        """Attention weights, (B, H, T, S)."""
        return self._last("weights")

    @property
    def scores(self) -> Tensor:
        """Scaled and masked scores, (B, H, T, S). Masked entries are -inf before a softmax, otherwise 0."""
        return self._last("scores")

    @property
    def q(self) -> Tensor:
        """Queries after rotary embedding, (B, H, T, D)."""
        return self._last("q")

    @property
    def k(self) -> Tensor:
        """Keys after rotary embedding, (B, H, S, D)."""
        return self._last("k")

    @property
    def v(self) -> Tensor:
        """Values, (B, H, S, D)."""
        return self._last("v")

    @property
    def context(self) -> Tensor:
        """Output of each head before the output projection, (B, H, T, D)."""
        return self._last("context")

    def concatenated(self, quantity: Quantity) -> Tensor:
        """Return a quantity over all kept calls, concatenated along the queries, as for cached decoding steps.

        Weights of keys that a step did not have yet are 0 and their scores -inf. For k and v, the last call holds
        all positions.
        """
        last = self._last(quantity)
        if quantity in ("k", "v"):
            return last
        parts = [call[quantity] for call in self.calls]
        if quantity in ("weights", "scores"):
            missing = float("-inf") if quantity == "scores" else 0.0
            parts = [F.pad(part, (0, last.shape[-1] - part.shape[-1]), value=missing) for part in parts]
        return torch.cat(parts, 2)

    def _last(self, quantity: Quantity) -> Tensor:
        last = self.calls[-1]
        if quantity not in last:
            raise UserError(f"{quantity} was not recorded; record it with probe(model, record=[{quantity!r}])")
        return last[quantity]


class UnknownRecordError(UserError, KeyError):
    """The name of a module without a record."""

    __str__ = BaseException.__str__  # KeyError would quote the sentence


class AttentionRecords(dict[str, AttentionRecord]):
    """Records by the name of the attention module, in the order of the calls; `probed` are the names of all."""

    def __init__(self, probed: Collection[str]) -> None:
        super().__init__()
        self.probed = list(probed)

    def __repr__(self) -> str:
        """Return one line per module."""
        return "\n".join(f"{name}: {record}" for name, record in self.items()) or "AttentionRecords()"

    def _repr_html_(self) -> str:
        """Return the attention maps of all modules, for a notebook."""
        from regard.inspection.html import render_records

        return render_records(self)

    def __missing__(self, name: str) -> AttentionRecord:
        if name in self.probed:
            raise UnknownRecordError(f"{name!r} has not been called yet; run the model inside the block of the probe")
        raise UnknownRecordError(f"{name!r} is not among the probed modules: {', '.join(self.probed) or 'none'}")


@contextmanager
def probe(
    model: nn.Module,
    names: Collection[str] | None = None,
    heads: Collection[int] | Mapping[str, Collection[int]] | None = None,
    record: Collection[Quantity] = WEIGHTS_ONLY,
    keep: int | None = 1,
) -> Iterator[AttentionRecords]:
    """Record quantities of the attention modules of a model inside the block, by module name.

    The outputs of the model do not change. A `Translator` that is called inside the block runs a second, teacher-forced
    pass over its best translations, so that each record holds complete sentences: row t of the weights is target
    position t. For step-by-step decoding, use keep=None and `AttentionRecord.concatenated`. If probes are nested, only
    the inner one records.

    Args:
        model: Any model built from `Attention`.
        names: Names of the attention modules, such as "decoder.3.cross". Defaults to all.
        heads: Heads to record, for all modules or by module name. Defaults to all.
        record: Quantities to record: weights, scores, q, k, v, context.
        keep: Number of most recent calls to keep per module; None keeps all.

    Raises:
        UserError: A name, head or quantity is unknown.
    """
    attentions = find_attentions(model, names)
    heads_by_name = _select_heads(attentions, heads)
    for quantity in record:
        if quantity not in QUANTITIES:
            raise UserError(f"record: {quantity!r} is not one of {', '.join(QUANTITIES)}")
    if keep is not None and keep < 1:
        raise UserError(f"keep: {keep} is not a number of calls; use 1 or more, or None for all")
    recorder = _Recorder({attention: name for name, attention in attentions.items()}, heads_by_name, record, keep)
    with ExitStack() as stack:
        stack.enter_context(use_qkv_hook(attentions.values(), recorder.observe))
        if "context" in record:
            # The hook above is called before the context is computed, so it is read from the output projection's input.
            for attention in attentions.values():
                handle = attention.out.register_forward_pre_hook(recorder.context_hook(attention))
                stack.callback(handle.remove)
        yield recorder.records


def find_attentions(model: nn.Module, names: Collection[str] | None = None) -> dict[str, Attention]:
    """Return the attention modules with the given names, such as "decoder.3.cross", in model order. Defaults to all."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    if names is None:
        return found
    if isinstance(names, str):
        raise UserError(f"names must be a list, such as [{names!r}]")
    for name in names:
        if name not in found:
            raise UserError(f"{name!r} is not an attention module of this model; it has {', '.join(found) or 'none'}")
    return {name: attention for name, attention in found.items() if name in names}


def check_heads(name: str, attention: Attention, heads: Collection[int]) -> list[int]:
    """Return the heads as a list, or raise a `UserError` if the attention module has no such head."""
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < attention.heads:
            valid = "only head 0" if attention.heads == 1 else f"heads 0 to {attention.heads - 1}"
            raise UserError(f"{name} has no head {head!r}; it has {valid}")
    return list(heads)


class _Recorder:
    """Fills `records` during calls of the attention modules."""

    def __init__(
        self, names: dict[Attention, str], heads: dict[str, list[int]], record: Collection[Quantity], keep: int | None
    ) -> None:
        self.names, self.heads, self.record, self.keep = names, heads, record, keep
        self.records = AttentionRecords(heads)
        self._q_shapes: dict[Attention, torch.Size] = {}  # of modules whose context is still to be recorded

    def observe(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
        name = self.names[attention]
        heads = self.heads[name]
        compute: dict[Quantity, Callable[[], Tensor]] = {
            "weights": lambda: attention.kind.weights(q, k, mask),
            "scores": lambda: attention.kind.scores(q, k, mask),
            "q": lambda: q,
            "k": lambda: k,
            "v": lambda: v,
        }
        with torch.no_grad():
            call = {quantity: _select(compute[quantity](), heads) for quantity in compute if quantity in self.record}
        record = self.records.setdefault(name, AttentionRecord(heads))
        record.calls.append(call)
        if self.keep is not None:
            del record.calls[: -self.keep]
        if "context" in self.record:
            self._q_shapes[attention] = q.shape

    def context_hook(self, attention: Attention) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        """Return a pre-hook of the output projection, whose input is the concatenated context of all heads."""

        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            shape = self._q_shapes.pop(attention, None)
            if shape is not None:  # None: `observe` was not called for this forward pass
                B, H, T, D = shape
                name = self.names[attention]
                context = args[0].detach().reshape(B, T, H, D).transpose(1, 2)
                self.records[name].calls[-1]["context"] = _select(context, self.heads[name])

        return hook


def _select_heads(
    attentions: Mapping[str, Attention], heads: Collection[int] | Mapping[str, Collection[int]] | None
) -> dict[str, list[int]]:
    if isinstance(heads, Mapping):
        unknown = [name for name in heads if name not in attentions]
        if unknown:
            raise UserError(f"heads: {unknown[0]!r} is not among the probed modules: {', '.join(attentions)}")
        selected = {name: heads.get(name, range(attention.heads)) for name, attention in attentions.items()}
    else:
        selected = {name: range(attention.heads) if heads is None else heads for name, attention in attentions.items()}
    return {name: check_heads(name, attentions[name], indices) for name, indices in selected.items()}


def _select(x: Tensor, heads: list[int]) -> Tensor:
    """Select heads of (B, H, …), copying only if some are dropped."""
    return x.detach() if heads == list(range(x.shape[1])) else x.detach()[:, heads]
