"""Embeddings of a batch of tokens in training, and the gradient of their table, beside PyTorch's own."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from training_workload import make_one

from regard.attention.positions import sinusoid
from regard.ops import embedding

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
    _measure_adding(bench, batch.inputs.flatten(), vocab)


def _measure_adding(bench: Bench, tokens: Tensor, vocab: int) -> None:
    """Sums of each word's rows: PyTorch's of rows in single precision, ours of what flowed, dropout included."""
    grad = torch.randn(len(tokens), 512, device=bench.device, dtype=bench.dtype)
    run = partial(torch.ops.aten.embedding_dense_backward, grad.float(), tokens, vocab, -1, False)
    bench.attempt("adding", "PyTorch, dropout done before", partial(bench.times, "op", run))
    seed = torch.ones(1, dtype=torch.long, device=bench.device)
    ours = partial(embedding.sum_by_token, grad, tokens, vocab, SCALE, seed, DROPOUT)
    usual = embedding.CHUNK, embedding.BACKWARD_ROWS, embedding.BACKWARD_WARPS
    for choice in ((32, 4, 2), (16, 4, 2), (64, 4, 2), (32, 2, 2), (32, 8, 2), (32, 4, 4), (32, 4, 1), (16, 2, 1)):
        embedding.CHUNK, embedding.BACKWARD_ROWS, embedding.BACKWARD_WARPS = choice
        bench.attempt("adding", f"ours {choice}", partial(bench.times, "op", ours))
    embedding.CHUNK, embedding.BACKWARD_ROWS, embedding.BACKWARD_WARPS = usual
    usual_limit, embedding.MAX_INT16_VOCABULARY = embedding.MAX_INT16_VOCABULARY, 0
    bench.attempt("adding", "ours, sorted by 32 bits", partial(bench.times, "op", ours))
    embedding.MAX_INT16_VOCABULARY = usual_limit


def plain(dtype: torch.dtype, given: tuple[Tensor, Tensor, Tensor], table: Tensor) -> Tensor:
    tokens, places, positions = given
    return F.dropout(F.embedding(tokens, table) * SCALE + positions[places], DROPOUT).to(dtype)


def ours(dtype: torch.dtype, given: tuple[Tensor, Tensor, Tensor], table: Tensor) -> Tensor:
    tokens, places, positions = given
    return embedding.embed(tokens, table, SCALE, places, positions, DROPOUT, dtype)
