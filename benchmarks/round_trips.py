"""Round trips through other formats: transformers and back, CTranslate2, ONNX Runtime, torch.export, Argos Translate.

    python benchmarks/round_trips.py RUN [--sentences 300] [--only-trained]

RUN is a trained model, for example that of `regard demo`. Its validation sentences are translated with greedy search
and with beam 4; models with random weights, one for every option (tests/interop/random_models.py), translate random
sentences. Tokens must be equal, or score equally within rounding (ties), and log-probabilities must agree within 1e-4.
Engines differ when they truncate at the maximum length, so only sentences whose translations end before it are used.
Writes benchmarks/results/round-trips.json, and fails if anything differs.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import default_threads, environment, save_result

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

PACKAGES = ("transformers", "ctranslate2", "onnxruntime", "sentencepiece")
BATCH, MAX_SAMPLES = 50, 6_000
Sources = Sequence[Tokens]
Row = dict[str, Any]
Check = Callable[[Translator, Sources, Path], Row]


def check_import(translator: Translator, sources: Sources, folder: Path) -> Row:
    """Export to transformers and import again; compare tokens and log-probabilities."""
    exported, imported = folder / "exported", folder / "imported"
    exported.mkdir()
    export_huggingface(translator, exported, sources[:8])
    import_model(exported, imported)
    translators = translator, Translator.load(imported)
    row: Row = {}
    requests = [DecodingRequest(source) for source in sources]
    for name, settings in SEARCHES.items():
        ours, theirs = (one.generator.generate(requests, settings) for one in translators)
        row[name] = [sum(a[0].tokens == b[0].tokens for a, b in zip(ours, theirs, strict=True)), len(sources)]
    targets = [hypotheses[0].tokens for hypotheses in ours]
    difference = 0.0
    for start in range(0, len(sources), BATCH):
        batch = slice(start, start + BATCH)
        before, after = (one.log_probs(sources[batch], targets[batch]) for one in translators)
        difference = max(difference, float((before - after).abs().max()))
    return row | {"largest_difference": difference}


def check_with(load: Callable[[Translator, Path, Sources], ExternalModel]) -> Check:
    """Compare with a model that another engine runs."""

    def check(translator: Translator, sources: Sources, folder: Path) -> Row:
        agreement = compare(translator, load(translator, folder, sources), sources)
        check_agreement(agreement, "it")
        return {
            **{name: list(identical) for name, identical in agreement.identical.items()},
            "ties": agreement.ties,
            "largest_difference": agreement.max_difference,
        }

    return check


def load_transformers(translator: Translator, folder: Path, sources: Sources) -> ExternalModel:
    return TransformersGenerator(build_huggingface(translator))


def load_ctranslate2(translator: Translator, folder: Path, sources: Sources) -> ExternalModel:
    save_ctranslate2(translator, folder)
    generator = Translator.load(folder).generator
    assert isinstance(generator, CTranslate2Generator)
    return generator


def load_onnx(translator: Translator, folder: Path, sources: Sources) -> ExternalModel:
    ONNX.export_translator(translator, folder, sources[:8])
    return ONNX.load_model(folder)


def load_torch_export(translator: Translator, folder: Path, sources: Sources) -> ExternalModel:
    TORCH.export_translator(translator, folder, sources[:8])
    return TORCH.load_model(folder)


def check_argos(translator: Translator, sources: Sources, folder: Path) -> Row:
    """Export a package; the export compares translations of Argos Translate from text to text."""
    return {"output": export_argos(translator, folder, sources, None)}


CHECKS: dict[str, Check] = {
    "transformers and back": check_import,
    "transformers": check_with(load_transformers),
    "ctranslate2": check_with(load_ctranslate2),
}
TRAINED_ONLY: dict[str, Check] = {
    "onnxruntime": check_with(load_onnx),
    "torch.export": check_with(load_torch_export),
    "argos": check_argos,
}


def run_checks(name: str, translator: Translator, sources: Sources, checks: dict[str, Check]) -> list[Row]:
    rows = []
    for format_name, check in checks.items():
        start = time.perf_counter()
        row: Row = {"model": name, "format": format_name, "sentences": len(sources)}
        with tempfile.TemporaryDirectory() as folder:
            try:
                row |= check(translator, sources, Path(folder))
            except UserError as error:
                row["error"] = str(error)
        row["seconds"] = round(time.perf_counter() - start, 1)
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return rows


def find_sources(translator: Translator, count: int) -> Sources:
    """Return up to `count` random sentences whose translations end before the maximum length in every search."""
    samples, selected = sample_sources(translator, count=MAX_SAMPLES), list[Tokens]()
    for start in range(0, len(samples), BATCH):
        batch = samples[start : start + BATCH]
        ended = [True] * len(batch)
        for settings in SEARCHES.values():
            beams = translator.generator.generate([DecodingRequest(source) for source in batch], settings)
            ended = [
                before and ended_before_limit(beam, source, settings)
                for before, beam, source in zip(ended, beams, batch, strict=True)
            ]
        selected += [source for source, ends in zip(batch, ended, strict=True) if ends]
        if len(selected) >= count:
            break
    return selected[:count]


def differs(row: Row) -> bool:
    """Return whether outputs differ; an option that a format does not support is not a difference."""
    if "error" in row:
        return "nothing was written" in row["error"] or "differs from" in row["error"]
    ties = row.get("ties", {})
    unequal = [name for name in SEARCHES if name in row and row[name][0] + ties.get(name, 0) != row[name][1]]
    return bool(unequal) or not row.get("largest_difference", 0.0) <= TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a training run of a translation model")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--only-trained", action="store_true", help="skip the models with random weights")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--out", type=Path, help="result file, instead of one in benchmarks/results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    translator = Translator.load(arguments.run)
    texts = [pair.source for pair in read_jsonl(arguments.run / "data" / "valid.jsonl")][: arguments.sentences]
    if len(texts) < arguments.sentences:
        sys.exit(f"{arguments.run} has only {len(texts)} validation sentences, less than {arguments.sentences}")
    rows = run_checks("trained", translator, sample_sources(translator, texts), CHECKS | TRAINED_ONLY)
    if not arguments.only_trained:
        sys.path.append(str(Path(__file__).parent.parent))  # for tests
        from tests.interop.random_models import OPTIONS, random_translator

        for option in OPTIONS:
            model = random_translator(option)
            rows += run_checks(option, model, find_sources(model, arguments.sentences), CHECKS)
    result = {
        "what": f"equal tokens with greedy search and beam 4, as [equal, compared]; log-probabilities within "
        f"{TOLERANCE:g}; ties: different tokens whose scores agree within {TOLERANCE:g}",
        "rows": rows,
        **environment("cpu", *PACKAGES),
    }
    save_result(result, arguments.out or "round-trips")
    if failed := [f"{row['model']}, {row['format']}" for row in rows if differs(row)]:
        sys.exit("different outputs: " + "; ".join(failed))


if __name__ == "__main__":
    main()
