"""Engines on the CPU with the same weights and work: transformers, regard and CTranslate2, exact and quantised.

    python benchmarks/engines.py [--quick]

A Marian-base model (6+6 layers, width 512, vocabulary 8,000) with random weights translates 24 tokens into 32, with
batches of 1 and 32, greedy search and beam 4. Engines alternate, and medians are compared. The output of every engine
is compared with transformers in float32; float32 outputs must be equal. CTranslate2 cannot be restricted to END at the
last token: it decodes 31 tokens, and the hypothesis of its beam that is closest to the reference counts.

Writes benchmarks/results/engines.json, unless --quick is given. Fails if float32 outputs differ and, without --quick,
if the fastest variant of regard is slower than that of another engine, or less than twice as fast as transformers in
float32.
"""

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import ctranslate2
import torch
from decoding import SOURCE, TARGET, VOCAB, describe, regard_decoder
from harness import default_threads, environment, measure_alternately, save_result
from marian import Decoder, Tokens, as_transformer, random_marian, random_sources, transformers_decoder

from regard.interop.ctranslate2 import to_ctranslate2
from regard.models.transformer import Transformer

MIN_RATIOS = {"Hugging Face": 1.0, "Hugging Face float32": 2.0, "CTranslate2": 1.0}  # speed of regard to the best of


class Engine(NamedTuple):
    """`run` is timed; `hypotheses` returns, for each sentence, the hypotheses to compare, without END."""

    run: Callable[[Tokens, int], Any]
    hypotheses: Callable[[Tokens, int], list[Tokens]]


def torch_engine(decode: Decoder) -> Engine:
    return Engine(decode, lambda sources, beam: [[tokens] for tokens in decode(sources, beam)])


def ctranslate2_engine(model: Transformer, quantization: str, threads: int) -> Engine:
    vocabulary = [f"w{i}" for i in range(VOCAB)]
    with tempfile.TemporaryDirectory() as folder:
        to_ctranslate2(model, (vocabulary, vocabulary), Path(folder), quantization)
        translator = ctranslate2.Translator(folder, device="cpu", intra_threads=threads, compute_type=quantization)

    def translate(sources: Tokens, beam: int, length: int) -> Any:
        return translator.translate_batch(
            [[vocabulary[i] for i in source] for source in sources],
            beam_size=beam,
            num_hypotheses=beam,
            min_decoding_length=length,
            max_decoding_length=length,
            max_input_length=0,
        )

    def hypotheses(sources: Tokens, beam: int) -> list[Tokens]:
        results = translate(sources, beam, TARGET - 1)
        return [[[int(token[1:]) for token in tokens] for tokens in result.hypotheses] for result in results]

    return Engine(lambda sources, beam: translate(sources, beam, TARGET), hypotheses)


def share_of_equal_tokens(reference: list[int], hypotheses: Tokens) -> float:
    """Return the share of positions with the token of the reference, in the closest hypothesis."""
    equal = (sum(a == b for a, b in zip(reference, tokens, strict=False)) for tokens in hypotheses)
    return max(equal) / len(reference)


def measure(engines: dict[str, Engine], batch: int, beam: int, seconds: float) -> list[dict[str, Any]]:
    """Time all engines for the given number of seconds each, and compare their output with the first engine."""
    sources = random_sources(batch, VOCAB, SOURCE - 1, SOURCE - 1, seed=batch)  # the model appends END
    outputs = {name: engine.hypotheses(sources, beam) for name, engine in engines.items()}  # also warms up
    times = measure_alternately(
        {name: lambda engine=engine: engine.run(sources, beam) for name, engine in engines.items()},
        seconds=seconds,
        warm_up=0,
    )
    references = [hypotheses[0] for hypotheses in next(iter(outputs.values()))]
    return [
        {
            "batch": batch,
            "beam": beam,
            "engine": name,
            "tokens_per_second": round(batch * TARGET / median(taken), 1),
            "equal_tokens": round(sum(map(share_of_equal_tokens, references, outputs[name])) / batch, 4),
            "repetitions": len(taken),
        }
        for name, taken in times.items()
    ]


def find_missed(rows: list[dict[str, Any]], quick: bool) -> list[str]:
    """Return the criteria that were not met."""
    missed = [
        f"batch {row['batch']}, beam {row['beam']}: the output of {row['engine']} differs from Hugging Face float32"
        for row in rows
        if "float32" in row["engine"] and row["equal_tokens"] < 1
    ]
    for size in () if quick else sorted({(row["batch"], row["beam"]) for row in rows}):
        speeds = {row["engine"]: row["tokens_per_second"] for row in rows if (row["batch"], row["beam"]) == size}
        best = {
            prefix: max(speed for engine, speed in speeds.items() if engine.startswith(prefix))
            for prefix in (*MIN_RATIOS, "regard")
        }
        for prefix, minimum in MIN_RATIOS.items():
            if best["regard"] < minimum * best[prefix]:
                ratio = best["regard"] / best[prefix]
                missed.append(f"batch {size[0]}, beam {size[1]}: {ratio:.2f} times the speed of {prefix}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repetitions, no result file")
    parser.add_argument("--threads", type=int, default=default_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    marian = random_marian(VOCAB, width=512, heads=8, layers=6, hidden=2048, ends=False)
    model = as_transformer(marian)
    engines = {
        "Hugging Face float32": torch_engine(transformers_decoder(marian, TARGET)),
        "Hugging Face bfloat16": torch_engine(transformers_decoder(copy.deepcopy(marian).bfloat16(), TARGET)),
        "regard float32": torch_engine(regard_decoder(as_transformer(marian))),
        "regard bfloat16": torch_engine(regard_decoder(as_transformer(marian), "bfloat16")),
        "regard int8": torch_engine(regard_decoder(as_transformer(marian), "int8")),
        "CTranslate2 float32": ctranslate2_engine(model, "float32", arguments.threads),
        "CTranslate2 int8": ctranslate2_engine(model, "int8", arguments.threads),
    }
    rows = []
    for batch in (1, 32):
        for beam in (1, 4):
            for row in measure(engines, batch, beam, 0.0 if arguments.quick else 10.0):
                rows.append(row)
                speed = f"{row['tokens_per_second']:7.0f} tokens/s, {row['equal_tokens']:.1%} equal tokens"
                print(f"batch {batch:2}, beam {beam}: {row['engine']:21} {speed}", flush=True)
    if not arguments.quick:
        what = f"greedy and beam search on the CPU, {SOURCE} source tokens, {TARGET} target tokens"
        about = describe("on the CPU", VOCAB) | {"what": what}
        save_result(about | {"rows": rows} | environment("cpu", "transformers", "ctranslate2"), "engines")
    if missed := find_missed(rows, arguments.quick):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
