"""The commands of pages run in order, on small data and with short trainings.

tests/test_guides.py and tests/test_extending.py run further pages; the commands of `ONLY_PARSED` are only parsed.
"""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from regard.serving.messages import LoadRequest
from regard.serving.model_runner import load_runner
from tests.conftest import SMALL, Command, settings_of
from tests.extensions import extensions as extensions
from tests.images import COLOURS, TINY, WINDOWED, paint
from tests.test_package import DOCS, blocks, commands

SHORT = {
    "training.steps": 4,
    "training.validate_every": 2,
    "training.log_every": 2,
    "training.checkpoint_every": 2,
    "training.device": "cpu",
}
TEXT = SMALL | SHORT | {"training.valid_sentences": 4, "data.hold_out": 10}
VIEWS = SHORT | {
    "batch.pairs": 4,
    "data.hold_out": 2,
    "model.preset": "micro",
    "model.decoder_layers": 4,
    "model.patch": 4,
}
SETTINGS: dict[str, dict[str, object]] = {
    "classification": TINY | SHORT,
    "croco": VIEWS,
    "swin": {key: value for key, value in WINDOWED.items() if key != "model.kind"} | SHORT,
    "translation": TEXT,
}
"""Settings of a short training of each task; "swin" is for classification."""
PAGES = {
    "README": "demo en-de",
    "attention": "",
    "classification": "",
    "croco": "",
    "data": "",
    "distillation": "teacher",
    "finetuning": "general",
    "guide": "en-de demo new old RUN",
    "inspection": "demo",
    "monitoring": "base big demo",
    "nat": "usual",
    "objectives": "a b c",
    "quantisation": "en-de",
    "web-page": "demo",
}
"""The trained translators that each page expects, in runs/ or in RUN."""
ONLY_PARSED = {"bench", "export", "index", "scaling", "serving", "guides/moving", "guides/scaling-out"}
"""Their commands need files of other libraries, several processes or a running server, or measure speed for minutes."""


def make_files(folder: Path, page: str, trained: Path, toy: Path) -> None:
    for name in PAGES[page].split():
        shutil.copytree(trained, folder / name if name == "RUN" else folder / "runs" / name)
    if page == "nat":
        (folder / "runs" / "parallel").symlink_to(folder / "RUN")
    english, chinese = ((toy / f"train.{language}").read_text("utf-8") for language in ("en", "zh"))
    for name in ("train", "val", "valid", "test", "legal", "sentences", "news"):
        (folder / f"{name}.en").write_text(english, "utf-8")
        if name != "news":  # the output of a command
            (folder / f"{name}.de").write_text(chinese, "utf-8")
    for name in ("train", "news"):
        (folder / f"{name}.en.gz").write_bytes(gzip.compress(english.encode()))
    lines = [json.dumps({"text": line}) for line in english.splitlines()[:4]]
    (folder / "news.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "wmt").mkdir()
    pairs = [{"en": en, "de": de} for en, de in zip(english.splitlines(), chinese.splitlines(), strict=True)]
    lines = [json.dumps({"translation": pair}) for pair in pairs]
    (folder / "wmt" / "part.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "recipe.yaml").write_text("data: {builtin: en-zh}\n", "utf-8")
    for name in ("photos", "others", "folder", "scans", "cifar10-folder"):
        paint(folder / name, 10, 1)
    shutil.copy(next((folder / "photos").rglob("*.png")), folder / "holiday.jpg")
    for name in ("left.png", "right.png"):
        Image.new("RGB", (32, 32), COLOURS["red"]).save(folder / name)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("short_builtin_corpus")
def test_commands_of_a_page_run(page: str, extensions: Path, trained_run: Path, toy: Path, command: Command) -> None:
    make_files(extensions, page, trained_run, toy)
    if page == "guide":
        assert command("evaluate", "runs/old", "--src", "test.en", "--ref", "test.de", "--beam", "4").code == 0
    ran = 0
    for body in blocks(path_of(page).read_text("utf-8"), "console"):
        for words in commands(body):
            if words[0] == "serve":
                load_runner(LoadRequest("model", Path(words[1]), "cpu", None, {}, None, None)).warm_up()
            elif words[0] not in ("demo", "bench"):  # tests/cli/test_demo.py, tests/evaluation/bench
                result = command(*words, *more_options(words), stdin=standard_input(words))
                assert result.code == 0, (words, result.err)
            ran += 1
    assert ran


def path_of(page: str) -> Path:
    return DOCS.parent / "README.md" if page == "README" else DOCS / f"{page}.md"


def standard_input(words: list[str]) -> bytes:
    return b"holiday.jpg\n" if words[0] == "classify" else b"I love apples\n"


def more_options(words: list[str]) -> list[str]:
    """Return the options that make a training short; one that starts from another model keeps the sizes of this model.

    Settings that the page gives are kept, except for the number of steps. The folder of an earlier training is removed.
    """
    if words[0] != "train":
        return []
    if "--out" in words:
        shutil.rmtree(Path(words[words.index("--out") + 1]), ignore_errors=True)
    text = " ".join(words)
    views = "scenes" in text
    task = "croco" if views else "swin" if "swin" in text else "classification" if "--data" in words else "translation"
    given = {word.partition("=")[0] for word in words} - SHORT.keys()
    groups = ("model", "tokenizer") if "init-from" in text or "init.from" in text else ()
    return settings_of(
        {key: value for key, value in SETTINGS[task].items() if key not in given and key.split(".")[0] not in groups}
    )


def test_every_page_with_commands_is_run_or_listed() -> None:
    elsewhere = ("extending", "guides", "reference", "zh")
    names = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    found = {name for name, path in names.items() if blocks(path.read_text("utf-8"), "console")}
    assert {name for name in found if not name.startswith(elsewhere)} <= PAGES.keys() | ONLY_PARSED
