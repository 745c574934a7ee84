"""Fused implementations of whole blocks: `blocks` for training on a GPU, `cpu_decode_step` for decoding on a CPU."""

from regard.ops.fused.blocks import (
    applies,
    class_token_applies,
    class_token_block,
    decoder_block,
    embedding,
    embedding_applies,
    encoder_block,
    swin_block,
)

__all__ = [
    "applies",
    "class_token_applies",
    "class_token_block",
    "decoder_block",
    "embedding",
    "embedding_applies",
    "encoder_block",
    "swin_block",
]
