"""CTranslate2: write the files of the engine, verify them, and load them as a `Translator`.

The files are config.json, model.bin and the vocabularies. The engine takes text tokens instead of ids; its vocabulary
is that of the regard tokenizer.
"""

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from regard.errors import UserError, import_optional
from regard.files import describe_file
from regard.interop.verification import Tokens, check_agreement, compare, longest_input
from regard.models.folder import FOREIGN_CONFIG, is_exported, save_config
from regard.models.transformer import Embedding, EncoderDecoder, EncoderDecoderConfig, TransformerConfig
from regard.pipelines.external import CTranslate2Generator, engine_files
from regard.pipelines.translator import Translator

POSITIONS = 2048
"""Positions of an exported sinusoidal table, which is unlimited in regard. The engine rejects longer sentences."""
UNKNOWN = "<unk>"

Engine = Literal["regard", "ctranslate2"]
QUANTIZATIONS = ("float32", "int8", "int8_float32", "int16", "float16", "bfloat16", "int8_float16")

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH"}


def load_translator(
    path: str | Path,
    *others: str | Path,
    device: str | torch.device = "cpu",
    engine: Engine | str | None = None,
    precision: str | None = None,
) -> Translator:
    """Load a translator that runs in regard or in CTranslate2; see `Translator.load`.

    Args:
        engine: "regard", or "ctranslate2", which is often faster on CPU but has fewer options. Defaults to the engine
            that the folder was written for.
        precision: For CTranslate2, one of `QUANTIZATIONS`.
    """
    if engine not in (None, *get_args(Engine)):
        raise UserError(f"engine: {engine!r} is not one of {', '.join(get_args(Engine))}")
    if engine == "regard" and is_exported(Path(path)):
        raise UserError(f"{path}: its weights are for the engine ctranslate2; give the run that it was exported from")
    if engine != "ctranslate2" or is_exported(Path(path)):
        return Translator.load(path, *others, device=device, precision=precision)
    if others:
        raise UserError("CTranslate2 has no ensembles; use the engine regard")
    if precision is not None and precision not in QUANTIZATIONS:
        supported = ", ".join(QUANTIZATIONS)
        raise UserError(f"precision: {precision!r} is not one of {supported}, which CTranslate2 supports")
    with tempfile.TemporaryDirectory() as folder:
        save_ctranslate2(Translator.load(path), Path(folder), precision or "float32")
        return Translator.load(folder, device=device)


def export_ctranslate2(
    translator: Translator, folder: Path, sources: Sequence[Tokens], quantization: str | None
) -> list[str]:
    """Write and verify the files, and return a summary of the verification.

    Float32 weights must give the same results. The differences of quantised weights are only reported.
    """
    save_ctranslate2(translator, folder, quantization or "float32")
    if quantization in (None, "float32"):
        return [_verify(translator, folder, sources)]
    with tempfile.TemporaryDirectory() as float32_folder:
        save_ctranslate2(translator, Path(float32_folder))
        summary = _verify(translator, Path(float32_folder), sources)
    quantised = compare(translator, _load_generator(folder), sources)
    return [summary, quantised.quantised_summary]


def save_ctranslate2(translator: Translator, folder: Path, quantization: str = "float32") -> None:
    """Write the files of the engine and the tokenizer to an existing folder, for `Translator.load`."""
    if len(translator.models) > 1:
        raise UserError("CTranslate2 has no ensembles; give one model")
    to_ctranslate2(translator.model, translator.vocabularies.tokens, folder, quantization)
    files = {path.name: describe_file(path) for path in engine_files(folder)}
    translator.vocabularies.save(folder)
    values = translator.metadata() | {"longest": longest_input(translator.model.config, POSITIONS), "files": files}
    save_config(folder / FOREIGN_CONFIG, translator.model, values)


def to_ctranslate2(
    model: EncoderDecoder, tokens: tuple[Sequence[str], Sequence[str]], folder: Path, quantization: str = "float32"
) -> None:
    """Write the files of the engine to an existing folder.

    Args:
        tokens: Tokens of the source and target vocabularies, in the order of their ids.
        quantization: Data type of the weights, one of `QUANTIZATIONS`.
    """
    _check_supported(model.config)
    if quantization not in QUANTIZATIONS:
        raise UserError(f"quantization: {quantization!r} is not one of {', '.join(QUANTIZATIONS)}")
    spec = _build_spec(copy.deepcopy(model), tokens)  # a copy, because quantisation scales the tensors in place
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def _verify(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> str:
    agreement = compare(translator, _load_generator(folder), sources)
    check_agreement(agreement, "the model in CTranslate2")
    return str(agreement)


def _load_generator(folder: Path) -> CTranslate2Generator:
    generator = Translator.load(folder).generator
    assert isinstance(generator, CTranslate2Generator)
    return generator


def _check_supported(config: EncoderDecoderConfig) -> None:
    if not isinstance(config, TransformerConfig):
        raise UserError("CTranslate2 has no non-autoregressive models")
    if config.attention.kind != "full":
        raise UserError(f"CTranslate2 supports only full attention, but this model has {config.attention.kind}")
    if not config.encoder_layers:
        raise UserError("CTranslate2 needs at least one encoder layer, but this model has none")


@torch.no_grad()
def _build_spec(model: EncoderDecoder, tokens: tuple[Sequence[str], Sequence[str]]) -> Any:
    """Return the model as a CTranslate2 specification with weights."""
    specs, c = import_optional("ctranslate2", "export").specs, model.config
    options: dict[str, Any] = {
        "pre_norm": c.norm == "pre",
        "no_final_norm": not c.has_final_norm,
        "activation": getattr(specs.Activation, _ACTIVATIONS[c.activation]),
        "ffn_glu": c.activation == "swiglu",
    }
    if c.positions == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": False}  # 0: all features of a head; they are split in halves
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

    source_tokens, target_tokens = (list(side) for side in tokens)
    spec.register_source_vocabulary(source_tokens)
    spec.register_target_vocabulary(target_tokens)
    spec.config.bos_token, spec.config.eos_token = target_tokens[c.bos], target_tokens[c.eos]
    spec.config.decoder_start_token = target_tokens[c.bos]
    # Vocabularies of regard have no unknown token, because any text can be spelled in bytes; imported ones have.
    spec.config.unk_token = UNKNOWN if UNKNOWN in target_tokens else target_tokens[c.pad]
    spec.config.add_source_eos = c.source_end
    spec.config.layer_norm_epsilon = c.norm_eps
    return spec


def _set_embedding(spec: Any, stack: Any, embedding: Embedding) -> None:
    spec.weight = embedding.weight
    stack.scale_embeddings = True
    if embedding.positions is not None:
        size = embedding.max_positions or POSITIONS
        # Always set: the engine's default positions start at 1.
        stack.position_encodings.encodings = embedding.positions(torch.arange(size), size)


def _set_block(spec: Any, block: Any, config: EncoderDecoderConfig) -> None:
    """Set self-attention and feed-forward of an encoder or decoder layer of the engine."""
    attention = spec.self_attention
    _set_linear(attention.linear[0], block.attention.qkv.weight, block.attention.qkv.bias)
    _set_linear(attention.linear[1], block.attention.out.weight, block.attention.out.bias)
    _set_norm(attention.layer_norm, block.norm1)
    _set_scale(attention, config)
    inner, outer = block.feed_forward.inner, block.feed_forward.outer
    if block.feed_forward.activation == "swiglu":
        (gate, value), (gate_bias, value_bias) = inner.weight.chunk(2), inner.bias.chunk(2)
        _set_linear(spec.ffn.linear_0, gate, gate_bias)
        _set_linear(spec.ffn.linear_0_noact, value, value_bias)
    else:
        _set_linear(spec.ffn.linear_0, inner.weight, inner.bias)
    _set_linear(spec.ffn.linear_1, outer.weight, outer.bias)
    _set_norm(spec.ffn.layer_norm, block.norm3 if hasattr(block, "cross") else block.norm2)


def _set_cross_attention(spec: Any, block: Any, config: EncoderDecoderConfig) -> None:
    qkv, width = block.cross.qkv, block.cross.width
    for linear, rows in zip(spec.linear, (slice(0, width), slice(width, None)), strict=False):
        _set_linear(linear, qkv.weight[rows], None if qkv.bias is None else qkv.bias[rows])
    _set_linear(spec.linear[2], block.cross.out.weight, block.cross.out.bias)
    _set_norm(spec.layer_norm, block.norm2)
    _set_scale(spec, config)


def _set_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = weight.contiguous()
    if bias is not None:
        spec.bias = bias.contiguous()


def _set_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma, spec.beta = norm.weight, norm.bias


def _set_final_norm(stack: Any, norm: nn.Module) -> None:
    if not hasattr(stack, "layer_norm"):
        # The specification omits it for post-norm, but the engine applies it if it is present.
        stack.__dict__["layer_norm"] = type(stack.layer[0].ffn.layer_norm)()
    _set_norm(stack.layer_norm, norm)


def _set_scale(spec: Any, config: EncoderDecoderConfig) -> None:
    if config.qk_scale is not None:
        spec.queries_scale = config.qk_scale
