"""A model folder is read and replaced whole or not at all, and where that cannot be, one sentence says why."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch

from regard.errors import UserError
from regard.models.folder import CONFIG, WEIGHTS, find_model_folder, load_model, replace_folder, save_model
from regard.models.vit import ViT, ViTConfig


def write(folder: Path, error: Exception | None = None) -> None:
    with replace_folder(folder) as fresh:
        (fresh / "new").write_text("new", encoding="utf-8")
        if error is not None:
            raise error


def test_the_new_takes_the_place_of_the_old(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()
    write(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["new"]


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/run: cannot be written \(.*\); give a path where you may write"):
        write(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    "said", ["I/O error: No space left on device (os error 28)", "basic_ios::clear: iostream error"]
)
def test_a_full_disk_is_said_to_be_one(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "space" not in said:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="run: the disk is full; make room, or give a path on another one"):
        write(tmp_path / "run", RuntimeError(said))
    assert list(tmp_path.rglob("*")) == [tmp_path / "run"]


def test_other_errors_are_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="something else"):
        write(tmp_path / "new" / "and" / "run", RuntimeError("something else"))
    assert not list(tmp_path.iterdir())


def test_what_lay_beside_it_stays(tmp_path: Path) -> None:
    with pytest.raises(KeyError), replace_folder(tmp_path / "new" / "run"):
        (tmp_path / "new" / "other").touch()
        raise KeyError
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new" / "other"]


def test_a_run_that_was_stopped_before_its_first_model_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="a run without a model yet, which comes with its first validation"):
        find_model_folder(tmp_path)


def test_files_that_may_not_be_read_are_not_called_missing_or_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, ViT(ViTConfig.micro(2, width=8, heads=1, layers=1, hidden=8)), {})

    def refuse(path: Path, **options: object) -> None:
        raise FileNotFoundError(f"No such file or directory: {path}")

    def forbid(path: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=f"{WEIGHTS}: cannot be read; see its permissions"),
    ):
        patch.setattr(safetensors.torch, "load_file", refuse)
        load_model(tmp_path)
    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match=rf"{CONFIG}: cannot be read \(Permission denied\)"),
    ):
        patch.setattr(Path, "read_text", forbid)
        load_model(tmp_path)
