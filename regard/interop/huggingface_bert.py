"""BERT of Hugging Face's transformers, and of sentence-transformers, which adds how tokens become one vector."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from regard.config import Settings
from regard.errors import UserError
from regard.interop.renaming import Names, take
from regard.models.bert import BertConfig

KIND = "bert"
S = TypeVar("S", bound=Settings)
_NAMES: Names = {
    "pieces": "embeddings.word_embeddings.weight",
    r"positions\.": "embeddings.position_embeddings.",
    "segments": "embeddings.token_type_embeddings.weight",
    r"norm\.": "embeddings.LayerNorm.",
    **{
        rf"encoder\.(\d+)\.{ours}": tuple(rf"encoder.layer.\1.{name}" for name in theirs)
        for ours, theirs in {
            r"attention\.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
            r"attention\.out": ("attention.output.dense",),
            r"around_attention\.norm": ("attention.output.LayerNorm",),
            r"feed_forward\.inner": ("intermediate.dense",),
            r"feed_forward\.outer": ("output.dense",),
            r"around_feed_forward\.norm": ("output.LayerNorm",),
        }.items()
    },
}
_USELESS = (r"pooler\.", r"cls\.", r"classifier\.", r"qa_outputs\.", r"embeddings\.position_ids$")
_ACTIVATIONS = ("gelu", "relu", "silu")


class _TheirConfig(Settings):
    """What matters of their config.json; all else in it is ignored."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    layer_norm_eps: float = 1e-12
    max_position_embeddings: int
    type_vocab_size: int
    pad_token_id: int | None = 0
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    position_embedding_type: str | None = "absolute"
    is_decoder: bool = False


class _TheirPooling(Settings):
    """How sentence-transformers makes one vector of many: one of these is true."""

    pooling_mode_mean_tokens: bool = False
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


def read_bert(values: Mapping[str, Any], where: str) -> BertConfig:
    """Our config of an encoder with their config.json.

    Raises:
        UserError: a value is missing or wrong, or our encoder has no such thing; it is named.
    """
    theirs = _pick(_TheirConfig, values, where)
    if theirs.hidden_act not in _ACTIVATIONS:
        raise UserError(f"{where}: hidden_act {theirs.hidden_act!r}; {', '.join(_ACTIVATIONS)} can be read")
    if theirs.position_embedding_type not in (None, "absolute"):
        raise UserError(
            f"{where}: position_embedding_type {theirs.position_embedding_type!r}; our encoder's are absolute"
        )
    if theirs.is_decoder:
        raise UserError(f"{where}: is_decoder is true, and our encoder looks both ways")
    return BertConfig.parse(
        {
            "vocab": theirs.vocab_size,
            "width": theirs.hidden_size,
            "layers": theirs.num_hidden_layers,
            "heads": theirs.num_attention_heads,
            "hidden": theirs.intermediate_size,
            "activation": theirs.hidden_act,
            "norm_eps": theirs.layer_norm_eps,
            "max_length": theirs.max_position_embeddings,
            "segments": theirs.type_vocab_size,
            "pad": theirs.pad_token_id or 0,
            "dropout": theirs.hidden_dropout_prob,
            "attention_dropout": theirs.attention_probs_dropout_prob,
        },
        where,
    )


def read_pooling(values: Mapping[str, Any], where: str) -> str:
    """Our name for what stands for a text, from the settings of their module for it.

    Raises:
        UserError: our encoder has no such thing.
    """
    theirs = _pick(_TheirPooling, values, where)
    chosen = [key for key, value in theirs.model_dump().items() if value]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "class"}
    if len(chosen) != 1 or chosen[0] not in known:
        raise UserError(f"{where}: {' + '.join(chosen) or 'no pooling'}; one of {', '.join(known)} can be read")
    return known[chosen[0]]


def from_bert(tensors: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """The weights of their BERT, with or without a head, which stays behind, for `load_state_dict` of ours.

    Raises:
        UserError: a tensor is missing, unknown or of another shape; it is named.
    """
    plain = {_plain_name(name): tensor for name, tensor in tensors.items()}
    return take(plain, config, _NAMES, "weights of BERT", _USELESS)


def _plain_name(name: str) -> str:
    """Without the name of the model that a head stands on, and with today's names of the norms' weights."""
    name = name.removeprefix("bert.")
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))


def _pick(settings: type[S], values: Mapping[str, Any], where: str) -> S:
    return settings.parse({key: value for key, value in values.items() if key in settings.model_fields}, where)
