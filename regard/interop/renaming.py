"""Convert tensors between libraries that name, split and shape them differently.

The names of a format are given by one table from regard's names to the other library's. If a name maps to several
names, the tensor is their concatenation in this order, such as the query, key and value projections.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.config import Settings
from regard.errors import UserError
from regard.models.folder import model_on_meta

Template = str | Callable[[re.Match[str]], str]
Names = Mapping[str, Template | tuple[Template, ...]]
"""Regular expressions for the beginnings of regard's names, and replacements for them in the other library."""
Block = dict[str, str | tuple[str, ...]]
"""Names of the parameters within a block."""

WITHOUT_BATCH = ("class_token", "positions")
"""Parameters that have a leading dimension of 1 in other libraries, but not in regard."""


def import_tensors(
    tensors: Mapping[str, Tensor], config: Settings, names: Names, where: str, ignored: Collection[str] = ()
) -> dict[str, Tensor]:
    """Convert another library's tensors to the state dict of a model with this config; all names and shapes must match.

    Args:
        where: Description of the tensors for error messages.
        ignored: Regular expressions for the beginnings of names that regard does not need.
    """
    state_dict: dict[str, Tensor] = {}
    unused = set(tensors)
    for name, shape in _state_dict_shapes(config).items():
        foreign_names = map_name(name, names)
        for foreign in foreign_names:
            if foreign not in tensors:
                raise UserError(f"{where}: tensor {foreign} is missing; it is needed for {name}")
            if not tensors[foreign].is_floating_point():
                raise UserError(f"{where}: {foreign} has dtype {tensors[foreign].dtype}, not a floating-point dtype")
        unused -= set(foreign_names)
        parts = [_squeeze_leading(tensors[foreign], len(shape)) for foreign in foreign_names]
        found = _concatenated_shape(parts)
        # Checked before concatenation: expanded tensors in a small file could require any amount of memory.
        if found != list(shape):
            joined = " + ".join(foreign_names)
            raise UserError(f"{where}: {joined} has shape {found}, but {name} of this config has {list(shape)}")
        state_dict[name] = torch.cat(parts)
    for foreign in sorted(unused):
        if not any(re.match(pattern, foreign) for pattern in ignored):
            raise UserError(f"{where}: unknown tensor {foreign}; a model of this config has no such parameter")
    return state_dict


def export_tensors(tensors: Mapping[str, Tensor], config: Settings, names: Names) -> dict[str, Tensor]:
    """Convert a regard state dict to the other library's names: the inverse of `import_tensors`."""
    exported: dict[str, Tensor] = {}
    for name in _state_dict_shapes(config):
        if name not in tensors:
            raise UserError(f"tensor {name} is missing; the weights do not belong to a model of this config")
        tensor = tensors[name][None] if name in WITHOUT_BATCH else tensors[name]
        foreign_names = map_name(name, names)
        parts = (part.contiguous() for part in tensor.chunk(len(foreign_names)))
        exported |= zip(foreign_names, parts, strict=True)
    return exported


def rename_keys(values: Mapping[str, Any], keys: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return values of another library's config under regard's keys; `keys` maps regard's keys to the library's."""
    for foreign in keys.values():
        if values.get(foreign) is None:
            raise UserError(f"{where}: {foreign} is missing")
    return {name: values[foreign] for name, foreign in keys.items()}


def block_names(prefix: str, foreign_prefix: str, block: Block) -> Names:
    """Return names for all blocks of a stack, from the names within a block; `prefix` matches the number of a block."""
    return {
        prefix + name: tuple(foreign_prefix + part for part in ((parts,) if isinstance(parts, str) else parts))
        for name, parts in block.items()
    }


def _state_dict_shapes(config: Settings) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model_on_meta(config, "config").state_dict().items()}


def map_name(name: str, names: Names) -> tuple[str, ...]:
    """Return the other library's names of a parameter."""
    for pattern, templates in names.items():
        if found := re.match(pattern, name):
            several = templates if isinstance(templates, tuple) else (templates,)
            return tuple((t(found) if callable(t) else found.expand(t)) + name[found.end() :] for t in several)
    raise UserError(f"{name}: the other library has no such parameter, so its weights do not fit this config")


def _concatenated_shape(parts: Sequence[Tensor]) -> list[int]:
    """Return the shape of the concatenation, or the shape of the first part that cannot be concatenated."""
    first = parts[0]
    for part in parts:
        if part.shape[1:] != first.shape[1:] or not part.dim():
            return list(part.shape)
    return [sum(len(part) for part in parts), *first.shape[1:]]


def _squeeze_leading(tensor: Tensor, dimensions: int) -> Tensor:
    while tensor.dim() > dimensions and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor
