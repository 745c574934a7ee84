"""The models by kind, and the model folder: config.json and model.safetensors, replaced atomically, without pickle.

A pipeline adds its own files, such as a tokenizer and scores.
"""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
from pydantic import Field, StrictInt
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.config import Settings
from regard.errors import UserError, one_line
from regard.files import MissingFileError, check_regular, read_json, report_unreadable
from regard.layers import InputType, Model
from regard.models.bert import Bert
from regard.models.croco import CroCo
from regard.models.nat import NATransformer
from regard.models.swin import Swin
from regard.models.transformer import Transformer
from regard.models.vit import ViT
from regard.registry import EXTENSIONS, check_extensions, find_extensions, name_of_settings, register

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FOREIGN_CONFIG = "regard.json"
"""Our config.json in a folder of another program, which has a config.json of its own."""
FORMAT = 1
FULL_DISK = 2**16
"""A write that fails with fewer free bytes than this has failed because the disk is full."""
EXPORTS = {
    "*.argosmodel": "a package for Argos Translate; install it there, or convert it with regard import",
    "*.onnx": "an export for onnxruntime; run it there, or use the model it was exported from",
    "*.pt2": "an export for PyTorch; load it with torch.export, or use the model it was exported from",
    "model.bin": "an export for CTranslate2, which regard translate and regard serve accept; for other commands "
    "convert it with regard import",
}
"""Description of exported folders by a file that they contain."""
HINTS: dict[InputType, str] = {
    "text": "a text model; use regard translate",
    "images": "an image model; use regard classify",
    "pairs": "a model of two views; use regard look with both views, or regard.CroCo in Python",
    "sentences": "a model of sentence embeddings; use regard embed",
}


class TranslationMetadata(Settings):
    """What the configuration file of a translation model states besides the architecture."""

    languages: tuple[str, str] = Field(("source", "target"), description="codes of the languages, such as en and zh")
    directions: tuple[tuple[str, str], ...] = Field((), description="all pairs of languages, if there are several")
    longest_source: StrictInt | None = Field(None, gt=0, description="tokens of the longest training source")
    longest: StrictInt | None = Field(None, description="of an export: maximum number of tokens of either side")
    files: dict[str, Any] = Field({}, description="of an export: sizes and checksums of the other files")

    @classmethod
    def select(cls, values: Mapping[str, Any], path: Path) -> Self:
        """Parse the keys of a configuration file that belong to these settings."""
        return cls.parse({name: values[name] for name in cls.model_fields if name in values}, str(path))


for model_type in (Transformer, NATransformer, ViT, Swin, CroCo, Bert):
    register(model_type)
MODELS = Model.registry


def save_model(folder: Path, model: Model, metadata: dict[str, Any]) -> None:
    """Write config.json, with the metadata added to it, and model.safetensors into an existing folder."""
    save_config(folder / CONFIG, model, metadata)
    safetensors.torch.save_file(unique_tensors(model), folder / WEIGHTS, metadata={"format": "pt"})


def save_config(path: Path, model: Model, metadata: dict[str, Any]) -> None:
    """Write the configuration of a model and the metadata, which are further keys of the file."""
    config = {"format": FORMAT, "model": model.config.model_dump(mode="json")} | metadata
    if extensions := find_extensions(classes_of(model)):
        config[EXTENSIONS] = extensions
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def classes_of(model: Any) -> list[type]:
    """Return the class of a model and those of the settings in its configuration, such as an attention kind."""
    model_type = MODELS[name_of_settings(type(model.config))]  # not type(model), which FSDP replaces
    return [model_type, *(type(value) for _, value in model.config)]


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[Any, dict[str, Any]]:
    """Load a model in evaluation mode. Return it and the contents of config.json."""
    config = read_config(folder)
    expected = unique_tensors(build_on_meta(config, folder / CONFIG))  # rejects excessive sizes without using memory
    path = folder / WEIGHTS
    try:
        tensors = read_safetensors(path, device)
    except MissingFileError as error:
        raise UserError(f"{error}; a model folder contains {CONFIG}, {WEIGHTS} and a tokenizer") from None
    _check_tensors(tensors, expected, path)
    _check_memory(expected, path)
    model_type = model_class(folder, config)
    model = model_type(model_type.config_type().parse(config["model"], f"{folder / CONFIG}: model"))
    model.load_state_dict(tensors, strict=False)
    return model.to(device).eval(), config


def read_safetensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file by name."""
    check_regular(path)
    try:
        return safetensors.torch.load_file(path, device=str(device))
    except FileNotFoundError:  # safetensors reports unreadable files as missing
        raise UserError(f"{path}: cannot be read; check its permissions") from None
    except Exception as error:  # besides its own errors, the library raises KeyError and others for unknown dtypes
        raise UserError(f"{path}: damaged or not a safetensors file ({one_line(error)})") from None


def _check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path) -> None:
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected:
            problem = "lacks" if name not in tensors else "contains an unknown"
            raise UserError(f"{path}: {problem} tensor {name}, so it does not belong to the {CONFIG} beside it")
        if tensors[name].shape != expected[name].shape:
            raise UserError(
                f"{path}: tensor {name} has shape {list(tensors[name].shape)}, but according to {CONFIG} it has "
                f"{list(expected[name].shape)}"
            )


def _check_memory(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Reject a model that exceeds the memory of the machine; a sparse file of any size takes no space on the disk."""
    needed = sum(tensor.nbytes for tensor in tensors.values())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise UserError(f"{path}: needs {needed / 1e9:,.0f} GB of memory, but this machine has {memory / 1e9:,.0f} GB")


def build_on_meta(config: dict[str, Any], path: Path) -> Any:
    """Build the model of a config.json in evaluation mode on the meta device, without memory for its tensors."""
    model_type, where = model_class(path.parent, config), f"{path}: model"
    return model_on_meta(model_type.config_type().parse(config["model"], where), where).eval()


def model_on_meta(config: Any, where: str) -> Model:
    """Build the model of a configuration on the meta device; `where` names the configuration in errors."""
    model_type = MODELS[config.kind]
    try:
        with torch.device("meta"), _Shapes():
            return model_type(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # the number of elements overflows
        if find_extensions([model_type]):  # or a bug of an extension
            raise
        reason = str(error).partition("\n")[0]
        raise UserError(f"{where}: describes a model that is too large for any memory ({reason})") from None


class _Shapes(TorchFunctionMode):
    """On the meta device, replaces the functions that would import torch's compiler, which takes a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return given["tensor"] if "tensor" in given else args[0]
        if func is torch.arange and all(type(arg) is int for arg in args):
            return torch.empty(len(range(*args)), dtype=given.get("dtype", torch.int64), device=given.get("device"))
        return func(*args, **given)


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """Read config.json. Only the entries that all models share are checked."""
    path = folder / name
    if not folder.is_dir():
        raise UserError(f"{folder}: no such model folder")
    try:
        config = read_json(path)
    except MissingFileError:
        raise UserError(f"{folder}: contains no {name}, so it is not a model folder") from None
    if not isinstance(config, dict) or not _is_ours(config):
        export = describe_export(folder)
        raise UserError(f"{folder} is {export}" if export else f"{path}: not a regard model folder of format {FORMAT}")
    if EXTENSIONS in config:
        check_extensions(config[EXTENSIONS], path)
    return config


def model_class(folder: Path, config: dict[str, Any]) -> type[Model]:
    """Return the class of the model that a config.json describes."""
    values = config["model"]
    kind: Any = values.get("kind") if isinstance(values, dict) else None
    try:
        return MODELS[kind]
    except (KeyError, TypeError):  # unknown, or not a string
        raise UserError(f"{folder / CONFIG}: model.kind is {kind!r}, not {MODELS.explain(kind)}") from None


def model_input_type(folder: Path) -> InputType:
    """Return the input type of the model in a folder."""
    return model_class(folder, read_config(folder)).input_type


def check_input_type(folder: Path, expected: InputType) -> None:
    """Check the input type of the model in a folder."""
    found = model_input_type(folder)
    if found != expected:
        raise UserError(f"{folder} is {HINTS[found]}")


def find_model_folder(path: Path) -> Path:
    """Return the path itself if it is a model folder, or the best model of a training run."""
    with report_unreadable(path):
        if (path / CONFIG).exists():
            return path
        for folder in (path / "best", path / "last"):  # a damaged best model is an error, no reason to use the last one
            if folder.is_dir():
                return folder
        if not path.exists():
            raise UserError(f"{path}: no such model folder")
    if export := describe_export(path):
        raise UserError(f"{path} is {export}")
    if (path / "checkpoints").is_dir():
        raise UserError(f"{path}: this run has no model yet; the first validation saves one, so continue the run")
    raise UserError(f"{path}: neither a model folder ({CONFIG} is missing) nor a run with a model in best/ or last/")


def is_model_folder(path: Path) -> bool:
    """Return whether a path is a model folder, or a run that contains one."""
    return any(_is_ours(_read_config_or_empty(folder)) for folder in (path, path / "best", path / "last"))


def is_exported(path: Path) -> bool:
    """Return whether a folder was written by `regard export --to ctranslate2`."""
    return (path / FOREIGN_CONFIG).is_file()


def describe_export(folder: Path) -> str | None:
    """Describe a folder that was written for another program, or return None."""
    if "model_type" in _read_config_or_empty(folder):
        return "a folder of transformers; convert it with regard import"
    return next((description for pattern, description in EXPORTS.items() if any(folder.glob(pattern))), None)


def _is_ours(config: dict[str, Any]) -> bool:
    return config.get("format") == FORMAT and "model" in config


def _read_config_or_empty(folder: Path) -> dict[str, Any]:
    try:
        config = read_json(folder / CONFIG)
    except UserError:
        return {}
    return config if isinstance(config, dict) else {}


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model by name; a shared tensor has its first name only."""
    named: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            named[name] = tensor.detach().contiguous()
    return named


# Atomic replacement


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to write into, which replaces `folder` if the block ends without an error."""
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        workspace = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose a writable path") from None
    new, old = workspace / "new", workspace / "old"
    try:
        new.mkdir()
        yield new
        for path in new.rglob("*"):
            if path.is_file():
                path.chmod(0o666 & ~_umask())  # safetensors makes files readable for their owner only
            fsync(path)
        fsync(new)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        fsync(folder.parent)
    except BaseException as error:
        if old.exists():
            old.rename(folder)
        if isinstance(error, Exception) and _is_disk_full(error, workspace):
            raise UserError(f"{folder}: the disk is full; free some space, or choose a path on another disk") from None
        raise
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        with suppress(OSError):  # a folder that is not empty stays, and so do its parents
            for parent in missing:
                parent.rmdir()


def recover_folder(folder: Path) -> None:
    """Restore the previous folder after a process was killed inside `replace_folder`."""
    for workspace in _find_workspaces(folder):
        if (workspace / "old").exists() and not folder.exists():
            (workspace / "old").rename(folder)
        shutil.rmtree(workspace)


def _find_workspaces(folder: Path) -> list[Path]:
    """Return the workspaces of `replace_folder`, but no other folders with similar names, such as .data.backup."""
    start = f".{folder.name}."
    named = [path for path in folder.parent.glob(".*") if path.name.startswith(start) and not path.is_symlink()]
    return [path for path in named if path.is_dir() and {entry.name for entry in path.iterdir()} <= {"new", "old"}]


def fsync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_disk_full(error: Exception, workspace: Path) -> bool:
    """Libraries raise errors of their own for a full disk, of which some do not mention the reason."""
    return os.strerror(errno.ENOSPC) in str(error) or shutil.disk_usage(workspace).free < FULL_DISK


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
