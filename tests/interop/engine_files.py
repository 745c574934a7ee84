"""Write model.bin of CTranslate2 in any binary version, and models of other programs in its format."""

import io
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import sentencepiece
import torch

DTYPES = ("float32", "int8", "int16", "int32", "float16")
WIDTH, HEADS, HIDDEN, LAYERS = 32, 4, 48, 2


def write_engine_file(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    version: int = 6,
    specification: str = "TransformerSpec",
    revision: int = 7,
    aliases: Iterable[tuple[str, str]] = (),
) -> None:
    """Write variables as they are, without quantisation."""

    def text(content: str) -> bytes:
        return struct.pack("<H", len(content) + 1) + content.encode() + b"\0"

    content = [struct.pack("<I", version), text(specification), struct.pack("<II", revision, len(tensors))]
    for name, tensor in tensors.items():
        values = tensor.numpy()
        content += [text(name), struct.pack("<B", values.ndim), *(struct.pack("<I", size) for size in values.shape)]
        if version >= 4:
            content += [struct.pack("<BI", DTYPES.index(str(values.dtype)), values.nbytes)]
        else:
            content += [struct.pack("<BI", values.itemsize, values.size)]
        content += [values.tobytes()]
    if version >= 3:
        aliases = list(aliases)
        content += [struct.pack("<I", len(aliases)), *(text(name) for alias in aliases for name in alias)]
    path.write_bytes(b"".join(content))


def train_sentencepiece(texts: Iterable[str], size: int) -> bytes:
    """Return a small unigram model, whose normalisation changes texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=size, hard_vocab_limit=False, minloglevel=2
    )
    return model.getvalue()


def opennmt_vocabulary(model: bytes, size: int) -> list[str]:
    """Return the vocabulary that OpenNMT-py would use with a SentencePiece model, filled up to a size."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]
    tokens = ["<unk>", "<blank>", "<s>", "</s>", *pieces]
    return tokens + [f"extra{index}" for index in range(len(tokens), size)]


def save_opennmt(folder: Path, vocabulary: list[str], quantization: str = "int8", **changes: Any) -> None:
    """Write a model with random weights as the converter of OpenNMT-py does: pre-norm, and no END after the source.

    Args:
        changes: Attributes of the decoder's specification, or of the configuration.
    """
    rng = np.random.default_rng(0)

    def array(*shape: int, scale: float = 0.1) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def set_linear(spec: Any, rows: int, columns: int) -> None:
        spec.weight, spec.bias = array(rows, columns, scale=columns**-0.5), array(rows)

    def set_norm(spec: Any) -> None:
        spec.gamma, spec.beta = rng.choice([-1, 1], WIDTH).astype(np.float32), array(WIDTH)

    spec = ctranslate2.specs.TransformerSpec.from_config((LAYERS, LAYERS), HEADS)
    embedding = array(len(vocabulary), WIDTH, scale=WIDTH**-0.5)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = spec.decoder.projection.weight = embedding
    spec.decoder.projection.bias = array(len(vocabulary), scale=1.0)
    angle = np.arange(300)[:, None] * np.exp(np.arange(0, WIDTH, 2) * -(np.log(10_000.0) / WIDTH))
    table = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(300, WIDTH).astype(np.float32)
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = table
        set_norm(stack.layer_norm)
        for layer in stack.layer:
            attentions = [layer.self_attention, *([layer.attention] if stack is spec.decoder else [])]
            for attention, sizes in zip(attentions, ([3, 1], [1, 2, 1]), strict=False):
                for linear, size in zip(attention.linear, sizes, strict=True):
                    set_linear(linear, size * WIDTH, WIDTH)
                set_norm(attention.layer_norm)
            set_linear(layer.ffn.linear_0, HIDDEN, WIDTH)
            set_linear(layer.ffn.linear_1, WIDTH, HIDDEN)
            set_norm(layer.ffn.layer_norm)
    for name, value in changes.items():
        owner = spec.config if hasattr(spec.config, name) else spec.decoder
        setattr(owner, name, value)
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))
