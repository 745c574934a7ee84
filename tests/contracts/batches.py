"""Random batches for the contract tests, and the logits of models on them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.masks import Packed, Padded
from regard.models.transformer import EncoderDecoder

VOCAB = 13
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SOURCE_LENGTHS = [5, 2, 7, 1]
TARGET_LENGTHS = [3, 6, 1, 4]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sentences(lengths: list[int], seed: int = 0) -> list[Tensor]:
    generator = seeded(seed)
    return [torch.randint(3, VOCAB, (n,), generator=generator) for n in lengths]


def make_pair(seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    """Return four sources and their targets."""
    return sentences(SOURCE_LENGTHS, seed), sentences(TARGET_LENGTHS, seed + 1)


def images(batch: int, size: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=seeded(seed))


def qkv(T: int, S: int, batch: int = 2, seed: int = 0) -> list[Tensor]:
    generator = seeded(seed)
    return [torch.randn(batch, 2, n, 8, generator=generator, requires_grad=True) for n in (T, S, S)]


def pad(rows: list[Tensor], size: int | None = None, filler: int = 0) -> tuple[Tensor, Padded]:
    layout = Padded.of([len(row) for row in rows], size)
    return torch.stack([F.pad(row, (0, layout.size - len(row)), value=filler) for row in rows]), layout


def pack(rows: list[Tensor]) -> tuple[Tensor, Packed]:
    return torch.cat(rows)[None], Packed.of([len(row) for row in rows])


def padded_logits(
    model: EncoderDecoder,
    sources: list[Tensor],
    targets: list[Tensor],
    sizes: tuple[int | None, int | None] = (None, None),
    filler: int = 0,
) -> list[Tensor]:
    """Return the logits of each sentence from one padded batch."""
    source, source_layout = pad(sources, sizes[0], filler)
    target, target_layout = pad(targets, sizes[1], filler)
    logits = model(source, target, source_layout, target_layout)
    return [row[: len(t)] for row, t in zip(logits, targets, strict=True)]


def packed_logits(model: EncoderDecoder, sources: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
    """Return the logits of each sentence from one packed batch."""
    (source, source_layout), (target, target_layout) = pack(sources), pack(targets)
    return list(model(source, target, source_layout, target_layout)[0].split([len(t) for t in targets]))


def single_logits(model: EncoderDecoder, sources: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
    """Return the logits of each sentence from a batch of its own, without layouts."""
    return [model(s[None], t[None])[0] for s, t in zip(sources, targets, strict=True)]


LOGITS = {"padded": padded_logits, "packed": packed_logits, "single": single_logits}


def assert_same(results: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)
