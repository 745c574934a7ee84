"""What a run folder remembers of its beginning, and whether a command may go on with it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from regard.decoding.translator import Vocabularies
from regard.errors import UserError
from regard.models.folder import mend_replaced, replacing
from regard.text.batching import ParallelTokens
from regard.training.checkpoint import replace_text
from regard.training.journal import LOG
from regard.training.recipe import FROM_TOKENIZER, DataSettings, Recipe

RECIPE, DATA, FINGERPRINTS = "recipe.yaml", "data", "fingerprints.json"
FILES = ("source", "target", "valid_source", "valid_target")
MAY_CHANGE = (
    "optim.max_skips",
    "training.log_every",
    "training.validate_every",
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "training.samples",
    "training.tensorboard",
    "training.device",
    "training.sharding",
    "training.patience",
)


def is_run(out: Path) -> bool:
    """Whether a run began here that can go on."""
    return (out / RECIPE).is_file() and (out / DATA / FINGERPRINTS).is_file()


def is_unused(out: Path) -> bool:
    """Whether a run may begin here: there is nothing, or only what a run left that was killed before its first step."""
    if not out.exists():
        return True
    if not out.is_dir():
        return False
    names = {path.name for path in out.iterdir() if not path.name.startswith(f".{DATA}.")} - {f".{RECIPE}"}
    return not names or (names == {DATA} and (out / DATA / FINGERPRINTS).is_file())


@contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Keeps the run folder to this process while the block runs.

    Raises:
        UserError: another process trains here.
    """
    number = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{out}: another process is training here; wait for it or choose another --out") from None
        except OSError:
            pass  # some file systems know no locks, and a run is no worse for that
        yield
    finally:
        os.close(number)


def write_beginning(out: Path, recipe: Recipe, vocabularies: Vocabularies, corpora: Iterable[ParallelTokens]) -> None:
    """Keeps the tokenizer and fingerprints of the data, then the recipe, with which the folder becomes a run."""
    mend_replaced(out / DATA)
    with replacing(out / DATA) as folder:
        vocabularies.save(folder)
        known = {"files": fingerprint_files(recipe.data), "tokens": fingerprint_tokens(corpora)}
        (folder / FINGERPRINTS).write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    write_recipe(out, recipe)


def write_recipe(out: Path, recipe: Recipe) -> None:
    """Keeps the recipe, with all its defaults."""
    replace_text(out / RECIPE, yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def tidy(out: Path, step: int) -> None:
    """Makes a run folder what it was after `step`: half-replaced models are back, later lines of the log are gone."""
    for name in ("best", "last", DATA):
        mend_replaced(out / name)
    path = out / LOG
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        replace_text(path, "".join(f"{line}\n" for line in lines if _logged_step(line) <= step))


def check_settings(old: Recipe, new: Recipe, step: int, out: Path) -> None:
    """Refuses a recipe under which the steps already done would have been other ones.

    Raises:
        UserError: a setting differs; it is named with both values.
    """
    before, now = _flatten(old), _flatten(new)
    for key in before:
        if key == "training.steps" or key in MAY_CHANGE or before[key] == now[key]:
            continue
        raise UserError(
            f"{out}: the run began with {key}={_show(before[key])}, not {_show(now[key])}; go on with the old value or "
            "choose another --out"
        )
    if old.training.steps == new.training.steps:
        return
    said = f"{out}: training.steps cannot change from {old.training.steps} to {new.training.steps}"
    if old.optim.schedule == "cosine":
        raise UserError(f"{said}, since the cosine schedule of the steps already done depends on it")
    if not old.training.ema and step >= min(old.training.average_from, new.training.average_from):
        raise UserError(f"{said} at step {step}, since the weights are averaged from a step that depends on it")


def check_files(out: Path, data: DataSettings) -> None:
    """Refuses files that are not what they were when the run began; where they lie does not matter.

    Raises:
        UserError: a file has changed; it is named.
    """
    before = read_fingerprints(out)["files"]
    for key, now in fingerprint_files(data).items():
        if before[key] != now:
            raise UserError(
                f"{getattr(data, key)}: has changed since the run in {out} began ({before[key]['bytes']} bytes then, "
                f"{now['bytes']} now); put the old file back or choose another --out"
            )


def check_tokens(out: Path, corpora: Iterable[ParallelTokens]) -> None:
    """Refuses a corpus whose tokens are not what they were when the run began.

    Raises:
        UserError: the same files or the built-in corpus give other tokens, as another version of regard may cause.
    """
    if read_fingerprints(out)["tokens"] != fingerprint_tokens(corpora):
        raise UserError(f"{out}: the corpus gives other tokens than when the run began; begin a new run")


def read_fingerprints(out: Path) -> dict[str, Any]:
    """What `write_beginning` found the data to be.

    Raises:
        UserError: the file is damaged.
    """
    path = out / DATA / FINGERPRINTS
    try:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {"files": dict(known["files"]), "tokens": str(known["tokens"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error}), so the run cannot go on; begin a new one") from None


def fingerprint_files(data: DataSettings) -> dict[str, dict[str, Any]]:
    """Size and checksum of each file of the corpus, by its setting."""
    found = {}
    for key in FILES:
        path: Path | None = getattr(data, key)
        if path is None:
            continue
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                found[key] = {"bytes": file.tell(), "sha256": digest}
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return found


def fingerprint_tokens(corpora: Iterable[ParallelTokens]) -> str:
    """One checksum of all tokens."""
    digest = hashlib.sha256()
    for corpus in corpora:
        for side in (corpus.source, corpus.target):
            digest.update(side.offsets.tobytes())
            digest.update(side.tokens.tobytes())
    return digest.hexdigest()


def _flatten(recipe: Recipe) -> dict[str, Any]:
    """Every setting by its full name: the model's with its preset filled in, a file's only as given or not."""
    values = recipe.model_dump(mode="json")
    model = recipe.model_config_for(8, 8).model_dump(mode="json")
    values["model"] = {key: value for key, value in model.items() if key not in FROM_TOKENIZER}
    values["data"] |= {key: "a file" for key in FILES if values["data"][key] is not None}
    values["data"]["languages"] = list(recipe.data.language_pair())
    return {f"{group}.{key}": value for group, part in values.items() for key, value in part.items()}


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _logged_step(line: str) -> float:
    """The step of a line of the log; a line that was cut off in the middle belongs to none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
