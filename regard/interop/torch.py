"""PyTorch's own `nn.Transformer`. It has no embeddings: the module round it has them, under names of its own."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import Settings, unknown_key_message
from regard.errors import UserError
from regard.interop.graphs import Call, Program, Runtime, frozen
from regard.interop.renaming import Names, take
from regard.models.transformer import TransformerConfig

_FIRST = "encoder.layers.0.self_attn.in_proj_weight"
_SHARED = {
    r"around_attention\.norm": "norm1",
    r"attention\.qkv\.": "self_attn.in_proj_",
    r"attention\.out": "self_attn.out_proj",
    r"feed_forward\.inner": "linear1",
    r"feed_forward\.outer": "linear2",
}
_DECODER = {
    r"around_cross\.norm": "norm2",
    r"cross\.qkv\.": "multihead_attn.in_proj_",
    r"cross\.out": "multihead_attn.out_proj",
    r"around_feed_forward\.norm": "norm3",
}
_NAMES: Names = {
    **{
        rf"{stack}\.(\d+)\.{ours}": rf"{stack}.layers.\1.{theirs}"
        for stack, further in (("encoder", {r"around_feed_forward\.norm": "norm2"}), ("decoder", _DECODER))
        for ours, theirs in (_SHARED | further).items()
    },
    r"encoder_norm": "encoder.norm",
    r"decoder_norm": "decoder.norm",
    r"source_embedding\.weight": "source",
    r"target_embedding\.weight": "target",
    r"output_bias": "bias",
    r"output": "output",
}


class Embeddings(Settings):
    """Under which names the module round an `nn.Transformer` has what that lacks."""

    source: str
    target: str
    output: str
    bias: str | None = None
    scaled: bool = True
    """Whether embeddings are multiplied by √width, as ours are, before the positions are added."""


def read_torch(tensors: Mapping[str, Tensor], names: Embeddings, values: Mapping[str, Any]) -> TransformerConfig:
    """Our config of a model of these tensors; `values` say what no tensor can, such as heads, norm and positions.

    Raises:
        UserError: a tensor is missing, or a value is missing or wrong; it is named.
    """
    inside = _inside(tensors)
    width = _table(inside, _FIRST, "width").shape[-1]
    tables = {key: _table(tensors, getattr(names, key), key) for key in ("source", "target", "output")}
    if "heads" not in values:
        raise UserError(
            "heads: no tensor of an nn.Transformer says how many there are; give --set heads=8, or what is so"
        )
    same = {key: tables[key].data_ptr() == tables["target"].data_ptr() or torch.equal(tables[key], tables["target"])
            for key in ("source", "output") if tables[key].shape == tables["target"].shape}  # fmt: skip
    tied = names.scaled and same.get("output", False)
    inferred = {
        "source_vocab": len(tables["source"]),
        "target_vocab": len(tables["target"]),
        "width": width,
        "encoder_layers": _count(inside, "encoder"),
        "decoder_layers": _count(inside, "decoder"),
        "hidden": len(_table(inside, "encoder.layers.0.linear1.weight", "hidden")),
        "tie": ("all" if same.get("source", False) else "target") if tied else "none",
        "output_bias": names.bias is not None,
        "qkv_bias": _FIRST.replace("weight", "bias") in inside,
        "final_norm": "encoder.norm.weight" in inside,
    }
    return TransformerConfig.parse(inferred | dict(values), "nn.Transformer")


def from_torch(tensors: Mapping[str, Tensor], names: Embeddings, config: TransformerConfig) -> dict[str, Tensor]:
    """The weights, for `load_state_dict` of a model of the config that `read_torch` gives.

    Raises:
        UserError: a tensor is missing or of another shape; it is named.
    """
    given = _inside(tensors)
    factor = 1.0 if names.scaled else 1 / math.sqrt(config.width)
    given["source"] = _find(tensors, names.source, "source") * factor
    given["target"] = _find(tensors, names.target, "target") * factor
    given["output"] = _find(tensors, names.output, "output")
    if names.bias is not None:
        given["bias"] = _find(tensors, names.bias, "bias")
    return take(given, config, _NAMES, "weights of nn.Transformer", ("output", "target"))


def _inside(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the nn.Transformer itself, whatever stands round it."""
    found = [name.removesuffix(_FIRST) for name in tensors if name.endswith(_FIRST)]
    if len(found) != 1:
        raise UserError(f"{len(found)} tensors whose names end with {_FIRST}; one nn.Transformer has one")
    (prefix,) = found
    own = re.compile(re.escape(prefix) + r"(encoder|decoder)\.(layers|norm)\.")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if own.match(name)}


def _count(tensors: Mapping[str, Tensor], stack: str) -> int:
    numbers = [int(found[1]) for name in tensors if (found := re.match(rf"{stack}\.layers\.(\d{{1,9}})\.", name))]
    return max(numbers, default=-1) + 1


def _find(tensors: Mapping[str, Tensor], name: str, what: str) -> Tensor:
    if name not in tensors:
        raise UserError(f"{what}: {unknown_key_message(name, tensors).replace('key', 'tensor')}")
    return tensors[name]


def _table(tensors: Mapping[str, Tensor], name: str, what: str) -> Tensor:
    table = _find(tensors, name, what)
    if table.dim() != 2:
        raise UserError(f"{what}: {name} is {list(table.shape)}, not a table of two dimensions")
    return table


PYTORCH = ("aten", "prims", "higher_order")
"""Where PyTorch's own operators are."""


def open_archive(path: Path) -> Call:
    """A program at work in PyTorch, of which nothing is ours: its graph knows only operators of PyTorch.

    Raises:
        UserError: an operator in it is not one of PyTorch's.
    """
    program = torch.export.load(path)
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "namespace", "aten") not in PYTORCH:
            raise UserError(f"{path.name}: operator {node.target} is none of PyTorch's, so that it alone cannot run it")
    module: Any = program.module()

    @torch.no_grad()
    def call(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        said = module(**inputs)
        return said if isinstance(said, tuple) else (said,)

    return call


def _write(program: Program, path: Path) -> None:
    sizes = {name: dict.fromkeys(places, torch.export.Dim.DYNAMIC) for name, places in program.dynamic.items()}
    with frozen(program.module):
        written = torch.export.export(program.module, (), kwargs=program.inputs, dynamic_shapes=sizes)
    archive = io.BytesIO()
    torch.export.save(written, archive)
    path.write_bytes(archive.getbuffer())  # PyTorch's own writer ends the process where a disk is full


TORCH = Runtime("pt2", _write, open_archive, "as an archive of torch.export")
