"""Training checkpoints: written atomically, verified before use, without pickle.

`checkpoints/step-00001234` holds state.safetensors (one file per process if weights are sharded), state.json with
scalar state, and manifest.json with checksums. The file `checkpoints/last` names the newest checkpoint. A checkpoint is
written to a hidden folder, synced and renamed; then `last` is updated; then older checkpoints are deleted. A process
that is killed at any point leaves the previous checkpoint intact.
"""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from regard.errors import UserError
from regard.files import MissingFileError, describe_file, is_unchanged, read_json, read_text
from regard.models.folder import fsync, read_safetensors
from regard.training.distributed import Processes

TENSORS, VALUES, MANIFEST, LAST = "state.safetensors", "state.json", "manifest.json", "last"
FORMAT = 4


class DamagedError(Exception):
    """The files of a checkpoint do not match its manifest."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with valid checksums; `values` is the content of state.json."""

    path: Path
    values: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.values["step"])

    @property
    def processes(self) -> int:
        """Number of processes that saved it."""
        return int(self.values.get("processes", 1))

    def tensors(self, like: Callable[[str], Tensor | None] | None = None) -> dict[str, Tensor]:
        """Read the tensors from disk. They are not cached, so the caller decides how long they stay in memory.

        Args:
            like: Returns the sharded tensor of a given name, if there is one; the tensor read is sharded likewise.
        """
        if like is None and (self.path / TENSORS).exists():
            return read_safetensors(self.path / TENSORS)
        return load_shards(self.path, like or (lambda name: None))


def save_checkpoint(
    folder: Path,
    step: int,
    tensors: dict[str, Tensor],
    values: dict[str, Any],
    keep: int,
    processes: Processes | None = None,
    sharded: bool = False,
) -> None:
    """Write a checkpoint to the folder of checkpoints and delete all but the newest `keep`. All processes must call it.

    If `sharded`, every process writes its shards of the tensors; otherwise the main process writes everything. If one
    of them cannot write, all raise a UserError, and existing checkpoints are unchanged.
    """
    processes = processes or Processes()
    target, partial = folder / f"step-{step:08d}", folder / f".step-{step:08d}"
    try:
        # Each block ends in all processes, without an error in any, before the next one starts.
        with processes.sync_errors(), reporting_write_errors(target, folder):
            if processes.main:
                _create(partial)
        with processes.sync_errors(), reporting_write_errors(target, folder):
            if sharded:
                save_shards(partial, tensors, processes.group)
            elif processes.main:
                safetensors.torch.save_file(tensors, partial / TENSORS)
        with processes.sync_errors(), reporting_write_errors(target, folder):
            if processes.main:
                _publish(partial, target, step, values, keep)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def load_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest valid checkpoint, or None if none has been completed; `warn` of each damaged one."""
    paths = _completed(folder)
    newest = last_name(folder)
    if newest in [path.name for path in paths]:  # a newer one was completed, but the process died before `last` moved
        paths = [path for path in paths if _step_of(path) <= _step_of(folder / newest)]
    for path in reversed(paths):
        try:
            return Checkpoint(path, _verify(path))
        except DamagedError as damage:
            warn(f"{path}: damaged ({damage}); using the previous checkpoint")
    if paths:
        raise UserError(f"{folder}: all {len(paths)} checkpoints are damaged; delete the run and start it again")
    return None


def load_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return all checkpoints of a folder, oldest first."""
    found = []
    for path in _completed(folder):
        try:
            found.append(Checkpoint(path, _verify(path)))
        except DamagedError as damage:
            raise UserError(f"{path}: damaged ({damage}); delete it to continue without it") from None
    return found


def last_name(folder: Path) -> str:
    """Return the name of the newest checkpoint, or an empty string if there is none."""
    pointer = folder / LAST
    return read_text(pointer, errors="replace").strip() if pointer.is_file() else ""


def replace_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    fresh = path.with_name(f".{path.name}")
    try:
        fresh.write_text(text, encoding="utf-8")
        fsync(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    fsync(path.parent)


@contextmanager
def reporting_write_errors(path: Path, checkpoints: Path) -> Iterator[None]:
    """Convert write errors, such as a full disk, into one sentence that names the last valid checkpoint."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        if not checkpoints.parent.is_dir():
            raise UserError(f"{checkpoints.parent}: was deleted during the run, which ends; start it again") from None
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        last = last_name(checkpoints)
        outlook = f"the same command resumes from {last}" if last else "no checkpoint has been saved yet"
        raise UserError(f"{path}: could not be written ({reason}); {outlook}") from error


def _create(partial: Path) -> None:
    partial.parent.mkdir(exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()


def _publish(partial: Path, target: Path, step: int, values: dict[str, Any], keep: int) -> None:
    """Add state.json and the manifest, rename the folder, update `last`, and delete old checkpoints."""
    (partial / VALUES).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    files = {path.name: describe_file(path) for path in sorted(partial.iterdir())}
    for name in files:
        fsync(partial / name)
    manifest = {"format": FORMAT, "files": files}
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    fsync(partial / MANIFEST)
    fsync(partial)
    if target.exists():  # damaged, or completed by a process that was killed before it updated `last`
        shutil.rmtree(target)
    partial.rename(target)
    fsync(target.parent)
    replace_text(target.parent / LAST, target.name + "\n")
    _prune(target.parent, step, keep)


def _verify(path: Path) -> dict[str, Any]:
    """Compare the files with the manifest and return the content of state.json."""
    try:
        manifest = read_json(path / MANIFEST)
        if manifest["format"] != FORMAT:
            raise DamagedError(f"{MANIFEST} has format {manifest['format']}, expected {FORMAT}")
        for name, described in manifest["files"].items():
            if Path(name).name != name or not is_unchanged(path / name, described):
                raise DamagedError(f"{name} does not match its checksum")
        values = read_json(path / VALUES)
        if not isinstance(values["step"], int):
            raise DamagedError(f"{VALUES} has no step")
    except MissingFileError as error:
        raise DamagedError(f"{error.path.name} is missing") from None
    except (UserError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST} or a file it lists cannot be read: {error}") from None
    return dict(values)


def _completed(folder: Path) -> list[Path]:
    """The folders of completed checkpoints, valid or damaged, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if re.fullmatch(r"step-\d{8,}", path.name)), key=_step_of)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _prune(folder: Path, step: int, keep: int) -> None:
    """Delete all but the newest checkpoints up to this step, and what killed processes left behind."""
    paths = _completed(folder)
    kept = [path for path in paths if _step_of(path) <= step][-keep:]
    partial = [path for path in folder.iterdir() if path.name.startswith(".step-")]
    for path in [*(path for path in paths if path not in kept), *partial]:
        shutil.rmtree(path, ignore_errors=True)  # retried at the next checkpoint


# Sharded tensors: torch.distributed.checkpoint with safetensors files, whose headers describe the shards that they
# contain, so that any number of processes can read them.


def save_shards(folder: Path, tensors: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Write the shards of each process to its own file; tensors that all processes share are written once.

    If a process cannot write, all processes raise its OSError.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        if isinstance(cause, OSError | safetensors.SafetensorError):
            raise cause from None
        raise RuntimeError(f"process {rank} could not save its shards") from cause


def load_shards(folder: Path, like: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
    """Read all tensors by name; only the shards of this process if `like` returns a sharded tensor."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    tensors = {
        name: _empty(tuple(found.size), found.properties.dtype, like(name))
        for name, found in reader.read_metadata().state_dict_metadata.items()
        if isinstance(found, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each process reads its own shards
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _empty(size: tuple[int, ...], dtype: torch.dtype, like: Tensor | None) -> Tensor:
    from torch.distributed.tensor import DTensor

    if isinstance(like, DTensor) and like.shape == size:
        return torch.empty_like(like, dtype=dtype)
    return torch.empty(size, dtype=dtype)
