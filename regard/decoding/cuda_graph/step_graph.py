"""One step of a search of one shape: recorded once on a GPU, then replayed; elsewhere simply done."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.decoding.config import SearchSettings
from regard.decoding.cuda_graph.beam import Board
from regard.decoding.cuda_graph.capture import MAX_CAPTURED_TOKENS, Pool, capture, weight_addresses
from regard.decoding.cuda_graph.model_step import Reader, Shape
from regard.models.transformer import Transformer


class Program:
    """A reader and a board, and the step that joins them."""

    def __init__(self, model: Transformer, shape: Shape, captures: bool, pool: Pool = None) -> None:
        """Where it captures, kernels take their memory from a pool that several programs may share."""
        device = model.target_embedding.weight.device
        self.shape, self.model = shape, model
        self.reader = Reader(model, shape)
        config = model.config
        self.board = Board(shape, config.bos, config.eos, config.target_vocab, device)
        self.news = News(self.board.news)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._beginning: torch.cuda.CUDAGraph | None = None
        if captures:
            self._graph = self._record(self._step, pool)
            if shape.sentences * shape.source <= MAX_CAPTURED_TOKENS:
                self._beginning = self._record(self.reader.encode_room, pool)
        self._places = weight_addresses(model)

    @property
    def valid(self) -> bool:
        """Whether the weights still lie where they lay when the step was recorded; their numbers may have changed."""
        return self._graph is None or weight_addresses(self.model) == self._places

    def start(self, rows: Tensor, layout: Padded, limits: Tensor, settings: SearchSettings) -> None:
        """Begins a search with these sources, END included."""
        self.reader.load(rows, layout)
        if self._beginning is None:
            self.reader.encode(rows, layout)
        else:
            self._beginning.replay()
        self.board.start(limits, settings)
        self.news.forget()

    def step(self) -> None:
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()

    def take_over(self, other: Program, rows: Tensor, steps: int) -> None:
        """Goes on with these rows of another program, which has done so many steps."""
        self.reader.take_over(other.reader, rows, steps)
        self.board.take_over(other.board, rows)
        self.news.forget()

    def _step(self) -> None:
        self.board.advance(self.reader.read(self.board.last, self.board.living))

    def _record(self, do: Callable[[], None], pool: Pool) -> torch.cuda.CUDAGraph:
        """The graph of what is done, after which the state is that of some search that never was."""
        one = torch.ones_like(self.board.step)
        return capture(do, pool, lambda: self.start(one[None], Padded(one, 1), one, SearchSettings(beam=1)))


class News:
    """What the board has to say to the host, always of the step before: so the device never waits for a question."""

    def __init__(self, source: Tensor) -> None:
        self._source = source
        on_gpu = source.device.type == "cuda"
        self._received = [torch.zeros(source.shape, dtype=source.dtype, pin_memory=on_gpu) for _ in range(2)]
        event = torch.cuda.Event
        self._arrivals = [event() if on_gpu else None for _ in range(2)]  # type: ignore[no-untyped-call]
        self._count = 0

    def forget(self) -> None:
        self._count = 0

    def exchange(self) -> tuple[int, bool] | None:
        """Asks for this step's news and gives those of the step before: how many are undecided, whether NaN was met."""
        now, before = self._count % 2, 1 - self._count % 2
        self._received[now].copy_(self._source, non_blocking=True)
        if (arrival := self._arrivals[now]) is not None:
            arrival.record()
        self._count += 1
        if self._count == 1:
            return None
        if (arrival := self._arrivals[before]) is not None:
            arrival.synchronize()
        undecided, broken = self._received[before].tolist()
        return undecided, bool(broken)
