"""What `benchmarks/decoding.py --device cuda` measures: our ways to decode on a GPU beside Hugging Face `generate`.

Same Marian-base weights (32,000 words, bfloat16), same sentences, 24 tokens to 32, END forced at the last. Before
anything is timed, what the fast way says is compared with what the reference path says in float32, also with weights
that end where they like. Every contender is guarded: one that fails is named with its error, and the others go on.
With --tiny everything is small and also runs on a CPU, where nothing can be recorded: a rehearsal.
"""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Literal

import torch
from decoding_profile import profile_decoding
from decoding_transformers import their_decoder
from marian import as_transformer, random_marian, random_sources
from transformers import MarianMTModel

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph.search import CapturedSearch
from regard.decoding.search import search
from regard.decoding.stepper import TransformerStepper
from regard.models.transformer import Transformer
from regard.ops import beam_step, dispatch

Tokens = list[list[int]]
Decode = Callable[[Tokens, int], Tokens]
Kernels = Literal["none", "attention", "all"]
SettingsOf = Callable[[int], SearchSettings]
BEST = "regard, captured"
WORKLOADS = ((1, 1), (32, 4), (128, 4), (512, 4), (128, 1))
STATIC_PEER_AT = ((128, 1), (1, 1))
LEAST = {(32, 4): 50_000, (512, 4): 200_000}  # target tokens a second
LEAST_RATIO = {(1, 1): 5.0}  # times Hugging Face


class Contest:
    """The sizes of a measurement, its weights, and what went wrong."""

    def __init__(self, device: torch.device, source: int, target: int, tiny: bool) -> None:
        self.device, self.source, self.target = device, source, target
        self.vocab, self.workloads, self.checked = 32_000, WORKLOADS, 128
        self.sizes = {"width": 512, "heads": 8, "layers": 6, "hidden": 2048}
        if tiny:
            self.vocab, self.workloads, self.checked = 600, ((1, 1), (3, 2)), 8
            self.sizes = {"width": 32, "heads": 2, "layers": 2, "hidden": 64}
        self.records = device.type == "cuda"
        self.failures: dict[str, str] = {}
        self._began = time.perf_counter()

    def print(self, *words: object) -> None:
        print(f"[{time.perf_counter() - self._began:6.1f} s]", *words, flush=True)

    @contextmanager
    def guarding(self, name: str) -> Iterator[None]:
        """What goes wrong inside is said and noted, and ends nothing else."""
        try:
            yield
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {str(error)[:500]}"
            self.print(f"FAILED {name}: {self.failures[name]}")
            traceback.print_exc(limit=-8)

    def marian(self, dtype: torch.dtype) -> MarianMTModel:
        return random_marian(self.vocab, **self.sizes, ends=False).to(self.device, dtype)

    def model(self, dtype: torch.dtype, ends: bool = False) -> Transformer:
        return as_transformer(random_marian(self.vocab, **self.sizes, ends=ends)).to(self.device, dtype)

    def sources(self, batch: int) -> Tokens:
        return random_sources(batch, self.vocab, self.source - 1, self.source - 1, seed=batch)  # END is the last

    def settings(self, beam: int) -> SearchSettings:
        return SearchSettings(beam=beam, min_length=self.target - 1, max_length=self.target)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def run(contest: Contest, repetitions: int, profiled: bool, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Checks, then times, then perhaps profiles; what was found, what failed and what falls short.

    All is saved after every part: the last, which compiles, takes longest.
    """
    result: dict[str, Any] = {"same_sentences": check(contest), "failures": contest.failures}
    result["repetitions"] = repetitions
    result["rows"] = race(contest, repetitions)
    result["shortcomings"] = shortcomings(result["rows"])
    save(result)
    if profiled:
        result["profiles"] = profile_all(contest)
        save(result)
    result["rows"] += race_static_peer(contest, repetitions)
    save(result)
    return result


def by_reference(model: Transformer, settings_of: SettingsOf) -> Decode:
    """Search over a stepper, as it reads in regard/decoding/beam.py, without kernels of our own."""
    stepper = TransformerStepper(model)

    def decode(sources: Tokens, beam: int) -> Tokens:
        with own_kernels("none"):
            return [best[0].tokens for best in search(stepper, sources, settings_of(beam))]

    return decode


def by_fixed(model: Transformer, settings_of: SettingsOf, records: bool, kernels: Kernels = "all") -> Decode:
    """Search in memory of fixed size, recorded or done step by step."""
    fixed = CapturedSearch(model, capture=records)

    def decode(sources: Tokens, beam: int) -> Tokens:
        with own_kernels(kernels):
            found = fixed.search([DecodingRequest(source) for source in sources], settings_of(beam))
        return [best[0].tokens for best in found]

    return decode


@contextmanager
def own_kernels(wanted: Kernels) -> Iterator[None]:
    """Which of our kernels are used while the block runs; a program remembers with which it was recorded."""
    before = beam_step.MAX_BEAM_WIDTH, dispatch.KERNELS_ENABLED
    beam_step.MAX_BEAM_WIDTH = before[0] if wanted == "all" else 0
    dispatch.KERNELS_ENABLED = before[1] and wanted != "none"
    try:
        yield
    finally:
        beam_step.MAX_BEAM_WIDTH, dispatch.KERNELS_ENABLED = before


# The same sentences


def check(contest: Contest) -> dict[str, dict[str, Any]]:
    """How many sentences come out the same: in float32 all should, in bfloat16 as many as may."""
    found: dict[str, dict[str, Any]] = {}
    for kind, ends in (("forced", False), ("ending", True)):
        whole, half = contest.model(torch.float32, ends), contest.model(torch.bfloat16, ends)
        shortest = 1 if ends else contest.source - 1
        sources = random_sources(contest.checked, contest.vocab, shortest, contest.source - 1, seed=7)
        for beam in (1, 4):
            name = f"{kind}, beam {beam}"
            with contest.guarding(f"check {name}"):
                found[name] = compare(contest, whole, half, _ending if ends else contest.settings, sources, beam)
            contest.print(f"same sentences, {name}:", found.get(name))
    return found


def _ending(beam: int) -> SearchSettings:
    return SearchSettings(beam=beam, max_ratio=0, max_extra=60)


def compare(
    contest: Contest, whole: Transformer, half: Transformer, settings_of: SettingsOf, sources: Tokens, beam: int
) -> dict[str, Any]:
    def fast(model: Transformer, kernels: Kernels) -> Tokens:
        return by_fixed(model, settings_of, contest.records, kernels)(sources, beam)

    reference, in_half = (by_reference(model, settings_of)(sources, beam) for model in (whole, half))
    return {
        "sentences": len(sources),
        "float32: fast without kernels = reference": same(fast(whole, "none"), reference),
        "float32: fast = reference": same(fast(whole, "all"), reference),
        "bfloat16: fast = reference": same(fast(half, "all"), in_half),
        "reference: bfloat16 = float32": same(in_half, reference),
        "distinct": len({tuple(tokens) for tokens in reference}),
        "lengths": len({len(tokens) for tokens in reference}),
    }


def same(one: Tokens, other: Tokens) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


# The race


def race(contest: Contest, repetitions: int) -> list[dict[str, Any]]:
    """Target tokens a second of every contender at every size, the median of some repetitions, warmed up."""
    model, settings_of = contest.model(torch.bfloat16), contest.settings
    contenders: dict[str, Decode] = {
        "huggingface": their_decoder(contest.marian(torch.bfloat16), contest.target),
        "regard, reference": by_reference(model, settings_of),
        "regard, static cache, eager": by_fixed(model, settings_of, records=False),
        "regard, captured, torch kernels only": by_fixed(model, settings_of, contest.records, "none"),
        "regard, captured, attention kernel": by_fixed(model, settings_of, contest.records, "attention"),
        BEST: by_fixed(model, settings_of, contest.records),
    }
    pairs = [(size, name) for size in contest.workloads for name in contenders]
    rows = [measure(contest, name, contenders[name], *size, repetitions) for size, name in pairs]
    return [row for row in rows if "tokens_per_second" in row]


def race_static_peer(contest: Contest, repetitions: int) -> list[dict[str, Any]]:
    """Hugging Face's own static cache, which is compiled anew for each shape and has no beams."""
    if not contest.records:
        return []
    static = their_decoder(contest.marian(torch.bfloat16), contest.target, cache="static")
    rows = [measure(contest, "huggingface, static cache", static, *size, repetitions) for size in STATIC_PEER_AT]
    return [row for row in rows if "tokens_per_second" in row]


def measure(contest: Contest, name: str, decode: Decode, batch: int, beam: int, repetitions: int) -> dict[str, Any]:
    row: dict[str, Any] = {"contender": name, "batch": batch, "beam": beam}
    sources, tokens = contest.sources(batch), batch * contest.target
    with contest.guarding(f"{name}, batch {batch}, beam {beam}"):
        begin = time.perf_counter()
        decode(sources, beam)
        contest.wait()
        row["warm_up_seconds"] = round(time.perf_counter() - begin, 3)
        seconds = []
        decode(sources, beam)
        for _ in range(repetitions):
            contest.wait()
            begin = time.perf_counter()
            decode(sources, beam)
            contest.wait()
            seconds.append(time.perf_counter() - begin)
        row["tokens_per_second"] = round(tokens / median(seconds), 1)
        row["fastest_and_slowest"] = [round(tokens / edge(seconds), 1) for edge in (min, max)]
        row["ms_a_step"] = round(1000 * median(seconds) / contest.target, 4)
    contest.print(
        f"{name:40} batch {batch:3} beam {beam}: {row.get('tokens_per_second', 0):9,.0f} tok/s, "
        f"{row.get('ms_a_step', 0):7.3f} ms a step, first call {row.get('warm_up_seconds', 0):6.2f} s"
    )
    return row


def shortcomings(rows: list[dict[str, Any]]) -> list[str]:
    """Where the best way is slower than promised."""
    speed = {(row["contender"], row["batch"], row["beam"]): row["tokens_per_second"] for row in rows}
    found = []
    for size, least in LEAST.items():
        if speed.get((BEST, *size), least) < least:
            found.append(f"batch {size[0]}, beam {size[1]}: {speed[BEST, *size]:,.0f} tokens a second, not {least:,}")
    for size, ratio in LEAST_RATIO.items():
        theirs = speed.get(("huggingface", *size), 0.0)
        if speed.get((BEST, *size), ratio * theirs) < ratio * theirs:
            found.append(f"batch {size[0]}, beam {size[1]}: {speed[BEST, *size] / theirs:.1f} times them, not {ratio}")
    return found


# The profile


def profile_all(contest: Contest) -> list[dict[str, Any]]:
    """Where the time of a step goes, at the sizes of the race."""
    model = contest.model(torch.bfloat16)
    found = []
    for batch, beam in contest.workloads:
        with contest.guarding(f"profile, batch {batch}, beam {beam}"):
            decode = by_fixed(model, contest.settings, contest.records)
            sources = contest.sources(batch)
            profiled = profile_decoding(lambda d=decode, s=sources, k=beam: d(s, k), contest.target, contest.device)
            found.append({"batch": batch, "beam": beam} | profiled)
    return found
