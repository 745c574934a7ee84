"""`CapturedSearch`: requests in, hypotheses out, by programs of a few shapes that are kept from call to call."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import torch

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest, TokenConstraints
from regard.decoding.cuda_graph.capture import SMALL_BATCH, Pool, grow_position_tables, padded_batch_size, padded_length
from regard.decoding.cuda_graph.model_step import Shape
from regard.decoding.cuda_graph.step_graph import Program
from regard.decoding.search import TokenHypothesis, refuse_nan
from regard.decoding.stepper import pad_batch
from regard.models.transformer import Transformer
from regard.ops.dispatch import on_device

SHARE_OF_MEMORY = 4
"""All programs together take at most the memory of the device divided by this."""
PATIENCE = 200
"""So many steps must have been wished for in a smaller program until it is made, which takes as long as many steps."""


class CapturedSearch:
    """Searches with one model, prepared for a few shapes of batches; one search at a time.

    Args:
        model: what is searched with.
        capture: whether steps are recorded and replayed, which only a GPU can; it does unless told otherwise.
        memory: how many bytes its programs may take; unless given, a share of the GPU's, elsewhere any number.
    """

    def __init__(self, model: Transformer, capture: bool | None = None, memory: int | None = None) -> None:
        self.model, self.capture, self.memory = model, capture, memory
        self._programs: dict[Shape, Program] = {}  # the one used last stands last
        self._wishes: Counter[Shape] = Counter()
        self._pool: Pool = None
        self._busy = threading.Lock()

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    @torch.inference_mode()
    def search(self, requests: Sequence[DecodingRequest], settings: SearchSettings) -> list[list[TokenHypothesis]]:
        """The best hypotheses of every request, best first.

        Raises:
            UserError: the model gives NaN, or its positions end before min_length.
        """
        with self._busy, on_device(self.model.target_embedding.weight):
            return self._search(requests, settings)

    def forget(self) -> None:
        """Gives back the memory of all programs."""
        self._programs.clear()

    def _search(self, requests: Sequence[DecodingRequest], settings: SearchSettings) -> list[list[TokenHypothesis]]:
        config = self.model.config
        longest = config.max_length if config.positions == "learned" else None
        rules = TokenConstraints.of(requests, settings, config.eos, self.device, longest)
        steps = int(rules.limits.max())
        target = padded_length(steps, longest)
        source = padded_length(max(len(request.source) for request in requests) + 1, longest)
        shape = Shape(padded_batch_size(len(requests)), settings.beam_width, source, target)
        if len(requests) > 1 and bytes_of(self.model, shape) > self._memory_there_is():
            half = len(requests) // 2
            return self._search(requests[:half], settings) + self._search(requests[half:], settings)
        rows, layout = pad_batch([[*request.source, config.eos] for request in requests], config.pad, self.device)
        grow_position_tables(self.model, max(source, target))
        program = self._program(shape)
        program.start(rows, layout, rules.limits, settings)
        return self._finish(program, len(requests), steps, settings.n_best)

    def _finish(self, program: Program, sentences: int, steps: int, n_best: int) -> list[list[TokenHypothesis]]:
        """Takes steps until all is decided. When few sentences are left, they go on in a smaller program."""
        results: list[list[TokenHypothesis]] = [[] for _ in range(sentences)]
        left = list(range(sentences))  # which sentence each row of the program is about
        for step in range(1, steps + 1):
            program.step()
            news = program.news.exchange()
            if news is None:
                continue
            undecided, broken = news
            if broken or not undecided:
                break
            smaller = self._smaller(program.shape, undecided)
            if smaller is not None:
                rows = program.board.undecided()
                alive = rows.tolist()
                gone = sorted(set(range(len(left))) - set(alive))
                for row, found in zip(gone, program.board.collect(gone, n_best), strict=True):
                    results[left[row]] = found
                smaller.take_over(program, rows, step)
                program, left = smaller, [left[row] for row in alive]
        if broken := bool(program.board.news[1]):
            self.forget()  # or what is no number would stay in their memory
        refuse_nan(broken)
        for sentence, found in zip(left, program.board.collect(range(len(left)), n_best), strict=True):
            results[sentence] = found
        return results

    def _smaller(self, shape: Shape, undecided: int) -> Program | None:
        """A program of at most half the size for the sentences that are left, if there is one or it is worth one."""
        half = shape._replace(sentences=shape.sentences // 2)
        if shape.sentences <= SMALL_BATCH or undecided > half.sentences:
            return None
        like = [other for other in self._programs if other[1:] == shape[1:]]
        if fitting := [other for other in like if undecided <= other.sentences <= half.sentences]:
            return self._program(min(fitting))
        self._wishes[half] += 1
        return self._program(half) if self._wishes[half] > PATIENCE else None

    def _program(self, shape: Shape) -> Program:
        program = self._programs.pop(shape, None)
        if program is None or not program.valid:
            self._make_room(bytes_of(self.model, shape))
            capture = self.device.type == "cuda" if self.capture is None else self.capture
            if capture and self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            program = Program(self.model, shape, capture, self._pool)
        self._programs[shape] = program
        return program

    def _make_room(self, wanted: int) -> None:
        """Drops the programs that were not used for longest."""
        while self._programs and wanted + self._memory_taken() > self._memory_there_is():
            del self._programs[next(iter(self._programs))]

    def _memory_taken(self) -> int:
        return sum(bytes_of(self.model, shape) for shape in self._programs)

    def _memory_there_is(self) -> float:
        if self.memory is not None:
            return self.memory
        if self.device.type != "cuda":
            return float("inf")
        return torch.cuda.get_device_properties(self.device).total_memory // SHARE_OF_MEMORY


def bytes_of(model: Transformer, shape: Shape) -> int:
    """How much memory a program takes, about: keys and values, and the logits of a step in two precisions."""
    B, K, S, T = shape
    size = model.target_embedding.weight.element_size()
    caches = len(model.decoder) * 2 * B * (K * T + S) * model.config.width * size
    return caches + B * K * model.config.target_vocab * (size + 8)
