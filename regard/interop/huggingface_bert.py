"""BERT of Hugging Face's transformers, and of sentence-transformers, which adds the pooling."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.errors import UserError
from regard.interop.renaming import Block, Names, block_names, import_tensors, rename_keys
from regard.models.bert import BertConfig

KIND = "bert"
_BLOCK: Block = {
    r"attention\.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    r"attention\.out": "attention.output.dense",
    r"norm1": "attention.output.LayerNorm",
    r"feed_forward\.inner": "intermediate.dense",
    r"feed_forward\.outer": "output.dense",
    r"norm2": "output.LayerNorm",
}
_NAMES: Names = {
    "token_embedding": "embeddings.word_embeddings.weight",
    r"positions\.": "embeddings.position_embeddings.",
    "segment_embedding": "embeddings.token_type_embeddings.weight",
    r"norm\.": "embeddings.LayerNorm.",
    **block_names(r"encoder\.(\d+)\.", r"encoder.layer.\1.", _BLOCK),
}
_IGNORED = (r"pooler\.", r"cls\.", r"classifier\.", r"qa_outputs\.", r"embeddings\.position_ids$")
_ACTIVATIONS = ("gelu", "relu", "silu")
_CONFIG = {
    "vocab": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "max_length": "max_position_embeddings",
    "segments": "type_vocab_size",
    "pad": "pad_token_id",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
_DEFAULTS = {"layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
_POOLING = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "class"}


def read_bert(values: Mapping[str, Any], where: str) -> BertConfig:
    """Convert config.json of a BERT model."""
    values = _DEFAULTS | dict(values) | {"pad_token_id": values.get("pad_token_id") or 0}
    converted = rename_keys(values, _CONFIG, where)
    if converted["activation"] not in _ACTIVATIONS:
        raise UserError(f"{where}: hidden_act is {converted['activation']!r}; supported are {', '.join(_ACTIVATIONS)}")
    positions = values.get("position_embedding_type")
    if positions not in (None, "absolute"):
        raise UserError(f"{where}: position_embedding_type is {positions!r}; only absolute is supported")
    if values.get("is_decoder"):
        raise UserError(f"{where}: is_decoder is true, but regard's BERT is bidirectional")
    return BertConfig.parse(converted, where)


def read_pooling(values: Mapping[str, Any], where: str) -> str:
    """Convert the pooling config of sentence-transformers to a value of `BertConfig.pooling`."""
    enabled = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    if len(enabled) != 1 or enabled[0] not in _POOLING:
        found = " + ".join(enabled) or "no pooling"
        raise UserError(f"{where}: found {found}; exactly one of {', '.join(_POOLING)} is supported")
    return _POOLING[enabled[0]]


def from_bert(tensors: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """Convert the weights of a BERT model to a regard state dict. A pooler or a task head is dropped."""
    renamed = {_current_name(name): tensor for name, tensor in tensors.items()}
    return import_tensors(renamed, config, _NAMES, "weights of BERT", _IGNORED)


def _current_name(name: str) -> str:
    """Remove the prefix that models with a task head have, and convert old names of LayerNorm parameters."""
    name = name.removeprefix("bert.")
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))
