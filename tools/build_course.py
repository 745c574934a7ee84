"""The notebooks of the course, docs/course and docs/zh/course, built from the scripts in tools/course.

python -m tools.build_course                 run all scripts and write the notebooks with their outputs
python -m tools.build_course 03_heads        only these chapters
python -m tools.build_course --check         exit with code 1 if a notebook does not have the cells of its script

A script is in Jupytext's percent format. Its code is shared by both languages; Markdown cells are marked
`# %% [markdown] lang="en"` or `lang="zh"`.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat

from tools.chinese_lines import join_lines

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "tools" / "course"
FOLDERS = {"en": ROOT / "docs" / "course", "zh": ROOT / "docs" / "zh" / "course"}


def scripts() -> list[Path]:
    """The chapters in order."""
    return sorted(SCRIPTS.glob("[0-9]*.py"))


def cells_of(script: Path, language: str) -> list[Any]:
    """Return the cells of a chapter in one language."""
    cells = [cell for cell in jupytext.read(script).cells if cell.metadata.get("lang", language) == language]
    for cell in cells:
        if language == "zh" and cell.cell_type == "markdown":
            cell.source = join_lines(cell.source)
    return cells


def run_cells(script: Path) -> list[list[Any]]:
    """Run the code cells of a chapter in order and return the outputs of each: printed text, and figures as SVG."""
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, object] = {"__name__": script.stem}
    outputs = []
    for number, cell in enumerate(cell for cell in jupytext.read(script).cells if cell.cell_type == "code"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(cell.source, f"{script.name}, cell {number + 1}", "exec"), names)
        outputs.append([*_text_output(printed.getvalue()), *_figures()])
    return outputs


def _text_output(text: str) -> Iterator[Any]:
    if text:
        yield nbformat.v4.new_output("stream", name="stdout", text=text)


def _figures() -> Iterator[Any]:
    """Return all open figures as SVG with text as text, and close them."""
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"}):
        for number in plt.get_fignums():
            file = io.StringIO()
            plt.figure(number).savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
            yield nbformat.v4.new_output("display_data", data={"image/svg+xml": file.getvalue()})
    plt.close("all")


def build(script: Path) -> None:
    """Run a chapter and write its notebook in each language."""
    outputs = run_cells(script)
    for language, folder in FOLDERS.items():
        remaining = iter(outputs)
        cells = []
        for number, cell in enumerate(cells_of(script, language)):
            if cell.cell_type == "markdown":
                new = nbformat.v4.new_markdown_cell(cell.source)
            else:
                new = nbformat.v4.new_code_cell(cell.source, outputs=next(remaining))
            new.id = f"cell-{number}"  # instead of a random one
            cells.append(new)
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        folder.mkdir(parents=True, exist_ok=True)
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        nbformat.write(notebook, folder / f"{script.stem}.ipynb")


def outdated() -> list[str]:
    """Return the notebooks whose cells are not those of their script."""
    found = []
    for language, folder in FOLDERS.items():
        for script in scripts():
            path = folder / f"{script.stem}.ipynb"
            built = [cell.source for cell in nbformat.read(path, 4).cells] if path.is_file() else None
            if built != [cell.source for cell in cells_of(script, language)]:
                found.append(str(path.relative_to(ROOT)))
    return found


def main() -> None:
    """Build the notebooks, or check them."""
    arguments = sys.argv[1:]
    if "--check" in arguments:
        if found := outdated():
            sys.exit(f"out of date: {', '.join(found)}; run python -m tools.build_course")
        return
    for script in scripts():
        if not arguments or script.stem in arguments:
            print(script.stem, flush=True)
            build(script)


if __name__ == "__main__":
    main()
