"""Batches of sentence pairs: collation into padded or packed tensors.

Shapes: B sentences, S source tokens, T target tokens, N tokens of a packed row, L links between aligned tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.text.tokens import Ints, ParallelTokens, RaggedArray
from regard.masks import Layout, Packed, Padded
from regard.ops.cross_entropy import IGNORE_INDEX
from regard.training.cuda_graph import HOST_ONLY, tensors_of, with_tensors

ALIGNMENT = 64
"""Alignment in bytes of tensors that share a buffer, as kernels need it for vectorised loads."""
SENTENCE_MARGIN = 1.5
"""Maximum number of sentences of a batch of fixed shape, relative to the mean."""


@dataclass(frozen=True)
class TextBatch:
    """Sentence pairs, padded or packed, with the labels of the real target tokens."""

    source: Tensor  # (B, S) or packed (1, N)
    source_layout: Layout
    inputs: Tensor  # decoder inputs, from BOS to the last token, (B, T) or packed (1, N)
    target_layout: Layout  # of `inputs`
    labels: Tensor  # from the first token to END, of all sentences; a batch of fixed shape ends with IGNORE_INDEX
    real: Tensor | None  # index of each label in the flattened `inputs`; None if the batch is packed
    rows: Ints = field(metadata=HOST_ONLY)  # of the corpus
    count: int = field(metadata=HOST_ONLY)  # number of tokens that the loss is a sum over
    fixed_shape: bool = False  # whether the batch is filled to a `PackedShape`
    links: Tensor | None = None
    """Aligned tokens as rows (sentence, target position, source position), (L, 3). A batch of fixed shape ends with
    rows of -1."""

    @property
    def sentences(self) -> int:
        return len(self.rows)

    @property
    def longest(self) -> int:
        """Length of the longest sentence on either side."""
        return max(self.source_layout.longest, self.target_layout.longest)

    @property
    def padded_tokens(self) -> int:
        """Number of tokens of the larger side including padding, which `batch.tokens` limits."""
        return max(self.source.numel(), self.inputs.numel())

    def is_sentence(self) -> Tensor:
        """Return which sequences are sentences, (B,); the others are padding of a batch of fixed shape."""
        lengths = self.target_layout.lengths
        first = self.labels[(lengths.cumsum(0) - lengths).clamp(max=len(self.labels) - 1)]
        return (lengths > 0) & (first != IGNORE_INDEX)

    def followed_by(self, other: "TextBatch") -> "TextBatch":
        """Return these pairs and those of a batch of the same shape as one batch."""
        axis = 1 if self.real is None else 0  # packed pairs are in one row
        source_layout, target_layout = (
            getattr(self, name).followed_by(getattr(other, name)) for name in ("source_layout", "target_layout")
        )
        real, links = self.real, self.links
        if real is not None and other.real is not None:
            real = torch.cat((real, other.real + self.inputs.numel()))
        if links is not None and other.links is not None:
            sentences, positions = other.links[:, :1], other.links[:, 1:]
            sentences = torch.where(sentences < 0, sentences, sentences + len(self.target_layout.lengths))
            links = torch.cat((links, torch.cat((sentences, positions), 1)))
        return replace(
            self,
            source=torch.cat((self.source, other.source), axis),
            source_layout=source_layout,
            inputs=torch.cat((self.inputs, other.inputs), axis),
            target_layout=target_layout,
            labels=torch.cat((self.labels, other.labels)),
            real=real,
            rows=np.concatenate((self.rows, other.rows)),
            count=self.count + other.count,
            links=links,
        )

    def to(self, device: torch.device) -> "TextBatch":
        """Move a CPU batch to a device; to a GPU with one asynchronous copy of all its tensors."""
        if device.type != "cuda":
            return self
        tensors = tensors_of(self)
        buffer = concatenate_bytes(tensors, pinned=True).to(device, non_blocking=True)
        return with_tensors(self, split_bytes(buffer, tensors))


@dataclass(frozen=True)
class PackedShape:
    """Fixed shape of packed batches, so that one compiled program or CUDA graph serves all batches.

    The sentences are followed by sequences of padding, none longer than the longest sentence, and then by empty ones.
    """

    tokens: int  # of either side, padding included
    sentences: int  # maximum number
    longest: int  # maximum length of a sentence on either side
    links: int = 0  # maximum number of links between aligned tokens

    @classmethod
    def of(cls, corpus: ParallelTokens, tokens: int) -> "PackedShape":
        """Return a shape for batches of a corpus that are planned with at most this many tokens."""
        (row,) = corpus.longest_pairs(1)
        longest = max(int(corpus.source.lengths_at(row)), int(corpus.target.lengths_at(row)) - 1)
        mean_length = min(len(corpus.source.tokens), len(corpus.target.tokens) - len(corpus)) / len(corpus)
        sentences = int(SENTENCE_MARGIN * tokens / max(1.0, mean_length)) + 16
        links = 0 if corpus.links is None else sentences * int(corpus.links.lengths.max(initial=0)) // 2
        return cls(max(tokens, longest), sentences, longest, links)

    @property
    def sequences(self) -> int:
        """Number of sequences, including padding and empty ones."""
        return self.sentences + -(-self.tokens // self.longest)

    def layout(self, lengths: Ints) -> Packed:
        """Return the layout of sentences with these lengths, followed by padding."""
        offsets = np.zeros(self.sequences + 1, np.int64)
        offsets[1 : len(lengths) + 1] = np.cumsum(lengths)
        padding = np.arange(1, len(offsets) - len(lengths)) * self.longest
        offsets[len(lengths) + 1 :] = offsets[len(lengths)] + padding
        return Packed(torch.from_numpy(np.minimum(offsets, self.tokens).astype(np.int32)), self.longest, self.tokens)

    def fill_links(self, links: Tensor) -> Tensor:
        """Append rows of -1 to links (L, 3) up to the fixed number."""
        return torch.cat((links, links.new_full((self.links - len(links), 3), -1)))

    def fill(self, tokens: npt.NDArray[np.integer[Any]], filler: int) -> Tensor:
        """Append fillers to tokens (N,) up to the fixed size."""
        full = np.full(self.tokens, filler, np.int64)
        full[: len(tokens)] = tokens
        return torch.from_numpy(full)


def count_labels(source: RaggedArray, target: RaggedArray) -> int:
    """Return the number of tokens to predict: those of the targets without BOS."""
    return len(target.tokens) - len(target)


def collate(
    corpus: ParallelTokens,
    rows: Ints,
    packed: bool,
    pad: int,
    shape: PackedShape | None = None,
    count_loss_terms: Callable[[RaggedArray, RaggedArray], int] = count_labels,
) -> TextBatch:
    """Build a batch of some rows of a corpus.

    Args:
        corpus: The corpus.
        rows: Indices of the pairs.
        packed: Whether the pairs are concatenated in a single row; otherwise they are padded.
        pad: The padding token.
        shape: Fixed shape to which the batch is filled up; requires `packed`.
        count_loss_terms: Returns the number of tokens that the loss is a sum over, given sources and targets.
    """
    source, target = corpus.source.take(rows), corpus.target.take(rows)
    links = None if corpus.links is None else _collate_links(corpus.links.take(rows))
    if links is not None and shape is not None:
        links = shape.fill_links(links)
    rest = {"rows": rows, "count": count_loss_terms(source, target), "links": links}
    return _pack(source, target, pad, shape, **rest) if packed else _pad(source, target, pad, **rest)


def _pad(source: RaggedArray, target: RaggedArray, pad: int, **rest: Any) -> TextBatch:
    layout = Padded.of(torch.from_numpy(target.lengths - 1))
    return TextBatch(
        source=torch.from_numpy(source.padded(pad)).long(),
        source_layout=Padded.of(torch.from_numpy(source.lengths)),
        inputs=torch.from_numpy(target.padded(pad)[:, :-1]).long(),
        target_layout=layout,
        labels=torch.from_numpy(target.tokens[~_is_first(target)]).long(),
        real=layout.real().flatten().nonzero()[:, 0],
        **rest,
    )


def _pack(source: RaggedArray, target: RaggedArray, pad: int, shape: PackedShape | None, **rest: Any) -> TextBatch:
    """Concatenate all pairs in one row; inputs omit the last token of each target, labels the first."""
    first = _is_first(target)
    last = np.roll(first, -1)  # the token before the first token of a sentence is the last one of its neighbour
    lengths, inputs, labels = target.lengths - 1, target.tokens[~last], target.tokens[~first]
    if shape is None:
        return TextBatch(
            source=torch.from_numpy(source.tokens).long()[None],
            source_layout=Packed.of(torch.from_numpy(source.lengths)),
            inputs=torch.from_numpy(inputs).long()[None],
            target_layout=Packed.of(torch.from_numpy(lengths)),
            labels=torch.from_numpy(labels).long(),
            real=None,
            **rest,
        )
    return TextBatch(
        source=shape.fill(source.tokens, pad)[None],
        source_layout=shape.layout(source.lengths),
        inputs=shape.fill(inputs, pad)[None],
        target_layout=shape.layout(lengths),
        labels=shape.fill(labels, IGNORE_INDEX),
        real=None,
        fixed_shape=True,
        **rest,
    )


def _is_first(target: RaggedArray) -> npt.NDArray[np.bool_]:
    """Mark the first token of each sentence, (N,)."""
    first = np.zeros(len(target.tokens), bool)
    first[target.offsets[:-1]] = True
    return first


def _collate_links(links: RaggedArray) -> Tensor:
    """Prepend the index of the sentence to each pair of aligned positions, (L, 3)."""
    positions = torch.from_numpy(links.tokens).long().view(-1, 2)
    sentences = torch.arange(len(links)).repeat_interleave(torch.from_numpy(links.lengths // 2))
    return torch.cat((sentences[:, None], positions), 1)


def concatenate_bytes(tensors: Sequence[Tensor], pinned: bool = False) -> Tensor:
    """Copy tensors into one buffer of bytes."""
    buffer = torch.empty(_offsets(tensors)[-1], dtype=torch.uint8, pin_memory=pinned)
    for tensor, part in zip(tensors, split_bytes(buffer, tensors), strict=True):
        part.copy_(tensor)
    return buffer


def split_bytes(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a buffer with the shapes and dtypes of the tensors that it was concatenated from."""
    return [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(_offsets(like), like, strict=False)
    ]


def _offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Return the first byte of each tensor, followed by the size of the buffer."""
    offsets = [0]
    for tensor in tensors:
        offsets.append(offsets[-1] + -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT)
    return offsets
