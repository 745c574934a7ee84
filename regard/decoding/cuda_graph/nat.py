"""`CapturedNAT`: sources in, filled canvases out, by programs of a few shapes that are kept from call to call.

Where the length of a canvas follows from the source's, one program does it all. Where lengths are guessed, one encodes
and guesses, and the host reads the lengths, since they say how large the canvas must be; then another fills it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
import torch

from regard.decoding.cuda_graph.capture import Pool, let_positions_grow, room_for, weight_places
from regard.decoding.cuda_graph.nat_graphs import (
    Canvases,
    Encoding,
    EncodingShape,
    Filling,
    FillingShape,
    Pass,
    PassShape,
)
from regard.decoding.cuda_graph.search import room_for_sentences
from regard.decoding.cuda_graph.step_graph import FEW_TOKENS
from regard.decoding.nat_fill import Guess
from regard.models.nat import NATransformer
from regard.ops.dispatch import on_device

MOST_PROGRAMS = 128
"""Programs kept; what they work with is shared, so that each has little memory of its own."""
Shape = EncodingShape | FillingShape | PassShape
Made = TypeVar("Made", Encoding, Filling, Pass)


class CapturedNAT:
    """Fills canvases with one model, prepared for a few shapes of batches; one batch at a time.

    Args:
        model: fills them.
        records: whether programs are recorded and replayed, which only a GPU can; it does unless told otherwise.
    """

    def __init__(self, model: NATransformer, records: bool | None = None) -> None:
        self.model, self.records = model, records
        self._programs: dict[Shape, Encoding | Filling | Pass] = {}  # the one used last stands last
        self._places: tuple[int, ...] = ()
        self._pool: Pool = None
        self._busy = threading.Lock()

    @torch.inference_mode()
    def fill(self, sources: Sequence[Sequence[int]], tried: int, iterations: int) -> tuple[list[list[Guess]], Canvases]:
        """The lengths tried of each sentence, and for all of them what stands on the canvas.

        Raises:
            UserError: a source is longer than the model's learned positions.
        """
        with self._busy, on_device(self.model.target_embedding.weight):
            self._see_weights()
            if self.model.config.length == "classifier":
                return self._guess_and_fill(sources, tried, iterations)
            return self._fill_at_once(sources)

    def forget(self) -> None:
        """Gives back the memory of all programs."""
        self._programs.clear()

    def _guess_and_fill(
        self, sources: Sequence[Sequence[int]], tried: int, iterations: int
    ) -> tuple[list[list[Guess]], Canvases]:
        read = len(sources), max(len(source) for source in sources) + 1
        room = self._room(*read)
        (B, S), known = room or read, min(tried, 2 * self.model.config.length_reach + 1)
        encoding = self._program(Encoding, EncodingShape(B, S, known), S if room else None)
        encoding.encode(sources)
        lengths = encoding.guesses()[: len(sources)]
        owners = [i for i, of_one in enumerate(lengths) for _ in of_one]
        counts = [count for of_one in lengths for count, _ in of_one]
        filled = len(owners), max(counts)
        further = self._room(*filled)
        R, T = further or filled
        filling = self._program(Filling, FillingShape(B, S, R, T, iterations), max(S, T) if room and further else None)
        return lengths, filling.fill(encoding, owners, counts)

    def _fill_at_once(self, sources: Sequence[Sequence[int]]) -> tuple[list[list[Guess]], Canvases]:
        sizes = np.asarray([len(source) + 1 for source in sources], np.int64)
        lengths: list[int] = self.model.config.upsampled_lengths(sizes).tolist()
        read, filled = (len(sources), int(sizes.max())), (len(sources), max(lengths))
        room, further = self._room(*read), self._room(*filled)
        (B, S), (_, T) = (room, further) if room and further else (read, filled)
        program = self._program(Pass, PassShape(B, S, T), max(S, T) if room and further else None)
        return [[(length, None)] for length in lengths], program.write(sources, lengths)

    def _program(self, kind: type[Made], shape: Shape, longest: int | None) -> Made:
        """A program that there is, or a new one.

        Args:
            kind: of program.
            shape: its sizes.
            longest: how many tokens its longest rows have; None: so many in all that it is neither recorded nor kept.
        """
        if longest is None:
            return kind(self.model, shape, False, None)  # type: ignore[arg-type]  # each kind has its shape
        program = self._programs.pop(shape, None)
        if program is None:
            let_positions_grow(self.model, longest)
            self._see_weights()
            while len(self._programs) >= MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            program = kind(self.model, shape, *self._how())  # type: ignore[arg-type]
        self._programs[shape] = program
        return cast(Made, program)

    def _see_weights(self) -> None:
        """Programs are of no use any more when weights have moved: what is recorded reads where they were."""
        if (where := weight_places(self.model)) != self._places:
            self.forget()
            self._places = where

    def _how(self) -> tuple[bool, Pool]:
        """Whether programs are recorded, and the pool that they take their memory from."""
        records = self.model.target_embedding.weight.is_cuda if self.records is None else self.records
        if records and self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return records, self._pool

    def _room(self, rows: int, tokens: int) -> tuple[int, int] | None:
        """So many rows of so many tokens or somewhat more; None where that is too much to be worth a recording."""
        config = self.model.config
        longest = config.max_length if config.positions == "learned" else None
        room = room_for_sentences(rows), room_for(tokens, longest)
        return room if room[0] * room[1] <= FEW_TOKENS else None
