import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from regard.errors import UserError
from regard.training.checkpoint import Checkpoint, load_checkpoint, replace_text, save_checkpoint

TENSORS = {"model.weight": torch.arange(12.0).reshape(3, 4), "random.cpu": torch.get_rng_state()}


class Crash(BaseException):
    """Simulates the death of the process."""


def save(folder: Path, step: int, keep: int = 2) -> None:
    save_checkpoint(folder, step, TENSORS | {"step": torch.tensor(step)}, {"step": step, "best_step": 1}, keep)


def load(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    warnings: list[str] = []
    return load_checkpoint(folder, warnings.append), warnings


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with checkpoints of steps 1 and 2."""
    for step in (1, 2):
        save(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


def test_saved_checkpoint_is_loaded(folder: Path) -> None:
    found, warnings = load(folder)
    assert found is not None
    assert (found.step, found.values, warnings) == (2, {"step": 2, "best_step": 1}, [])
    tensors = found.tensors()
    assert tensors.keys() == TENSORS.keys() | {"step"}
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_checkpoint_has_state_and_checksums(folder: Path) -> None:
    assert names(folder) == ["last", "step-00000001", "step-00000002"]
    assert names(folder / "step-00000002") == ["manifest.json", "state.json", "state.safetensors"]
    assert (folder / "last").read_text() == "step-00000002\n"
    manifest = json.loads((folder / "step-00000002" / "manifest.json").read_text())
    assert manifest["files"].keys() == {"state.json", "state.safetensors"}


def test_missing_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert load(tmp_path / "none") == (None, [])


@pytest.mark.parametrize(("keep", "left"), [(1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5])])
def test_newest_checkpoints_are_kept(keep: int, left: list[int], tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path / "c", step, keep)
    assert names(tmp_path / "c") == ["last", *(f"step-{step:08d}" for step in left)]


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        save(tmp_path / "c", step)
    found, _ = load(tmp_path / "c")
    assert found is not None
    assert found.step == 100_000_000


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit is flipped": flip,
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b"\xff" * 300),
    "deeply nested": lambda path: path.write_bytes(b"[" * 10**5),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_newest_checkpoint_is_named_and_the_previous_one_used(
    damage: Callable[[Path], object], name: str, folder: Path
) -> None:
    damage(folder / "step-00000002" / name)
    found, warnings = load(folder)
    if found is not None and found.step == 2:  # a flipped bit in white space of the manifest does no harm
        assert name == "manifest.json"
        return
    assert found is not None
    assert found.step == 1
    assert len(warnings) == 1
    assert "step-00000002: damaged" in warnings[0]


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"step": "two"}', '{"step": null}'])
def test_state_without_a_step_is_damaged(content: str, folder: Path) -> None:
    place = folder / "step-00000002"
    (place / "state.json").write_text(content)
    manifest = json.loads((place / "manifest.json").read_text())
    checksum = hashlib.sha256(content.encode()).hexdigest()
    manifest["files"]["state.json"] = {"bytes": len(content), "sha256": checksum}
    (place / "manifest.json").write_text(json.dumps(manifest))
    found, warnings = load(folder)
    assert found is not None and found.step == 1 and "step-00000002: damaged" in warnings[0]


@pytest.mark.parametrize("name", ["/dev/zero", "../step-00000001/state.json", "sub/file"])
def test_manifest_cannot_refer_to_other_folders(name: str, folder: Path) -> None:
    place = folder / "step-00000002"
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["state.json"]
    (place / "manifest.json").write_text(json.dumps(manifest))
    found, warnings = load(folder)
    assert found is not None and found.step == 1 and "does not match its checksum" in warnings[0]


def test_all_checkpoints_damaged_is_an_error(folder: Path) -> None:
    for place in folder.glob("step-*"):
        flip(place / "state.safetensors")
    with pytest.raises(UserError, match="all 2 checkpoints are damaged"):
        load(folder)


def test_damaged_checkpoint_is_replaced_by_one_of_the_same_step(folder: Path) -> None:
    flip(folder / "step-00000002" / "state.safetensors")
    save(folder, 2)
    found, warnings = load(folder)
    assert found is not None
    assert (found.step, warnings) == (2, [])


def test_checkpoints_after_the_last_one_are_deleted(folder: Path) -> None:
    shutil.copytree(folder / "step-00000002", folder / "step-00000007")
    (folder / ".step-00000003").mkdir()
    found, warnings = load(folder)
    assert found is not None
    assert (found.step, warnings) == (2, [])
    save(folder, 3)
    assert names(folder) == ["last", "step-00000002", "step-00000003"]


@pytest.mark.parametrize("pointer", [None, "", "step-00000099", "\x00"])
def test_newest_valid_checkpoint_is_found_without_the_last_file(pointer: str | None, folder: Path) -> None:
    (folder / "last").unlink() if pointer is None else (folder / "last").write_text(pointer)
    found, _ = load(folder)
    assert found is not None
    assert found.step == 2


def test_text_is_replaced_atomically(tmp_path: Path) -> None:
    replace_text(tmp_path / "a", "one\n")
    replace_text(tmp_path / "a", "two\n")
    assert (tmp_path / "a").read_text() == "two\n"
    assert names(tmp_path) == ["a"]


# Interrupted saves


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
WRAPPED = safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
READ_ONLY = [OSError(number, os.strerror(number)) for number in (errno.EROFS, errno.EACCES)]


def fail_at(number: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the n-th call that changes the disk raise an error, and return the list of calls.

    After the death of the process, or on a read-only disk, all later calls fail too.
    """
    made: list[str] = []
    persistent = isinstance(error, Crash) or error in READ_ONLY
    uncounted = () if isinstance(error, Crash) else ("unlink", "rmdir")  # failed clean-up is not a failed save

    def failing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            if name not in uncounted:
                made.append(name)
            if len(made) == number or (len(made) > number and persistent):
                raise error
            return function(*words, **options)

        return call

    for name in ("fsync", "rename", "replace", "mkdir"):
        monkeypatch.setattr(os, name, failing(name, getattr(os, name)))
    for name in ("unlink", "rmdir") if persistent else ():  # a dead process cleans up nothing
        monkeypatch.setattr(os, name, failing(name, getattr(os, name)))
    monkeypatch.setattr(safetensors.torch, "save_file", failing("save_file", safetensors.torch.save_file))
    return made


def count_calls(folder: Path, error: BaseException) -> int:
    trial = shutil.copytree(folder, folder.parent / "trial")
    with pytest.MonkeyPatch.context() as patch:
        made = fail_at(10**9, error, patch)
        save(trial, 3)
    return len(made)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FULL, "No space left on device"),
        (WRAPPED, "Error while .*: No space left on device .*"),
        (READ_ONLY[0], "Read-only file system"),
        (READ_ONLY[1], "Permission denied"),
    ],
    ids=["full", "full for safetensors", "read-only", "not permitted"],
)
def test_write_error_at_any_point_leaves_the_last_valid_checkpoint(
    error: Exception, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(folder, error)
    assert calls >= 10
    for number in range(2, calls + 1):  # the first call creates the folder, which exists
        run = shutil.copytree(folder, folder.parent / f"run-{number}")
        with monkeypatch.context() as patch:
            fail_at(number, error, patch)
            with pytest.raises(UserError, match=rf"step-00000003: could not be written \({reason}\);") as refused:
                save(run, 3)
        last = (run / "last").read_text().strip()
        assert str(refused.value).endswith(f"the same command resumes from {last}")
        found, warnings = load(run)
        assert found is not None
        assert (found.path.name, warnings) == (last, [])
        assert found.tensors()["step"] == found.step
        save(run, 3)  # the disk is writable again
        assert names(run) == ["last", "step-00000002", "step-00000003"]


def test_failed_first_save_reports_that_there_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(3, FULL, monkeypatch)
    with pytest.raises(UserError, match="no checkpoint has been saved yet"):
        save(tmp_path / "c", 1)


def test_process_killed_at_any_point_leaves_a_valid_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(folder, Crash())
    loaded = []
    for number in range(1, calls + 1):
        run = shutil.copytree(folder, folder.parent / f"run-{number}")
        with monkeypatch.context() as patch:
            fail_at(number, Crash(), patch)
            with suppress(Crash):
                save(run, 3)
        found, warnings = load(run)
        assert found is not None
        assert warnings == []
        assert found.tensors()["step"] == found.step
        loaded.append(found.step)
        save(run, 3)
        assert names(run) == ["last", "step-00000002", "step-00000003"]
    assert loaded == sorted(loaded)  # the previous one until `last` is updated, then the new one
    assert set(loaded) == {2, 3}
