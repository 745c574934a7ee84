"""Decoding speed next to transformers `generate`, with the same weights and the same work.

    python benchmarks/decoding.py [--quick] [--profile]
    python benchmarks/decoding.py --device cuda [--profile]

decoding_cuda.py describes the measurement on a GPU. On the CPU, a Marian-base model (6+6 layers, width 512, vocabulary
8,000) with random weights translates 24 tokens into 32 with greedy search and with beam 4. END is forbidden before the
last token and forced there, so both libraries take 32 steps and should give the same output. They alternate, and
medians are compared. Writes benchmarks/results/decoding-cpu.json, unless --quick is given. Fails if outputs differ or,
without --quick, if regard is less than 1.5 times as fast at batch 32 and beam 4.
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

import torch
from decoding_profile import profile_decoding
from harness import default_threads, environment, measure_alternately, save_result
from marian import Decoder, as_transformer, random_marian, random_sources, transformers_decoder

from regard.decoding.autoregressive import TransformerStepper, search_tokens
from regard.decoding.settings import SearchSettings
from regard.models.transformer import Transformer
from regard.ops.linear import Precision, prepack

VOCAB, SOURCE, TARGET = 8_000, 24, 32
MIN_RATIO = 1.5  # at batch 32 and beam 4


def regard_decoder(model: Transformer, precision: Precision = "float32") -> Decoder:
    """Decode with a model whose weights are prepacked in place."""
    prepack(model, precision)
    stepper = TransformerStepper(model)

    def decode(sources: list[list[int]], beam: int) -> list[list[int]]:
        settings = SearchSettings(beam=beam, min_length=TARGET - 1, max_length=TARGET)
        return [best[0].tokens for best in search_tokens(stepper, sources, settings)]

    return decode


def compare(theirs: Decoder, ours: Decoder, batch: int, beam: int, repetitions: int) -> dict[str, Any]:
    """Time both libraries on the same sentences."""
    sources = random_sources(batch, VOCAB, SOURCE - 1, SOURCE - 1, seed=batch)  # the model appends END
    decoders = {"huggingface": theirs, "regard": ours}
    outputs = {name: decode(sources, beam) for name, decode in decoders.items()}
    times = measure_alternately(
        {name: lambda decode=decode: decode(sources, beam) for name, decode in decoders.items()},
        repetitions=repetitions,
        warm_up=0,  # done by the comparison of the outputs
    )
    medians = {name: median(seconds) for name, seconds in times.items()}
    return {
        "batch": batch,
        "beam": beam,
        **{f"{name}_tokens_per_second": round(batch * TARGET / seconds, 1) for name, seconds in medians.items()},
        "ratio": round(medians["huggingface"] / medians["regard"], 3),
        "ratios_of_pairs": [round(a / b, 3) for a, b in zip(times["huggingface"], times["regard"], strict=True)],
        "same_sentences": sum(a == b for a, b in zip(outputs["huggingface"], outputs["regard"], strict=True)),
        "distinct_sentences": len({tuple(tokens) for tokens in outputs["regard"]}),
        "repetitions": repetitions,
    }


def find_missed(rows: list[dict[str, Any]], quick: bool) -> list[str]:
    """Return the criteria that were not met."""
    missed = []
    for row in rows:
        size = f"batch {row['batch']}, beam {row['beam']}"
        if row["same_sentences"] != row["batch"]:
            missed.append(f"{size}: only {row['same_sentences']} of {row['batch']} sentences are the same")
        if not quick and (row["batch"], row["beam"]) == (32, 4) and row["ratio"] < MIN_RATIO:
            missed.append(f"{size}: the ratio {row['ratio']} is below {MIN_RATIO}")
    return missed


def describe(device: str, vocab: int) -> dict[str, str]:
    return {
        "what": f"greedy and beam search {device}, {SOURCE} source tokens, {TARGET} target tokens, END last",
        "model": f"Marian base: 6+6 layers, width 512, hidden 2048, 8 heads, vocabulary {vocab:,}, random weights",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="CPU: batch 1 and 32, three repetitions, no result file")
    parser.add_argument("--tiny", action="store_true", help="the GPU benchmark with a tiny model, on any device")
    parser.add_argument("--profile", action="store_true", help="also profile a step")
    parser.add_argument("--repetitions", type=int, default=7, help="on a GPU")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--out", type=Path, help="result file, instead of one in benchmarks/results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.device == "cuda" or arguments.tiny:
        run_on_gpu(arguments)
    else:
        run_on_cpu(arguments)


def run_on_gpu(arguments: argparse.Namespace) -> None:
    from decoding_cuda import Benchmark, run

    benchmark = Benchmark(torch.device(arguments.device), SOURCE, TARGET, arguments.tiny)
    path = arguments.out or (None if arguments.tiny else "decoding-gpu")

    def save(measured: dict[str, Any]) -> None:
        if path is not None:
            about = describe("on a GPU, bfloat16", benchmark.vocab)
            save_result(about | measured | environment(arguments.device, "transformers"), path)

    measured = run(benchmark, arguments.repetitions, arguments.profile, save)
    if measured["missed"] and not arguments.tiny:
        sys.exit("\n".join(measured["missed"]))


def run_on_cpu(arguments: argparse.Namespace) -> None:
    marian = random_marian(VOCAB, width=512, heads=8, layers=6, hidden=2048, ends=False)
    theirs, ours = transformers_decoder(marian, TARGET), regard_decoder(as_transformer(marian))
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
        result = describe("on the CPU, float32", VOCAB) | {"rows": rows} | environment("cpu", "transformers")
        save_result(result, arguments.out or "decoding-cpu")
    if missed := find_missed(rows, arguments.quick):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
