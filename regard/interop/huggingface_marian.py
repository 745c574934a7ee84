"""Translation models of Hugging Face's transformers: Marian (post-norm), Pegasus and Blenderbot (pre-norm).

The three have the same tensors under the same names. Marian and Pegasus add sines and cosines, Blenderbot learned
positions; with post-norm and learned positions there is none. Our interleaved sines are brought into their order by
reordering the features of the whole model, which changes nothing of what it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from regard.attention.positions import sinusoid
from regard.config import Settings
from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.errors import UserError
from regard.interop.huggingface_tokenizers import SETTINGS, to_fast_tokenizer, to_marian_tokenizer
from regard.interop.renaming import Names, give, take
from regard.interop.verification import GeneratorPeer, Tokens, check, compare
from regard.models.transformer import EncoderDecoderConfig, TransformerConfig
from regard.pipelines.transformers import TransformersGenerator
from regard.pipelines.translator import Translator
from regard.runtime import import_optional

EPS = 1e-5
"""Of every LayerNorm there; the class has no setting for it."""
NEVER = -1e4
"""A logit so low that nothing is left of its probability, and within the numbers of every precision."""
POSITIONS = 1024
"""Rows of their tables of sines, which ours has no limit for."""

Kind = Literal["marian", "pegasus", "blenderbot"]
CLASSES: dict[Kind, str] = {
    "marian": "MarianMTModel",
    "pegasus": "PegasusForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
}

_BLOCK: dict[str, str | tuple[str, ...]] = {
    r"around_attention\.norm": "self_attn_layer_norm",
    r"attention\.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    r"attention\.out": "self_attn.out_proj",
    r"around_cross\.norm": "encoder_attn_layer_norm",
    r"cross\.qkv": ("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"),
    r"cross\.out": "encoder_attn.out_proj",
    r"feed_forward\.inner": "fc1",
    r"feed_forward\.outer": "fc2",
    r"around_feed_forward\.norm": "final_layer_norm",
}
_STACK = {
    r"source_embedding\.positions": "model.encoder.embed_positions",
    r"source_embedding": "model.encoder.embed_tokens",
    r"target_embedding\.positions": "model.decoder.embed_positions",
    r"target_embedding": "model.decoder.embed_tokens",
    r"encoder_norm": "model.encoder.layer_norm",
    r"decoder_norm": "model.decoder.layer_norm",
    r"output_bias": "final_logits_bias",
    r"output": "lm_head.weight",
}
_NAMES: Names = {
    **_STACK,
    **{
        rf"{stack}\.(\d+)\.{ours}": tuple(
            rf"model.{stack}.layers.\1.{name}" for name in ((theirs,) if isinstance(theirs, str) else theirs)
        )
        for stack in ("encoder", "decoder")
        for ours, theirs in _BLOCK.items()
    },
}
_SHARED, _SOURCE, _TARGET, _OUTPUT = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)
_BIAS = "final_logits_bias"


def choose_kind(config: EncoderDecoderConfig) -> Kind:
    """Which of their models a model of this config is.

    Raises:
        UserError: none; says why.
    """
    if not isinstance(config, TransformerConfig):
        raise UserError("transformers has no translation model that writes all tokens at once")
    if config.attention.kind != "full":
        raise UserError(
            f"transformers' translation models have full attention, and this one's is {config.attention.kind}"
        )
    if config.activation == "swiglu":
        raise UserError("transformers' translation models have no gated feed-forward (swiglu)")
    if config.positions == "rotary":
        raise UserError("transformers' translation models have no rotary positions")
    if config.norm_eps != EPS:
        raise UserError(
            f"transformers' translation models have a norm_eps of {EPS:g}, and this one's is {config.norm_eps:g}"
        )
    if config.has_final_norm != (config.norm == "pre"):
        raise UserError("transformers' translation models have a final norm with pre-norm, and none with post-norm")
    if config.norm == "post":
        if config.positions == "learned":
            raise UserError("transformers has no translation model of post-norm with learned positions")
        return "marian"
    if config.source_vocab != config.target_vocab:
        raise UserError("transformers' pre-norm models (Pegasus, Blenderbot) have one vocabulary size for both sides")
    return "blenderbot" if config.positions == "learned" else "pegasus"


def describe_marian(config: EncoderDecoderConfig) -> dict[str, Any]:
    """The values of their config for a model of ours.

    Raises:
        UserError: there is no such model there.
    """
    kind = choose_kind(config)
    values: dict[str, Any] = {
        "vocab_size": config.source_vocab,
        "d_model": config.width,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.hidden,
        "decoder_ffn_dim": config.hidden,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.hidden_dropout,
        "scale_embedding": True,
        "max_position_embeddings": config.max_length if config.positions == "learned" else POSITIONS,
        "pad_token_id": config.pad,
        "bos_token_id": config.bos,
        "eos_token_id": config.eos,
        "decoder_start_token_id": config.bos,
        # Otherwise a sentence at the limit ends with an END of probability 1, whatever the model says of it.
        "forced_eos_token_id": None,
        "tie_word_embeddings": config.tie == "all" or (config.tie == "target" and kind == "marian"),
    }
    if kind == "marian":
        values["decoder_vocab_size"] = config.target_vocab
        values["share_encoder_decoder_embeddings"] = config.tie == "all"
    return values


def to_marian(tensors: Mapping[str, Tensor], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """Our weights, for `load_state_dict` of their class.

    Raises:
        UserError: there is no such model there, or a tensor is missing.
    """
    kind = choose_kind(config)
    ours = _fold(tensors, config)
    if config.positions == "sinusoidal":
        ours = reorder(ours, sines_first(config.width))
    theirs = give(ours, config.changed(qkv_bias=True), _NAMES)
    source, target = theirs.pop(_SOURCE), theirs.pop(_TARGET)
    bias = theirs.pop(_BIAS, torch.zeros(config.target_vocab))
    theirs[_BIAS] = bias[None]
    if config.tie == "all":
        return theirs | {_SHARED: source}
    theirs |= {_SOURCE: source, _TARGET: target}
    theirs.setdefault(_OUTPUT, target)
    return theirs if kind == "marian" else theirs | {_SHARED: source}


def from_marian(tensors: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Their weights, for `load_state_dict` of a model of the config that `read_marian` gives.

    Raises:
        UserError: a tensor is missing, unknown or of another shape, or their logits have a bias; it is named.
    """
    where = "weights of transformers"
    given = dict(tensors)
    for name in (_SOURCE, _TARGET):
        if name not in given and _SHARED in given:
            given[name] = given[_SHARED]
    taken = take(given, config, _NAMES, where, (_BIAS, _SHARED, _OUTPUT, r"model\.(en|de)coder\.embed_positions\."))
    if config.tie != "none" and _OUTPUT in given and not torch.equal(given[_OUTPUT], taken["target_embedding.weight"]):
        raise UserError(f"{where}: {_OUTPUT} is not the decoder's embedding, though config.json says so")
    if config.positions != "learned":
        for name in ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"):
            _check_sines(given.get(name), config.width, f"{where}: {name}")
    return taken


def forbid_words(tensors: Mapping[str, Tensor], words: Any, where: str) -> Mapping[str, Tensor]:
    """Their tensors with a bias against what their search never says; Marian's padding has a logit like any word.

    Args:
        tensors: theirs.
        words: `bad_words_ids` of their config; only single tokens can be forbidden so.
        where: what to call it in an error.

    Raises:
        UserError: a word is of several tokens, or is none of the vocabulary.
    """
    if not words:
        return tensors
    if _BIAS not in tensors:
        raise UserError(f"{where}: there is no {_BIAS} in which words could be forbidden")
    bias = tensors[_BIAS].clone()
    for word in words if isinstance(words, list) else [words]:
        if not isinstance(word, list) or len(word) != 1 or type(word[0]) is not int or not 0 <= word[0] < bias.numel():
            raise UserError(f"{where}: {word!r} is not one token of the vocabulary")
        bias.view(-1)[word[0]] = NEVER
    return {**tensors, _BIAS: bias}


def _check_sines(table: Tensor | None, width: int, where: str) -> None:
    if table is None:
        return
    expected = sinusoid(torch.arange(len(table)), width, "halves")
    if table.shape != expected.shape or not torch.allclose(table.float(), expected, atol=1e-3):
        raise UserError(f"{where} is not the table of sines and cosines that this kind of model has")


class _TheirConfig(Settings):
    """What matters of their config.json; all else in it is ignored."""

    model_type: str
    vocab_size: int
    decoder_vocab_size: int | None = None
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    activation_function: str
    scale_embedding: bool = False
    max_position_embeddings: int = 1024
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    normalize_embedding: bool = False
    normalize_before: bool | None = None
    static_position_embeddings: bool | None = None


_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}


def read_marian(values: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> TransformerConfig:
    """Our config of a model with their config.json and their tensors, which alone say whether logits have a bias.

    Raises:
        UserError: a value is missing or wrong, or our model has no such thing; it is named.
    """
    known = {key: value for key, value in values.items() if key in _TheirConfig.model_fields}
    theirs = _TheirConfig.parse(known, where)
    kind = theirs.model_type
    if kind not in CLASSES:
        raise UserError(f"{where}: model_type is {kind!r}; {', '.join(CLASSES)} can be read")
    if theirs.activation_function not in _ACTIVATIONS:
        known_ones = ", ".join(_ACTIVATIONS)
        raise UserError(f"{where}: activation_function {theirs.activation_function!r}; {known_ones} can be read")
    for key in ("normalize_embedding", "normalize_before"):
        if kind == "marian" and getattr(theirs, key):
            raise UserError(f"{where}: {key} is true, which our model of Marian does not have")
    if not theirs.scale_embedding:
        raise UserError(f"{where}: scale_embedding is false, and our embeddings are always scaled")
    for key in ("attention_heads", "ffn_dim"):
        if getattr(theirs, f"encoder_{key}") != getattr(theirs, f"decoder_{key}"):
            raise UserError(f"{where}: encoder_{key} and decoder_{key} differ, and our stacks are alike")
    shared = theirs.tie_word_embeddings if kind != "marian" else theirs.share_encoder_decoder_embeddings
    target = theirs.decoder_vocab_size if kind == "marian" and not shared else None
    return TransformerConfig.parse(
        {
            "source_vocab": theirs.vocab_size,
            "target_vocab": target or theirs.vocab_size,
            "width": theirs.d_model,
            "heads": theirs.encoder_attention_heads,
            "encoder_layers": theirs.encoder_layers,
            "decoder_layers": theirs.decoder_layers,
            "hidden": theirs.encoder_ffn_dim,
            "activation": _ACTIVATIONS[theirs.activation_function],
            "output_bias": _BIAS in tensors and bool(tensors[_BIAS].any()),
            "norm": "post" if kind == "marian" else "pre",
            "norm_eps": EPS,
            "positions": "learned" if kind == "blenderbot" else "sinusoidal-halves",
            "max_length": theirs.max_position_embeddings,
            "tie": "all"
            if shared and theirs.tie_word_embeddings
            else "target"
            if theirs.tie_word_embeddings
            else "none",
            "pad": theirs.pad_token_id,
            "bos": theirs.decoder_start_token_id,
            "eos": theirs.eos_token_id,
        },
        where,
    )


def _fold(tensors: Mapping[str, Tensor], config: EncoderDecoderConfig) -> dict[str, Tensor]:
    """The tensors with what their classes have no setting for: a scale of the scores, and biases that are not there."""
    folded = dict(tensors)
    factor = 1.0 if config.qk_scale is None else config.qk_scale * (config.width / config.heads) ** 0.5
    for name, weight in tensors.items():
        if name.endswith("qkv.weight"):
            bias = name.removesuffix("weight") + "bias"
            folded[bias] = tensors.get(bias, torch.zeros(len(weight)))
            if factor != 1.0:
                scale = torch.ones(len(weight))
                scale[: config.width] = factor
                folded[name], folded[bias] = weight * scale[:, None], folded[bias] * scale
    return folded


_READING = re.compile(r"(qkv|inner)\.weight$|^(source|target)_embedding\.|^output$")
_WRITING = re.compile(r"(out|outer)\.(weight|bias)$|norm\.(weight|bias)$")
"""Which tensors have the features of the stream in their last dimension, and which in their first."""


def reorder(tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The tensors of an encoder-decoder whose feature i is the former feature order[i]."""
    reordered = {}
    for name, tensor in tensors.items():
        if _READING.search(name):
            reordered[name] = tensor[:, order]
        elif _WRITING.search(name):
            reordered[name] = tensor[order]
        else:
            reordered[name] = tensor
    return reordered


def sines_first(width: int) -> Tensor:
    """The order in which interleaved sines and cosines become two halves."""
    return torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))


TARGET = "target_tokenizer"
"""Where the target's tokenizer lies if it is not the source's: transformers has one a folder."""
UNKNOWN = ("source", "target")
"""The languages of a model that does not say them."""
_FOLLOWING = ("embed_positions.weight", "lm_head.weight", "embed_tokens.weight")
"""Ends of the names of their tensors that are computed or shared, and so need not be given."""


def build_huggingface(translator: Translator) -> Any:
    """Their model with our weights.

    Raises:
        UserError: transformers has no such model, or is not installed.
    """
    if len(translator.models) > 1:
        raise UserError("transformers has no models that vote; give one")
    config = translator.model.config
    kind, values = choose_kind(config), describe_marian(config)
    library = import_optional("transformers", "hf")
    theirs_class = getattr(library, CLASSES[kind])
    theirs = theirs_class(theirs_class.config_class(**values))
    lacking, unknown = theirs.load_state_dict(to_marian(translator.model.state_dict(), config), strict=False)
    theirs.tie_weights()
    if unknown or any(not name.endswith(_FOLLOWING) for name in lacking):
        raise UserError(f"this release of transformers ({library.__version__}) names tensors otherwise: {unknown[:1]}")
    theirs.generation_config.forced_eos_token_id = None
    return theirs.eval()


def load_in_transformers(path: Path, device: torch.device) -> Translator:
    """Load a translator whose model runs in transformers.

    Raises:
        UserError: it is not a model folder, or transformers does not support the model or is not installed.
    """
    ours = Translator.load(path)
    generator = TransformersGenerator(build_huggingface(ours).to(device))
    return Translator(ours.model, ours.vocabularies, ours.languages, generator=generator)


def write_huggingface(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
    """Writes the files and says how far transformers agrees with our model when it loads them.

    Raises:
        UserError: transformers cannot express the model, or does not agree with it.
    """
    theirs = build_huggingface(translator)
    with without_bars():
        theirs.save_pretrained(folder)
    vocabularies, longest = translator.vocabularies, theirs.config.max_position_embeddings
    source, target = vocabularies.source, vocabularies.target
    if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
        to_marian_tokenizer(source, target, folder, longest)
    else:
        to_fast_tokenizer(source, longest).save_pretrained(folder)
        if not vocabularies.joint:
            to_fast_tokenizer(target, longest).save_pretrained(folder / TARGET)
    _say_languages(translator.languages, folder / SETTINGS)
    library = import_optional("transformers", "hf")
    with without_bars():
        loaded = type(theirs).from_pretrained(folder)
    agreement = compare(translator, GeneratorPeer(TransformersGenerator(loaded)), sources)
    check(agreement, f"{type(theirs).__name__} of transformers")
    _check_tokenizer(translator, library, folder, sources)
    return [f"as {type(theirs).__name__}, {agreement}"]


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the bars that transformers draws while it writes and loads weights."""
    log = import_optional("transformers", "hf").utils.logging
    shown = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            log.enable_progress_bar()


def _say_languages(languages: tuple[str, str], path: Path) -> None:
    """Adds them to the tokenizer's settings, where transformers' own models have them, unless they are unknown."""
    if languages == UNKNOWN:
        return
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings |= {"source_lang": languages[0], "target_lang": languages[1]}
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_tokenizer(translator: Translator, library: Any, folder: Path, sources: Sequence[Tokens]) -> None:
    """Refuses a tokenizer that cuts texts otherwise, or joins them otherwise, than ours."""
    source, target = translator.vocabularies.source, translator.vocabularies.target
    theirs = library.AutoTokenizer.from_pretrained(folder)
    joining = target if isinstance(source, SentencePieceTokenizer) else source  # MarianTokenizer joins what was written
    for tokens in sources:
        text = source.decode(tokens)
        if theirs(text).input_ids != [*source.encode(text), translator.model.config.eos]:
            raise UserError(f"transformers' tokenizer cuts {text!r} otherwise than ours, so nothing was written")
        joined = joining.encode(text)
        if theirs.decode(joined, skip_special_tokens=True) != joining.decode(joined):
            raise UserError(f"transformers' tokenizer joins {text!r} otherwise than ours, so nothing was written")
