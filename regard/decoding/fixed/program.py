"""One step of a search of one shape: recorded once on a GPU, then replayed; elsewhere simply done."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention import Padded
from regard.decoding.fixed.board import Board
from regard.decoding.fixed.reader import Reader, Shape
from regard.decoding.settings import SearchSettings
from regard.models.transformer import Transformer

Pool = Any  # what torch.cuda.graph_pool_handle gives, or None


class Program:
    """A reader and a board, and the step that joins them."""

    def __init__(self, model: Transformer, shape: Shape, records: bool, pool: Pool = None) -> None:
        """Where it `records`, kernels take their memory from a pool that several programs may share."""
        device = model.target_embedding.weight.device
        self.shape, self.model = shape, model
        self.reader = Reader(model, shape)
        config = model.config
        self.board = Board(shape, config.bos, config.eos, config.target_vocab, device)
        self.news = News(self.board.news)
        self._graph = self._record(pool) if records else None
        self._places = weight_places(model)

    @property
    def valid(self) -> bool:
        """Whether the weights still lie where they lay when the step was recorded; their numbers may have changed."""
        return self._graph is None or weight_places(self.model) == self._places

    def start(self, memory: Tensor, layout: Padded, limits: Tensor, settings: SearchSettings) -> None:
        """Begins a search with these encoded sources."""
        self.reader.start(memory, layout)
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

    def _record(self, pool: Pool) -> torch.cuda.CUDAGraph:
        """The graph of `_step`, after which the state is that of some search that never was."""
        weight, one = self.model.target_embedding.weight, torch.ones_like(self.board.step)
        some_search = (weight.new_zeros(1, 1, weight.shape[1]), Padded(one, 1), one, SearchSettings(beam=1))
        self.start(*some_search)
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries set themselves up, which cannot be recorded
            self._step()
        torch.cuda.current_stream().wait_stream(aside)
        self.start(*some_search)
        graph = torch.cuda.CUDAGraph()
        # Other threads may be at work on the device meanwhile; what they do is none of this graph's business.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._step()
        return graph


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


def weight_places(model: Transformer) -> tuple[int, ...]:
    """Where in memory everything lies that a step reads of a model."""
    return tuple(x.data_ptr() for x in (*model.parameters(), *model.buffers()))
