"""The guides that end in something real run from top to bottom, on small data and with short trainings."""

import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from regard.data.two_view.pairs import render_pairs
from regard.data.two_view.scene import SceneSettings
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import load_runner
from tests.conftest import SMALL, Command, settings_of, toy_pairs
from tests.extensions import extensions as extensions
from tests.images import TINY, paint
from tests.test_package import BLOCK, DOCS, blocks, commands, is_run, links

SHORT = {"training.steps": 4, "training.validate_every": 4, "training.log_every": 2, "training.device": "cpu"}
VIEWS = SHORT | {"batch.pairs": 4, "data.hold_out": 2, "model.preset": "micro", "model.patch": 4}
NEXT_VIEWS = {key: value for key, value in VIEWS.items() if not key.startswith("model.")}


def make_photographs(folder: Path) -> None:
    paint(folder / "photos", 20, 1)


def make_pairs(folder: Path) -> None:
    scenes = render_pairs(SceneSettings(size=(48, 48)), seed=1, scenes=torch.arange(4))
    for i in range(4):
        pair = folder / "pairs" / f"{i:04}"
        pair.mkdir(parents=True)
        for side, view in zip(("left", "right"), scenes.views, strict=True):
            pixels = (view.image[i].permute(1, 2, 0) * 255).byte().numpy()
            Image.fromarray(pixels).save(pair / f"{side}.png")


def make_po_files(folder: Path) -> None:
    (folder / "locale").mkdir()
    header = 'msgid ""\nmsgstr "Language: zh"\n\n'
    special = '#, fuzzy\nmsgid "old"\nmsgstr "旧"\n\nmsgid "untranslated"\nmsgstr ""\n\n'
    long = 'msgid ""\n"I love "\n"tea and dogs"\nmsgstr ""\n"我喜欢"\n"茶和狗"\n\n'
    pairs = toy_pairs()
    for start in range(0, len(pairs), 20):
        entries = [f'#: file.c\nmsgid "{p.source}"\nmsgstr "{p.target}"\n' for p in pairs[start : start + 20]]
        text = header + special + long + "\n".join(entries)
        (folder / "locale" / f"{start}.po").write_text(text, encoding="utf-8")


DOMAIN = {key: value for key, value in SMALL.items() if key != "data.hold_out"} | {"training.steps": 450}
GUIDES: dict[str, tuple[Callable[[Path], None], list[dict[str, object]]]] = {
    "photographs": (make_photographs, [TINY]),
    "two-views": (make_pairs, [VIEWS, NEXT_VIEWS, SHORT | {"batch.pairs": 4, "data.hold_out": 2}]),
    "ablation": (lambda folder: None, []),
    "domain": (make_po_files, [DOMAIN, SHORT | {"batch.tokens": 256, "training.valid_sentences": 4}]),
}
"""What creates the data of each guide, and the settings of each of its trainings."""


def steps(text: str) -> list[tuple[str, str, str]]:
    """Return the blocks of a page in order: language, title and content, without those that are not run."""
    found = [(info.partition(' title="'), body) for mark, info, body in BLOCK.findall(text) if is_run(mark)]
    return [(language, title.strip('"'), body) for (language, _, title), body in found]


@pytest.mark.parametrize("page", GUIDES)
@pytest.mark.usefixtures("short_builtin_corpus")
def test_guide_runs(
    page: str, extensions: Path, trained_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page == "domain":
        pytest.importorskip("ctranslate2")  # to which it exports
        shutil.copytree(trained_run, extensions / "runs" / "general")
    make_data, trainings = GUIDES[page]
    make_data(extensions)
    remaining = iter(trainings)
    for language, title, body in steps((DOCS / "guides" / f"{page}.md").read_text("utf-8")):
        if title:
            (extensions / title).write_text(shorten(body), encoding="utf-8")
        elif language == "python":
            exec(compile(body, f"{page}.md", "exec"), {"__name__": page})
        elif language == "console":
            run_console(body, remaining, command, monkeypatch)
    assert next(remaining, None) is None


def test_every_guide_with_python_examples_is_run() -> None:
    pages = sorted((DOCS / "guides").glob("*.md"))
    assert {page.stem for page in pages if blocks(page.read_text("utf-8"), "python")} <= GUIDES.keys()


CHINESE_PAGES = [
    page for page in sorted((DOCS / "zh").rglob("*.md")) if (DOCS / page.relative_to(DOCS / "zh")).is_file()
]


def code_blocks(page: Path) -> list[tuple[str, str]]:
    """Return the opening line and the content of every code block of a page, without comments.

    The Chinese pages translate into Chinese where the English ones translate into German.
    """
    text = page.read_text("utf-8").replace("en-zh", "en-de")
    found = re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.M | re.S)
    return [(opening, re.sub(r"  # .*$|(?<=\w\.)(de|zh)\b", "", body, flags=re.M)) for opening, body in found]


@pytest.mark.parametrize("page", CHINESE_PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_chinese_page_has_the_code_blocks_of_the_english_one(page: Path) -> None:
    assert code_blocks(page) == code_blocks(DOCS / page.relative_to(DOCS / "zh"))


def test_every_tutorial_and_how_to_guide_has_a_chinese_page() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    english = navigation.partition("- Tutorials:")[2].partition("- Reference:")[0]
    pages = re.findall(r"- ([\w./-]+\.(?:md|ipynb))$", english, re.M)
    assert {"guide.md", "extending/task.md", "guides/moving.md", "course/01_attention.ipynb"} <= set(pages)
    assert [page for page in pages if not (DOCS / "zh" / page).is_file()] == []


@pytest.mark.parametrize("page", CHINESE_PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_chinese_page_links_to_chinese_pages(page: Path) -> None:
    """The English version of the page itself may be linked, for its generated tables."""
    found = []
    for target in links(page.read_text("utf-8")):
        linked = (page.parent / target.partition("#")[0]).resolve()
        chinese = DOCS / "zh" / linked.relative_to(DOCS)
        if linked.suffix == ".md" and not linked.is_relative_to(DOCS / "zh") and chinese.is_file() and chinese != page:
            found.append(target)
    assert found == []


def test_readmes_have_the_same_code_blocks() -> None:
    assert code_blocks(DOCS.parent / "README.zh-CN.md") == code_blocks(DOCS.parent / "README.md")


def shorten(content: str) -> str:
    """Return a file with fewer training steps and seeds."""
    content = re.sub(r"steps: 300, validate_every: 300, valid_sentences: 200", "steps: 4, valid_sentences: 4", content)
    content = content.replace("SEEDS = (1, 2, 8), (1, 2, 3)", "SEEDS = (1, 2, 8), (1, 2)")
    return content.replace("preset: tiny, ", "preset: tiny, width: 32, hidden: 32, ")


def run_console(body: str, trainings: object, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of a block; a server only loads its model."""
    for line in body.splitlines():
        if script := re.match(r"\$ python (\S+\.py)(.*)", line):
            monkeypatch.setattr(sys, "argv", [script[1], *script[2].split()])
            runpy.run_path(script[1], run_name="__main__")
            continue
        if line.startswith("$ curl "):  # tests/serving/test_page_requests.py
            continue
        assert line.startswith("$ regard "), line
        (words,) = commands(line)
        if words[0] == "serve":
            load_runner(LoadRequest("model", Path(words[1]), "cpu", None, {}, None, None)).warm_up()
            continue
        more = settings_of(next(trainings)) if words[0] == "train" else []  # type: ignore[call-overload]
        result = command(*words, *more)
        assert result.code == 0, result.err


def test_po_reader_skips_unfinished_entries(extensions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_po_files(extensions)
    text = (DOCS / "guides" / "domain.md").read_text("utf-8")
    (script,) = [body for _, title, body in steps(text) if title == "read_po.py"]
    (extensions / "read_po.py").write_text(script, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["read_po.py", "locale"])
    runpy.run_path("read_po.py", run_name="__main__")
    splits = {
        name: (extensions / f"{name}.en-zh.tsv").read_text("utf-8").splitlines() for name in ("train", "valid", "test")
    }
    lines = [line for split in splits.values() for line in split]
    assert all(splits.values())
    assert len(lines) == len(set(lines)) == len({pair.source for pair in toy_pairs()})
    assert "I love tea and dogs\t我喜欢茶和狗" in lines
