"""Decoding speed against Hugging Face `generate`, with the same weights and the same work.

    python benchmarks/decoding.py [--quick] [--profile]
    python benchmarks/decoding.py --device cuda [--profile]

On a GPU see decoding_cuda.py. On the CPU:
A Marian-base model (6+6 layers, width 512, 8,000 words) with random weights reads 24 tokens and writes 32, END being
the last, greedily and with beam 4. Both sides forbid END before and demand it there, so both take 32 steps and should
say the same. Repetitions alternate between the two, so that a busy machine slows both; the medians are compared.
Writes benchmarks/results/decoding-cpu.json, or, where --quick, nothing. Fails where the two say different things and,
but for --quick, whose few repetitions tell little, where regard is less than 1.5 times as fast at batch 32 and beam 4.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from decoding_profile import profile_decoding
from decoding_transformers import their_decoder
from marian import as_transformer, random_marian, random_sources

from regard.decoding.config import SearchSettings
from regard.decoding.search import search
from regard.decoding.stepper import TransformerStepper
from regard.models.transformer import Transformer
from regard.ops.quantization import Precision, prepack

VOCAB, SOURCE, TARGET = 8_000, 24, 32
RESULTS = Path(__file__).parent / "results"
LEAST_RATIO = 1.5  # at batch 32 and beam 4
Decode = Callable[[list[list[int]], int], list[list[int]]]


def our_decoder(model: Transformer, precision: Precision = "float32") -> Decode:
    prepack(model, precision)
    stepper = TransformerStepper(model)

    def decode(sources: list[list[int]], beam: int) -> list[list[int]]:
        settings = SearchSettings(beam=beam, min_length=TARGET - 1, max_length=TARGET)
        return [best[0].tokens for best in search(stepper, sources, settings)]

    return decode


def compare(theirs: Decode, ours: Decode, batch: int, beam: int, repetitions: int) -> dict[str, Any]:
    """Times both on the same sentences, in turns."""
    sources = random_sources(batch, VOCAB, SOURCE - 1, SOURCE - 1, seed=batch)  # END is the last source token
    seconds: dict[Decode, list[float]] = {theirs: [], ours: []}
    said = {decode: decode(sources, beam) for decode in seconds}  # warms up too
    for _ in range(repetitions):
        for decode, times in seconds.items():
            begin = time.perf_counter()
            decode(sources, beam)
            times.append(time.perf_counter() - begin)
    tokens = batch * TARGET
    same = sum(a == b for a, b in zip(said[theirs], said[ours], strict=True))
    return {
        "batch": batch,
        "beam": beam,
        "huggingface_tokens_per_second": round(tokens / median(seconds[theirs]), 1),
        "regard_tokens_per_second": round(tokens / median(seconds[ours]), 1),
        "ratio": round(median(seconds[theirs]) / median(seconds[ours]), 3),
        "ratios_of_pairs": [round(a / b, 3) for a, b in zip(seconds[theirs], seconds[ours], strict=True)],
        "same_sentences": same,
        "distinct_sentences": len({tuple(row) for row in said[ours]}),
        "repetitions": repetitions,
    }


def shortcomings(rows: list[dict[str, Any]], quick: bool) -> list[str]:
    """What falls short of the promise: the same sentences, and the least ratio unless it is a quick look."""
    found = []
    for row in rows:
        where = f"batch {row['batch']}, beam {row['beam']}"
        if row["same_sentences"] != row["batch"]:
            found.append(f"{where}: {row['same_sentences']} of {row['batch']} sentences are the same, not all")
        if not quick and (row["batch"], row["beam"]) == (32, 4) and row["ratio"] < LEAST_RATIO:
            found.append(f"{where}: ratio {row['ratio']}, less than {LEAST_RATIO}")
    return found


def processor() -> str:
    """The CPU's name, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor()


def write(path: Path, measured: dict[str, Any], where: str, words: int, machine: str) -> None:
    """What was measured, and with what, to a result file."""
    result = {
        "what": f"greedy and beam search {where}, {SOURCE} source tokens, {TARGET} target tokens, END last",
        "model": f"Marian base: 6+6 layers, width 512, hidden 2048, 8 heads, {words:,} words, random weights",
        **measured,
        "machine": machine,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
    }
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Decoding speed against Hugging Face generate.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="on the CPU batch 1 and 32, three repetitions, no file")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal of --device cuda with a tiny model, anywhere")
    parser.add_argument("--profile", action="store_true", help="also where the time goes")
    parser.add_argument("--repetitions", type=int, default=7, help="on a GPU")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, help="the result file, instead of one in benchmarks/results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.device == "cuda" or arguments.tiny:
        on_gpu(arguments)
    else:
        on_cpu(arguments)


def on_gpu(arguments: argparse.Namespace) -> None:
    from decoding_cuda import Contest, run

    contest = Contest(torch.device(arguments.device), SOURCE, TARGET, arguments.tiny)
    machine = torch.cuda.get_device_name() if arguments.device == "cuda" else processor()
    path = arguments.out or (None if arguments.tiny else RESULTS / "decoding-gpu.json")

    def save(measured: dict[str, Any]) -> None:
        if path is not None:
            write(path, measured, "on a GPU, bfloat16", contest.vocab, machine)

    measured = run(contest, arguments.repetitions, arguments.profile, save)
    if measured["shortcomings"] and not arguments.tiny:
        sys.exit("\n".join(measured["shortcomings"]))


def on_cpu(arguments: argparse.Namespace) -> None:
    marian = random_marian(VOCAB, width=512, heads=8, layers=6, hidden=2048, ends=False)
    theirs, ours = their_decoder(marian, TARGET), our_decoder(as_transformer(marian))
    if arguments.profile:
        sources = random_sources(32, VOCAB, SOURCE - 1, SOURCE - 1, seed=32)
        profile_decoding(lambda: ours(sources, 4), TARGET, torch.device("cpu"))
        return
    rows = []
    print(f"{'batch':>5} {'beam':>4} {'HF tok/s':>9} {'regard tok/s':>12} {'ratio':>6} {'same':>9}")
    for batch in (1, 32) if arguments.quick else (1, 32, 128):
        for beam in (1, 4):
            repetitions = 3 if arguments.quick or batch == 128 else 5 if batch == 32 else 7
            row = compare(theirs, ours, batch, beam, repetitions)
            rows.append(row)
            speeds = f"{row['huggingface_tokens_per_second']:9.0f} {row['regard_tokens_per_second']:12.0f}"
            print(f"{batch:5} {beam:4} {speeds} {row['ratio']:6.2f} {row['same_sentences']:4}/{batch:<4}", flush=True)
    if not arguments.quick:
        path = arguments.out or RESULTS / "decoding-cpu.json"
        write(path, {"rows": rows}, "on the CPU, float32", VOCAB, f"{processor()}, {arguments.threads} threads")
    if short := shortcomings(rows, arguments.quick):
        sys.exit("\n".join(short))


if __name__ == "__main__":
    main()
