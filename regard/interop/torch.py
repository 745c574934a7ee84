"""PyTorch: import of `nn.Transformer`, and export as archives of torch.export.

An `nn.Transformer` has no embeddings; the names of those of the surrounding module have to be given.
"""

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
from regard.interop.graphs import GraphCall, GraphFormat, GraphSpec, without_gradients
from regard.interop.infer_config import count_layers, shape_of
from regard.interop.renaming import Block, Names, block_names, import_tensors
from regard.models.transformer import TransformerConfig

_IN_PROJ = "encoder.layers.0.self_attn.in_proj_weight"
_BLOCK: Block = {
    r"norm1": "norm1",
    r"norm2": "norm2",
    r"attention\.qkv\.": "self_attn.in_proj_",
    r"attention\.out": "self_attn.out_proj",
    r"feed_forward\.inner": "linear1",
    r"feed_forward\.outer": "linear2",
}
_DECODER_BLOCK = _BLOCK | {
    r"cross\.qkv\.": "multihead_attn.in_proj_",
    r"cross\.out": "multihead_attn.out_proj",
    r"norm3": "norm3",
}
_NAMES: Names = {
    **block_names(r"encoder\.(\d+)\.", r"encoder.layers.\1.", _BLOCK),
    **block_names(r"decoder\.(\d+)\.", r"decoder.layers.\1.", _DECODER_BLOCK),
    r"encoder_norm": "encoder.norm",
    r"decoder_norm": "decoder.norm",
    r"source_embedding\.weight": "source",
    r"target_embedding\.weight": "target",
    r"output_bias": "bias",
    r"output": "output",
}


class Embeddings(Settings):
    """Names of the tensors around an `nn.Transformer`."""

    source: str
    target: str
    output: str
    bias: str | None = None
    scaled: bool = True
    """Whether embeddings are multiplied by √width before positions are added, as in regard."""


def read_torch(tensors: Mapping[str, Tensor], names: Embeddings, values: Mapping[str, Any]) -> TransformerConfig:
    """Infer the config of an `nn.Transformer` from its tensors.

    Args:
        tensors: Tensors of the module around the `nn.Transformer`.
        values: Keys of the config that cannot be inferred, such as heads, norm and positions.
    """
    inner = _transformer_tensors(tensors)
    tables = {key: _find(tensors, getattr(names, key), key) for key in ("source", "target", "output")}
    if "heads" not in values:
        raise UserError("heads: the number of heads cannot be inferred; give it, for example --set heads=8")
    same_as_target = {key: _is_equal(tables[key], tables["target"]) for key in ("source", "output")}
    if not names.scaled or not same_as_target["output"]:
        tie = "none"
    else:
        tie = "all" if same_as_target["source"] else "target"
    inferred = {
        "source_vocab": shape_of(tensors, names.source, 2)[0],
        "target_vocab": shape_of(tensors, names.target, 2)[0],
        "width": shape_of(inner, _IN_PROJ, 2)[1],
        "encoder_layers": count_layers(inner, r"encoder\.layers\.(\d{1,9})\."),
        "decoder_layers": count_layers(inner, r"decoder\.layers\.(\d{1,9})\."),
        "hidden": shape_of(inner, "encoder.layers.0.linear1.weight", 2)[0],
        "tie": tie,
        "output_bias": names.bias is not None,
        "qkv_bias": _IN_PROJ.replace("weight", "bias") in inner,
        "final_norm": "encoder.norm.weight" in inner,
    }
    return TransformerConfig.parse(inferred | dict(values), "nn.Transformer")


def from_torch(tensors: Mapping[str, Tensor], names: Embeddings, config: TransformerConfig) -> dict[str, Tensor]:
    """Convert the weights of an `nn.Transformer` to a regard state dict; `config` is that of `read_torch`."""
    given = _transformer_tensors(tensors)
    scale = 1.0 if names.scaled else 1 / math.sqrt(config.width)
    given["source"] = _find(tensors, names.source, "source") * scale
    given["target"] = _find(tensors, names.target, "target") * scale
    given["output"] = _find(tensors, names.output, "output")
    if names.bias is not None:
        given["bias"] = _find(tensors, names.bias, "bias")
    return import_tensors(given, config, _NAMES, "weights of nn.Transformer", ("output", "target"))


def load_archive(path: Path) -> GraphCall:
    """Load an archive of torch.export, which may only use operators of PyTorch, so that PyTorch alone can run it."""
    program = torch.export.load(path)
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "namespace", "aten") not in _PYTORCH_NAMESPACES:
            raise UserError(f"{path.name}: operator {node.target} is not part of PyTorch")
    module: Any = program.module()

    @torch.no_grad()
    def call(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        outputs = module(**inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return call


def _save_archive(spec: GraphSpec, path: Path) -> None:
    sizes = {name: dict.fromkeys(dimensions, torch.export.Dim.DYNAMIC) for name, dimensions in spec.dynamic.items()}
    with without_gradients(spec.module):
        program = torch.export.export(spec.module, (), kwargs=spec.inputs, dynamic_shapes=sizes)
    archive = io.BytesIO()
    torch.export.save(program, archive)
    path.write_bytes(archive.getbuffer())  # PyTorch's own writer aborts the process if the disk is full


_PYTORCH_NAMESPACES = ("aten", "prims", "higher_order")
TORCH = GraphFormat("pt2", _save_archive, load_archive, "as an archive of torch.export")


def _transformer_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the nn.Transformer itself, without the prefix of the surrounding module."""
    prefixes = [name.removesuffix(_IN_PROJ) for name in tensors if name.endswith(_IN_PROJ)]
    if len(prefixes) != 1:
        raise UserError(f"found {len(prefixes)} tensors whose names end with {_IN_PROJ}, but expected one")
    (prefix,) = prefixes
    pattern = re.compile(re.escape(prefix) + r"(encoder|decoder)\.(layers|norm)\.")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if pattern.match(name)}


def _find(tensors: Mapping[str, Tensor], name: str, what: str) -> Tensor:
    if name not in tensors:
        raise UserError(f"{what}: {unknown_key_message(name, tensors).replace('key', 'tensor')}")
    return tensors[name]


def _is_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and (a.data_ptr() == b.data_ptr() or torch.equal(a, b))
