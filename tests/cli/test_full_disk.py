"""Commands on a full disk: one sentence that names the file, and no partial output."""

from pathlib import Path

import pytest

from tests.conftest import Command
from tests.full_disk import full_disk


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.en"
    path.write_text("I love apples\n" * 3, encoding="utf-8")
    return path


@pytest.mark.parametrize("room", [0, 300])
def test_translation_memory(trained_run: Path, lines: Path, tmp_path: Path, command: Command, room: int) -> None:
    memory = tmp_path / "new.tmx"
    with full_disk(room):
        answer = command("translate", trained_run, "--input", lines, "--beam", 1, "--output-memory", memory)
    assert answer.error == f"{memory}: cannot be written (File too large)"
    assert list(tmp_path.iterdir()) == [lines]


@pytest.mark.parametrize("room", [0, 60])
def test_list_of_lines_for_review(trained_run: Path, lines: Path, tmp_path: Path, command: Command, room: int) -> None:
    output = tmp_path / "out.zh"
    with full_disk(room):
        answer = command("translate", trained_run, "--input", lines, "--beam", 1, "--output", output, "--reject", 1)
    assert answer.error == f"{output}.review.tsv: cannot be written (File too large)"
    assert [path.name for path in tmp_path.iterdir() if not path.stat().st_size] == []
    assert not output.exists()


def test_document(trained_run: Path, tmp_path: Path, command: Command) -> None:
    source, output = tmp_path / "a.md", tmp_path / "b.md"
    source.write_text("I love apples\n", encoding="utf-8")
    with full_disk():
        answer = command("translate", trained_run, "--input", source, "--output", output, "--beam", 1)
    assert answer.error == f"{output}.journal: cannot be written (File too large)"
    assert list(tmp_path.iterdir()) == [source]


def test_distilled_corpus(trained_run: Path, lines: Path, tmp_path: Path, command: Command) -> None:
    with full_disk():
        answer = command("distill", trained_run, "--src", lines, "--out", tmp_path / "out.tsv", "--beam", 1)
    assert answer.error == f"{tmp_path / 'out.tsv.json'}: cannot be written (File too large)"
    assert list(tmp_path.iterdir()) == [lines]


@pytest.mark.parametrize("room", [0, 1000])
def test_new_project(tmp_path: Path, command: Command, room: int) -> None:
    with full_disk(room):
        answer = command("new", "my-attention", "--out", tmp_path / "project")
    assert "cannot be written (File too large)" in answer.error
    assert list(tmp_path.iterdir()) == []


def test_other_file(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        (tmp_path / "file").write_text("x" * 10, encoding="utf-8")  # its error does not name the file

    monkeypatch.setattr("regard.serving.keys.Keys.load", fail)
    (tmp_path / "keys").touch()
    with full_disk():
        answer = command("key", "owner", "--file", tmp_path / "keys")
    assert answer.error == "a file cannot be written (File too large); free some space"
