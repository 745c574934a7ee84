"""Capturing CUDA graphs of a fixed shape, and the reasons why decoding cannot be captured."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.kinds import Full
from regard.attention.multi_head import Attention
from regard.decoding.beam import needs_beam
from regard.decoding.constraints import DecodingRequest
from regard.decoding.settings import NATSettings, SearchSettings
from regard.layers import Sinusoidal
from regard.models.nat import NATransformer
from regard.models.transformer import EncoderDecoder, Transformer
from regard.ops.dispatch import list_modules

Pool = Any  # result of torch.cuda.graph_pool_handle(), or None

SMALL_BATCH = 16
"""A step takes about as long for this many sentences as for one."""
MAX_CAPTURED_TOKENS = 4096
"""Up to this many tokens, encoding padding is cheaper than launching the encoder without a graph."""
MAX_BEAM_WIDTH = 16
"""For wider beams, the dense mask over all keys of a sentence dominates the cost of a step."""
MAX_ITERATIONS = 16
"""All mask-predict iterations are captured in one graph, so that capturing takes long for many iterations."""


def capture(
    function: Callable[[], object], pool: Pool, prepare: Callable[[], object] = lambda: None
) -> torch.cuda.CUDAGraph:
    """Capture a CUDA graph of `function` after a warm-up call; `prepare` is called before each of the two."""
    prepare()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries initialise on the first call, which cannot be captured
        function()
    torch.cuda.current_stream().wait_stream(stream)
    prepare()
    graph = torch.cuda.CUDAGraph()
    # "thread_local": other threads may use the device during the capture.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        function()
    return graph


class StaticGraph:
    """A function of tensors with fixed shapes, captured and replayed, or called directly if `pool` is None.

    Outputs are copied to tensors outside the pool, because graphs that share a pool overwrite each other's memory.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], pool: Pool) -> None:
        self._function, self._inputs = function, inputs
        self._outputs: tuple[Tensor, ...] | None = None
        self._graph = None if pool is None else capture(self.run, pool)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        for static, new in zip(self._inputs, inputs, strict=True):
            static.copy_(new)
        if self._graph is None:
            self.run()
        else:
            self._graph.replay()
        assert self._outputs is not None
        return self._outputs

    def run(self) -> None:
        outputs = self._function(*self._inputs)
        if self._outputs is None:  # in the warm-up, before the capture
            self._outputs = tuple(torch.empty_like(output) for output in outputs)
        for static, output in zip(self._outputs, outputs, strict=True):
            static.copy_(output)


def weight_addresses(model: nn.Module) -> tuple[int, ...]:
    """Return the addresses of all parameters and buffers. A captured graph is valid while they do not change."""
    tensors: list[Tensor | None] = []
    for module in list_modules(model):
        tensors += module._parameters.values()
        tensors += module._buffers.values()
    return tuple([tensor.data_ptr() for tensor in tensors if tensor is not None])


def grow_position_tables(model: nn.Module, length: int) -> None:
    """Extend sinusoidal tables to `length` positions. They grow on demand, which must not happen during a capture."""
    for module in list_modules(model):
        if isinstance(module, Sinusoidal):
            module(torch.zeros_like(module.table[0, :1], dtype=torch.long), length)


def padded_length(tokens: int, max_length: int | None = None) -> int:
    """Round up a number of tokens, so that few shapes cover all batches, but not beyond the model's `max_length`."""
    step = 32 if tokens <= 128 else 128
    padded = -(-tokens // step) * step
    return padded if max_length is None else max(tokens, min(padded, max_length))


def padded_batch_size(sentences: int) -> int:
    """Round up a number of sentences: to a power of two, or above `SMALL_BATCH` also to 3/4 of one."""
    power = 1 << (sentences - 1).bit_length()
    return power * 3 // 4 if sentences <= power * 3 // 4 and power > SMALL_BATCH else power


# Why capture does not apply


def why_not_capture_search(
    models: Sequence[Transformer], requests: Sequence[DecodingRequest], settings: SearchSettings, trace: bool
) -> str | None:
    """Return the reason why a search cannot be captured, or None if it can."""
    if any(request.prefix or needs_beam(request) or request.forbidden for request in requests):
        return "a request has a prefix, a required phrase or a forbidden phrase"
    for applies, reason in (
        (len(models) > 1, "an ensemble has several models"),
        (trace, "the beam is traced"),
        (settings.sampling, "sampling is enabled"),
        (settings.coverage > 0, "coverage is enabled"),
        (settings.groups > 1, "groups are enabled"),
        (settings.no_repeat > 0, "no_repeat is enabled"),
        (settings.beam_width > MAX_BEAM_WIDTH, f"the beam is wider than {MAX_BEAM_WIDTH}"),
    ):
        if applies:
            return reason
    return _why_not_capture_model(models[0])


def why_not_capture_nat(model: NATransformer, settings: NATSettings, trace: bool) -> str | None:
    """Return the reason why non-autoregressive decoding cannot be captured, or None if it can."""
    if settings.beam > 1:
        return "beam search is enabled"
    if settings.path == "viterbi":
        return "the best path is searched as a whole"
    if (settings.iterations or 1) > MAX_ITERATIONS:
        return f"there are more than {MAX_ITERATIONS} iterations"
    if trace:
        return "the iterations are traced"
    return _why_not_capture_model(model)


def _why_not_capture_model(model: EncoderDecoder) -> str | None:
    attentions = [module for module in list_modules(model) if isinstance(module, Attention)]
    if not all(isinstance(attention.kind, Full) for attention in attentions):
        return f"the model has {model.config.attention.kind} attention"
    if any(attention.qkv_hook is not None or attention.head_scales is not None for attention in attentions):
        return "an attention module has a hook or scaled heads"
    if torch.is_autocast_enabled(model.target_embedding.weight.device.type):
        return "autocast copies the weights"
    return None
