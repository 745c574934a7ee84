"""CTranslate2: our Transformer as a folder from which its engine translates.

Its own files are config.json, model.bin and the vocabularies. The engine takes pieces of text, not ids: those of our
tokenizer are the words of its vocabulary as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.transformer import Embedding, EncoderDecoder, EncoderDecoderConfig, TransformerConfig
from regard.runtime import import_optional

POSITIONS = 2048
"""Rows of a sinusoidal table in the file, which has no limit in our model; the engine refuses longer sentences."""

UNKNOWN = "<unk>"

Quantization = Literal["float32", "int8", "int8_float32", "int16", "float16", "bfloat16", "int8_float16"]
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}


def check_ctranslate2(config: EncoderDecoderConfig) -> None:
    """Does nothing where CTranslate2 can express a model of this config.

    Raises:
        UserError: it cannot; says why.
    """
    if not isinstance(config, TransformerConfig):
        raise UserError("CTranslate2 writes one token after another, and has no model that writes all at once")
    if config.attention.kind != "full":
        raise UserError(f"CTranslate2 has full attention only, and this model's is {config.attention.kind}")
    if not config.encoder_layers:
        raise UserError("CTranslate2 needs an encoder of one layer at least, and this model has none")


def to_ctranslate2(
    model: EncoderDecoder, pieces: tuple[Sequence[str], Sequence[str]], folder: Path, quantization: str = "float32"
) -> None:
    """Writes the engine's files into an existing folder.

    Args:
        model: what is written.
        pieces: the words of the source's and of the target's vocabulary, in the order of their ids.
        folder: for the files.
        quantization: in which numbers the weights are kept, one of `QUANTIZATIONS`.

    Raises:
        UserError: CTranslate2 cannot express the model, or is not installed.
    """
    check_ctranslate2(model.config)
    if quantization not in QUANTIZATIONS:
        raise UserError(f"quantization: {quantization!r} is none of {', '.join(QUANTIZATIONS)}")
    spec = _describe(copy.deepcopy(model), pieces)  # whose tensors CTranslate2 scales in place to quantise them
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


@torch.no_grad()
def _describe(model: EncoderDecoder, pieces: tuple[Sequence[str], Sequence[str]]) -> Any:
    """The model as CTranslate2's specification, filled."""
    specs, c = import_optional("ctranslate2", "export").specs, model.config
    options: dict[str, Any] = {
        "pre_norm": c.norm == "pre",
        "no_final_norm": not c.has_final_norm,
        "activation": getattr(specs.Activation, _ACTIVATIONS[c.activation]),
        "ffn_glu": c.activation == "swiglu",
    }
    if c.positions == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": False}  # 0: all of a head; not interleaved: its halves
    encoder = specs.TransformerEncoderSpec(c.encoder_layers, c.heads, **options)
    decoder = specs.TransformerDecoderSpec(c.decoder_layers, c.heads, **options)
    spec = specs.TransformerSpec(encoder, decoder)

    _set_embedding(encoder.embeddings[0], encoder, model.source_embedding)
    _set_embedding(decoder.embeddings, decoder, model.target_embedding)
    _set_linear(decoder.projection, model.output_weight, model.output_bias)
    for layer, block in zip(encoder.layer, model.encoder, strict=True):
        _set_block(layer, block, c)
    for layer, block in zip(decoder.layer, model.decoder, strict=True):
        _set_block(layer, block, c)
        _set_cross_attention(layer.attention, block, c)
    if c.has_final_norm:
        _set_final_norm(encoder, model.encoder_norm)
        _set_final_norm(decoder, model.decoder_norm)

    spec.register_source_vocabulary(list(pieces[0]))
    spec.register_target_vocabulary(list(pieces[1]))
    spec.config.bos_token, spec.config.eos_token = pieces[1][c.bos], pieces[1][c.eos]
    spec.config.decoder_start_token = pieces[1][c.bos]
    # In our own vocabularies nothing is unknown, for bytes spell what is no piece; those of others have a word for it.
    spec.config.unk_token = UNKNOWN if UNKNOWN in pieces[1] else pieces[1][c.pad]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = c.norm_eps
    return spec


def _set_embedding(spec: Any, stack: Any, embedding: Embedding) -> None:
    spec.weight = embedding.weight
    stack.scale_embeddings = True
    if embedding.positions is not None:
        longest = len(table) if isinstance(table := getattr(embedding.positions, "weight", None), Tensor) else POSITIONS
        # Unset, they would be the engine's own, which count from 1.
        stack.position_encodings.encodings = embedding.positions(torch.arange(longest), longest)


def _set_block(spec: Any, block: Any, config: EncoderDecoderConfig) -> None:
    attention = spec.self_attention
    _set_linear(attention.linear[0], block.attention.qkv.weight, block.attention.qkv.bias)
    _set_linear(attention.linear[1], block.attention.out.weight, block.attention.out.bias)
    _set_norm(attention.layer_norm, block.around_attention.norm)
    _set_scale(attention, config)
    inner, outer = block.feed_forward.inner, block.feed_forward.outer
    if block.feed_forward.gated:
        gates, values = inner.weight.chunk(2), inner.bias.chunk(2)
        _set_linear(spec.ffn.linear_0, gates[0], values[0])
        _set_linear(spec.ffn.linear_0_noact, gates[1], values[1])
    else:
        _set_linear(spec.ffn.linear_0, inner.weight, inner.bias)
    _set_linear(spec.ffn.linear_1, outer.weight, outer.bias)
    _set_norm(spec.ffn.layer_norm, block.around_feed_forward.norm)


def _set_cross_attention(spec: Any, block: Any, config: EncoderDecoderConfig) -> None:
    qkv, width = block.cross.qkv, block.cross.width
    for linear, part in zip(spec.linear, (slice(0, width), slice(width, None)), strict=False):
        _set_linear(linear, qkv.weight[part], None if qkv.bias is None else qkv.bias[part])
    _set_linear(spec.linear[2], block.cross.out.weight, block.cross.out.bias)
    _set_norm(spec.layer_norm, block.around_cross.norm)
    _set_scale(spec, config)


def _set_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = weight.contiguous()
    if bias is not None:
        spec.bias = bias.contiguous()


def _set_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma, spec.beta = norm.weight, norm.bias


def _set_final_norm(stack: Any, norm: nn.Module) -> None:
    if not hasattr(stack, "layer_norm"):
        # The specification has none behind post-norm blocks, though the engine computes one wherever it finds it.
        stack.__dict__["layer_norm"] = type(stack.layer[0].ffn.layer_norm)()
    _set_norm(stack.layer_norm, norm)


def _set_scale(spec: Any, config: EncoderDecoderConfig) -> None:
    if config.qk_scale is not None:
        spec.queries_scale = config.qk_scale  # a float becomes the engine's float32
