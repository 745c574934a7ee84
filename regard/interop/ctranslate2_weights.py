"""Convert the weights of CTranslate2 to a `Transformer`, and read its configuration from them.

The layers and sizes follow from the names and shapes of the variables; flags, such as that for pre-norm, are variables
too. What regard does not have, such as relative positions, is a `UserError` with the reason.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.ctranslate2_file import EngineFile
from regard.interop.infer_config import count_layers, shape_of
from regard.interop.renaming import Block, Names, block_names, import_tensors
from regard.layers import sinusoid
from regard.models.transformer import TransformerConfig

EPS = 1e-5
"""LayerNorm eps of the engine if config.json does not state it."""
BUILT_IN_POSITIONS = 1024
"""Number of positions that are computed for models without a table of positions."""
NEVER = -1e4
"""Output bias of a token that is never generated."""
SUPPORTED = "regard imports encoder-decoder translation models of CTranslate2 (TransformerSpec)"
_HEADS = {"TransformerBase": 8, "TransformerBig": 16}
"""Heads of the models of old files, which do not state them."""
_ACTIVATIONS = {0: "relu", 2: "silu", 3: "gelu"}
_OTHER_ACTIVATIONS = {1: "GELU with tanh", 4: "GELU with a sigmoid", 5: "tanh", 6: "sigmoid"}

_BLOCK: Block = {
    r"attention\.qkv": r"self_attention/linear_0",
    r"attention\.out": r"self_attention/linear_1",
    r"feed_forward\.outer": r"ffn/linear_1",
}
_DECODER_BLOCK: Block = {
    r"cross\.qkv": (r"attention/linear_0", r"attention/linear_1"),
    r"cross\.out": r"attention/linear_2",
}
_NORMS = {"norm1": "self_attention/layer_norm", "norm2": "ffn/layer_norm"}
_DECODER_NORMS = {"norm1": "self_attention/layer_norm", "norm2": "attention/layer_norm", "norm3": "ffn/layer_norm"}
_SOURCE, _TARGET, _OUTPUT = "encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"
_BIAS = "decoder/projection/bias"
_UNSUPPORTED = {
    r"relative_(position|attention|asymmetric)": "relative positions",
    r"relative_(left|right)_max": "relative positions",
    r"alibi": "attention with linear biases",
    r"num_heads_kv|multi_query_attention": "keys and values that are shared by several heads",
    r"head_dim": "heads whose width is not the model's width divided by their number",
    r"sliding_window": "a sliding window",
    r"layernorm_embedding": "a norm after the embedding",
    r"embeddings_1/": "several embeddings for each source token",
    r"weight_zero": "weights quantised to 4 bits",
    r"(q|k|v)_norm": "norms of queries and keys",
    r"rotary_(scaling|low|high)|original_max_position|max_position_embeddings": "scaled rotary positions",
    r"rotary_interleave": "interleaved rotary positions",
    r"rotary_(dim|base)": "rotary positions of another width or base",
    r"(input|post|pre|shared|external)\w*_layer_norm": "further norms in every layer",
    r"layer_norm_use_residual": "another kind of norm",
    r"project_(in|out)": "linear layers around the decoder",
    r"scale_outputs|final_logit_softcapping|layer_scalar": "scaled outputs",
}
"""Names of variables, and what a model that has them needs."""
_IGNORED = (r".*/(alignment_layer|alignment_heads|embeddings_merge|alibi_use_positive_positions|scale_alibi)$",)


def read_engine_config(
    file: EngineFile, values: Mapping[str, Any], where: str
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """Return the configuration of the model and its weights as a regard state dict.

    Args:
        values: Contents of config.json with the ids of special tokens: `pad`, `bos`, `eos` and `source_end`.
        where: Name of the file for errors.
    """
    _check_specification(file, where)
    weights = _Weights(file, where)
    config = weights.read(values)
    state_dict = import_tensors(weights.tensors, config, _names(config), where)
    return config, state_dict


def _check_specification(file: EngineFile, where: str) -> None:
    known = {"TransformerSpec", *_HEADS}
    if file.specification not in known or file.revision < 2:
        kind = f"{file.specification!r}, revision {file.revision}"
        raise UserError(f"{where}: contains a model of kind {kind}; {SUPPORTED}")
    if not any(name.startswith("encoder/") for name in file.tensors):
        raise UserError(f"{where}: has no encoder; {SUPPORTED}")


def _names(config: TransformerConfig) -> Names:
    inner: Block = {r"feed_forward\.inner": r"ffn/linear_0"}
    if config.activation == "swiglu":
        inner = {r"feed_forward\.inner": (r"ffn/linear_0", r"ffn/linear_0_noact")}

    def block(stack: str, layers: Block, norms: Mapping[str, str]) -> Names:
        linear = {name + r"\.": tuple(f"{part}/" for part in _several(parts)) for name, parts in layers.items()}
        affine = {f"{name}.weight": f"{part}/gamma" for name, part in norms.items()}
        affine |= {f"{name}.bias": f"{part}/beta" for name, part in norms.items()}
        return block_names(rf"{stack}\.(\d+)\.", rf"{stack}/layer_\1/", {**affine, **linear})

    return {
        r"source_embedding\.positions\.weight": "encoder/position_encodings/encodings",
        r"target_embedding\.positions\.weight": "decoder/position_encodings/encodings",
        r"source_embedding\.weight": _SOURCE,
        r"target_embedding\.weight": _TARGET,
        r"output_bias": _BIAS,
        r"output": _OUTPUT,
        r"encoder_norm\.weight": "encoder/layer_norm/gamma",
        r"encoder_norm\.bias": "encoder/layer_norm/beta",
        r"decoder_norm\.weight": "decoder/layer_norm/gamma",
        r"decoder_norm\.bias": "decoder/layer_norm/beta",
        **block("encoder", _BLOCK | inner, _NORMS),
        **block("decoder", _BLOCK | inner | _DECODER_BLOCK, _DECODER_NORMS),
    }


def _several(parts: str | tuple[str, ...]) -> tuple[str, ...]:
    return (parts,) if isinstance(parts, str) else parts


class _Weights:
    """The variables of a file, from which `read` takes flags and removes or changes what regard stores differently.

    Attributes:
        tensors: The remaining variables.
    """

    def __init__(self, file: EngineFile, where: str) -> None:
        self.file, self.where = file, where
        self.tensors = dict(file.tensors)
        if "encoder/embeddings/weight" in self.tensors:  # older revisions
            self.tensors[_SOURCE] = self.tensors.pop("encoder/embeddings/weight")
        for name in ("num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads"):
            value = self.tensors.pop(name, None)
            if value is not None:
                self.tensors |= {f"{stack}/{name}": value for stack in ("encoder", "decoder")}
        for name, tensor in self.tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise UserError(f"{where}: {name} contains NaN or infinity")

    def read(self, values: Mapping[str, Any]) -> TransformerConfig:
        """Return the configuration."""
        self._check_supported()
        source_vocab, width = shape_of(self.tensors, _SOURCE, 2)
        target_vocab, _ = shape_of(self.tensors, _TARGET, 2)
        layers = {stack: count_layers(self.tensors, rf"{stack}/layer_(\d+)/") for stack in ("encoder", "decoder")}
        heads = _integer(self._equal("num_heads", _HEADS.get(self.file.specification, 8)), "num_heads", self.where)
        self._check_alignment(layers["decoder"], heads)
        pre_norm = bool(self._equal("pre_norm", 1))
        activation = self._activation()
        settings: dict[str, Any] = {
            "source_vocab": source_vocab,
            "target_vocab": target_vocab,
            "width": width,
            "heads": heads,
            "encoder_layers": layers["encoder"],
            "decoder_layers": layers["decoder"],
            "hidden": shape_of(self.tensors, "encoder/layer_0/ffn/linear_0/weight", 2)[0],
            "activation": activation,
            "norm": "pre" if pre_norm else "post",
            "final_norm": None if (final_norm := self._final_norm()) == pre_norm else final_norm,
            "norm_eps": EPS if values.get("layer_norm_epsilon") is None else values["layer_norm_epsilon"],
            "qk_scale": self._queries_scale(),
            "dropout": 0.1,
        }
        settings |= {key: values[key] for key in ("pad", "bos", "eos", "source_end")}
        self._add_missing_biases(width)
        settings["qkv_bias"] = self._has_qkv_bias()
        positions = self._positions(width)
        self._scale_embeddings(width)
        if self._flag("decoder/start_from_zero_embedding"):
            settings |= self._add_start_token(target_vocab, source_vocab)
        bias = self.tensors.get(_BIAS)
        settings["output_bias"] = bias is not None and bool(bias.any())
        if not settings["output_bias"]:
            self.tensors.pop(_BIAS, None)
        settings |= positions | {"tie": self._tie(positions)}
        for name in [name for name in self.tensors if any(re.match(pattern, name) for pattern in _IGNORED)]:
            del self.tensors[name]
        return TransformerConfig.parse(settings, self.where)

    def _check_supported(self) -> None:
        """Raise an error for variables without an equivalent, unless they have the value that disables them."""
        for name in list(self.tensors):
            for pattern, what in _UNSUPPORTED.items():
                if not re.search(pattern, name) or any(re.match(ignored, name) for ignored in _IGNORED):
                    continue
                if not self._is_rotary_default(name) and not self._is_disabled(name):
                    raise UserError(f"{self.where}: {name} shows a model with {what}, which regard does not have")
                if not name.endswith("rotary_dim"):
                    del self.tensors[name]
                break

    def _is_disabled(self, name: str) -> bool:
        tensor = self.tensors[name]
        return tensor.dim() == 0 and not tensor.item()

    def _is_rotary_default(self, name: str) -> bool:
        """Return whether a rotary setting is that of regard: all features of a head in halves, base 10,000."""
        tensor = self.tensors[name]
        return name.endswith("rotary_base") and tensor.dim() == 0 and tensor.item() == 10_000

    def _number(self, name: str, default: float | None) -> float:
        """Remove a scalar and return its value."""
        tensor = self.tensors.pop(name, None)
        if tensor is None:
            if default is None:
                raise UserError(f"{self.where}: variable {name} is missing")
            return float(default)
        if tensor.numel() != 1:
            raise UserError(f"{self.where}: {name} has shape {list(tensor.shape)}, but must be a single number")
        return float(tensor.item())

    def _flag(self, name: str) -> bool:
        return bool(self._number(name, 0))

    def _equal(self, name: str, default: float) -> float:
        """Return a number that both stacks must share."""
        encoder, decoder = (self._number(f"{stack}/{name}", default) for stack in ("encoder", "decoder"))
        if encoder != decoder:
            raise UserError(
                f"{self.where}: {name} is {encoder:g} in the encoder, but {decoder:g} in the decoder, which is not "
                "supported"
            )
        return encoder

    def _activation(self) -> str:
        code = self._equal("activation", 0)
        if code not in _ACTIVATIONS:
            name = _OTHER_ACTIVATIONS.get(int(code), f"number {code:g}") if math.isfinite(code) else "unknown"
            raise UserError(f"{self.where}: the activation {name} is not supported; regard has relu, silu and gelu")
        is_gated = any(name.endswith("linear_0_noact/weight") for name in self.tensors)
        if is_gated and code != 2:
            raise UserError(f"{self.where}: gated feed-forward layers are supported with silu only (SwiGLU)")
        return "swiglu" if is_gated else _ACTIVATIONS[int(code)]

    def _check_alignment(self, layers: int, heads: int) -> None:
        """Check the layer and the number of heads of alignments, which regard ignores; the engine only crashes."""
        layer, count = self._number("decoder/alignment_layer", -1), self._number("decoder/alignment_heads", 1)
        if not -layers <= layer < layers:
            raise UserError(f"{self.where}: decoder/alignment_layer is {layer:g}, but the decoder has {layers} layers")
        if not 0 <= count <= heads:
            raise UserError(f"{self.where}: decoder/alignment_heads is {count:g}, but a layer has {heads} heads")

    def _final_norm(self) -> bool:
        encoder, decoder = (f"{stack}/layer_norm/gamma" in self.tensors for stack in ("encoder", "decoder"))
        if encoder != decoder:
            one = "encoder" if encoder else "decoder"
            raise UserError(f"{self.where}: only the {one} ends with a norm, which regard does not support")
        return encoder

    def _queries_scale(self) -> float | None:
        names = [name for name in self.tensors if name.endswith("/queries_scale")]
        values = {self._number(name, None) for name in names}
        attentions = sum(bool(re.search(r"/(self_)?attention/linear_0/weight$", name)) for name in self.tensors)
        if len(values) > 1 or (values and len(names) != attentions):
            raise UserError(f"{self.where}: queries_scale differs between layers, which regard does not support")
        return next(iter(values), None)

    def _add_missing_biases(self, width: int) -> None:
        """Add biases of zero where regard always has one, and to every projection of q, k and v if any has one."""
        with_bias = self._has_qkv_bias()
        for name in list(self.tensors):
            found = re.fullmatch(r"(\w+/layer_\d+/(?:self_attention|attention|ffn)/linear_\w+)/weight", name)
            if found is None or f"{found[1]}/bias" in self.tensors:
                continue
            if with_bias or not self._is_qkv(found[1]):
                self.tensors[f"{found[1]}/bias"] = torch.zeros(len(self.tensors[name]))

    def _has_qkv_bias(self) -> bool:
        return any(name.endswith("/bias") and self._is_qkv(name.removesuffix("/bias")) for name in self.tensors)

    @staticmethod
    def _is_qkv(name: str) -> bool:
        return re.search(r"self_attention/linear_0$|/attention/linear_[01]$", name) is not None

    def _positions(self, width: int) -> dict[str, Any]:
        """Return the kind of positions; tables that are not learned are removed."""
        rotary = [name for name in self.tensors if name.endswith("rotary_dim")]
        if rotary:
            for name in rotary:
                del self.tensors[name]
            return {"positions": "rotary"}
        names = [f"{stack}/position_encodings/encodings" for stack in ("encoder", "decoder")]
        for name in names:
            if name not in self.tensors:
                self.tensors[name] = _built_in_positions(width)
        tables = []
        for name in names:
            *_, rows, features = [0, 0, *self.tensors[name].shape]
            if rows * features != self.tensors[name].numel() or not rows * features:
                raise UserError(f"{self.where}: {name} has shape {list(self.tensors[name].shape)}, but must be a table")
            tables.append(self.tensors[name].float().view(rows, features))
        for order, positions in (("interleaved", "sinusoidal"), ("halves", "sinusoidal-halves")):
            if all(_is_sinusoidal(table, width, order) for table in tables):
                for name in names:
                    del self.tensors[name]
                return {"positions": positions}
        length = min(map(len, tables))
        for name, table in zip(names, tables, strict=True):
            self.tensors[name] = table[:length].clone()
        return {"positions": "learned", "max_length": length}

    def _scale_embeddings(self, width: int) -> None:
        """Rescale embeddings that the engine multiplies by another factor than √W, as regard always does."""
        for stack, name in (("encoder", _SOURCE), ("decoder", _TARGET)):
            older = self._number(f"{name.removesuffix('weight')}multiply_by_sqrt_depth", 1)
            given = self.tensors.pop(f"{stack}/scale_embeddings", torch.tensor(int(older)))
            if given.numel() != 1:
                raise UserError(f"{self.where}: {stack}/scale_embeddings must be a flag or a single number")
            root = math.sqrt(width)
            flag = root if given.item() else 1.0
            factor = float(given.item()) if given.is_floating_point() else flag
            if not math.isclose(factor, root, rel_tol=1e-6):
                self.tensors[name] = self.tensors[name] * (factor / root)

    def _add_start_token(self, target_vocab: int, source_vocab: int) -> dict[str, Any]:
        """Add a token with an embedding of zeros, from which the decoder starts; it is never generated."""
        shared = self._same(_SOURCE, _TARGET)
        bias = self.tensors.get(_BIAS, torch.zeros(target_vocab))
        grown = {name: _with_zeros(self.tensors[name]) for name in (_TARGET, _OUTPUT)}
        if shared:
            grown[_SOURCE] = grown[_TARGET]
        self.tensors |= grown | {_BIAS: torch.cat((bias, torch.tensor([NEVER])))}
        return {"target_vocab": target_vocab + 1, "source_vocab": source_vocab + shared, "bos": target_vocab}

    def _tie(self, positions: Mapping[str, Any]) -> str:
        """Return which embeddings are equal, and remove those that regard derives."""
        if not self._same(_TARGET, _OUTPUT):
            return "none"
        del self.tensors[_OUTPUT]
        tables = [f"{stack}/position_encodings/encodings" for stack in ("encoder", "decoder")]
        if self._same(_SOURCE, _TARGET) and (positions["positions"] != "learned" or self._same(*tables)):
            return "all"
        return "target"

    def _same(self, one: str, other: str) -> bool:
        for name in (one, other):
            if name not in self.tensors:
                raise UserError(f"{self.where}: variable {name} is missing")
        first, second = self.tensors[one], self.tensors[other]
        return first is second or (first.shape == second.shape and torch.equal(first, second))


def _with_zeros(table: Tensor) -> Tensor:
    return torch.cat((table, torch.zeros(1, *table.shape[1:])))


def _integer(value: float, name: str, where: str) -> int:
    if not value.is_integer() or value < 1:
        raise UserError(f"{where}: {name} is {value:g}, but must be a positive integer")
    return int(value)


def _built_in_positions(width: int) -> Tensor:
    """Return the sinusoidal table that the engine computes without a table: positions start at 1."""
    half = max(width // 2, 2)
    frequency = torch.exp(torch.arange(width // 2, dtype=torch.float64) * (-math.log(10_000.0) / (half - 1)))
    angle = torch.arange(1, BUILT_IN_POSITIONS + 1, dtype=torch.float64)[:, None] * frequency
    return torch.cat((angle.sin(), angle.cos()), -1).float()


def _is_sinusoidal(table: Tensor, width: int, order: str) -> bool:
    """Compare a table with regard's; the angles of high positions are less exact in other libraries."""
    if table.shape[-1] != width or width % 2:
        return False
    expected = sinusoid(torch.arange(len(table)), width, order)
    return torch.allclose(table[:256], expected[:256], rtol=0, atol=1e-4) and torch.allclose(
        table, expected, rtol=0, atol=5e-3
    )
