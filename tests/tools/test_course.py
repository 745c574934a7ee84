"""The course: every chapter runs, and the notebooks in docs/ have its cells."""

from pathlib import Path

import pytest

pytest.importorskip("jupytext")

from tools.build_course import FOLDERS, cells_of, outdated, run_cells, scripts


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)
def test_chapter_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert any(output for output in run_cells(script))


def test_notebooks_are_current() -> None:
    assert outdated() == []


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)
def test_both_languages_have_the_same_sections(script: Path) -> None:
    headings = [
        [
            line.split(" ")[0]
            for cell in cells_of(script, language)
            for line in cell.source.splitlines()
            if line[:1] == "#" and cell.cell_type == "markdown"
        ]
        for language in FOLDERS
    ]
    assert headings[0] == headings[1]
