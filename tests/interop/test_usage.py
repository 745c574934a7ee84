"""The Python programs in the README.md of exports: they run without regard and give the same results."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from regard.data.text.tokenizer import Tokenizer, Vocabularies
from regard.interop import usage
from regard.interop.export_model import FORMATS, export_model
from regard.interop.import_model import import_model
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator
from tests.interop.snippets import run_without_regard

ENGINES = {name: name for name in FORMATS} | {"huggingface": "transformers", "onnx": "onnxruntime"}
ENGINES["argos"] = "argostranslate"


def run_snippet(folder: Path) -> str:
    """Run the program in README.md in a process that cannot import regard, and return its output."""
    (snippet,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.S)
    return run_without_regard(snippet, folder)


def require(name: str) -> None:
    if find_spec(ENGINES[name]) is None:
        pytest.skip(f"{ENGINES[name]} is not installed")


# With ONNX, the next test translates with two tokenizers, which all formats load in the same way; with torch.export,
# tests/interop/test_graphs.py runs the program.
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("onnx", "torch")])
def test_snippet_translates_like_regard(name: str, trained_run: Path, tmp_path: Path) -> None:
    require(name)
    export_model(trained_run, tmp_path / "out", name)
    assert run_snippet(tmp_path / "out") == Translator.load(trained_run)("I love apples") == "我喜欢苹果"


@pytest.mark.parametrize("name", ["ctranslate2", "onnx", "huggingface"])
def test_snippet_loads_the_tokenizers_of_both_languages(name: str, trained_run: Path, tmp_path: Path) -> None:
    require(name)
    joint = Translator.load(trained_run)
    source = joint.vocabularies.source
    vocabularies = Vocabularies(source, Tokenizer(source.to_tokenizers()))
    Translator(joint.model, vocabularies, joint.languages).save_pretrained(tmp_path / "model")
    export_model(tmp_path / "model", tmp_path / "out", name)
    assert not (tmp_path / "out" / "tokenizer.json").exists() or name == "huggingface"
    assert run_snippet(tmp_path / "out") == "我喜欢苹果"


def test_snippet_loads_sentencepiece_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("ctranslate2")
    from tests.interop.test_marian_folders import ENGLISH, make_folder  # skips if a package is missing

    import_model(make_folder(tmp_path / "marian", "unigram", True), tmp_path / "model")
    translator = Translator.load(tmp_path / "model")
    text, expected = next((text, found) for text in ENGLISH if (found := translator(text, stop="first")))
    monkeypatch.setattr(usage, "EXAMPLE", text)
    export_model(tmp_path / "model", tmp_path / "out", "ctranslate2")
    assert run_snippet(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("name", "model"), [("onnx", "image_run"), ("torch", "image_run"), ("huggingface", "swin_run")]
)
def test_snippet_classifies_like_regard(
    name: str, model: str, painted: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    require(name)
    run = request.getfixturevalue(model)
    export_model(run, tmp_path / "out", name)
    path = tmp_path / "out" / "image.png"
    Image.open(next((painted / "test" / "green").iterdir())).resize((20, 13)).save(path)
    best, _ = Classifier.load(run)(path)[0]
    assert run_snippet(tmp_path / "out") == best == "green"
