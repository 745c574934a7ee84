"""The commands of pages run in order, on small data and with short trainings and measurements.

tests/test_guides.py and tests/test_extending.py run further pages, tests/serving/test_page_requests.py requests to a
running server. Chinese pages have the same commands.
"""

import gzip
import json
import re
import runpy
import shlex
import shutil
import sys
from argparse import ArgumentParser
from itertools import product
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from regard.data.text.interchange import TmxWriter
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import load_runner
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe
from tests.conftest import SMALL, Command, settings_of
from tests.data.documents.office import letter_docx
from tests.extensions import extensions as extensions
from tests.images import COLOURS, TINY, WINDOWED, paint
from tests.interop.foreign_vits import TorchvisionViT
from tests.serving.conftest import copy_with_languages
from tests.test_package import AFTER_COMMANDS, BLOCK, DOCS, PAGES, blocks, commands
from tests.training.test_distributed import launch

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
TRANSLATORS = {
    "README": "demo en-de",
    "attention": "",
    "batch-work": "en-de",
    "bench": "en-de usual",
    "classification": "",
    "croco": "",
    "data": "",
    "distillation": "teacher",
    "export": "en-de",
    "finetuning": "general",
    "guide": "en-de demo new old RUN",
    "guides/confidence": "demo",
    "guides/glossary": "demo",
    "guides/documents": "demo",
    "guides/explaining": "demo",
    "guides/cleaning": "forward",
    "guides/moving": "",
    "images": "",
    "inspection": "demo",
    "monitoring": "base big demo",
    "nat": "usual",
    "objectives": "a b c",
    "quantisation": "en-de",
    "reference/pipelines": "",
    "scaling": "",
    "serving": "en-de en-zh",
    "web-page": "demo",
}
"""The trained translators that each page expects, in runs/ or in RUN."""
MEASURED_BRIEFLY = ("--seconds", "0.01", "--batch", "2")
"""Options of `regard bench`."""


@pytest.fixture(scope="module")
def parallel_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only run of a non-autoregressive model."""
    files = {f"data.{key}": str(toy / f"train.{code}") for key, code in (("source", "en"), ("target", "zh"))}
    out = tmp_path_factory.mktemp("runs") / "parallel"
    run_recipe(load_recipe(None, ["model.kind=nat"], TEXT | files), out)
    return out


def make_files(folder: Path, page: str, trained: Path, toy: Path) -> None:
    for name in TRANSLATORS[page].split():
        shutil.copytree(trained, folder / name if name == "RUN" else folder / "runs" / name)
    english, chinese = ((toy / f"train.{language}").read_text("utf-8") for language in ("en", "zh"))
    for name in ("train", "val", "valid", "test", "legal", "mine", "monolingual", "sentences", "news"):
        (folder / f"{name}.en").write_text(english, "utf-8")
        if name != "news":  # the output of a command
            (folder / f"{name}.de").write_text(chinese, "utf-8")
    for name in ("train", "news"):
        (folder / f"{name}.en.gz").write_bytes(gzip.compress(english.encode()))
    (folder / "talk.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nI love apples\n", "utf-8")
    (folder / "messages.json").write_text('{"title": "I love apples"}', "utf-8")
    (folder / "prices.csv").write_text("id,text\n1,I love apples\n", "utf-8")
    (folder / "notes.txt").write_text("I love apples\n", "utf-8")
    (folder / "letter.docx").write_bytes(letter_docx())
    lines = [json.dumps({"text": line}) for line in english.splitlines()[:4]]
    (folder / "news.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "wmt").mkdir()
    pairs = [{"en": en, "de": de} for en, de in zip(english.splitlines(), chinese.splitlines(), strict=True)]
    lines = [json.dumps({"translation": pair}) for pair in pairs]
    (folder / "wmt" / "part.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "crawl").mkdir()
    lines = [json.dumps({"source": line}) for line in english.splitlines()]
    (folder / "crawl" / "0.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "terms.tsv").write_text("en\tzh\napple\t苹果\n", "utf-8")
    with (folder / "memory.tmx").open("w", encoding="utf-8") as file:
        writer = TmxWriter(file.write, ("en", "zh"))
        for pair in zip(english.splitlines(), chinese.splitlines(), strict=True):
            writer.add(*pair)
        writer.close()
    (folder / "recipe.yaml").write_text("data: {builtin: en-zh}\n", "utf-8")
    for name in ("photos", "others", "folder", "scans", "cifar10-folder"):
        paint(folder / name, 10, 1)
    for name in ("holiday.jpg", "cat.jpg"):
        shutil.copy(next((folder / "photos").rglob("*.png")), folder / name)
    for name in ("left.png", "right.png"):
        Image.new("RGB", (32, 32), COLOURS["red"]).save(folder / name)


def make_foreign_models(folder: Path) -> None:
    """Write what docs/export.md and docs/guides/moving.md import: models of other libraries with random weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    torch.save(TorchvisionViT(32, 8, 24, 1, 12, 32, 3).state_dict(), folder / "vit_b_16.pth")
    vocab = len(json.loads((folder / "runs/en-de/best/tokenizer.json").read_text("utf-8"))["model"]["vocab"])
    shutil.copy(folder / "runs/en-de/best/tokenizer.json", folder)
    embeddings = {"src": nn.Embedding(vocab, 16), "tgt": nn.Embedding(vocab, 16), "generator": nn.Linear(16, vocab)}
    model = nn.ModuleDict(embeddings | {"inner": nn.Transformer(16, 8, 1, 1, 16, batch_first=True)})
    torch.save(model.state_dict(), folder / "model.pt")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "love", "apples"]
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes))
    bert.save_pretrained(folder / "all-MiniLM-L6-v2")
    (folder / "all-MiniLM-L6-v2" / "vocab.txt").write_text("\n".join(words), "utf-8")
    (folder / "lines.txt").write_text("I love apples\n", "utf-8")


def make_noisy_text(folder: Path) -> None:
    """Write English and German text with a copy, and a test set."""
    subjects = {"The doctor": "Der Arzt", "My brother": "Mein Bruder", "The old man": "Der alte Mann"}
    verbs = {"sees": "sieht", "knows": "kennt", "looks for": "sucht", "finds": "findet"}
    objects = {"the house": "das Haus", "my book": "mein Buch", "the way": "den Weg", "a bird": "einen Vogel"}
    parts = [items.items() for items in (subjects, verbs, objects)]
    pairs = [[" ".join(words) for words in zip(*chosen, strict=True)] for chosen in product(*parts)]
    pairs.append(["The same in both", "The same in both"])
    (folder / "crawl.en-de.tsv").write_text("".join(f"{en}\t{de}\n" for en, de in pairs), "utf-8")
    for side, language in enumerate(("en", "de")):
        for name, some in (("train", pairs), ("test", pairs[:5])):
            (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in some), "utf-8")


@pytest.mark.parametrize("page", TRANSLATORS)
@pytest.mark.usefixtures("short_builtin_corpus")
def test_commands_of_a_page_run(
    page: str,
    extensions: Path,
    trained_run: Path,
    parallel_run: Path,
    image_run: Path,
    toy: Path,
    command: Command,
) -> None:
    make_files(extensions, page, trained_run, toy)
    if page in ("bench", "nat"):
        (extensions / "runs" / "parallel").symlink_to(parallel_run)
    if page in ("bench", "reference/pipelines"):
        shutil.copytree(image_run, extensions / "runs" / "cifar10")
    if page == "guides/cleaning":
        make_noisy_text(extensions)
        copy_with_languages(trained_run, extensions / "runs" / "backward", "zh", "en")
    if page == "export":
        make_foreign_models(extensions)
    if page == "finetuning":
        assert command("export", trained_run, "argos", "--to", "argos").code == 0
        next(Path("argos").glob("*.argosmodel")).rename("translate-en_de.argosmodel")
    if page == "guides/moving":
        assert command("export", trained_run, "opus-mt-en-de", "--to", "huggingface").code == 0
    if page == "guide":
        assert command("evaluate", "runs/old", "--src", "test.en", "--ref", "test.de", "--beam", "4").code == 0
    text, ran = path_of(page).read_text("utf-8"), 0
    for body in blocks(text, "console"):
        for line in body.replace("\\\n", " ").splitlines():
            for words in commands(line):
                run_command(line, words, extensions, command)
                if words[:2] == ["export", "runs/en-de"] and "huggingface" in words:
                    shutil.copytree(words[2], "opus-like-folder")
                ran += 1
    names: dict[str, object] = {"__name__": page}
    for mark, _, body in BLOCK.findall(text):
        if mark == AFTER_COMMANDS:
            exec(compile("import regard\n" + body, f"{page}.md", "exec"), names)
            ran += 1
    assert ran


def run_command(line: str, words: list[str], folder: Path, command: Command) -> None:
    """Run a command of a page; a server only loads its models."""
    if words[0] == "demo" or "--server" in words:  # tests/cli/test_demo.py, tests/serving/test_page_requests.py
        return
    if words[0] == "serve":
        for run in words[1 : 2 if "--keys" in words else None]:
            load_runner(LoadRequest("model", Path(run), "cpu", None, {}, None, None)).warm_up()
        return
    if "torchrun" in line:
        files = ["data.builtin=null", "data.source=train.en", "data.target=train.de"]  # the built-in corpus is large
        options = [word for file in files for word in ("--set", file)]
        launch(2, folder, [*words, *more_options(words), *options])
        return
    result = command(*words, *more_options(words), stdin=standard_input(words))
    assert result.code == 0, (words, result.err)


def path_of(page: str) -> Path:
    return DOCS.parent / "README.md" if page == "README" else DOCS / f"{page}.md"


def standard_input(words: list[str]) -> bytes:
    return b"holiday.jpg\n" if words[0] == "classify" else b"I love apples\n"


def more_options(words: list[str]) -> list[str]:
    """Return the options that make a training short; one that starts from another model keeps the sizes of this model.

    Settings that the page gives are kept, except for the number of steps. The folder of an earlier training is removed.
    """
    if words[0] == "bench":
        batch = [] if "--attention" in words or "--training" in words else MEASURED_BRIEFLY[2:]
        return [*MEASURED_BRIEFLY[:2], *([] if "--batch" in words else batch)]
    if words[0] != "train":
        return ["--workers", "1"] if {"crawl", "synthetic"} & set(words) and "--workers" not in words else []
    if "--out" in words:
        shutil.rmtree(Path(words[words.index("--out") + 1]), ignore_errors=True)
    text = " ".join(words)
    views = "scenes" in text
    task = "croco" if views else "swin" if "swin" in text else "classification" if "--data" in words else "translation"
    given = {word.partition("=")[0] for word in words} - SHORT.keys()
    initialised = "init-from" in text or "init.from" in text
    groups = ("model", "tokenizer") if initialised and words[1] != "demo" else ()  # this recipe has other sizes
    return settings_of(
        {key: value for key, value in SETTINGS[task].items() if key not in given and key.split(".")[0] not in groups}
    )


def test_every_page_with_commands_is_run() -> None:
    elsewhere = {"index"}  # `make demo`: tests/cli/test_demo.py
    elsewhere |= {f"guides/{name}" for name in ("ablation", "domain", "photographs", "two-views")}  # test_guides.py
    names = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    found = {name for name, path in names.items() if blocks(path.read_text("utf-8"), "console")}
    assert {name for name in found if not name.startswith(("extending/", "zh/"))} <= TRANSLATORS.keys() | elsewhere
    marked = {name for name, path in names.items() if AFTER_COMMANDS in path.read_text("utf-8")}
    assert {name for name in marked if not name.startswith("zh/")} <= TRANSLATORS.keys()


class ParsedError(Exception):
    """Raised when a script has parsed its options."""


BENCHMARKS = sorted(
    {
        line.partition("  # ")[0].strip()
        for page in PAGES
        for _, info, body in BLOCK.findall(page.read_text("utf-8"))
        if info == "console"
        for line in re.findall(r"^(?:\$ )?(python benchmarks/.*)$", body.replace("\\\n", " "), re.M)
    }
)


@pytest.mark.parametrize("line", BENCHMARKS)
def test_options_of_a_benchmark_exist(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse_args = ArgumentParser.parse_args

    def parse(self: ArgumentParser, *arguments: object) -> None:
        raise ParsedError(parse_args(self, *arguments))  # type: ignore[call-overload]

    script, *options = shlex.split(line)[1:]
    path = DOCS.parent / script
    if "ArgumentParser" not in path.read_text("utf-8"):
        assert options == []
        return
    monkeypatch.setattr(ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(sys, "argv", [str(path), *options])
    monkeypatch.syspath_prepend(str(path.parent))
    with pytest.raises(ParsedError):
        runpy.run_path(str(path), run_name="__main__")
