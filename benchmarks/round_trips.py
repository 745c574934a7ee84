"""Round trips: ours to transformers and back, and ours to CTranslate2, onnxruntime, torch.export and Argos Translate.

    python benchmarks/round_trips.py RUN [--sentences 300] [--only-trained]

RUN is a trained model, such as that of `regard demo`; its own validation sentences are translated, greedily and with
beam 4, and so are made-up sentences by models of random weights of every option (tests/interop/random_models.py).
Everywhere the tokens must be the same, or worth as much to our model within rounding (ties), and logits or
log-probabilities within 1e-4. Where a translation is cut at the limit of length, every program does something else, so
the sentences are such that the model ends them by itself.
Writes benchmarks/results/roundtrips.json, and fails where anything differs.
"""

import argparse
import datetime
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from regard.data.text.readers import read_jsonl
from regard.decoding.constraints import DecodingRequest
from regard.errors import UserError
from regard.interop.argos import export_argos
from regard.interop.ctranslate2 import save_ctranslate2
from regard.interop.huggingface_translation import build_huggingface, export_huggingface
from regard.interop.import_model import import_model
from regard.interop.onnx import ONNX
from regard.interop.torch import TORCH
from regard.interop.verification import (
    SEARCHES,
    TOLERANCE,
    ExternalModel,
    Tokens,
    check_agreement,
    compare,
    ended_before_limit,
    sample_sources,
)
from regard.pipelines.external import CTranslate2Generator, TransformersGenerator
from regard.pipelines.translator import Translator

RESULTS = Path(__file__).parent / "results" / "roundtrips.json"
PACKAGES = ("torch", "transformers", "ctranslate2", "onnxruntime", "sentencepiece")
BATCH, MOST_DRAWN = 50, 6_000
Sources = Sequence[Tokens]
Row = dict[str, Any]


def to_transformers_and_back(ours: Translator, sources: Sources, room: Path) -> Row:
    """The model that comes back must say the same in every place: tokens equal, logits within the tolerance."""
    there, back = room / "there", room / "back"
    there.mkdir()
    export_huggingface(ours, there, sources[:8])
    import_model(there, back)
    again = Translator.load(back)
    row: Row = {}
    for name, settings in SEARCHES.items():
        found, other = (t.generator.generate([DecodingRequest(s) for s in sources], settings) for t in (ours, again))
        row[name] = [sum(a[0].tokens == b[0].tokens for a, b in zip(found, other, strict=True)), len(sources)]
    targets = [best[0].tokens for best in found]
    gap = 0.0
    for start in range(0, len(sources), BATCH):
        batch = slice(start, start + BATCH)
        here, back_again = (t.log_probs(sources[batch], targets[batch]) for t in (ours, again))
        gap = max(gap, float((here - back_again).abs().max()))
    return row | {"largest_difference": gap}


def in_a_program(
    load: Callable[[Translator, Path, Sources], ExternalModel],
) -> Callable[[Translator, Sources, Path], Row]:
    """The check of a model that another program runs."""

    def run(ours: Translator, sources: Sources, room: Path) -> Row:
        agreement = compare(ours, load(ours, room, sources), sources)
        check_agreement(agreement, "it")
        return {
            **{name: list(same) for name, same in agreement.identical.items()},
            "ties": agreement.ties,
            "largest_difference": agreement.max_difference,
        }

    return run


def their_model(ours: Translator, room: Path, sources: Sources) -> ExternalModel:
    return TransformersGenerator(build_huggingface(ours))


def their_engine(ours: Translator, room: Path, sources: Sources) -> ExternalModel:
    save_ctranslate2(ours, room)
    generator = Translator.load(room).generator
    assert isinstance(generator, CTranslate2Generator)
    return generator


def their_onnx(ours: Translator, room: Path, sources: Sources) -> ExternalModel:
    ONNX.export_translator(ours, room, sources[:8])
    return ONNX.load_model(room)


def their_archive(ours: Translator, room: Path, sources: Sources) -> ExternalModel:
    TORCH.export_translator(ours, room, sources[:8])
    return TORCH.load_model(room)


def as_package(ours: Translator, sources: Sources, room: Path) -> Row:
    """Argos Translate's own calls, from text to text; the export itself refuses what differs."""
    return {"said": export_argos(ours, room, sources, None)}


WAYS: dict[str, Callable[[Translator, Sources, Path], Row]] = {
    "ours to transformers to ours": to_transformers_and_back,
    "transformers": in_a_program(their_model),
    "ctranslate2": in_a_program(their_engine),
}
FURTHER = {
    "onnxruntime": in_a_program(their_onnx),
    "torch.export": in_a_program(their_archive),
    "argos": as_package,
}
"""With the trained model alone: all options go through the same programs."""


def go(name: str, ours: Translator, sources: Sources, ways: dict[str, Callable[..., Row]]) -> list[Row]:
    rows = []
    for way, run in ways.items():
        began = time.perf_counter()
        row: Row = {"model": name, "way": way, "sentences": len(sources)}
        with tempfile.TemporaryDirectory() as room:
            try:
                row |= run(ours, sources, Path(room))
            except UserError as error:
                row["refused"] = str(error)
        row["seconds"] = round(time.perf_counter() - began, 1)
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return rows


def sources_that_end(ours: Translator, count: int) -> Sources:
    """Made-up sentences whose translations end by themselves in every search: so many, or as many as were found."""
    drawn, kept = sample_sources(ours, count=MOST_DRAWN), list[Tokens]()
    for start in range(0, len(drawn), BATCH):
        batch = drawn[start : start + BATCH]
        ended = [True] * len(batch)
        for settings in SEARCHES.values():
            beams = ours.generator.generate([DecodingRequest(source) for source in batch], settings)
            ended = [e and ended_before_limit(b, s, settings) for e, b, s in zip(ended, beams, batch, strict=True)]
        kept += [source for source, e in zip(batch, ended, strict=True) if e]
        if len(kept) >= count:
            break
    return kept[:count]


def differs(row: Row) -> bool:
    """Whether a row says that two models did not say the same, or that something broke; a refused option does not."""
    if "refused" in row:
        return "nothing was written" in row["refused"] or "differs from" in row["refused"]
    ties = row.get("ties", {})
    unequal = [name for name in SEARCHES if name in row and row[name][0] + ties.get(name, 0) != row[name][1]]
    return bool(unequal) or not row.get("largest_difference", 0.0) <= TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(description="Round trips of models through the formats of others.")
    parser.add_argument("run", type=Path, help="a training run of a model that translates")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--only-trained", action="store_true", help="leave out the models of random weights")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ours = Translator.load(arguments.run)
    texts = [pair.source for pair in read_jsonl(arguments.run / "data" / "valid.jsonl")][: arguments.sentences]
    if len(texts) < arguments.sentences:
        sys.exit(f"{arguments.run} has {len(texts)} validation sentences, but {arguments.sentences} are needed")
    rows = go("trained", ours, sample_sources(ours, texts), WAYS | FURTHER)
    if not arguments.only_trained:
        sys.path.insert(0, str(Path(__file__).parent.parent))  # where the tests are
        from tests.interop.random_models import OPTIONS, random_translator

        for option in OPTIONS:
            random = random_translator(option)
            rows += go(option, random, sources_that_end(random, arguments.sentences), WAYS)
    result = {
        "what": f"the same tokens greedily and with beam 4 (as [same, compared]), and logits within {TOLERANCE:g}; "
        f"ties: how many others our model scores within {TOLERANCE:g} of its own",
        "rows": rows,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
    }
    RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if wrong := [f"{row['model']}, {row['way']}" for row in rows if differs(row)]:
        sys.exit("these differ: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
