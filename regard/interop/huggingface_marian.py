"""Weights and configs of the translation models of transformers: Marian (post-norm), Pegasus, Blenderbot (pre-norm).

The three have the same parameter names. Marian and Pegasus have sinusoidal positions, Blenderbot learned ones; there is
no model with post-norm and learned positions. Their sinusoidal positions are sines followed by cosines. For export,
regard's interleaved positions are brought into this order by permuting the features of the whole model, which does not
change its outputs.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.renaming import Block, Names, block_names, export_tensors, import_tensors, rename_keys
from regard.layers import sinusoid
from regard.models.transformer import EncoderDecoderConfig, TransformerConfig

EPS = 1e-5
"""LayerNorm eps of these models, which is not configurable."""
BANNED_LOGIT = -1e4
"""Logit of banned tokens: a probability of zero, and representable in float16."""
POSITIONS = 1024
"""Positions of an exported sinusoidal table, which is unlimited in regard."""

Kind = Literal["marian", "pegasus", "blenderbot"]
CLASSES: dict[Kind, str] = {
    "marian": "MarianMTModel",
    "pegasus": "PegasusForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
}

_BLOCK: Block = {
    r"norm1": "self_attn_layer_norm",
    r"attention\.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    r"attention\.out": "self_attn.out_proj",
    r"feed_forward\.inner": "fc1",
    r"feed_forward\.outer": "fc2",
}
_ENCODER_BLOCK = _BLOCK | {r"norm2": "final_layer_norm"}
_DECODER_BLOCK = _BLOCK | {
    r"norm2": "encoder_attn_layer_norm",
    r"cross\.qkv": ("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"),
    r"cross\.out": "encoder_attn.out_proj",
    r"norm3": "final_layer_norm",
}
_NAMES: Names = {
    r"source_embedding\.positions": "model.encoder.embed_positions",
    r"source_embedding": "model.encoder.embed_tokens",
    r"target_embedding\.positions": "model.decoder.embed_positions",
    r"target_embedding": "model.decoder.embed_tokens",
    r"encoder_norm": "model.encoder.layer_norm",
    r"decoder_norm": "model.decoder.layer_norm",
    r"output_bias": "final_logits_bias",
    r"output": "lm_head.weight",
    **block_names(r"encoder\.(\d+)\.", r"model.encoder.layers.\1.", _ENCODER_BLOCK),
    **block_names(r"decoder\.(\d+)\.", r"model.decoder.layers.\1.", _DECODER_BLOCK),
}
_SHARED_EMBEDDING, _OUTPUT, _BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
_SOURCE_EMBEDDING, _TARGET_EMBEDDING = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_FEATURES_LAST = re.compile(r"(qkv|inner)\.weight$|^(source|target)_embedding\.|^output$")
_FEATURES_FIRST = re.compile(r"(out|outer)\.(weight|bias)$|norm\d?\.(weight|bias)$")
"""Parameters whose last or first dimension is the width of the residual stream."""
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
_CONFIG = {
    "source_vocab": "vocab_size",
    "width": "d_model",
    "heads": "encoder_attention_heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "hidden": "encoder_ffn_dim",
    "activation": "activation_function",
    "pad": "pad_token_id",
    "bos": "decoder_start_token_id",
    "eos": "eos_token_id",
}


def choose_kind(config: EncoderDecoderConfig) -> Kind:
    """Return the kind of model that a config corresponds to, if transformers has one."""
    models = "translation models of transformers"
    if not isinstance(config, TransformerConfig):
        raise UserError("transformers has no non-autoregressive translation model")
    if not config.source_end:
        raise UserError(f"{models} receive END after the source, unlike this model; export it to ctranslate2")
    if config.attention.kind != "full":
        raise UserError(f"{models} have full attention, but this model has {config.attention.kind}")
    if config.activation == "swiglu":
        raise UserError(f"{models} have no gated feed-forward layers (swiglu)")
    if config.positions in ("rotary", "diagonal", "diagonal-scaled"):
        raise UserError(f"{models} have no {config.positions} positions")
    if config.norm_eps != EPS:
        raise UserError(f"{models} have norm_eps {EPS:g}, but this model has {config.norm_eps:g}")
    if config.has_final_norm != (config.norm == "pre"):
        raise UserError(f"{models} have a final norm with pre-norm, and none with post-norm")
    if config.norm == "post":
        if config.positions == "learned":
            raise UserError("transformers has no translation model with post-norm and learned positions")
        return "marian"
    if config.source_vocab != config.target_vocab:
        raise UserError("pre-norm models of transformers (Pegasus, Blenderbot) have one vocabulary size for both sides")
    return "blenderbot" if config.positions == "learned" else "pegasus"


def describe_marian(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Return the values of the transformers config."""
    kind = choose_kind(config)
    values = {foreign: getattr(config, name) for name, foreign in _CONFIG.items()}
    values |= {
        "decoder_attention_heads": config.heads,
        "decoder_ffn_dim": config.hidden,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.hidden_dropout,
        "scale_embedding": True,
        "max_position_embeddings": config.max_length if config.positions == "learned" else POSITIONS,
        "bos_token_id": config.bos,
        "forced_eos_token_id": None,  # would give END a probability of 1 at the length limit
        "tie_word_embeddings": config.tie == "all" or (config.tie == "target" and kind == "marian"),
    }
    if kind == "marian":
        values["decoder_vocab_size"] = config.target_vocab
        values["share_encoder_decoder_embeddings"] = config.tie == "all"
    return values


def read_marian(values: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> TransformerConfig:
    """Convert config.json of a translation model; the weights determine whether there is an output bias."""
    converted = rename_keys(values, _CONFIG, where)
    _check_importable(values, where)
    kind, is_tied = values["model_type"], _flag(values, "tie_word_embeddings", True, where)
    is_shared = _flag(values, "share_encoder_decoder_embeddings", True, where) if kind == "marian" else is_tied
    target_vocab = values.get("decoder_vocab_size") if kind == "marian" and not is_shared else None
    tie = "none"
    if is_tied:
        tie = "all" if is_shared else "target"
    converted |= {
        "target_vocab": target_vocab or converted["source_vocab"],
        "activation": _ACTIVATIONS[converted["activation"]],
        "output_bias": _BIAS in tensors and bool(tensors[_BIAS].any()),
        "norm": "post" if kind == "marian" else "pre",
        "norm_eps": EPS,
        "positions": "learned" if kind == "blenderbot" else "sinusoidal-halves",
        "max_length": values.get("max_position_embeddings", 1024),
        "tie": tie,
    }
    return TransformerConfig.parse(converted, where)


def to_marian(tensors: Mapping[str, Tensor], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """Convert a regard state dict to that of the transformers model."""
    kind = choose_kind(config)
    converted = _fold_scale_and_bias(tensors, config)
    if config.positions == "sinusoidal":
        sines_then_cosines = torch.cat((torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)))
        converted = _permute_features(converted, sines_then_cosines)
    # qkv_bias=True: the converted tensors have the biases of the projections, even if the model has none.
    exported = export_tensors(converted, config.changed(qkv_bias=True), _NAMES)
    source, target = exported.pop(_SOURCE_EMBEDDING), exported.pop(_TARGET_EMBEDDING)
    bias = exported.pop(_BIAS, torch.zeros(config.target_vocab))
    exported[_BIAS] = bias[None]  # (1, V), as in transformers
    if config.tie == "all":
        return exported | {_SHARED_EMBEDDING: source}
    exported |= {_SOURCE_EMBEDDING: source, _TARGET_EMBEDDING: target}
    exported.setdefault(_OUTPUT, target)
    # Marian models with an embedding for each side have no shared one; the others always have it.
    return exported if kind == "marian" else exported | {_SHARED_EMBEDDING: source}


def from_marian(tensors: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Convert the weights of a transformers model to a regard state dict; `config` is that of `read_marian`."""
    where = "weights of transformers"
    given = dict(tensors)
    for name in (_SOURCE_EMBEDDING, _TARGET_EMBEDDING):
        if name not in given and _SHARED_EMBEDDING in given:
            given[name] = given[_SHARED_EMBEDDING]
    ignored = (_BIAS, _SHARED_EMBEDDING, _OUTPUT, r"model\.(en|de)coder\.embed_positions\.")
    state_dict = import_tensors(given, config, _NAMES, where, ignored)
    is_tied = config.tie != "none" and _OUTPUT in given
    if is_tied and not torch.equal(given[_OUTPUT], state_dict["target_embedding.weight"]):
        raise UserError(f"{where}: {_OUTPUT} differs from the decoder's embedding, but config.json ties them")
    if config.positions != "learned":
        for name in ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"):
            _check_sinusoidal(given.get(name), config.width, f"{where}: {name}")
    return state_dict


def ban_tokens(tensors: Mapping[str, Tensor], banned: Any, where: str) -> Mapping[str, Tensor]:
    """Add a bias against the tokens in `bad_words_ids`, which `generate` never produces, such as Marian's padding."""
    if not banned:
        return tensors
    if _BIAS not in tensors:
        raise UserError(f"{where}: tensor {_BIAS} is missing; it is needed to ban tokens")
    bias = tensors[_BIAS].clone()
    for entry in banned if isinstance(banned, list) else [banned]:
        is_single = isinstance(entry, list) and len(entry) == 1 and type(entry[0]) is int
        if not is_single or not 0 <= entry[0] < bias.numel():
            raise UserError(f"{where}: {entry!r} is not a single token of the vocabulary")
        bias.view(-1)[entry[0]] = BANNED_LOGIT
    return {**tensors, _BIAS: bias}


def _check_importable(values: Mapping[str, Any], where: str) -> None:
    kind, activation = values.get("model_type"), values["activation_function"]
    if kind not in CLASSES:
        raise UserError(f"{where}: model_type is {kind!r}; supported are {', '.join(CLASSES)}")
    if activation not in list(_ACTIVATIONS):
        raise UserError(f"{where}: activation_function is {activation!r}; supported are {', '.join(_ACTIVATIONS)}")
    for key in ("normalize_embedding", "normalize_before"):
        if kind == "marian" and values.get(key):
            raise UserError(f"{where}: {key} is true, which is not supported for Marian")
    if not _flag(values, "scale_embedding", False, where):
        raise UserError(f"{where}: scale_embedding is false, but regard always scales embeddings")
    for key in ("attention_heads", "ffn_dim"):
        if values.get(f"encoder_{key}") != values.get(f"decoder_{key}"):
            raise UserError(f"{where}: encoder_{key} and decoder_{key} differ, which is not supported")


def _flag(values: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise UserError(f"{where}: {key} is {value!r}, but must be true or false")
    return value


def _check_sinusoidal(table: Tensor | None, width: int, where: str) -> None:
    if table is None:
        return
    expected = sinusoid(torch.arange(len(table)), width, "halves")
    if table.shape != expected.shape or not torch.allclose(table.float(), expected, atol=1e-3):
        raise UserError(f"{where} is not a sinusoidal position table")


def _fold_scale_and_bias(tensors: Mapping[str, Tensor], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """Fold `qk_scale` into the query projections, and add zero biases, which transformers always has."""
    folded = dict(tensors)
    factor = 1.0 if config.qk_scale is None else config.qk_scale * (config.width / config.heads) ** 0.5
    for name, weight in tensors.items():
        if name.endswith("qkv.weight"):
            bias_name = name.removesuffix("weight") + "bias"
            bias = tensors.get(bias_name, torch.zeros(len(weight)))
            scale = torch.ones(len(weight))
            scale[: config.width] = factor
            folded[name], folded[bias_name] = weight * scale[:, None], bias * scale
    return folded


def _permute_features(tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Permute the features of the residual stream; new feature i is old feature order[i]."""
    permuted = {}
    for name, tensor in tensors.items():
        if _FEATURES_LAST.search(name):
            permuted[name] = tensor[:, order]
        elif _FEATURES_FIRST.search(name):
            permuted[name] = tensor[order]
        else:
            permuted[name] = tensor
    return permuted
