"""One step of a search of fixed shape, captured as a CUDA graph on a GPU and called directly elsewhere.

Shapes: B sentences, K hypotheses per sentence, S source tokens, T steps, H heads, D head width, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from regard.attention.kinds import KeyValues, KVCache
from regard.decoding.cuda_graph.beam import BeamState
from regard.decoding.cuda_graph.capture import MAX_CAPTURED_TOKENS, Pool, capture, weight_addresses
from regard.decoding.settings import SearchSettings
from regard.layers import DecoderBlock
from regard.masks import Mask, Padded
from regard.models.transformer import DecoderState, Transformer
from regard.ops import dispatch


class SearchShape(NamedTuple):
    """Sizes of all tensors of a search."""

    sentences: int
    beam_width: int
    source: int
    target: int


class StaticCache(KVCache):
    """A KV cache of fixed size, in which the K tokens of each step occupy consecutive slots.

    Args:
        kind: Function that attends to the stored keys.
        buffer: Keys and values, (2, B, H, T · K, D).
        step: Number of the current step, (1,).
        beam_width: Number of tokens per step, K.
    """

    def __init__(self, kind: Callable[..., Tensor], buffer: Tensor, step: Tensor, beam_width: int) -> None:
        super().__init__(kind)
        self.buffer, self.step = buffer, step
        self._by_step = buffer.view(*buffer.shape[:3], -1, beam_width, buffer.shape[4])

    def append(self, k: Tensor, v: Tensor) -> KeyValues:
        """Store keys and values, and return the complete buffer including empty slots."""
        if dispatch.kernels_apply(k) and k.shape[-1] in dispatch.HEAD_WIDTHS:
            self.append_by_kernel(k, v)
        else:
            for part, new in zip(self._by_step, (k, v), strict=True):
                part.index_copy_(2, self.step, new[:, :, None])
        return KeyValues(self.buffer[0], self.buffer[1])

    def append_by_kernel(self, k: Tensor, v: Tensor) -> None:
        """Store keys and values by one kernel."""
        from regard.ops.triton import decode_attention as kernels

        B, H, K, D = k.shape
        k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
        strides = [stride for x in (k, v, self.buffer) for stride in x.stride()[:-1]]
        padded = 1 << (K - 1).bit_length()
        kernels.append_to_cache[(B * H,)](k, v, self.buffer, self.step, *strides, K, H, D=D, KP=padded, num_warps=1)


class StaticDecoderState(DecoderState):
    """A decoder state in static tensors: the number of steps is on the device, and no tensor changes its size.

    Args:
        model: The model to decode with.
        shape: Sizes of the search: B sentences, K hypotheses per sentence, S source and T target tokens.
        slots: Slot of each hypothesis's token among the K tokens of each step, (B, K, T), which beam search updates.
    """

    def __init__(self, model: Transformer, shape: SearchShape, slots: Tensor) -> None:
        B, K, S, T = shape
        config, weight, device = model.config, model.target_embedding.weight, model.target_embedding.weight.device
        blocks = [cast(DecoderBlock, block) for block in model.decoder]
        L, H, D = len(blocks), config.heads, config.width // config.heads
        self.model, self.shape, self.slots = model, shape, slots
        self.step = torch.zeros(1, dtype=torch.long, device=device)  # number of finished steps
        # Keys and values are zeros at first: the weight of a masked value is 0, but 0 · NaN is NaN.
        self._keys_values = weight.new_zeros(L, 2, B, H, T * K, D)
        self._stored = torch.zeros(B, dtype=torch.long, device=device)  # tokens in the cache after this step
        self._slot = torch.arange(K, device=device)
        self._source = weight.new_zeros(L, 2, B, H, S, D)
        self._source_tokens = torch.full((B, S), config.eos, device=device)
        self._source_lengths = torch.ones(B, dtype=torch.long, device=device)
        caches = [
            StaticCache(block.attention.kind, buffer, self.step, K)
            for block, buffer in zip(blocks, self._keys_values, strict=True)
        ]
        source = [KeyValues(part[0], part[1]) for part in self._source]
        super().__init__(blocks, source, Mask(keys=Padded(self._source_lengths, S)), caches, K)

    @property
    def max_length(self) -> int:
        return self.shape.target

    def begin_step(self, tokens_BK: Tensor) -> tuple[Tensor, Tensor, Mask]:
        _, K, S, T = self.shape
        own = (self.slots[..., None] == self._slot).flatten(2)  # (B, K, T · K)
        # New masks: a mask caches dense tensors, which would not follow the lengths on the device.
        self.source_mask = Mask(keys=Padded(self._source_lengths, S))
        return tokens_BK, self.step.expand(1, K), Mask(keys=Padded(self._stored, T * K), allowed=own[:, None])

    def end_step(self) -> None:
        self.step += 1
        self._stored += self.shape.beam_width

    def load(self, tokens: Tensor, layout: Padded) -> None:
        """Set the sources of a new search; unused rows keep any content."""
        self._source_tokens[: len(tokens), : layout.size] = tokens
        self._source_lengths[: len(tokens)] = layout.lengths
        self._source_lengths[len(tokens) :] = 1
        self.step.zero_()
        self._stored.fill_(self.shape.beam_width)

    def encode_padded(self) -> None:
        """Encode the loaded sources with all padding, so that the work is the same for every batch."""
        self.encode(self._source_tokens, Padded(self._source_lengths, self.shape.source))

    def encode(self, tokens: Tensor, layout: Padded) -> None:
        """Encode sources and store their keys and values."""
        encoder_output = self.model.encode(tokens, layout)
        for block, source in zip(self.model.decoder, self._source, strict=True):
            for part, projected in zip(source, cast(DecoderBlock, block).cross.project(encoder_output), strict=True):
                part[: len(tokens), :, : layout.size] = projected

    def copy_rows(self, other: "StaticDecoderState", rows: Tensor, steps: int) -> None:
        """Continue with the given rows of another state after `steps` steps; the remaining rows keep any content."""
        n, stored = len(rows), steps * self.shape.beam_width
        for target, source in zip(self._keys_values, other._keys_values, strict=True):
            target[:, :n, :, :stored] = source[:, rows, :, :stored]
        for target, source in zip(self._source, other._source, strict=True):
            target[:, :n] = source[:, rows]
        self._source_lengths[:n] = other._source_lengths[rows]
        self._source_lengths[n:] = 1
        self.step.copy_(other.step)
        self._stored.fill_(stored + self.shape.beam_width)


class CapturedStep:
    """The decoder state and the beam of a search of fixed shape, and the step that advances both.

    If the step is captured, several graphs may share the memory pool.
    """

    def __init__(self, model: Transformer, shape: SearchShape, capture: bool, pool: Pool = None) -> None:
        config, device = model.config, model.target_embedding.weight.device
        self.shape, self.model = shape, model
        self.beam = BeamState(
            shape.sentences, shape.beam_width, shape.target, config.bos, config.eos, config.target_vocab, device
        )
        self.decoder = StaticDecoderState(model, shape, self.beam.live_slots)
        self.status = HostStatus(self.beam.status)
        self._step_graph: torch.cuda.CUDAGraph | None = None
        self._encoder_graph: torch.cuda.CUDAGraph | None = None
        if capture:
            self._step_graph = self._capture(self._step, pool)
            if shape.sentences * shape.source <= MAX_CAPTURED_TOKENS:
                self._encoder_graph = self._capture(self.decoder.encode_padded, pool)
        self._addresses = weight_addresses(model)

    @property
    def valid(self) -> bool:
        """Whether all weights are still at the addresses that the graph reads; their values may have changed."""
        return self._step_graph is None or weight_addresses(self.model) == self._addresses

    def start(self, tokens: Tensor, layout: Padded, max_lengths: Tensor, settings: SearchSettings) -> None:
        """Start a search with these sources, END included."""
        self.decoder.load(tokens, layout)
        if self._encoder_graph is None:
            self.decoder.encode(tokens, layout)
        else:
            self._encoder_graph.replay()
        self.beam.start(max_lengths, settings)
        self.status.reset()

    def step(self) -> None:
        if self._step_graph is None:
            self._step()
        else:
            self._step_graph.replay()

    def copy_rows(self, other: "CapturedStep", rows: Tensor, steps: int) -> None:
        """Continue with the given rows of another search after `steps` steps."""
        self.decoder.copy_rows(other.decoder, rows, steps)
        self.beam.copy_rows(other.beam, rows)
        self.status.reset()

    def _step(self) -> None:
        self.beam.advance(self.model.step(self.beam.last, self.decoder))

    def _capture(self, function: Callable[[], None], pool: Pool) -> torch.cuda.CUDAGraph:
        one = torch.ones_like(self.beam.step)
        return capture(function, pool, lambda: self.start(one[None], Padded(one, 1), one, SearchSettings(beam=1)))


class HostStatus:
    """Copies the status of a beam to the host, one step late, so that the device never waits for the host."""

    def __init__(self, status: Tensor) -> None:
        self._status = status
        on_gpu = status.device.type == "cuda"
        self._received = [torch.zeros(status.shape, dtype=status.dtype, pin_memory=on_gpu) for _ in range(2)]
        event = torch.cuda.Event
        self._events = [event() if on_gpu else None for _ in range(2)]  # type: ignore[no-untyped-call]
        self._count = 0

    def reset(self) -> None:
        self._count = 0

    def poll(self) -> tuple[int, bool] | None:
        """Request the current status and return the previous one: the number of undecided sentences, and NaN found."""
        current, previous = self._count % 2, 1 - self._count % 2
        self._received[current].copy_(self._status, non_blocking=True)
        if (event := self._events[current]) is not None:
            event.record()
        self._count += 1
        if self._count == 1:
            return None
        if (event := self._events[previous]) is not None:
            event.synchronize()
        undecided, nan_found = self._received[previous].tolist()
        return undecided, bool(nan_found)
