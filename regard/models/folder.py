"""The model folder: config.json and model.safetensors, written whole or not at all, and no pickle.

Whoever saves a model may add files of their own (a tokenizer, scores); whoever loads it finds them beside these two.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.base import Model
from regard.models.registry import MODELS, InputType

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FOREIGN_CONFIG = "regard.json"
"""What config.json says, in a folder that another program calls its own and whose weights are in its format."""
FORMAT = 1
NO_ROOM = 2**16
"""So few bytes are left on a disk where something could not be written for want of them."""
_EXPORTS = {
    "*.argosmodel": "a package for Argos Translate; install it there, or use the model that it was made of",
    "*.onnx": "an export for onnxruntime; run it there, or use the model that it was made of",
    "*.pt2": "an export for PyTorch; load it there with torch.export, or use the model that it was made of",
    "model.bin": "an export for CTranslate2, which regard translate and regard serve take; for all else, use the model "
    "that it was made of",
}
"""Files that tell for which program a folder was written."""


def save_model(folder: Path, model: Model, about: dict[str, Any]) -> None:
    """Writes the model's two files into an existing folder; `about` is kept in config.json beside the model's own."""
    save_config(folder / CONFIG, model, about)
    safetensors.torch.save_file(unique_tensors(model), folder / WEIGHTS, metadata={"format": "pt"})


def save_config(path: Path, model: Model, about: dict[str, Any]) -> None:
    """Writes what a model is built from, and what else is known of it."""
    config = {"format": FORMAT, "model": model.config.model_dump(mode="json")} | about
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[Any, dict[str, Any]]:
    """The model, in evaluation mode, and the whole of config.json.

    Raises:
        UserError: a file is missing, damaged, or does not fit the other; it is named.
    """
    config = read_config(folder)
    path = folder / WEIGHTS
    outline = build_on_meta(config, folder / CONFIG)  # so that an absurd config costs nothing before it is refused
    try:
        tensors = safetensors.torch.load_file(path, device=str(device))
    except FileNotFoundError:
        if path.exists():  # safetensors says so, too, of a file that may not be read
            raise UserError(f"{path}: cannot be read; see its permissions") from None
        raise UserError(f"{path}: no such file; a model folder holds {CONFIG}, {WEIGHTS} and its tokenizer") from None
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged or not a safetensors file ({error})") from None
    expected = unique_tensors(outline)
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected:
            lack = "lacks" if name not in tensors else "holds an unknown"
            raise UserError(f"{path}: {lack} tensor {name}, so it does not belong to {CONFIG} beside it")
        if tensors[name].shape != expected[name].shape:
            raise UserError(
                f"{path}: tensor {name} is {list(tensors[name].shape)}, {CONFIG} says {list(expected[name].shape)}"
            )
    model = MODELS[model_kind(folder, config)].build(config["model"], f"{folder / CONFIG}: model")
    model.load_state_dict(tensors, strict=False)
    return model.to(device).eval(), config


def build_on_meta(config: dict[str, Any], path: Path) -> Any:
    """The model that the config in this file describes, in evaluation mode: shapes without weights or memory.

    Raises:
        UserError: there is no such model.
    """
    kind, where = MODELS[model_kind(path.parent, config)], f"{path}: model"
    return kind.build_on_meta(kind.config.parse(config["model"], where), where).eval()


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """config.json of a model folder, or its like, checked only as far as every model shares it."""
    path = folder / name
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: no {name} in it, so it is not a model folder") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged or not JSON ({error})") from None
    if not isinstance(config, dict) or not _is_ours(config):
        other = describe_export(folder)
        raise UserError(f"{folder} is {other}" if other else f"{path}: not a regard model folder of format {FORMAT}")
    return config


def model_kind(folder: Path, config: dict[str, Any]) -> str:
    """Which of `MODELS` a config.json describes.

    Raises:
        UserError: none of them.
    """
    values = config["model"]
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in MODELS:
        raise UserError(f"{folder / CONFIG}: model.kind is {kind!r}; this version knows {', '.join(MODELS)}")
    return kind


def check_input_type(folder: Path, wanted: InputType) -> None:
    """Does nothing where the model of a folder reads such things.

    Raises:
        UserError: it is no model folder, or its model reads others.
    """
    found = model_input_type(folder)
    if found != wanted:
        hint = {
            "text": "a text model; use regard translate",
            "images": "an image model; use regard classify",
            "pairs": "a model of two views; use regard look with both, or regard.CroCo from Python",
            "sentences": "a model of the vectors of sentences; use regard embed",
        }
        raise UserError(f"{folder} is {hint[found]}")


def model_input_type(folder: Path) -> InputType:
    """What the model of a folder reads.

    Raises:
        UserError: it is no model folder.
    """
    return MODELS[model_kind(folder, read_config(folder))].input_type


def find_model_folder(path: Path) -> Path:
    """The model folder meant by `path`: itself, or the best model of the run that it is."""
    if (path / CONFIG).is_file():
        return path
    for folder in (path / "best", path / "last"):  # a damaged best model is refused, not passed over
        if folder.is_dir():
            return folder
    if not path.exists():
        raise UserError(f"{path}: no such model folder")
    if export := describe_export(path):
        raise UserError(f"{path} is {export}")
    if (path / "checkpoints").is_dir():
        raise UserError(f"{path}: a run without a model yet, which comes with its first validation; let it go on")
    raise UserError(f"{path}: not a model folder ({CONFIG} is missing) nor a run with one in best/ or last/")


def is_model_folder(path: Path) -> bool:
    """Whether a path is a model folder of ours, or a run that holds one."""
    return any(_is_ours(_glance(folder)) for folder in (path, path / "best", path / "last"))


def describe_export(folder: Path) -> str | None:
    """What a folder is that is written for another program, and what to do with it; None: it is none that we know."""
    if "model_type" in _glance(folder):
        return "a folder of transformers; bring it in with regard import"
    return next((what for pattern, what in _EXPORTS.items() if any(folder.glob(pattern))), None)


def _is_ours(config: dict[str, Any]) -> bool:
    return config.get("format") == FORMAT and "model" in config


def _glance(folder: Path) -> dict[str, Any]:
    """What config.json of a folder holds; nothing where it is missing or damaged."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors by name, each shared one once, under its first name."""
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            named[name] = tensor.detach().contiguous()
    return named


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A fresh folder to write into, which takes the place of `folder` once the block has ended without an error.

    Raises:
        UserError: nothing can be written there, or the disk is full.
    """
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); give a path where you may write") from None
    fresh, old = room / "new", room / "old"
    try:
        fresh.mkdir()
        yield fresh
        for path in fresh.rglob("*"):
            if path.is_file():
                path.chmod(0o666 & ~_umask())  # safetensors lets nobody but the owner read
            fsync(path)
        fsync(fresh)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        fsync(folder.parent)
    except BaseException as error:
        if old.exists():
            old.rename(folder)
        if isinstance(error, Exception) and _is_for_want_of_room(error, room):
            raise UserError(f"{folder}: the disk is full; make room, or give a path on another one") from None
        raise
    finally:
        shutil.rmtree(room, ignore_errors=True)
        _remove_empty(missing)


def _remove_empty(folders: list[Path]) -> None:
    """Removes these folders, innermost first, as far as there is nothing in them."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _is_for_want_of_room(error: Exception, room: Path) -> bool:
    """Whoever writes into a folder has errors of their own for a full disk, some of which do not say so."""
    return os.strerror(errno.ENOSPC) in str(error) or shutil.disk_usage(room).free < NO_ROOM


def recover_folder(folder: Path) -> None:
    """Restore the previous folder after a process was killed inside `replace_folder`."""
    for room in folder.parent.glob(f".{folder.name}.*"):
        if (room / "old").exists() and not folder.exists():
            (room / "old").rename(folder)
        shutil.rmtree(room)


def fsync(path: Path) -> None:
    """Returns once a file or the entries of a folder are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
