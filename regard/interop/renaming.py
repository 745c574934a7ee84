"""Tensors that differ only in name, in leading dimensions of one, and in being one or several.

A library's names stand in a table from ours to theirs. Several names on their side are parts of our one tensor, in
that order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from regard.config import Settings
from regard.errors import UserError
from regard.models.registry import MODELS

Template = str | Callable[[re.Match[str]], str]
Names = Mapping[str, Template | tuple[Template, ...]]
"""What a name of ours begins with, as a regular expression, and what theirs begin with instead."""

TOKENS = ("class_token", "positions")
"""Ours without a dimension for the batch, which all others give these two."""


def take(
    tensors: Mapping[str, Tensor], config: Settings, names: Names, where: str, ignored: Collection[str] = ()
) -> dict[str, Tensor]:
    """Their tensors under our names, as many and as large as a model of this config needs.

    Args:
        tensors: theirs, by name.
        config: of our model.
        names: the table.
        where: what to call the tensors in an error.
        ignored: beginnings of names that our model has no use for, as regular expressions.

    Raises:
        UserError: a tensor is missing, unknown or of another shape; it is named.
    """
    taken: dict[str, Tensor] = {}
    rest = set(tensors)
    for ours, shape in _shapes(config).items():
        theirs = _their_names(ours, names)
        for name in theirs:
            if name not in tensors:
                raise UserError(f"{where}: no tensor {name}, from which {ours} would be taken")
        rest -= set(theirs)
        for name in theirs:
            if not tensors[name].is_floating_point():
                raise UserError(f"{where}: {name} holds {tensors[name].dtype}, not floating-point numbers")
        parts = [_without_ones(tensors[name], len(shape)) for name in theirs]
        found = _joined_shape(parts)
        if found != list(shape):  # asked before they are joined: a small file may describe a tensor without end
            raise UserError(f"{where}: {' + '.join(theirs)} is {found}, but {ours} of this config is {list(shape)}")
        taken[ours] = torch.cat(parts)
    for name in sorted(rest):
        if not any(re.match(beginning, name) for beginning in ignored):
            raise UserError(f"{where}: unknown tensor {name}, for which a model of this config has no place")
    return taken


def give(tensors: Mapping[str, Tensor], config: Settings, names: Names) -> dict[str, Tensor]:
    """Our tensors under their names: what `take` would take back.

    Raises:
        UserError: a tensor of such a model is missing.
    """
    given: dict[str, Tensor] = {}
    for ours in _shapes(config):
        if ours not in tensors:
            raise UserError(f"no tensor {ours}, so these are not the weights of a model of this config")
        tensor = tensors[ours][None] if ours in TOKENS else tensors[ours]
        theirs = _their_names(ours, names)
        given |= zip(theirs, (part.contiguous() for part in tensor.chunk(len(theirs))), strict=True)
    return given


def _shapes(config: Settings) -> dict[str, torch.Size]:
    """The names and shapes of a model's tensors, which costs no memory."""
    kind = MODELS[getattr(config, "kind")]  # noqa: B009  # every config of a model has one
    return {name: tensor.shape for name, tensor in kind.build_on_meta(config, "config").state_dict().items()}


def _their_names(ours: str, names: Names) -> tuple[str, ...]:
    for beginning, templates in names.items():
        if found := re.match(beginning, ours):
            several = templates if isinstance(templates, tuple) else (templates,)
            return tuple((t(found) if callable(t) else found.expand(t)) + ours[found.end() :] for t in several)
    raise UserError(f"{ours}: the other library has no such tensor, so its weights do not fit this config")


def _joined_shape(parts: Sequence[Tensor]) -> list[int]:
    """Of the parts one behind the other, or of the first that does not fit to them."""
    first = parts[0]
    for part in parts:
        if part.shape[1:] != first.shape[1:] or not part.dim():
            return list(part.shape)
    return [sum(len(part) for part in parts), *first.shape[1:]]


def _without_ones(tensor: Tensor, dimensions: int) -> Tensor:
    while tensor.dim() > dimensions and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor
