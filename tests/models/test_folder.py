"""Model folders are replaced atomically, and errors name the file and the reason."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch

from regard.errors import UserError
from regard.models.folder import CONFIG, WEIGHTS, find_model_folder, load_model, replace_folder, save_model
from regard.models.vit import ViT, ViTConfig


def write(folder: Path, error: Exception | None = None) -> None:
    with replace_folder(folder) as new:
        (new / "new").write_text("new", encoding="utf-8")
        if error is not None:
            raise error


def test_new_folder_replaces_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()
    write(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["new"]


def test_old_folder_is_restored_if_the_new_one_cannot_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise PermissionError(1, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        write(tmp_path / "run")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["run", "run/old"]


def test_unwritable_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/run: cannot be written \(.*\); choose a writable path"):
        write(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    "message", ["I/O error: No space left on device (os error 28)", "basic_ios::clear: iostream error"]
)
def test_full_disk_is_reported(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "space" not in message:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="run: the disk is full; free some space, or choose a path on another disk"):
        write(tmp_path / "run", RuntimeError(message))
    assert list(tmp_path.rglob("*")) == [tmp_path / "run"]


def test_other_errors_are_not_converted(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="something else"):
        write(tmp_path / "new" / "and" / "run", RuntimeError("something else"))
    assert not list(tmp_path.iterdir())


def test_other_files_in_a_new_parent_folder_are_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyError), replace_folder(tmp_path / "new" / "run"):
        (tmp_path / "new" / "other").touch()
        raise KeyError
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new" / "other"]


def test_run_without_a_model_is_reported(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="this run has no model yet; the first validation saves one"):
        find_model_folder(tmp_path)


def test_model_larger_than_the_memory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, ViT(ViTConfig.micro(2, width=8, heads=1, layers=1, hidden=8)), {})
    size = sum(tensor.nbytes for tensor in safetensors.torch.load_file(tmp_path / WEIGHTS).values())
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": size}.__getitem__)
    load_model(tmp_path)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": size - 1}.__getitem__)
    with pytest.raises(UserError, match=rf"{WEIGHTS}: needs 0 GB of memory, but this machine has 0 GB"):
        load_model(tmp_path)


def test_folder_that_cannot_be_entered_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", deny)
    with pytest.raises(UserError, match=r"private: cannot be read \(Permission denied\)"):
        find_model_folder(tmp_path / "private")


def test_unreadable_files_are_not_reported_as_missing_or_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, ViT(ViTConfig.micro(2, width=8, heads=1, layers=1, hidden=8)), {})

    def report_missing(path: Path, **options: object) -> None:
        raise FileNotFoundError(f"No such file or directory: {path}")

    def deny(path: Path, *options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=f"{WEIGHTS}: cannot be read; check its permissions"),
    ):
        patch.setattr(safetensors.torch, "load_file", report_missing)
        load_model(tmp_path)
    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=rf"{CONFIG}: cannot be read \(Permission denied\)"),
    ):
        patch.setattr(Path, "open", deny)
        load_model(tmp_path)
