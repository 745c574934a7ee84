"""`regard new`: creates a project with an attention kind of its own."""

import keyword
import re
import shutil
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from regard.errors import UserError
from regard.files import report_unwritable

NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "recipe.yaml": "recipe.yaml",
    "kind.py": "$module/__init__.py",
    "test_kind.py": "tests/test_$module.py",
}
"""Paths of the files of a project by the names of their templates."""


def new(
    name: Annotated[str, typer.Argument(help="name of the attention kind and of the project, such as my-attention")],
    out: Annotated[Path | None, typer.Option(help="folder of the project; by default the name")] = None,
) -> None:
    """Create a project with an attention kind of your own: a package, a recipe and tests that pass."""
    if not re.fullmatch(NAME, name):
        raise UserError(f"{name}: use small letters, digits and hyphens, such as my-attention")
    if problem := _find_conflict(name.replace("-", "_")):
        raise UserError(f"{name}: {problem}; choose another name, such as my-attention")
    folder = Path(name) if out is None else out
    if folder.exists():
        raise UserError(f"{folder}: already exists; choose another name or --out")
    values = {"name": name, "module": name.replace("-", "_"), "class_name": name.title().replace("-", "")}
    templates = resources.files("regard.cli").joinpath("skeleton")
    try:
        for template, path in FILES.items():
            target = folder / Template(path).substitute(values)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = templates.joinpath(f"{template}.template").read_text("utf-8")
            with report_unwritable(target):
                target.write_text(Template(text).substitute(values), encoding="utf-8")
            typer.echo(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    typer.echo(f"next: cd {folder} && pip install -e . && pytest && regard train recipe.yaml --out runs/{name}")


def _find_conflict(module: str) -> str | None:
    """Return why a package cannot have this name, or None."""
    if keyword.iskeyword(module):
        return "is a keyword of Python"
    if module == "full" or find_spec(f"regard.attention.{module}") is not None:
        return "is the name of an attention kind or a module of regard"
    spec = find_spec(module)
    return "is the name of an installed package" if spec is not None and spec.origin is not None else None
