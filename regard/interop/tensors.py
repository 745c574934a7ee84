"""Files of tensors from elsewhere: read without running anything in them, and in no more memory than they fill."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from regard.errors import UserError

SAFE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SHARED = 8
"""Under so many names a file may hold all of its numbers: a translator's embedding has up to four."""


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder of transformers or timm; safetensors are preferred.

    Raises:
        UserError: there are none, or a file is damaged.
    """
    if (folder / SAFE).is_file():
        return read_tensors(folder / SAFE)
    if (folder / INDEX).is_file():
        return _read_parts(folder / INDEX)
    if (folder / PICKLED).is_file():
        return read_tensors(folder / PICKLED)
    if (folder / PICKLED_INDEX).is_file():
        return _read_parts(folder / PICKLED_INDEX)
    raise UserError(f"{folder}: no weights in it; looked for {SAFE}, {INDEX}, {PICKLED} and {PICKLED_INDEX}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .bin or .pt that torch has saved.

    Raises:
        UserError: the file is missing, damaged, or holds anything but tensors by name; nothing in it is run.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        try:
            return safetensors.torch.load_file(path)
        except Exception as error:  # the library's own, and what Python makes of a name or a type that it does not know
            raise UserError(f"{path}: damaged or not a safetensors file ({_one_line(error)})") from None
    return _read_pickled(path)


def _read_pickled(path: Path) -> dict[str, Tensor]:
    _check_archive(path)
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged pickle may fail in any way
        raise UserError(
            f"{path}: damaged, or holds more than tensors, which is not loaded because it could run code"
            f"{_named_global(error)}; save the tensors alone, as safetensors"
        ) from None
    for key in ("state_dict", "model"):  # where training scripts put the weights beside other things
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: holds {type(content).__name__}, not tensors by name")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise UserError(f"{path}: {name!r} is {type(tensor).__name__}, not a plain tensor")
    _check_sizes(path, content)
    return content


def _check_sizes(path: Path, tensors: dict[str, Tensor]) -> None:
    """Refuses views without end: a tensor may say that it repeats one number a million times."""
    for name, tensor in tensors.items():
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise UserError(f"{path}: {name} says that it is {list(tensor.shape)}, which the file does not hold")
    if sum(tensor.nbytes for tensor in tensors.values()) > SHARED * path.stat().st_size:
        raise UserError(f"{path}: its tensors share their numbers, and say that they are many times the file")


def _check_archive(path: Path) -> None:
    """Refuses what is no archive of torch, and one that says it is larger than it is."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UserError(
            f"{path}: damaged, or of before torch 1.6 ({_one_line(error)}); save it again as safetensors"
        ) from None
    size = path.stat().st_size
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
        raise UserError(f"{path}: its parts are compressed or larger than the file, which torch never writes")


def _read_parts(index: Path) -> dict[str, Tensor]:
    return {name: t for part in _parts(index) for name, t in read_tensors(index.parent / part).items()}


def _parts(index: Path) -> list[str]:
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        names = sorted(set(places))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{index}: damaged ({_one_line(error)})") from None
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(f"{index}: {name!r} is not the name of a file beside it")
    return names


def _named_global(error: BaseException) -> str:
    """What of Python a pickle asks for; the rest of torch's message advises to load it all the same."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f" (it names {found[1]})" if found else ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
