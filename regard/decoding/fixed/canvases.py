"""`FixedCanvases`: sources in, filled canvases out, by two programs: one encodes and guesses lengths, one fills.

Between the two the host reads the lengths, where they are guessed, since they say how large the canvas must be. All
else is on the device: numbers go there in one copy for each program, and come back in one.

Shapes: B sentences, S source tokens, K lengths tried of a sentence, R rows, T places of the canvas.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from regard.attention import Padded
from regard.decoding.canvas import Guess, fill, guesses, likeliest_lengths, refine
from regard.decoding.fixed.program import FEW_TOKENS
from regard.decoding.fixed.recording import Pool, let_positions_grow, record, room_for, weight_places
from regard.decoding.fixed.search import room_for_sentences
from regard.launching import on_device
from regard.models.parallel import ParallelTransformer

MOST_PROGRAMS = 128
"""Programs kept; what they work with is shared, so that each has little memory of its own."""


class EncodingShape(NamedTuple):
    """The sizes of a program that encodes; `tried` is 0 where lengths are not guessed."""

    sentences: int
    source: int
    tried: int

    @property
    def tables(self) -> list[tuple[int, int]]:
        """The rows and columns of what it works on."""
        return [(self.sentences, self.source)]


class FillingShape(NamedTuple):
    """The sizes of a program that fills canvases."""

    sentences: int
    source: int
    rows: int
    places: int
    rounds: int

    @property
    def tables(self) -> list[tuple[int, int]]:
        """The rows and columns of what it works on."""
        return [(self.sentences, self.source), (self.rows, self.places)]


class Encoding:
    """Encodes sources of one shape and guesses lengths."""

    def __init__(self, model: ParallelTransformer, shape: EncodingShape, records: bool, pool: Pool) -> None:
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
        table = np.full(self.given.shape, self.model.config.eos)
        table[:, -1] = 1
        for row, source in zip(table, sources, strict=False):
            row[: len(source)] = source
            row[-1] = len(source) + 1
        self.given.copy_(torch.from_numpy(table))
        self._play()

    def guesses(self) -> list[list[Guess]]:
        """The lengths tried of each row."""
        lengths, gains = self._said.cpu()
        return guesses(lengths, gains.view(torch.float32))

    def _encode(self) -> None:
        layout = Padded(self.sizes, self.shape.source)
        memory = self.model.encode(self.given[:, :-1], layout)
        self.memory.copy_(memory)
        if self.shape.tried:
            lengths, gains = likeliest_lengths(self.model, memory, layout, self.sizes, self.shape.tried)
            self._said.copy_(torch.stack((lengths.int(), gains.view(torch.int32))))


class Filling:
    """Fills canvases of one shape."""

    def __init__(self, model: ParallelTransformer, shape: FillingShape, records: bool, pool: Pool) -> None:
        self.model, self.shape = model, shape
        B, S, R, T, _ = shape
        weight = model.target_embedding.weight
        self._memory = weight.new_zeros(B, S, model.config.width)
        self._sizes = torch.ones(B, dtype=torch.long, device=weight.device)
        # Of each row, which sentence it is about and how many places it has.
        self._rows = torch.tensor([[0, 1]] * R, device=weight.device)
        self._said = torch.zeros(3, R, T, dtype=torch.int32, device=weight.device)
        self._play = recorded(self._fill, records, pool)

    def fill(self, encoding: Encoding, owners: Sequence[int], lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, their log-probabilities and the canvas that the last pass read, all (rows, T), on the host."""
        rows = np.tile([0, 1], (self.shape.rows, 1))
        rows[: len(owners)] = np.stack((owners, lengths), 1)
        self._rows.copy_(torch.from_numpy(rows))
        self._sizes.copy_(encoding.sizes)
        self._memory.copy_(encoding.memory)
        self._play()
        tokens, gains, read = self._said.cpu()[:, : len(owners)]
        return tokens, gains.view(torch.float32), read

    def _fill(self) -> None:
        _, S, R, T, rounds = self.shape
        owners, lengths = self._rows.unbind(1)
        memory = self._memory[owners]
        layout, memory_layout = Padded(lengths, T), Padded(self._sizes[owners], S)
        blank = torch.full((R, T), self.model.config.mask, device=memory.device)
        *_, last = refine(partial(fill, self.model, memory, layout, memory_layout), blank, lengths, rounds)
        self._said.copy_(torch.stack((last.tokens.int(), last.gains.view(torch.int32), last.read.int())))


Shape = EncodingShape | FillingShape
Made = TypeVar("Made", Encoding, Filling)


class FixedCanvases:
    """Fills canvases with one model, prepared for a few shapes of batches; one batch at a time.

    Args:
        model: fills them.
        records: whether programs are recorded and replayed, which only a GPU can; it does unless told otherwise.
    """

    def __init__(self, model: ParallelTransformer, records: bool | None = None) -> None:
        self.model, self.records = model, records
        self._programs: dict[Shape, Encoding | Filling] = {}  # the one used last stands last
        self._places: tuple[int, ...] = ()
        self._pool: Pool = None
        self._busy = threading.Lock()

    @torch.inference_mode()
    def fill(
        self, sources: Sequence[Sequence[int]], tried: int, rounds: int
    ) -> tuple[list[list[Guess]], tuple[Tensor, Tensor, Tensor]]:
        """The lengths tried of each sentence, and for all of them what stands on the canvas: see `Filling.fill`.

        Raises:
            UserError: a source is longer than the model's learned positions.
        """
        with self._busy, on_device(self.model.target_embedding.weight):
            encoding = self._encode(sources, tried)
            lengths = encoding.guesses()[: len(sources)] if encoding.shape.tried else self._lengths_that_follow(sources)
            owners = [i for i, of_one in enumerate(lengths) for _ in of_one]
            counts = [count for of_one in lengths for count, _ in of_one]
            table = len(owners), max(counts)
            shape = FillingShape(*encoding.shape[:2], *(self._room(*table) or table), rounds)
            return lengths, self._filling(shape).fill(encoding, owners, counts)

    def forget(self) -> None:
        """Gives back the memory of all programs."""
        self._programs.clear()

    def _encode(self, sources: Sequence[Sequence[int]], tried: int) -> Encoding:
        config = self.model.config
        known = min(tried, 2 * config.length_reach + 1) if config.length == "classifier" else 0
        table = len(sources), max(len(source) for source in sources) + 1
        shape = EncodingShape(*(self._room(*table) or table), known)
        let_positions_grow(self.model, shape.source)
        encoding = self._program(shape, lambda how: Encoding(self.model, shape, *how))
        encoding.encode(sources)
        return encoding

    def _lengths_that_follow(self, sources: Sequence[Sequence[int]]) -> list[list[Guess]]:
        """Those of canvases whose length follows from their source's."""
        places = self.model.config.canvas_lengths(np.asarray([len(source) + 1 for source in sources], np.int64))
        return [[(int(count), None)] for count in places]

    def _filling(self, shape: FillingShape) -> Filling:
        let_positions_grow(self.model, shape.places)
        return self._program(shape, lambda how: Filling(self.model, shape, *how))

    def _program(self, shape: Shape, make: Callable[[tuple[bool, Pool]], Made]) -> Made:
        """A program that there is, or a new one; one of many tokens is neither recorded nor kept."""
        if (where := weight_places(self.model)) != self._places:  # recorded programs read where weights were
            self.forget()
            self._places = where
        if any(self._room(*table) is None for table in shape.tables):
            return make((False, None))
        program = self._programs.pop(shape, None)
        if program is None:
            while len(self._programs) >= MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            program = make(self._how())
        self._programs[shape] = program
        return cast(Made, program)

    def _how(self) -> tuple[bool, Pool]:
        """Whether programs are recorded, and the pool that they take their memory from."""
        records = self.model.target_embedding.weight.is_cuda if self.records is None else self.records
        if records and self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return records, self._pool

    def _room(self, rows: int, tokens: int) -> tuple[int, int] | None:
        """So many rows of so many tokens or somewhat more; None where that is too much to be worth a recording.

        It ends where learned positions do; a source that goes beyond them is for the model to refuse.
        """
        config = self.model.config
        reach = min(room_for(tokens), config.max_length) if config.positions == "learned" else room_for(tokens)
        room = room_for_sentences(rows), max(tokens, reach)
        return room if room[0] * room[1] <= FEW_TOKENS else None


def recorded(do: Callable[[], None], records: bool, pool: Pool) -> Callable[[], None]:
    """What does it again: replayed where it `records`."""
    return record(do, pool).replay if records else do
