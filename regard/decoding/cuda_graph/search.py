"""`CapturedSearch`: beam search that replays captured steps of a few shapes."""

import threading
from collections import Counter
from collections.abc import Sequence

import torch

from regard.decoding.beam import TokenConstraints, raise_if_nan
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph.capture import SMALL_BATCH, Pool, grow_position_tables, padded_batch_size, padded_length
from regard.decoding.cuda_graph.captured_step import CapturedStep, SearchShape
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from regard.masks import pad_batch
from regard.models.transformer import Transformer
from regard.ops.dispatch import on_device

MEMORY_FRACTION = 4
"""All captured steps together use at most 1 / MEMORY_FRACTION of the GPU's memory."""
STEPS_BEFORE_CAPTURE = 200
"""A smaller shape is captured after this many steps that could have used it, because capturing takes that long."""


class CapturedSearch:
    """Searches with one model and keeps captured steps of a few shapes; one search at a time.

    By default, steps are captured if the model is on a GPU, and use at most a fraction of its memory, in bytes.
    """

    def __init__(self, model: Transformer, capture: bool | None = None, memory: int | None = None) -> None:
        self.model, self.memory = model, memory
        self.capture = self.device.type == "cuda" if capture is None else capture
        self._steps: dict[SearchShape, CapturedStep] = {}  # least recently used first
        self._wanted: Counter[SearchShape] = Counter()
        self._pool: Pool = None
        self._lock = threading.Lock()

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    @torch.inference_mode()
    def search(self, requests: Sequence[DecodingRequest], settings: SearchSettings) -> list[list[TokenHypothesis]]:
        """Return the best hypotheses of every request, best first."""
        with self._lock, on_device(self.model.target_embedding.weight):
            return self._search(requests, settings)

    def _search(self, requests: Sequence[DecodingRequest], settings: SearchSettings) -> list[list[TokenHypothesis]]:
        """Search by steps of one shape; if it does not fit into memory, in two halves."""
        config = self.model.config
        model_max_length = config.max_positions
        constraints = TokenConstraints.of(requests, settings, config.eos, self.device, model_max_length)
        steps = int(constraints.max_lengths.max())
        target = padded_length(steps, model_max_length)
        source = padded_length(max(len(request.source) for request in requests) + 1, model_max_length)
        shape = SearchShape(padded_batch_size(len(requests)), settings.beam_width, source, target)
        if len(requests) > 1 and memory_of(self.model, shape) > self._available_memory():
            half = len(requests) // 2
            return self._search(requests[:half], settings) + self._search(requests[half:], settings)
        sources = [config.source_tokens(request.source) for request in requests]
        tokens, layout = pad_batch(sources, config.pad, self.device)
        grow_position_tables(self.model, max(source, target))
        step = self._step(shape)
        step.start(tokens, layout, constraints.max_lengths, settings)
        return self._run(step, len(requests), steps, settings.n_best)

    def _run(self, step: CapturedStep, sentences: int, steps: int, n_best: int) -> list[list[TokenHypothesis]]:
        """Step until all sentences are decided. When few remain, continue with a smaller shape."""
        results: list[list[TokenHypothesis]] = [[] for _ in range(sentences)]
        rows = list(range(sentences))  # sentence in each row
        for done in range(1, steps + 1):
            step.step()
            status = step.status.poll()
            if status is None:
                continue
            undecided, nan_found = status
            if nan_found or not undecided:
                break
            smaller = self._smaller(step.shape, undecided)
            if smaller is not None:
                remaining = step.beam.undecided()
                kept = remaining.tolist()
                decided = sorted(set(range(len(rows))) - set(kept))
                for row, best in zip(decided, step.beam.collect(decided, n_best), strict=True):
                    results[rows[row]] = best
                smaller.copy_rows(step, remaining, done)
                step, rows = smaller, [rows[row] for row in kept]
        if nan_found := bool(step.beam.status[1]):
            self._steps.clear()  # their buffers contain NaN
        raise_if_nan(nan_found)
        for sentence, best in zip(rows, step.beam.collect(range(len(rows)), n_best), strict=True):
            results[sentence] = best
        return results

    def _smaller(self, shape: SearchShape, undecided: int) -> CapturedStep | None:
        """Return a step of at most half the size for the remaining sentences, if one exists or pays off."""
        half = shape._replace(sentences=shape.sentences // 2)
        if shape.sentences <= SMALL_BATCH or undecided > half.sentences:
            return None
        similar = [other for other in self._steps if other[1:] == shape[1:]]
        if fitting := [other for other in similar if undecided <= other.sentences <= half.sentences]:
            return self._step(min(fitting))
        self._wanted[half] += 1
        return self._step(half) if self._wanted[half] > STEPS_BEFORE_CAPTURE else None

    def _step(self, shape: SearchShape) -> CapturedStep:
        """Return the step of a shape, as the most recently used one; it is captured if it does not exist."""
        step = self._steps.pop(shape, None)
        if step is None or not step.valid:
            self._free_memory(memory_of(self.model, shape))
            if self.capture and not self._steps:  # a pool must not be used again after its last graph is gone
                self._pool = torch.cuda.graph_pool_handle()
            step = CapturedStep(self.model, shape, self.capture, self._pool)
        self._steps[shape] = step
        return step

    def _free_memory(self, required: int) -> None:
        """Discard the least recently used steps."""
        while self._steps and required + self._used_memory() > self._available_memory():
            del self._steps[next(iter(self._steps))]

    def _used_memory(self) -> int:
        return sum(memory_of(self.model, shape) for shape in self._steps)

    def _available_memory(self) -> float:
        if self.memory is not None:
            return self.memory
        if self.device.type != "cuda":
            return float("inf")
        return torch.cuda.get_device_properties(self.device).total_memory // MEMORY_FRACTION


def memory_of(model: Transformer, shape: SearchShape) -> int:
    """Estimate the bytes of a captured step: keys and values, and logits in two precisions."""
    B, K, S, T = shape
    size = model.target_embedding.weight.element_size()
    caches = len(model.decoder) * 2 * B * (K * T + S) * model.config.width * size
    return caches + B * K * model.config.target_vocab * (size + 8)
