"""Public names, and the commands, settings, links and Python examples in the documentation."""

import ast
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml

import regard
import regard.serving.app  # imported here, so that the tests of the reference take little time
from regard.cli import app
from regard.errors import UserError
from regard.training.tasks.registry import load_recipe
from tests.extensions import extensions as extensions
from tools.reference_pages import PAGES as REFERENCE_PAGES

HOME = Path(regard.__file__).parent
README, DOCS = HOME.parent / "README.md", HOME.parent / "docs"
PAGES = [README, README.with_suffix(".zh-CN.md"), *sorted(DOCS.rglob("*.md"))]


def page_name(page: Path) -> str:
    return str(page.relative_to(HOME.parent))


# Public names


def test_public_names_are_sorted_and_importable() -> None:
    assert regard.__all__ == sorted(regard.__all__)
    assert sorted(regard._MODULES) == regard.__all__ == dir(regard)
    for name in regard.__all__:
        assert getattr(regard, name) is getattr(import_module(regard._MODULES[name]), name)


def test_type_checkers_see_the_public_names() -> None:
    tree = ast.parse((HOME / "__init__.py").read_text(encoding="utf-8"))
    (type_checking,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.name: node.module
        for node in type_checking.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is None
    }
    assert imported == regard._MODULES


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Transfromer'"):
        regard.Transfromer  # noqa: B018


def test_importing_regard_does_not_import_torch() -> None:
    program = "import sys, regard; sys.exit(str({'torch', 'numpy', 'pydantic', 'tokenizers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stderr.strip() == "set()"


# Documentation


NOT_RUN, TRANSCRIPT = r"\*(?:Not run by the tests|测试不运行这一段)", r"\*(?:Transcript|运行记录)"
AFTER_COMMANDS = "<!-- run after the commands -->\n"
BLOCK = re.compile(
    rf"^((?:{NOT_RUN}|{TRANSCRIPT})[^\n]+\*\n\n|{AFTER_COMMANDS}|<!-- tree -->\n)?```([^\n]*)\n(.*?)^```", re.M | re.S
)
"""A code block: its mark, such as a sentence that says why it is not run, then its language and its content."""


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced code blocks of a language that are run in the order of the page."""
    return [body for mark, info, body in BLOCK.findall(text) if info.strip() == language and is_run(mark)]


def is_run(mark: str) -> bool:
    return mark != AFTER_COMMANDS and re.match(NOT_RUN, mark) is None


def commands(text: str) -> list[list[str]]:
    """Return the arguments of every `regard ...`, also after a pipe or torchrun, up to the next pipe or redirection."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("# ").removeprefix("$ ").strip()
        if program := re.search(
            r"^(\.venv/bin/)?regard(?= |$)|\| regard(?= )|^(torchrun|srun) .* -m regard(?= )", line
        ):
            lexer = shlex.shlex(line[program.end() :], posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
            stop = next((i for i, word in enumerate(words) if set(word) <= set("|<>&;()")), len(words))
            found.append(words[:stop])
    return found


@cache
def group() -> Any:
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Parse a command line without running the command; raise an error if it is invalid."""
    if words and words[0] in group().commands:
        if "--help" not in words:
            group().commands[words[0]].make_context(words[0], words[1:])
    else:
        assert not words or words[0] in ("--help", "--version"), f"no command {words[0]}"


PARSERS = {"json": lambda body: json.loads(f"{{{body}}}"), "toml": tomllib.loads, "yaml": yaml.safe_load}
OTHER_PROGRAMS = {"cat", "cd", "curl", "ffmpeg", "find", "git", "serve", "srun", "torchrun"}
"""Programs of commands besides regard; a command of regard after them is checked."""


@pytest.mark.parametrize("page", [*PAGES, README.with_name("CONTRIBUTING.md")], ids=page_name)
def test_every_code_block_is_checked(page: Path) -> None:
    """Python is run; commands are run or parsed; other blocks are parsed, are text, or state why they are not run."""
    text = page.read_text("utf-8")
    found = BLOCK.findall(text)
    assert 2 * len(found) == len(re.findall(r"^ *```", text, re.M))
    titles = re.findall(r'title="([^"]+)"', "".join(info for _, info, _ in found))
    for marked, info, body in found:
        language = info.split(" ")[0]
        if language in ("python", "text") or (marked and language in ("", "nginx")):
            continue
        if language in PARSERS:
            PARSERS[language](body)
            continue
        assert language == "console", info
        lines = [line for line in body.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
        with_prompt = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in with_prompt or lines:
            assert is_command_with_existing_parts(line, titles), line
            assert marked or is_run_by_a_test(line, titles), f"{line}: add a mark that says why tests do not run it"


def is_run_by_a_test(line: str, titles: list[str]) -> bool:
    """Return whether the tests of pages, guides and requests run a command: see tests/test_page_commands.py."""
    program, *arguments = shlex.split(line, comments=True)
    if program in ("regard", "curl", "torchrun") or (program in ("cat", "find") and "| regard " in line):
        return True
    return program == "python" and arguments[0] in titles


@pytest.mark.parametrize(
    "line", ["make demo", "pip install 'regard[serve]'", "python -m tools.x", "find .", "cat a | b"]
)
def test_commands_that_no_test_runs_are_detected(line: str) -> None:
    assert not is_run_by_a_test(line, ["read.py"])
    assert is_run_by_a_test("python read.py locale", ["read.py"])


def is_command_with_existing_parts(line: str, titles: list[str]) -> bool:
    """Return whether a shell command is known and the make targets, extras and scripts that it names exist."""
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        return re.search(rf"^{arguments[0]}:", (HOME.parent / "Makefile").read_text("utf-8"), re.M) is not None
    if program == "pip":
        (extra,) = re.findall(r"\[(\w+)\]", line)
        return extra in extras()
    if program == "python":
        script = f"{arguments[1].replace('.', '/')}" if arguments[0] == "-m" else arguments[0]
        return script in titles or (HOME.parent / script).exists() or (HOME.parent / f"{script}.py").exists()
    return program == "regard" or program in OTHER_PROGRAMS


def test_expected_output_is_compared_or_marked() -> None:
    """Output of commands: lines of console blocks without a prompt, and blocks of text."""
    shown = {
        (page_name(page), language)
        for page in PAGES
        for mark, info, body in BLOCK.findall(page.read_text("utf-8"))
        for language in [info.split(" ")[0]]
        if (language == "text" and "title=" not in info) or (language == "console" and has_output(body))
        if not re.match(TRANSCRIPT, mark)
    }
    compared = {
        ("serving", "console"),  # tests/serving/test_page_requests.py
        ("extending/index", "text"),  # tests/test_extending.py
    }
    inputs = {(f"guides/{name}", "text") for name in ("photographs", "two-views")}
    both = {(f"docs/{folder}{name}.md", kind) for name, kind in compared | inputs for folder in ("", "zh/")}
    assert shown == both | {("docs/reference/cli.md", "text")}  # generated


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_extras_named_in_a_page_exist(page: Path) -> None:
    named = re.findall(r"pip install (?:-e )?'(?:regard|\.)\[(\w+)\]'", page.read_text("utf-8"))
    assert set(named) <= extras()


@cache
def extras() -> set[str]:
    project = tomllib.loads((HOME.parent / "pyproject.toml").read_text("utf-8"))["project"]
    return set(project["optional-dependencies"])


def has_output(body: str) -> bool:
    lines = body.replace("\\\n", " ").splitlines()
    return any(line.startswith("$ ") for line in lines) and not all(line.startswith("$ ") for line in lines)


@pytest.mark.parametrize(
    "line", ["make dems", "pip install 'regard[sreve]'", "python absent.py", "python -m tols", "rm x"]
)
def test_commands_with_missing_parts_are_detected(line: str) -> None:
    assert not is_command_with_existing_parts(line, ["read.py"])
    assert is_command_with_existing_parts("python read.py locale", ["read.py"])


def documented_commands() -> list[list[str]]:
    recipes = [entry.read_text("utf-8") for entry in resources.files("regard.training").joinpath("recipes").iterdir()]
    pages = [path.read_text(encoding="utf-8") for path in PAGES]
    shown = [body for text in pages for _, info, body in BLOCK.findall(text) if info == "console"]
    return [words for text in [*recipes, *shown] for words in commands(text)]


@pytest.mark.parametrize("words", documented_commands(), ids=lambda words: " ".join(words)[:60])
def test_documented_command_is_valid(words: list[str]) -> None:
    parse(words)


def test_invalid_commands_are_detected() -> None:
    text = (
        "$ regard translate runs/x 'A b' --beam 5  # comment\nregard train --src a \\\n  --tgt b --out c\n"
        "regard translate x < in > out\n"
        "find . | regard classify x\n$ torchrun --standalone -m regard train x --out y\n"
        "regarding\nregard trian x\nregard translate x --baem 5\n"
    )
    first, second, third, piped, launched, *invalid = commands(text)
    assert first == ["translate", "runs/x", "A b", "--beam", "5"]
    assert second == ["train", "--src", "a", "--tgt", "b", "--out", "c"]
    assert third == ["translate", "x"]
    assert (piped, launched) == (["classify", "x"], ["train", "x", "--out", "y"])
    for words in (first, second, third, piped, launched):
        parse(words)
    assert len(invalid) == 2
    for words in invalid:
        with pytest.raises(Exception, match=r"trian|--baem"):
            parse(words)


@pytest.mark.parametrize("page", [*PAGES, README.with_name("CHANGELOG.md")], ids=page_name)
def test_commands_in_sentences_exist(page: Path) -> None:
    """A sentence names a command with some of its options, such as `regard serve --keys`."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    for name, rest in re.findall(r"`regard ([a-z]+)([^`]*)`", text):
        known = [option for one in group().commands[name].params for option in (*one.opts, *one.secondary_opts)]
        assert set(re.findall(r"(?<![\w-])--[\w-]+", rest)) <= {*known, "--help"}, name
    scripts = re.findall(r"`(python (?:benchmarks/|-m tools)[\w./]+)", text)
    assert [script for script in scripts if not is_command_with_existing_parts(script, [])] == []


LINKING_PAGES = [*PAGES, *(README.with_name(f"{name}.md") for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]


@pytest.mark.parametrize("path", LINKING_PAGES, ids=page_name)
def test_linked_files_and_sections_exist(path: Path) -> None:
    missing = []
    for target in links(path.read_text(encoding="utf-8")):
        name, _, section = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (section and file.suffix == ".md" and section not in sections(file.read_text("utf-8"))):
            missing.append(target)
    assert missing == []


def sections(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_anchors_are_those_of_headings() -> None:
    text = "# A page\n```sh\n# a comment\n```\n## `regard train`: all, at once\n## 提前停止\n"
    assert sections(text) == {"a-page", "regard-train-all-at-once", "提前停止"}


def links(text: str) -> list[str]:
    """Return the targets of links and images within the repository."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", target)]


def test_external_links_are_ignored() -> None:
    assert links("![a](b.svg) [c](https://d.e/f) [g](../h.md#i) [j](mailto:k@l.m)") == ["b.svg", "../h.md#i"]


@pytest.mark.parametrize("key", ["init.folder", "model.hights", "data.corpora.wieght", "optm.lr"])
def test_unknown_settings_are_detected(key: str) -> None:
    assert not is_known(key)


def is_known(key: str) -> bool:
    """Return whether recipes have a key; an invalid value does not matter."""
    group, _, name = key.rpartition(".")
    change = f"data.corpora=[{{source: a, {name}: null}}]" if group == "data.corpora" else f"{key}=null"
    try:
        load_recipe(None, [change], {} if group == "data.corpora" else {"data.builtin": "en-zh"})
    except UserError as error:
        return "unknown key" not in str(error)
    return True


GROUPS = "augmentation|batch|completion|data|init|model|objective|optim|search|tokenizer|training"
NOT_SETTINGS = {"batch.labels", "batch.targets", "model.onnx"}
"""Fields of batches in Python, and a file."""
OTHER_RECIPES = ("shapes", "cifar10-cct", "cifar10-swin", "croco-scenes")
"""Built-in recipes of tasks and models with other settings than a translator."""


def settings_named_in(text: str) -> set[str]:
    """Return the keys of recipes in a page: those in backquotes, and those of YAML blocks that are no files."""
    named = set(re.findall(rf"`((?:{GROUPS})\.[a-z_.]+)(?:[=:][^`]*)?`", text)) - NOT_SETTINGS
    fragments = [yaml.safe_load(block) for block in blocks(text, "yaml")]
    return named | {f"{group}.{key}" for fragment in fragments for group in fragment for key in fragment[group]}


@cache
def is_known_in_any_recipe(key: str) -> bool:
    changes = [(None, ["model.kind=nat", f"{key}=null"]), *[(Path(name), [f"{key}=null"]) for name in OTHER_RECIPES]]
    if is_known(key):
        return True
    for recipe, values in changes:
        try:
            load_recipe(recipe, values, {} if recipe else {"data.builtin": "en-zh"})
        except UserError as error:
            if "unknown key" in str(error):
                continue
        return True
    return False


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("LOG.md", "moving.md")], ids=page_name)
def test_settings_named_in_a_page_exist(page: Path) -> None:
    """moving.md names the settings of other toolkits too, and the log those of earlier versions."""
    assert [key for key in sorted(settings_named_in(page.read_text("utf-8"))) if not is_known_in_any_recipe(key)] == []


def test_unknown_settings_in_a_page_are_detected() -> None:
    text = "`model.hights`, `optim.lr=1e-3`, `model.onnx`\n\n```yaml\nmodel: {attention: linear}\n```\n"
    assert settings_named_in(text) == {"model.hights", "optim.lr", "model.attention"}
    assert not is_known_in_any_recipe("model.hights")


PAGES_WITH_PYTHON = [  # tests/test_extending.py and tests/test_guides.py run pages of files and commands too
    page
    for page in PAGES
    if page.exists() and page.parent.name not in ("extending", "guides") and blocks(page.read_text("utf-8"), "python")
]


def documented_results(snippet: str) -> dict[int, str]:
    """Return the comment after each expression by its line: the shapes of its value, or what it prints."""
    lines = snippet.splitlines()
    expressions = [node.lineno for node in ast.parse(snippet).body if isinstance(node, ast.Expr)]
    return {line: lines[line - 1].partition("  # ")[2] for line in expressions if "  # " in lines[line - 1]}


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=page_name)
def test_python_examples_have_the_documented_results(
    page: Path, trained_run: Path, extensions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained_run, extensions / "runs" / "demo")
    names: dict[str, object] = {"__name__": page.stem}
    for snippet in blocks(page.read_text(encoding="utf-8"), "python"):
        comments = documented_results(snippet)
        for node in ast.parse(snippet).body:
            if node.lineno not in comments:
                exec(compile(ast.Module([node], []), str(page), "exec"), names)
                continue
            assert isinstance(node, ast.Expr)
            capsys.readouterr()
            value = eval(compile(ast.Expression(node.value), str(page), "eval"), names)
            comment, printed = comments[node.lineno], capsys.readouterr().out
            if value is None:
                assert comment.startswith("(") or printed == f"{comment}\n"
            shapes = [tuple(map(int, found.split(", "))) for found in re.findall(r"\((\d+(?:, \d+)+)\)", comment)]
            if shapes and comment.startswith("("):
                values = value if isinstance(value, tuple) and not isinstance(value, torch.Size) else (value,)
                assert [tuple(getattr(value, "shape", value)) for value in values] == shapes


def test_code_blocks_are_selected_by_language() -> None:
    skipped = f"*Not run by the tests: a reason.*\n\n```python\nb\n```\n{AFTER_COMMANDS}```python\nd\n```\n"
    text = f"```python\na = 1\n```\n\n{skipped}```console\nregard demo\n```\n```python\nc\n```\n"
    assert blocks(text, "python") == ["a = 1\n", "c\n"]
    assert blocks(text, "console") == ["regard demo\n"]


def test_every_test_folder_is_a_package() -> None:
    """pytest cannot collect two test files with the same name otherwise."""
    folders = {file.parent for file in (HOME.parent / "tests").rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_package_tree_in_the_design_page_is_current() -> None:
    script = HOME.parent / "tools" / "package_tree.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_tables_agree_with_the_results_of_benchmarks() -> None:
    script = HOME.parent / "benchmarks" / "tables.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", REFERENCE_PAGES)
def test_generated_page_is_current(name: str) -> None:
    text = (DOCS / "reference" / name).read_text("utf-8")
    assert text == REFERENCE_PAGES[name](), "run python tools/reference_pages.py"


def test_ranges_are_stated() -> None:
    text = (DOCS / "reference" / "settings.md").read_text("utf-8")
    for row in (
        "| `search.beam` | `null` | integer ≥ 1, ≤ 1,000 | beam width, 5 by default; 1 is greedy search |",
        "| `objective.glancing_ratio` | `[0.5, 0.3]` | [number ≥ 0, < 1, number ≥ 0, < 1] |",
        "| `model.layers` | `[2, 2, 6, 2]` | list of length ≥ 1, ≤ 8 of integer > 0, ≤ 1,000 |",
        '| `optim.schedule` | `"cosine"` | `noam`, `inverse-sqrt`, `cosine`, `constant` |',
    ):
        assert row in text
    assert "| `api_key` | string of length ≤ 400 |" in (DOCS / "reference" / "http.md").read_text("utf-8")


def test_reference_documents_every_public_name_with_an_example() -> None:
    pages = [page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md")]
    documented = {name for page in pages for name in re.findall(r"^::: regard\.(\w+)$", page, re.M)}
    examples = "\n".join(body for page in pages for body in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
    assert documented == set(regard.__all__)
    assert [name for name in regard.__all__ if f"regard.{name}" not in examples] == []


def methods_with_tensors(name: str) -> dict[str, str]:
    """Return the docstrings of a function, or of the public methods of a class, whose signature has tensors."""
    value = getattr(regard, name)
    members = vars(value) if inspect.isclass(value) else {"": value}
    found = {}
    for member, one in members.items():
        function = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
        if inspect.isfunction(function) and (member == "__call__" or not member.startswith("_")):
            types = str(function.__annotations__)
            if "Tensor" in types or "ndarray" in types:
                found[f"{name}.{member}".rstrip(".")] = inspect.getdoc(function) or ""
    return found


def test_examples_in_docstrings_are_sections() -> None:
    """The site shows `Examples:` as code, but `Example:` as text, in which brackets may be taken for links."""
    sources = {path.name: path.read_text("utf-8") for path in HOME.rglob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"^ *Example:$", text, re.M)] == []


SIZE = r"(?:[\w·/+ ]+|\.\.\.)"
SHAPE = rf"\({SIZE}(?:,|(?:, {SIZE})+)\)"
WITHOUT_SHAPES = {"Objective.loss"}
"""Its only tensor is the number of the step."""


@pytest.mark.parametrize("name", regard.__all__)
def test_docstrings_of_public_names_state_shapes(name: str) -> None:
    docstrings = methods_with_tensors(name)
    missing = [member for member, text in docstrings.items() if not re.search(SHAPE, text)]
    assert sorted({*missing} - WITHOUT_SHAPES) == []


def test_missing_shapes_are_detected() -> None:
    found = {**methods_with_tensors("Attention"), **methods_with_tensors("attend")}
    assert {"Attention.forward", "Attention.self_context", "attend"} <= found.keys()
    for text in ("tokens, (B, T, W).", "(N,)", "(B, 3 · H · D)", "(..., 2)", "(2 max_length_offset + 1,)"):
        assert re.search(SHAPE, text)
    assert not re.search(SHAPE, "Return the features (of an image), (a; b, c) and (see (d), e.g. f).")


def test_site_navigation_lists_every_page() -> None:
    navigation = (HOME.parent / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    listed = re.findall(r"([\w./-]+\.(?:md|ipynb))", navigation)
    pages = [str(page.relative_to(DOCS)) for kind in ("md", "ipynb") for page in DOCS.rglob(f"*.{kind}")]
    assert sorted(listed) == sorted(pages)
