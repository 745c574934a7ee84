"""The GPU part of decoding.py: implementations of search in regard, next to transformers `generate`.

All systems have the same Marian-base weights (vocabulary 32,000, bfloat16) and sentences, 24 tokens into 32, with END
forced at the last token. First the output of captured search is compared with the float32 reference, also with weights
that predict END by themselves. If a system fails, its error is recorded and the others continue. --tiny uses a small
model and also runs on a CPU, without CUDA graphs.
"""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Literal

import torch
from decoding_profile import profile_decoding
from harness import measure_alternately, synchronize
from marian import Decoder, Tokens, as_transformer, random_marian, random_sources, transformers_decoder
from transformers import MarianMTModel

from regard.decoding.autoregressive import TransformerStepper, search_tokens
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph import beam as device_beam
from regard.decoding.cuda_graph.search import CapturedSearch
from regard.decoding.settings import SearchSettings
from regard.models.transformer import Transformer
from regard.ops import dispatch

Kernels = Literal["none", "attention", "all"]
GetSettings = Callable[[int], SearchSettings]  # search settings for a beam width
FASTEST = "regard, captured"
SIZES = ((1, 1), (32, 4), (128, 4), (512, 4), (128, 1))  # batch and beam
STATIC_CACHE_SIZES = ((128, 1), (1, 1))
MIN_TOKENS_PER_SECOND = {(32, 4): 50_000, (512, 4): 200_000}
MIN_RATIO = {(1, 1): 5.0}  # to transformers


class Benchmark:
    """Sizes, weights and failures of a measurement."""

    def __init__(self, device: torch.device, source: int, target: int, tiny: bool) -> None:
        self.device, self.source, self.target = device, source, target
        self.vocab, self.sizes, self.compared_sentences = 32_000, SIZES, 128
        self.model_sizes = {"width": 512, "heads": 8, "layers": 6, "hidden": 2048}
        if tiny:
            self.vocab, self.sizes, self.compared_sentences = 600, ((1, 1), (3, 2)), 8
            self.model_sizes = {"width": 32, "heads": 2, "layers": 2, "hidden": 64}
        self.capture = device.type == "cuda"
        self.failures: dict[str, str] = {}
        self._start = time.perf_counter()

    def print(self, *words: object) -> None:
        print(f"[{time.perf_counter() - self._start:6.1f} s]", *words, flush=True)

    @contextmanager
    def record_failure(self, name: str) -> Iterator[None]:
        """Print and store an exception of the block instead of raising it."""
        try:
            yield
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {str(error)[:500]}"
            self.print(f"FAILED {name}: {self.failures[name]}")
            traceback.print_exc(limit=-8)

    def marian(self, dtype: torch.dtype) -> MarianMTModel:
        return random_marian(self.vocab, **self.model_sizes, ends=False).to(self.device, dtype)

    def model(self, dtype: torch.dtype, ends: bool = False) -> Transformer:
        return as_transformer(random_marian(self.vocab, **self.model_sizes, ends=ends)).to(self.device, dtype)

    def sources(self, batch: int) -> Tokens:
        return random_sources(batch, self.vocab, self.source - 1, self.source - 1, seed=batch)  # the model appends END

    def settings(self, beam: int) -> SearchSettings:
        return SearchSettings(beam=beam, min_length=self.target - 1, max_length=self.target)


def run(
    benchmark: Benchmark, repetitions: int, profile: bool, save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Compare outputs, time all systems and optionally profile a step; save the result after every part."""
    result: dict[str, Any] = {"same_sentences": compare_outputs(benchmark), "failures": benchmark.failures}
    result["repetitions"] = repetitions
    result["rows"] = measure_systems(benchmark, repetitions)
    result["missed"] = find_missed(result["rows"])
    save(result)
    if profile:
        result["profiles"] = profile_sizes(benchmark)
        save(result)
    result["rows"] += measure_static_cache(benchmark, repetitions)
    save(result)
    return result


def reference_decoder(model: Transformer, get_settings: GetSettings) -> Decoder:
    """Search over a stepper, without Triton kernels."""
    stepper = TransformerStepper(model)

    def decode(sources: Tokens, beam: int) -> Tokens:
        with use_kernels("none"):
            return [best[0].tokens for best in search_tokens(stepper, sources, get_settings(beam))]

    return decode


def static_decoder(model: Transformer, get_settings: GetSettings, capture: bool, kernels: Kernels = "all") -> Decoder:
    """Search with a static cache, captured or eager."""
    captured = CapturedSearch(model, capture=capture)

    def decode(sources: Tokens, beam: int) -> Tokens:
        with use_kernels(kernels):
            hypotheses = captured.search([DecodingRequest(source) for source in sources], get_settings(beam))
        return [best[0].tokens for best in hypotheses]

    return decode


@contextmanager
def use_kernels(kernels: Kernels) -> Iterator[None]:
    """Select the Triton kernels of the block; a captured graph keeps those with which it was captured."""
    before = device_beam.MAX_KERNEL_BEAM_WIDTH, dispatch.KERNELS_ENABLED
    device_beam.MAX_KERNEL_BEAM_WIDTH = before[0] if kernels == "all" else 0
    dispatch.KERNELS_ENABLED = before[1] and kernels != "none"
    try:
        yield
    finally:
        device_beam.MAX_KERNEL_BEAM_WIDTH, dispatch.KERNELS_ENABLED = before


# Equality of the output


def compare_outputs(benchmark: Benchmark) -> dict[str, dict[str, Any]]:
    """Count equal sentences, with END forced at the last token and with END predicted by the model."""
    counts: dict[str, dict[str, Any]] = {}
    for kind, ends in (("forced", False), ("ending", True)):
        models = {dtype: benchmark.model(dtype, ends) for dtype in (torch.float32, torch.bfloat16)}
        shortest = 1 if ends else benchmark.source - 1
        sources = random_sources(benchmark.compared_sentences, benchmark.vocab, shortest, benchmark.source - 1, seed=7)
        get_settings = _settings_until_end if ends else benchmark.settings
        for beam in (1, 4):
            name = f"{kind}, beam {beam}"
            with benchmark.record_failure(f"comparison, {name}"):
                counts[name] = count_equal(models, get_settings, benchmark.capture, sources, beam)
            benchmark.print(f"same sentences, {name}:", counts.get(name))
    return counts


def _settings_until_end(beam: int) -> SearchSettings:
    return SearchSettings(beam=beam, max_ratio=0, max_extra=60)


def count_equal(
    models: dict[torch.dtype, Transformer], get_settings: GetSettings, capture: bool, sources: Tokens, beam: int
) -> dict[str, Any]:
    def decode_fast(dtype: torch.dtype, kernels: Kernels) -> Tokens:
        return static_decoder(models[dtype], get_settings, capture, kernels)(sources, beam)

    reference, reference_bf16 = (reference_decoder(model, get_settings)(sources, beam) for model in models.values())
    return {
        "sentences": len(sources),
        "float32: fast without kernels = reference": same(decode_fast(torch.float32, "none"), reference),
        "float32: fast = reference": same(decode_fast(torch.float32, "all"), reference),
        "bfloat16: fast = reference": same(decode_fast(torch.bfloat16, "all"), reference_bf16),
        "reference: bfloat16 = float32": same(reference_bf16, reference),
        "distinct": len({tuple(tokens) for tokens in reference}),
        "lengths": len({len(tokens) for tokens in reference}),
    }


def same(one: Tokens, other: Tokens) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


# Speed


def measure_systems(benchmark: Benchmark, repetitions: int) -> list[dict[str, Any]]:
    model, get_settings, capture = benchmark.model(torch.bfloat16), benchmark.settings, benchmark.capture
    systems: dict[str, Decoder] = {
        "huggingface": transformers_decoder(benchmark.marian(torch.bfloat16), benchmark.target),
        "regard, reference": reference_decoder(model, get_settings),
        "regard, static cache, eager": static_decoder(model, get_settings, capture=False),
        "regard, captured, torch kernels only": static_decoder(model, get_settings, capture, "none"),
        "regard, captured, attention kernel": static_decoder(model, get_settings, capture, "attention"),
        FASTEST: static_decoder(model, get_settings, capture),
    }
    rows = [
        measure(benchmark, name, decode, *size, repetitions)
        for size in benchmark.sizes
        for name, decode in systems.items()
    ]
    return [row for row in rows if "tokens_per_second" in row]


def measure_static_cache(benchmark: Benchmark, repetitions: int) -> list[dict[str, Any]]:
    """Time the static cache of transformers, which is compiled for each shape and supports no beam."""
    if not benchmark.capture:
        return []
    decode = transformers_decoder(benchmark.marian(torch.bfloat16), benchmark.target, cache="static")
    name = "huggingface, static cache"
    rows = [measure(benchmark, name, decode, *size, repetitions) for size in STATIC_CACHE_SIZES]
    return [row for row in rows if "tokens_per_second" in row]


def measure(
    benchmark: Benchmark, name: str, decode: Decoder, batch: int, beam: int, repetitions: int
) -> dict[str, Any]:
    """Return the median speed of a system; without speeds if it failed."""
    row: dict[str, Any] = {"system": name, "batch": batch, "beam": beam}
    sources, tokens = benchmark.sources(batch), batch * benchmark.target
    with benchmark.record_failure(f"{name}, batch {batch}, beam {beam}"):
        start = time.perf_counter()
        decode(sources, beam)
        synchronize(benchmark.device)
        row["warm_up_seconds"] = round(time.perf_counter() - start, 3)
        (seconds,) = measure_alternately(
            {name: lambda: decode(sources, beam)}, device=benchmark.device, repetitions=repetitions
        ).values()
        row["tokens_per_second"] = round(tokens / median(seconds), 1)
        row["fastest_and_slowest"] = [round(tokens / edge(seconds), 1) for edge in (min, max)]
        row["ms_per_step"] = round(1000 * median(seconds) / benchmark.target, 4)
    benchmark.print(
        f"{name:40} batch {batch:3} beam {beam}: {row.get('tokens_per_second', 0):9,.0f} tok/s, "
        f"{row.get('ms_per_step', 0):7.3f} ms per step, first call {row.get('warm_up_seconds', 0):6.2f} s"
    )
    return row


def find_missed(rows: list[dict[str, Any]]) -> list[str]:
    """Return the criteria that the fastest implementation does not meet."""
    speed = {(row["system"], row["batch"], row["beam"]): row["tokens_per_second"] for row in rows}
    missed = []
    for size, minimum in MIN_TOKENS_PER_SECOND.items():
        if speed.get((FASTEST, *size), minimum) < minimum:
            missed.append(
                f"batch {size[0]}, beam {size[1]}: {speed[FASTEST, *size]:,.0f} tokens/s, less than {minimum:,}"
            )
    for size, ratio in MIN_RATIO.items():
        theirs = speed.get(("huggingface", *size), 0.0)
        if speed.get((FASTEST, *size), ratio * theirs) < ratio * theirs:
            missed.append(
                f"batch {size[0]}, beam {size[1]}: {speed[FASTEST, *size] / theirs:.1f} times the speed of "
                f"transformers, less than {ratio}"
            )
    return missed


def profile_sizes(benchmark: Benchmark) -> list[dict[str, Any]]:
    model = benchmark.model(torch.bfloat16)
    profiles = []
    for batch, beam in benchmark.sizes:
        with benchmark.record_failure(f"profile, batch {batch}, beam {beam}"):
            decode, sources = static_decoder(model, benchmark.settings, benchmark.capture), benchmark.sources(batch)
            profile = profile_decoding(
                lambda decode=decode, sources=sources, beam=beam: decode(sources, beam),
                benchmark.target,
                benchmark.device,
            )
            profiles.append({"batch": batch, "beam": beam} | profile)
    return profiles
