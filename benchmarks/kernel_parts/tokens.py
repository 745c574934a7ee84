"""Embeddings of a batch of tokens in training, beside the plain formula."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from training_workload import make_one

from regard import embedding
from regard.attention.positions import sinusoid

from .bench import Bench

SCALE, DROPOUT = 512**0.5, 0.1


def measure_embedding(bench: Bench) -> None:
    """Rows of 512 numbers for the target's tokens of a packed batch, dropout 0.1, and with other tiles."""
    vocab = 2400 if bench.toy else 32_000
    batch = make_one(vocab, bench.tokens, "packed", bench.device)
    layout = batch.target_layout
    given = batch.inputs, layout.positions(), sinusoid(torch.arange(layout.longest, device=bench.device), 512)
    table = torch.randn(vocab, 512, device=bench.device).requires_grad_()
    bench.compare("embedding", "PyTorch", partial(plain, bench.dtype, given), [table])
    usual = embedding.TILE, embedding.WARPS
    for choice in ((1024, 2), (512, 1), (512, 2), (1024, 4), (2048, 4), (2048, 2)):
        embedding.TILE, embedding.WARPS = choice
        bench.compare("embedding", f"ours {choice}", partial(ours, bench.dtype, given), [table])
    embedding.TILE, embedding.WARPS = usual


def plain(dtype: torch.dtype, given: tuple[Tensor, Tensor, Tensor], table: Tensor) -> Tensor:
    tokens, places, positions = given
    return F.dropout(F.embedding(tokens, table) * SCALE + positions[places], DROPOUT).to(dtype)


def ours(dtype: torch.dtype, given: tuple[Tensor, Tensor, Tensor], table: Tensor) -> Tensor:
    tokens, places, positions = given
    return embedding.embed(tokens, table, SCALE, places, positions, DROPOUT, dtype)
