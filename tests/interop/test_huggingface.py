"""Export to transformers and import from it: translation models, image models and tokenizers."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

pytest.importorskip("transformers")

import transformers

from regard.data.images.preprocessing import ImagePreprocessing
from regard.decoding.constraints import DecodingRequest
from regard.decoding.settings import SearchSettings
from regard.errors import UserError
from regard.interop.export_model import export_model
from regard.interop.huggingface_translation import build_huggingface, export_huggingface
from regard.interop.huggingface_vision import build_huggingface_classifier
from regard.interop.import_model import import_model
from regard.interop.verification import SEARCHES, compare, sample_sources
from regard.models.swin import Swin, SwinConfig
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from regard.pipelines.external import TransformersGenerator
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs
from tests.interop.random_models import COMBINED, random_translator

UNSUPPORTED = {
    "pre-swiglu": "no gated feed-forward",
    "learned": "post-norm and learned positions",
    "rotary": "no rotary positions",
    "diagonal": "no diagonal-scaled positions",
    "two-vocabularies-untied": "one vocabulary size for both sides",
    "pre-without-final-norm": "a final norm with pre-norm",
    "post-with-final-norm": "none with post-norm",
    "eps": "norm_eps 1e-05",
}


@pytest.fixture(autouse=True)
def hide_progress_bars() -> None:
    transformers.utils.logging.disable_progress_bar()


HAS_TWO_SIZES = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 18)
needs_two_sizes = pytest.mark.skipif(not HAS_TWO_SIZES, reason="beam search of transformers < 5.18 needs one size")


@pytest.mark.parametrize(
    "option",
    [
        pytest.param(option, marks=[needs_two_sizes] if option == "two-vocabularies" else [])
        for option in COMBINED
        if option not in UNSUPPORTED
    ],
)
def test_export_and_import_restore_the_model(option: str, tmp_path: Path) -> None:
    original = random_translator(option)
    sources = [source for source in sample_sources(original) if len(source) <= 6][:10]
    exported, imported = tmp_path / "exported", tmp_path / "imported"
    exported.mkdir()
    (summary,) = export_huggingface(original, exported, sources)
    assert "log-probabilities within" in summary
    import_model(exported, imported)
    restored = Translator.load(imported)
    for settings in SEARCHES.values():
        expected, actual = (t.generator.generate(_requests(sources), settings) for t in (original, restored))
        assert [beam[0].tokens for beam in actual] == [beam[0].tokens for beam in expected]
    targets = [[token % 280 for token in source[:5]] for source in sources]
    log_probs = [t.generator.log_probs(sources, targets) for t in (original, restored)]
    torch.testing.assert_close(*log_probs, atol=1e-4, rtol=0)
    assert restored.vocabularies.fingerprint() == original.vocabularies.fingerprint()
    assert restored.languages == original.languages == ("en", "de")


def test_two_vocabulary_sizes_need_a_recent_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", "5.17.0")
    with pytest.raises(UserError, match=r"transformers 5\.17\.0 has no beam search for two .*; install 5\.18 or later"):
        build_huggingface(random_translator("two-vocabularies"))


def test_few_learned_positions_limit_the_length(tmp_path: Path) -> None:
    translator = random_translator("pre-learned", max_length=24)
    (summary,) = export_huggingface(translator, tmp_path, sample_sources(translator))
    assert re.search(r"identical translations \(greedy [1-9].*, beam 4 [1-9].*\); log-probabilities within", summary), (
        summary
    )


@pytest.mark.parametrize("stop", ["exact", "first"])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize(("ratio", "extra"), [(0, 1), (0.5, 2), (1.0, 3)])
def test_unfinished_translations_are_cut_at_the_same_length(beam: int, stop: str, ratio: float, extra: int) -> None:
    translator = random_translator("pre")
    sources = sample_sources(translator)
    settings = SearchSettings(beam=beam, stop=stop, max_ratio=ratio, max_extra=extra)
    expected = [beam[0].tokens for beam in translator.generator.generate(_requests(sources), settings)]
    cut = [
        len(tokens) + 1 == settings.max_target_length(len(source))
        for tokens, source in zip(expected, sources, strict=True)
    ]
    assert sum(cut) > 10, "the test needs unfinished translations"
    generator = TransformersGenerator(build_huggingface(translator))
    assert [beam[0].tokens for beam in generator.generate(_requests(sources), settings)] == expected


def test_sample_with_too_long_sentences_is_rejected(trained_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"begins with 'I love apples.* tokens, but this format supports at most 1023"):
        export_model(trained_run, tmp_path / "there", "huggingface", texts=["I love apples", "I love apples " * 400])
    assert list(tmp_path.iterdir()) == []


def test_options_without_effect_are_rejected(trained_run: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    export_model(trained_run, there, "huggingface")
    options: dict[str, dict[str, Any]] = {
        "--set": {"changes": {"heads": 3}},
        "--embedding": {"embeddings": {"source": "x"}},
        "--tokenizer": {"tokenizer": tmp_path / "nowhere"},
    }
    for name, arguments in options.items():
        with pytest.raises(UserError, match=f"there: omit {name}: .* a pegasus completely"):
            import_model(there, back, **arguments)
    with pytest.raises(UserError, match="a folder of transformers; convert it with regard import"):
        Translator.load(there)
    assert not back.exists()


def _requests(sources: list[list[int]]) -> list[object]:
    return [DecodingRequest(source) for source in sources]


@pytest.mark.parametrize(("option", "reason"), UNSUPPORTED.items())
def test_unsupported_models_are_rejected(option: str, reason: str, tmp_path: Path) -> None:
    translator = random_translator(option)
    with pytest.raises(UserError, match=reason):
        export_huggingface(translator, tmp_path, sample_sources(translator))
    assert list(tmp_path.iterdir()) == []


def test_trained_model_gives_identical_translations_in_transformers(
    trained_run: Path, tmp_path: Path, command: Command
) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    answer = command("export", trained_run, there, "--to", "huggingface")
    assert answer.code == 0, answer.err
    assert "as PegasusForConditionalGeneration, 48 sentences" in answer.out
    assert command("import", there, back).code == 0
    original, restored = Translator.load(trained_run), Translator.load(back)
    generator = TransformersGenerator(transformers.AutoModelForSeq2SeqLM.from_pretrained(there))
    texts = [pair.source for pair in toy_pairs()][:100]
    assert original(texts, beam=4) == restored(texts, beam=4)
    agreement = compare(original, generator, sample_sources(original, texts))
    assert agreement.identical == {"greedy": (100, 100), "beam 4": (100, 100)}
    assert agreement.max_difference < 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(there)
    inputs = tokenizer(["I love apples", "You buy tea and apples"], return_tensors="pt", padding=True)
    rows = generator.model.generate(**inputs, num_beams=4, max_new_tokens=20)
    assert tokenizer.batch_decode(rows, skip_special_tokens=True) == ["我喜欢苹果", "你买茶和苹果"]


def test_exported_tokenizer_encodes_and_decodes_identically(trained_run: Path, tmp_path: Path) -> None:
    export_model(trained_run, tmp_path / "there", "huggingface")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    tokenizer = Translator.load(trained_run).vocabularies.source
    unspaced = ["我喜欢苹果", " 我", "“我”"]
    for text in ["I love apples", " two  spaces ", "é e\u0301", "<eos> <0x41>", "x\ny", "ü▁ 😀", "I", *unspaced]:
        ids = tokenizer.encode(text)
        assert exported(text).input_ids == [*ids, tokenizer.EOS], text
        assert exported.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids), text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids[:-1], "encodes .* differently"),  # without END
        (lambda ids: [ids[0], *ids], "encodes .* differently"),
        (lambda text: text + " ", "decodes .* differently"),
    ],
)
def test_tokenizer_that_gives_other_results_is_rejected(
    change: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = random_translator("post")
    load = transformers.AutoTokenizer.from_pretrained

    class Changed:
        def __init__(self, folder: Path) -> None:
            self.original = load(folder)

        def __call__(self, text: str) -> Any:
            ids = self.original(text).input_ids
            return SimpleNamespace(input_ids=change(ids) if "encodes" in message else ids)

        def decode(self, ids: list[int], **options: Any) -> str:
            text = self.original.decode(ids, **options)
            return change(text) if "decodes" in message else text

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", Changed)
    with pytest.raises(UserError, match=f"the exported tokenizer {message}, so nothing was written"):
        export_huggingface(translator, tmp_path, sample_sources(translator)[:2])


def test_a_tokenizer_that_changes_text_is_not_imported(trained_run: Path, tmp_path: Path) -> None:
    export_model(trained_run, tmp_path / "there", "huggingface")
    path = tmp_path / "there" / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    for normaliser in (None, tokenizers.normalizers.Lowercase(), tokenizers.normalizers.Prepend(" ")):
        tokenizer.normalizer = normaliser
        tokenizer.save(str(path))
        with pytest.raises(UserError, match=r"tokenizer\.json contains a tokenizer that changes text"):
            import_model(tmp_path / "there", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_model_card_contains_scores_and_signature(
    toy: Path, trained_run: Path, tmp_path: Path, command: Command
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    assert command("evaluate", run, "--src", toy / "train.en", "--ref", toy / "train.zh").code == 0
    export_model(run, tmp_path / "there", "huggingface")
    card = (tmp_path / "there" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "- validation perplexity" in card
    assert "BLEU" in card and "|tok:" in card and "| width | 32 |" in card and "| source |" in card


@pytest.mark.parametrize(("name", "size"), [("vit", 32), ("swin", 32), ("swin", 28)])
def test_image_models_are_exported_and_imported(name: str, size: int, tmp_path: Path, command: Command) -> None:
    torch.manual_seed(0)
    if name == "vit":
        model = ViT(ViTConfig(image=size, patch=8, classes=5, width=32, layers=2, heads=4, hidden=48))
    else:
        model = Swin(SwinConfig.mini(classes=5, image=size, width=24))
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.2)
    names = ("bee", "cat", "dog", "elk", "fox")
    preprocessing = ImagePreprocessing(classes=names, size=size, channels=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3))
    run, there, back = tmp_path / "run", tmp_path / "there", tmp_path / "back"
    run.mkdir()
    Classifier(model.eval(), preprocessing).save(run)
    answer = command("export", run, there, "--to", "huggingface")
    assert answer.code == 0, answer.err
    assert "ForImageClassification: batches of 1 and 8 images, logits within" in answer.out
    assert command("import", there, back).code == 0
    restored = Classifier.load(back)
    images = torch.randn(3, 3, size, size)
    torch.testing.assert_close(restored.model(images), model(images), atol=1e-5, rtol=0)
    assert restored.preprocessing == preprocessing
    picture = np.random.default_rng(0).integers(0, 256, (size, size, 3), np.uint8)
    processed = transformers.ViTImageProcessorPil.from_pretrained(there)(picture, return_tensors="pt")
    torch.testing.assert_close(processed["pixel_values"], preprocessing.normalise([preprocessing.open(picture)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": 28, "window_padding": "timm"}, "pads a grid of 14 tokens a side before it is shifted"),
        ({"window": (4, 8)}, "needs square windows"),
        ({"image": 16}, "needs grids of at least 4 tokens a side, not 2"),
    ],
)
def test_swin_with_other_windows_than_transformers_is_rejected(changes: dict[str, Any], message: str) -> None:
    config = SwinConfig.mini(**{"classes": 2, "width": 24} | changes)
    preprocessing = ImagePreprocessing(
        classes=("a", "b"), size=config.image[0], channels=3, mean=(0.5,) * 3, std=(0.2,) * 3
    )
    with pytest.raises(UserError, match=message):
        build_huggingface_classifier(Classifier(Swin(config), preprocessing))


def test_vit_with_mean_pooling_is_rejected(tmp_path: Path, command: Command) -> None:
    preprocessing = ImagePreprocessing(classes=("a", "b"), size=32, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    (tmp_path / "run").mkdir()
    Classifier(ViT(ViTConfig.micro(classes=2)), preprocessing).save(tmp_path / "run")
    error = command("export", tmp_path / "run", tmp_path / "there", "--to", "huggingface").error
    assert "the ViT of transformers has pooling class" in error
    assert not (tmp_path / "there").exists()
    assert (
        "cannot be exported to ctranslate2"
        in command("export", tmp_path / "run", tmp_path / "x", "--to", "ctranslate2").error
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": (8, 16)}, "need square images and patches"),
        ({"patch": (4, 8)}, "need square images and patches"),
        ({"qk_scale": 0.5}, "image models of transformers have no qk_scale"),
        ({"activation": "swiglu"}, "a feed-forward layer without gates"),
        ({"attention": {"kind": "local", "window": 2}}, "the ViT of transformers has full attention"),
    ],
)
def test_vit_without_a_counterpart_in_transformers_is_rejected(changes: dict[str, Any], message: str) -> None:
    sizes = {"image": 16, "patch": 4, "width": 8, "layers": 1, "heads": 2, "hidden": 8, "classes": 2}
    model = ViT(ViTConfig(**sizes | {"pooling": "class"} | changes))
    preprocessing = ImagePreprocessing(classes=("a", "b"), size=16, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    with pytest.raises(UserError, match=message):
        build_huggingface_classifier(Classifier(model, preprocessing))
