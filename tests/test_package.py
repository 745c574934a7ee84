"""The arrows of the architecture, the public names, and what the README promises."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module, resources
from pathlib import Path

import pytest
import typer

import regard
from regard.cli import app
from regard.errors import UserError
from regard.models.registry import MODELS
from regard.training.recipe import Recipe

HOME = Path(regard.__file__).parent
README, DOCS = HOME.parent / "README.md", HOME.parent / "docs"

FILES = sorted(HOME.rglob("*.py"))


# Public names


def test_public_names_are_sorted_and_resolve_to_what_their_home_holds() -> None:
    assert regard.__all__ == sorted(regard.__all__)
    assert list(regard._HOMES) == regard.__all__ == dir(regard)
    for name in regard.__all__:
        assert getattr(regard, name) is getattr(import_module(regard._HOMES[name]), name)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((HOME / "__init__.py").read_text(encoding="utf-8"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is None
    }
    assert seen == regard._HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Transfromer'"):
        regard.Transfromer  # noqa: B018


def test_importing_regard_imports_nothing_heavy() -> None:
    program = "import sys, regard; sys.exit(str({'torch', 'numpy', 'pydantic', 'tokenizers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "set()"


# What is written about regard


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language; one that is marked skip, as in ```python skip, is left out."""
    return [
        body for info, body in re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.M | re.S) if info.strip() == language
    ]


def commands(text: str) -> list[list[str]]:
    """The words of every `regard ...` line, up to the first pipe or redirection."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("# ").removeprefix("$ ").strip()
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        if re.match(r"(\.venv/bin/)?regard( |$)", line):
            words = list(lexer)[1:]
            stop = next((i for i, word in enumerate(words) if set(word) <= set("|<>&;()")), len(words))
            found.append(words[:stop])
    return found


def parse(words: list[str]) -> None:
    """Reads a command line as `regard` would, without carrying it out; raises what is wrong with it."""
    group = typer.main.get_command(app)
    if words and words[0] in group.commands:
        if "--help" not in words:
            group.commands[words[0]].make_context(words[0], words[1:])
    else:
        assert not words or words[0] in ("--help", "--version"), f"no command {words[0]}"


def written_commands() -> list[list[str]]:
    recipes = [entry.read_text("utf-8") for entry in resources.files("regard.training").joinpath("recipes").iterdir()]
    guides = [path.read_text(encoding="utf-8") for path in (README, *sorted(DOCS.glob("*.md"))) if path.exists()]
    shown = [block for text in guides for language in ("console", "sh", "bash") for block in blocks(text, language)]
    return [words for text in [*recipes, *shown] for words in commands(text)]


@pytest.mark.parametrize("words", written_commands(), ids=lambda words: " ".join(words)[:60])
def test_every_command_that_is_written_down_exists(words: list[str]) -> None:
    parse(words)


def test_the_check_of_commands_finds_wrong_ones() -> None:
    text = (
        "$ regard translate runs/x 'A b' --beam 5  # comment\nregard train --src a \\\n  --tgt b --out c\n"
        "regard translate x < in > out\n"
        "regarding\nregard trian x\nregard translate x --baem 5\n"
    )
    first, second, third, *wrong = commands(text)
    assert first == ["translate", "runs/x", "A b", "--beam", "5"]
    assert second == ["train", "--src", "a", "--tgt", "b", "--out", "c"]
    assert third == ["translate", "x"]
    for words in (first, second, third):
        parse(words)
    assert len(wrong) == 2
    for words in wrong:
        with pytest.raises(Exception, match=r"trian|--baem"):
            parse(words)


@pytest.mark.parametrize("path", [README, *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_every_file_that_is_linked_exists(path: Path) -> None:
    targets = [target.partition("#")[0] for target in links(path.read_text(encoding="utf-8"))]
    assert [target for target in targets if not (path.parent / target).exists()] == []


def links(text: str) -> list[str]:
    """The targets of links and pictures within the repository."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", target)]


def test_links_to_other_places_are_told_apart() -> None:
    assert links("![a](b.svg) [c](https://d.e/f) [g](../h.md#i) [j](mailto:k@l.m)") == ["b.svg", "../h.md#i"]


def test_every_key_in_the_table_of_settings_is_known() -> None:
    page = (DOCS / "settings.md").read_text("utf-8")
    (table,) = re.findall(r"<!-- settings -->\n(.*?)<!-- /settings -->", page, re.S)
    keys = re.findall(r"^\| `([\w.]+)` \|", table, re.M)
    assert len(keys) == len(table.splitlines()) - 2
    assert {"init.from", "optim.lr", "model.preset"} <= set(keys)
    assert [key for key in keys if not is_known(key)] == []


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_the_tables_of_vision_say_what_the_models_have(kind: str) -> None:
    text = (DOCS / "vision.md").read_text("utf-8")
    (table,) = re.findall(rf"<!-- settings of {kind} -->\n(.*?)<!-- /settings of {kind} -->", text, re.S)
    config = MODELS[kind].config
    defaults = config.parse({}, kind).model_dump(mode="json")
    rows = [
        f"| `model.{name}` | `{json.dumps(defaults[name])}` | {field.description or ''} |"
        for name, field in config.model_fields.items()
    ]
    assert table.splitlines()[2:] == rows


@pytest.mark.parametrize("key", ["init.folder", "model.hights", "data.corpora.wieght", "optm.lr"])
def test_the_check_of_keys_finds_wrong_ones(key: str) -> None:
    assert not is_known(key)


def is_known(key: str) -> bool:
    """Whether recipes have a key, whatever they say about a value of nothing."""
    group, _, name = key.rpartition(".")
    change = f"data.corpora=[{{source: a, {name}: null}}]" if group == "data.corpora" else f"{key}=null"
    try:
        Recipe.load(None, [change], {} if group == "data.corpora" else {"data.builtin": "en-zh"})
    except UserError as error:
        return "unknown key" not in str(error)
    return True


def test_the_readmes_python_runs(trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snippets = blocks(README.read_text(encoding="utf-8"), "python") if README.exists() else []
    if not snippets:
        pytest.skip("the README shows no Python")
    shutil.copytree(trained_run, tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    for snippet in snippets:  # one after the other, as a reader would type them
        exec(compile(snippet, str(README), "exec"), names)


def test_the_python_of_vision_runs() -> None:
    names: dict[str, object] = {"__name__": "vision"}
    for snippet in blocks((DOCS / "vision.md").read_text(encoding="utf-8"), "python"):
        exec(compile(snippet, "vision.md", "exec"), names)


def test_blocks_are_told_apart_by_their_language() -> None:
    text = "```python\na = 1\n```\n\n```python skip\nb\n```\n```console\nregard demo\n```\n```python\nc\n```\n"
    assert blocks(text, "python") == ["a = 1\n", "c\n"]
    assert blocks(text, "console") == ["regard demo\n"]


def test_every_folder_of_tests_is_a_package() -> None:
    """Two test files of one name, in folders that are none, cannot be collected together."""
    folders = {file.parent for file in (HOME.parent / "tests").rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_package_tree_in_the_design_page_is_current() -> None:
    script = HOME.parent / "tools" / "package_tree.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
