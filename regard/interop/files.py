"""Read files from untrusted sources, without executing code and without using more memory than the file size."""

import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError, one_line
from regard.files import MissingFileError, check_regular, read_json
from regard.models.folder import read_safetensors

SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MAX_SHARING = 8
"""Maximum ratio of the tensors' total size to the file size. A translator's embedding may have up to four names."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: contains {type(content).__name__}, not an object")
    return content


def read_optional_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object; empty if there is no such file."""
    try:
        return read_json_object(path)
    except MissingFileError:
        return {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file in readable form."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of a folder of transformers or timm, preferring safetensors."""
    readers = {
        SAFETENSORS: read_tensors,
        SAFETENSORS_INDEX: _read_shards,
        PICKLE: read_tensors,
        PICKLE_INDEX: _read_shards,
    }
    for name, read in readers.items():
        if (folder / name).exists():
            return read(folder / name)
    raise UserError(f"{folder}: no weights found; expected one of {', '.join(readers)}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors, .bin or .pt file. No code in it is executed."""
    return read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a pickle of PyTorch without executing code."""
    check_regular(path)
    _check_archive(path)
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # damaged pickles raise any exception
        raise UserError(
            f"{path}: damaged, or contains Python objects other than tensors, which are not loaded because they could "
            f"execute code{_name_of_global(error)}; save only the tensors, as safetensors"
        ) from None
    for key in ("state_dict", "model"):  # used by training scripts that save other objects along with the weights
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: contains {type(content).__name__}, not named tensors")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise UserError(f"{path}: {name!r} is {type(tensor).__name__}, not a dense tensor")
    _check_sizes(path, content)
    return content


def _check_sizes(path: Path, tensors: dict[str, Tensor]) -> None:
    """Reject expanded views, which could require any amount of memory when copied."""
    for name, tensor in tensors.items():
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise UserError(f"{path}: {name} has shape {list(tensor.shape)}, which exceeds its data in the file")
    if sum(tensor.nbytes for tensor in tensors.values()) > MAX_SHARING * path.stat().st_size:
        raise UserError(f"{path}: its tensors share memory and are together many times larger than the file")


def _check_archive(path: Path) -> None:
    """Reject files that torch.save does not write, such as zip bombs."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UserError(
            f"{path}: damaged, or written by torch before 1.6 ({one_line(error)}); save it again as safetensors"
        ) from None
    compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if compressed or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise UserError(f"{path}: its entries are compressed or larger than the file, so torch did not write it")


def _read_shards(index: Path) -> dict[str, Tensor]:
    return {name: t for shard in _shard_names(index) for name, t in read_tensors(index.parent / shard).items()}


def _shard_names(index: Path) -> list[str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise UserError(f"{index}: damaged (weight_map must be an object with a file for each tensor)")
    for name in weight_map.values():
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(f"{index}: {name!r} is not the name of a file in the same folder")
    return sorted(set(weight_map.values()))


def _name_of_global(error: BaseException) -> str:
    """Return the Python global that a pickle refers to. The rest of torch's message recommends loading it unsafely."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f" (it refers to {found[1]})" if found else ""
