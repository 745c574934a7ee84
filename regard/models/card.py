"""The model card: what a folder's own files say about its model, as a README.md that model hubs understand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from regard.models.folder import read_config

CARD = "README.md"
SCORES, FINGERPRINTS = "scores.json", "fingerprints.json"
_TASKS = {"transformer": "translation", "nat": "translation", "vit": "image-classification"}
_TASKS |= {"swin": "image-classification", "bert": "sentence-similarity"}


def build_card(folder: Path, library: str = "regard") -> str:
    """The card of a model folder: its architecture, its data where the run is still round it, its scores.

    `library` is what model hubs call the program that loads the files beside the card.

    Raises:
        UserError: it is no model folder.
    """
    about = read_config(folder)
    model = about["model"]
    languages = [code for code in about.get("languages", []) if code not in ("source", "target")]
    scores = _read(folder / SCORES)
    evaluations = [e for e in scores.get("evaluations", []) if isinstance(e, Mapping)]
    title = " → ".join(languages) if languages else f"A {model['kind']}"
    head: dict[str, Any] = {"library_name": library, "tags": ["regard", model["kind"]]}
    if task := _TASKS.get(model["kind"]):
        head["pipeline_tag"] = task
    if languages:
        head["language"] = languages
    lines = ["---", yaml.safe_dump(head, sort_keys=False, allow_unicode=True).strip(), "---", "", f"# {title}", ""]
    lines += ["Trained with regard.", "", "## Architecture", "", "| setting | value |", "| --- | --- |"]
    lines += [f"| {key} | {json.dumps(value, ensure_ascii=False)} |" for key, value in model.items()]
    lines += _describe_data(_read(find_fingerprints(folder)))
    lines += ["", "## Scores", ""]
    said = [*_describe_scores(evaluations), *_describe_validation(scores)]
    lines += said or ["None were recorded; `regard evaluate` records them."]
    return "\n".join(lines) + "\n"


def find_fingerprints(folder: Path) -> Path:
    """Where it stands what a model was trained with: in its folder, or with the data of the run round it."""
    own = folder / FINGERPRINTS
    return own if own.is_file() else folder.parent / "data" / FINGERPRINTS


def _describe_data(known: Mapping[str, Any]) -> list[str]:
    files, settings = known.get("files"), known.get("settings")
    entries = dict(files) if isinstance(files, Mapping) else {}
    if not entries and isinstance(tokens := known.get("tokens"), str):  # a corpus that comes with regard has no files
        name = settings.get("data.builtin") if isinstance(settings, Mapping) else None
        entries = {f"tokens of {name or 'the corpus'}": {"sha256": tokens}, "validation": known.get("valid", {})}
    if not entries:
        return []
    # Sets of images have a checksum over all of their files, and nothing else.
    rows = [
        f"| {name} | {entry.get('bytes', '')} | {str(entry.get('sha256'))[:12]} |"
        for name, entry in ((name, e if isinstance(e, Mapping) else {"sha256": e}) for name, e in entries.items())
    ]
    return ["", "## Training data", "", "| file | bytes | SHA-256 |", "| --- | --- | --- |", *rows]


def _describe_scores(evaluations: list[Mapping[str, Any]]) -> Iterator[str]:
    for evaluation in evaluations:
        conditions = evaluation.get("conditions", {})
        data = conditions.get("data", {})
        yield f"On {data.get('lines')} sentences (data {data.get('sha256')}), {evaluation.get('date')}:"
        yield ""
        for name, value in evaluation.get("scores", {}).items():
            signature = conditions.get("signatures", {}).get(name, "")
            yield f"- {name} {value:.2f}" + (f" (`{signature}`)" if signature else "")
        yield ""


def _describe_validation(scores: Mapping[str, Any]) -> Iterator[str]:
    """What training measured to choose the model by, which is no test."""
    validation = scores.get("validation")
    if not isinstance(validation, Mapping) or not validation:
        return
    yield f"On the validation data, by which the model was chosen, at step {scores.get('step')}:"
    yield ""
    for name, value in validation.items():
        if name != "score" and isinstance(value, int | float):  # one of the others again
            yield f"- validation {name} {value:.4g}"
    yield ""


def _read(path: Path) -> Mapping[str, Any]:
    """What a JSON file holds; nothing where it is missing or damaged: a card says what it can."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}
