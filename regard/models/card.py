"""`save_pretrained`, and descriptions of a model: one for `repr`, and the model card, a README.md as in model hubs."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from regard.errors import UserError
from regard.files import read_json
from regard.layers import InputType, Model
from regard.models.folder import CONFIG, MODELS, WEIGHTS, read_config, read_safetensors, replace_folder, unique_tensors
from regard.registry import EXTENSIONS, list_extensions

CARD = "README.md"
SCORES, FINGERPRINTS, CONFIDENCE = "scores.json", "fingerprints.json", "confidence.json"
PIPELINE_TAGS: dict[InputType, str] = {
    "text": "translation",
    "images": "image-classification",
    "sentences": "sentence-similarity",
}


def save_pretrained(
    folder: Path, save: Callable[[Path], None], model: Model, source_folder: Path | None = None
) -> None:
    """Write a model folder with a card.

    Args:
        folder: A new or empty folder, or a model folder, which is replaced.
        save: Writes the files of the model into an existing folder.
        model: The model.
        source_folder: Folder from which the model was loaded. If its weights are unchanged, its scores, its confidence
            and the fingerprints of its training data are copied.
    """
    if any(tensor.is_meta for tensor in model.parameters()):
        raise UserError("the weights are in another engine; load the model with the engine regard to save it")
    _check_replaceable(folder)
    with replace_folder(folder) as new:
        save(new)
        if source_folder is not None and _has_saved_weights(model, source_folder):
            files = {name: source_folder / name for name in (SCORES, CONFIDENCE)}
            files[FINGERPRINTS] = find_fingerprints(source_folder)
            for name, path in files.items():
                if path.is_file():
                    shutil.copyfile(path, new / name)
        (new / CARD).write_text(build_card(new), encoding="utf-8")


def describe_model(model: nn.Module) -> str:
    """Return the class, number of parameters and device of a model, for `repr`."""
    parameters = list(model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    return f"{type(model).__name__}, {count / 1e6:.2f} M parameters, {parameters[0].device}"


def build_card(folder: Path, library: str = "regard", usage: str = "") -> str:
    """Build the card of a model folder: architecture, training data if known, and scores.

    `library` is the name under which model hubs know the library that loads the files; `usage` follows the title.
    """
    config = read_config(folder)
    model = config["model"]
    listed = config.get("languages")
    languages = [str(code) for code in (listed if isinstance(listed, list) else ()) if code not in ("source", "target")]
    scores = _read_json(folder / SCORES)
    metadata: dict[str, Any] = {"library_name": library, "tags": ["regard", model["kind"]]}
    if tag := PIPELINE_TAGS.get(MODELS[model["kind"]].input_type):
        metadata["pipeline_tag"] = tag
    if languages:
        metadata["language"] = languages
    title = " → ".join(languages) if languages else f"A {model['kind']}"
    lines = ["---", yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).strip(), "---", "", f"# {title}", ""]
    lines += ["Trained with regard.", ""]
    lines += [usage, ""] if usage else []
    lines += ["## Architecture", "", "| setting | value |", "| --- | --- |"]
    lines += [f"| {key} | {json.dumps(value, ensure_ascii=False)} |" for key, value in model.items()]
    for noun, name, origin in list_extensions(config.get(EXTENSIONS)):
        lines += ["", f"Needs the {noun} `{name}` of `{origin}`."]
    lines += _data_lines(_read_json(find_fingerprints(folder)))
    lines += ["", "## Scores", ""]
    lines += [*_score_lines(scores), *_validation_lines(scores)] or ["No scores yet; `regard evaluate` adds them."]
    return "\n".join(lines) + "\n"


def find_fingerprints(folder: Path) -> Path:
    """Return the path of the fingerprints of the training data: in the model folder, or in the run around it."""
    own = folder / FINGERPRINTS
    return own if own.is_file() else folder.parent / "data" / FINGERPRINTS


def _data_lines(fingerprints: Mapping[str, Any]) -> list[str]:
    """Return a Markdown table of the files of the training data with their checksums; empty if they are unknown."""
    entries = dict(_mapping(fingerprints.get("files")))
    if not entries and isinstance(tokens := fingerprints.get("tokens"), str):  # a built-in corpus has no files
        name = _mapping(fingerprints.get("settings")).get("data.builtin")
        entries = {f"tokens of {name or 'the corpus'}": {"sha256": tokens}, "validation": fingerprints.get("valid", {})}
    if not entries:
        return []
    # The entry of an image dataset is a checksum of all its files.
    rows = [
        f"| {name} | {entry.get('bytes', '')} | {str(entry.get('sha256'))[:12]} |"
        for name, entry in ((name, e if isinstance(e, Mapping) else {"sha256": e}) for name, e in entries.items())
    ]
    return ["", "## Training data", "", "| file | bytes | SHA-256 |", "| --- | --- | --- |", *rows]


def _is_score(value: Any) -> bool:
    """Return whether a value of a score file is a number that can be formatted; huge integers cannot."""
    return isinstance(value, int | float) and abs(value) < 1e9


def _score_lines(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield the scores of every evaluation as Markdown; values of an unexpected type are left out."""
    evaluations = scores.get("evaluations")
    for evaluation in map(_mapping, evaluations if isinstance(evaluations, list) else ()):
        conditions = _mapping(evaluation.get("conditions"))
        data, signatures = _mapping(conditions.get("data")), _mapping(conditions.get("signatures"))
        yield f"On {data.get('lines')} sentences (data {data.get('sha256')}), {evaluation.get('date')}:"
        yield ""
        for name, value in _mapping(evaluation.get("scores")).items():
            if _is_score(value):
                yield f"- {name} {value:.2f}" + (f" (`{signatures[name]}`)" if signatures.get(name) else "")
        yield ""


def _validation_lines(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield the scores of the validation as Markdown."""
    validation = _mapping(scores.get("validation"))
    if not validation:
        return
    yield f"On the validation data, which selected the model, at step {scores.get('step')}:"
    yield ""
    for name, value in validation.items():
        if name != "score" and _is_score(value):  # "score" repeats one of the others
            yield f"- validation {name} {value:.4g}"
    yield ""


def _check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another name for the folder")
    files = list(folder.iterdir())
    if files and not ((folder / CONFIG).is_file() and all(path.is_file() for path in files)):
        raise UserError(f"{folder} contains files that are not part of a model folder; choose another, or empty it")


def _has_saved_weights(model: Model, folder: Path) -> bool:
    try:
        saved = read_safetensors(folder / WEIGHTS)
    except UserError:
        return False
    tensors = unique_tensors(model)
    return tensors.keys() == saved.keys() and all(torch.equal(tensors[name].cpu(), saved[name]) for name in saved)


def _read_json(path: Path) -> Mapping[str, Any]:
    """Return the contents of a JSON file; empty if it is missing or damaged, since a card needs none of them."""
    try:
        return _mapping(read_json(path))
    except UserError:
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
