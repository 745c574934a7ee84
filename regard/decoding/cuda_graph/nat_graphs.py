"""What fills canvases, each of one shape: recorded once on a GPU, then replayed; elsewhere simply done.

Numbers go to the device in one copy for each program, and come back in one.

Shapes: B sentences, S source tokens, K lengths tried of a sentence, R rows, T places of the canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.decoding.cuda_graph.capture import Pool, record
from regard.decoding.nat_fill import Guess, fill, guesses, likeliest_lengths, refine
from regard.models.nat import NATransformer

Canvases = tuple[Tensor, Tensor, Tensor]
"""Tokens, their log-probabilities and the canvas that the last pass read, all (R, T), on the host."""


class PassShape(NamedTuple):
    """The sizes of a program for canvases whose length follows from the source's."""

    sentences: int
    source: int
    places: int


class EncodingShape(NamedTuple):
    """The sizes of a program that encodes and guesses lengths."""

    sentences: int
    source: int
    tried: int


class FillingShape(NamedTuple):
    """The sizes of a program that fills canvases."""

    sentences: int
    source: int
    rows: int
    places: int
    iterations: int


class Pass:
    """Encodes sources of one shape and fills a canvas for each, in one pass."""

    def __init__(self, model: NATransformer, shape: PassShape, records: bool, pool: Pool) -> None:
        self.model, self.shape = model, shape
        B, S, T = shape
        # Tokens, how many of them there are, and how many places the canvas has.
        self._given = torch.ones(B, S + 2, dtype=torch.long, device=model.target_embedding.weight.device)
        self._said = torch.zeros(2, B, T, dtype=torch.int32, device=self._given.device)
        self._play = recorded(self._write, records, pool)

    def write(self, sources: Sequence[Sequence[int]], lengths: Sequence[int]) -> Canvases:
        """Fills a canvas of each of these lengths, given sources without END; further rows are empty sources."""
        table = _lay_out(sources, tuple(self._given.shape), 2, self.model.config.eos)
        table[: len(lengths), -1] = lengths
        self._given.copy_(torch.from_numpy(table))
        self._play()
        tokens, gains = self._said.cpu()[:, : len(sources)]
        return tokens, gains.view(torch.float32), torch.full_like(tokens, self.model.config.mask_token)

    def _write(self) -> None:
        B, S, T = self.shape
        tokens, (sizes, lengths) = self._given[:, :S], self._given[:, S:].unbind(1)
        layout, memory_layout = Padded(lengths, T), Padded(sizes, S)
        memory = self.model.encode(tokens, memory_layout)
        blank = torch.full((B, T), self.model.config.mask_token, device=memory.device)
        best = fill(self.model, memory, layout, memory_layout, blank).max(-1)
        self._said.copy_(torch.stack((best.indices.int(), best.values.view(torch.int32))))


class Encoding:
    """Encodes sources of one shape and guesses lengths."""

    def __init__(self, model: NATransformer, shape: EncodingShape, records: bool, pool: Pool) -> None:
        self.model, self.shape = model, shape
        B, S, K = shape
        weight = model.target_embedding.weight
        # Tokens, and how many of them there are.
        self.given = torch.ones(B, S + 1, dtype=torch.long, device=weight.device)
        self.memory = weight.new_zeros(B, S, model.config.width)
        self._said = torch.zeros(2, B, K, dtype=torch.int32, device=weight.device)
        self._play = recorded(self._encode, records, pool)

    @property
    def sizes(self) -> Tensor:
        return self.given[:, -1]

    def encode(self, sources: Sequence[Sequence[int]]) -> None:
        """Encodes sources given without END; further rows are empty sources."""
        self.given.copy_(torch.from_numpy(_lay_out(sources, tuple(self.given.shape), 1, self.model.config.eos)))
        self._play()

    def guesses(self) -> list[list[Guess]]:
        """The lengths tried of each row."""
        lengths, gains = self._said.cpu()
        return guesses(lengths, gains.view(torch.float32))

    def _encode(self) -> None:
        layout = Padded(self.sizes, self.shape.source)
        memory = self.model.encode(self.given[:, :-1], layout)
        self.memory.copy_(memory)
        lengths, gains = likeliest_lengths(self.model, memory, layout, self.sizes, self.shape.tried)
        self._said.copy_(torch.stack((lengths.int(), gains.view(torch.int32))))


class Filling:
    """Fills canvases of one shape."""

    def __init__(self, model: NATransformer, shape: FillingShape, records: bool, pool: Pool) -> None:
        self.model, self.shape = model, shape
        B, S, R, T, _ = shape
        weight = model.target_embedding.weight
        self._memory = weight.new_zeros(B, S, model.config.width)
        self._sizes = torch.ones(B, dtype=torch.long, device=weight.device)
        # Of each row, which sentence it is about and how many places it has.
        self._rows = torch.tensor([[0, 1]] * R, device=weight.device)
        self._said = torch.zeros(3, R, T, dtype=torch.int32, device=weight.device)
        self._play = recorded(self._fill, records, pool)

    def fill(self, encoding: Encoding, owners: Sequence[int], lengths: Sequence[int]) -> Canvases:
        """Fills canvases of these lengths, each about the sentence that owns it."""
        rows = np.tile([0, 1], (self.shape.rows, 1))
        rows[: len(owners)] = np.stack((owners, lengths), 1)
        self._rows.copy_(torch.from_numpy(rows))
        self._sizes.copy_(encoding.sizes)
        self._memory.copy_(encoding.memory)
        self._play()
        tokens, gains, read = self._said.cpu()[:, : len(owners)]
        return tokens, gains.view(torch.float32), read

    def _fill(self) -> None:
        _, S, R, T, iterations = self.shape
        owners, lengths = self._rows.unbind(1)
        memory = self._memory[owners]
        layout, memory_layout = Padded(lengths, T), Padded(self._sizes[owners], S)
        blank = torch.full((R, T), self.model.config.mask_token, device=memory.device)
        *_, last = refine(partial(fill, self.model, memory, layout, memory_layout), blank, lengths, iterations)
        self._said.copy_(torch.stack((last.tokens.int(), last.gains.view(torch.int32), last.read.int())))


def recorded(do: Callable[[], None], records: bool, pool: Pool) -> Callable[[], None]:
    """What does it again: replayed where it `records`."""
    return record(do, pool).replay if records else do


def _lay_out(
    sources: Sequence[Sequence[int]], shape: tuple[int, ...], numbers: int, eos: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """A row for each source, END and how many tokens that makes; further rows are those of empty sources.

    The last columns are for numbers, the first of which is that of tokens, the others 1 until they are set.
    """
    table = np.full(shape, eos, np.int64)
    table[:, -numbers:] = 1
    for row, source in zip(table, sources, strict=False):
        row[: len(source)] = source
        row[-numbers] = len(source) + 1
    return table
