"""The course: every chapter runs, and the notebooks in docs/ have its cells."""

from pathlib import Path

import pytest

from tests.test_package import links

pytest.importorskip("jupytext")

from tools.build_course import FOLDERS, cells_of, outdated, run_cells, scripts
from tools.chinese_lines import join_lines


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


def test_lines_of_chinese_paragraphs_are_joined() -> None:
    text = "甲，\n乙\n丙 A\nB。\n**丁**：\n\n- 一；\n- 二。\n  三\n1. 四\n| 五 |\n| 六 |\n"
    joined = "甲，乙丙 A\nB。**丁**：\n\n- 一；\n- 二。三\n1. 四\n| 五 |\n| 六 |\n"
    code = "```python\n甲，\n乙\n```\n"
    assert join_lines(text + code) == joined + code


@pytest.mark.parametrize("language", FOLDERS)
def test_links_of_the_course_lead_to_pages_of_its_language(language: str) -> None:
    folder = FOLDERS[language]
    targets = [target for script in scripts() for cell in cells_of(script, language) for target in links(cell.source)]
    assert len(targets) > len(scripts())
    home, pictures = folder.parent.resolve(), FOLDERS["en"].parent / "images"
    assert [target for target in targets if not (folder / target).is_file()] == []
    paths = [path for target in targets if (path := (folder / target).resolve()).parent != pictures]
    assert [path for path in paths if not path.is_relative_to(home)] == []
