"""Fused implementations of whole blocks: `blocks` for training on a GPU, `cpu_decode_step` for decoding on a CPU."""

from regard.ops.dispatch import class_token_block_applies as class_token_applies
from regard.ops.dispatch import fused_block_applies as applies
from regard.ops.dispatch import fused_embedding_applies as embedding_applies
from regard.ops.fused.blocks import class_token_block, decoder_block, embedding, encoder_block, swin_block

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
