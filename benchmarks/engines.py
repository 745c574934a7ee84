"""Engines on the CPU with the same weights and work: Hugging Face, regard and CTranslate2, exact and quantised.

    python benchmarks/engines.py [--quick]

A Marian-base model (6+6 layers, width 512, 8,000 words) with random weights reads 24 tokens and writes 32, alone and 32
sentences at once, greedily and with beam 4. Repetitions go round among the engines, so that a busy machine slows all;
medians are compared. Every engine's words are compared with those of Hugging Face: in float32 all must be the same. At
the last token CTranslate2 cannot be made to choose END and nothing else; so it is asked for its whole beam after the 31
tokens before, and whichever of these hypotheses is most like the reference counts.

Writes benchmarks/results/engines.json, or, where --quick, nothing. Fails where float32 says other words and, but for
--quick, where the best of regard is slower than the best of another, or less than twice as fast as Hugging Face with
the weights as they are.
"""

import argparse
import copy
import datetime
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import ctranslate2
import torch
import transformers
from decoding import SOURCE, TARGET, VOCAB, Decode, our_decoder, processor
from decoding_transformers import their_decoder
from marian import as_transformer, random_marian, random_sources

from regard.interop.ctranslate2 import to_ctranslate2
from regard.models.transformer import Transformer

RESULTS = Path(__file__).parent / "results" / "engines.json"
LEAST_RATIO = 2.0  # to Hugging Face in float32
Beams = list[list[list[int]]]
"""Of every sentence, the hypotheses that count."""


class Engine(NamedTuple):
    """A way to decode: `run` is timed, `say` gives the words without END, not timed."""

    run: Callable[[list[list[int]], int], Any]
    say: Callable[[list[list[int]], int], Beams]


def torch_engine(decode: Decode) -> Engine:
    return Engine(decode, lambda sources, beam: [[words] for words in decode(sources, beam)])


def ctranslate2_engine(model: Transformer, quantization: str, threads: int) -> Engine:
    pieces = [f"w{i}" for i in range(VOCAB)]
    with tempfile.TemporaryDirectory() as room:
        to_ctranslate2(model, (pieces, pieces), Path(room), quantization)
        engine = ctranslate2.Translator(room, device="cpu", intra_threads=threads, compute_type=quantization)

    def translate(sources: list[list[int]], beam: int, length: int) -> Any:
        return engine.translate_batch(
            [[pieces[i] for i in source] for source in sources],
            beam_size=beam,
            num_hypotheses=beam,
            min_decoding_length=length,
            max_decoding_length=length,
            max_input_length=0,
        )

    def say(sources: list[list[int]], beam: int) -> Beams:
        results = translate(sources, beam, TARGET - 1)
        return [[[int(piece[1:]) for piece in words] for words in result.hypotheses] for result in results]

    return Engine(lambda sources, beam: translate(sources, beam, TARGET), say)


def likeness(reference: list[int], beam: list[list[int]]) -> float:
    """The share of places with the reference's word, in the hypothesis of the beam that has most."""
    return max(sum(a == b for a, b in zip(reference, words, strict=False)) for words in beam) / len(reference)


def measure(engines: dict[str, Engine], batch: int, beam: int, seconds: float) -> list[dict[str, Any]]:
    """Times all engines in turns until each has had so many seconds, and at least three turns."""
    sources = random_sources(batch, VOCAB, SOURCE - 1, SOURCE - 1, seed=batch)  # END is the last source token
    said = {name: engine.print(sources, beam) for name, engine in engines.items()}  # warms up too
    times: dict[str, list[float]] = {name: [] for name in engines}
    while any(sum(taken) < seconds or len(taken) < 3 for taken in times.values()):
        for name, engine in engines.items():
            begin = time.perf_counter()
            engine.run(sources, beam)
            times[name].append(time.perf_counter() - begin)
    reference = [hypotheses[0] for hypotheses in next(iter(said.values()))]
    return [
        {
            "batch": batch,
            "beam": beam,
            "engine": name,
            "tokens_per_second": round(batch * TARGET / median(taken), 1),
            "same_words": round(sum(map(likeness, reference, said[name])) / batch, 4),
            "repetitions": len(taken),
        }
        for name, taken in times.items()
    ]


def shortcomings(rows: list[dict[str, Any]], quick: bool) -> list[str]:
    """What falls short of the promise."""
    found = [
        f"batch {row['batch']}, beam {row['beam']}: {row['engine']} says other words than Hugging Face"
        for row in rows
        if "float32" in row["engine"] and row["same_words"] < 1
    ]
    for batch, beam in () if quick else sorted({(row["batch"], row["beam"]) for row in rows}):
        best = {
            who: max(
                row["tokens_per_second"]
                for row in rows
                if (row["batch"], row["beam"]) == (batch, beam) and row["engine"].startswith(who)
            )
            for who in ("Hugging Face", "Hugging Face float32", "regard", "CTranslate2")
        }
        for who in ("Hugging Face", "Hugging Face float32", "CTranslate2"):
            least = LEAST_RATIO if who == "Hugging Face float32" else 1.0
            if best["regard"] < least * best[who]:
                found.append(f"batch {batch}, beam {beam}: {best['regard'] / best[who]:.2f} times {who}")
    return found


def write(rows: list[dict[str, Any]], threads: int) -> None:
    """The rows and what they were measured with, to the result file."""
    result = {
        "what": f"greedy and beam search on the CPU, {SOURCE} source tokens, {TARGET} target tokens",
        "model": "Marian base: 6+6 layers, width 512, hidden 2048, 8 heads, 8,000 words, random weights",
        "rows": rows,
        "machine": f"{processor()}, {threads} threads",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "ctranslate2": ctranslate2.__version__,
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Engines on the CPU, exact and quantised.")
    parser.add_argument("--quick", action="store_true", help="three repetitions each, no result file")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    marian = random_marian(VOCAB, width=512, heads=8, layers=6, hidden=2048, ends=False)
    model = as_transformer(marian)
    engines = {
        "Hugging Face float32": torch_engine(their_decoder(marian, TARGET)),
        "Hugging Face bfloat16": torch_engine(their_decoder(copy.deepcopy(marian).bfloat16(), TARGET)),
        "regard float32": torch_engine(our_decoder(model)),
        "regard bfloat16": torch_engine(our_decoder(model, "bfloat16")),
        "regard int8": torch_engine(our_decoder(model, "int8")),
        "CTranslate2 float32": ctranslate2_engine(model, "float32", arguments.threads),
        "CTranslate2 int8": ctranslate2_engine(model, "int8", arguments.threads),
    }
    rows = []
    for batch in (1, 32):
        for beam in (1, 4):
            for row in measure(engines, batch, beam, 0.0 if arguments.quick else 10.0):
                rows.append(row)
                speed = f"{row['tokens_per_second']:7.0f} tokens/s, {row['same_words']:.1%} the same words"
                print(f"batch {batch:2}, beam {beam}: {row['engine']:20} {speed}", flush=True)
    if not arguments.quick:
        write(rows, arguments.threads)
    if short := shortcomings(rows, arguments.quick):
        sys.exit("\n".join(short))


if __name__ == "__main__":
    main()
