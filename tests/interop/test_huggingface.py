"""Ours to transformers and back: translation models, image models, tokenizers, refusals."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers

from regard.decoding.config import SearchSettings
from regard.errors import UserError
from regard.interop.export import export
from regard.interop.huggingface_marian import build_huggingface, write_huggingface
from regard.interop.import_model import import_model
from regard.interop.verification import SEARCHES, GeneratorPeer, compare, sample_sources
from regard.models.swin import Swin, SwinConfig
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from regard.pipelines.preprocessing import ImagePreprocessing
from regard.pipelines.transformers import TransformersGenerator
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs
from tests.interop.random_models import TOGETHER, random_translator

REFUSED = {
    "pre-swiglu": "no gated feed-forward",
    "learned": "post-norm with learned positions",
    "rotary": "no rotary positions",
    "two-vocabularies-untied": "one vocabulary size for both sides",
    "pre-without-final-norm": "a final norm with pre-norm",
    "post-with-final-norm": "none with post-norm",
    "eps": "norm_eps of 1e-05",
}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.parametrize("option", [option for option in TOGETHER if option not in REFUSED])
def test_ours_to_theirs_to_ours(option: str, tmp_path: Path) -> None:
    ours = random_translator(option)
    sources = [source for source in sample_sources(ours) if len(source) <= 6][:10]
    there, back = tmp_path / "there", tmp_path / "back"
    there.mkdir()
    (said,) = write_huggingface(ours, there, sources)
    assert "log-probabilities within" in said
    import_model(there, back)
    again = Translator.load(back)
    for settings in SEARCHES.values():
        found, other = (t.generator.generate(_requests(sources), settings) for t in (ours, again))
        assert [best[0].tokens for best in found] == [best[0].tokens for best in other]
    anything = [[token % 280 for token in source[:5]] for source in sources]
    logits = [t.generator.log_probs(sources, anything) for t in (ours, again)]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=0)
    assert again.vocabularies.fingerprint() == ours.vocabularies.fingerprint()
    assert again.languages == ours.languages == ("en", "de")


def test_learned_positions_that_end_soon(tmp_path: Path) -> None:
    ours = random_translator("pre-learned", max_length=24)
    (said,) = write_huggingface(ours, tmp_path, sample_sources(ours))
    assert re.search(r"the same translations \(greedy [1-9].*, beam 4 [1-9].*\); log-probabilities within", said), said


@pytest.mark.parametrize("stop", ["exact", "first"])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize(("ratio", "extra"), [(0, 1), (0.5, 2), (1.0, 3)])
def test_sentences_that_do_not_end_are_cut_where_ours_are(beam: int, stop: str, ratio: float, extra: int) -> None:
    ours = random_translator("pre")
    sources = sample_sources(ours)
    settings = SearchSettings(beam=beam, stop=stop, max_ratio=ratio, max_extra=extra)
    found = [best[0].tokens for best in ours.generator.generate(_requests(sources), settings)]
    cut = [
        len(tokens) + 1 == settings.max_target_length(len(source))
        for tokens, source in zip(found, sources, strict=True)
    ]
    assert sum(cut) > 10, "else this shows nothing"
    assert GeneratorPeer(TransformersGenerator(build_huggingface(ours))).write(sources, settings) == found


def test_a_sample_longer_than_their_positions_is_refused(trained_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"begins with 'I love apples.* tokens, and in this format 1023 can be read"):
        export(trained_run, tmp_path / "there", "huggingface", texts=["I love apples", "I love apples " * 400])
    assert list(tmp_path.iterdir()) == []


def test_what_would_change_nothing_is_refused(trained_run: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    export(trained_run, there, "huggingface")
    options: dict[str, dict[str, Any]] = {
        "--set": {"changes": {"heads": 3}},
        "--embedding": {"embeddings": {"source": "x"}},
        "--tokenizer": {"tokenizer": tmp_path / "nowhere"},
    }
    for name, given in options.items():
        with pytest.raises(UserError, match=f"there: leave {name} away: .* of a pegasus"):
            import_model(there, back, **given)
    with pytest.raises(UserError, match="a folder of transformers; bring it in with regard import"):
        Translator.load(there)
    assert not back.exists()


def _requests(sources: list[list[int]]) -> list[object]:
    from regard.decoding.constraints import DecodingRequest

    return [DecodingRequest(source) for source in sources]


@pytest.mark.parametrize(("option", "reason"), REFUSED.items())
def test_what_transformers_lacks_is_refused_with_the_reason(option: str, reason: str, tmp_path: Path) -> None:
    ours = random_translator(option)
    with pytest.raises(UserError, match=reason):
        write_huggingface(ours, tmp_path, sample_sources(ours))
    assert list(tmp_path.iterdir()) == []


def test_a_trained_model_translates_sentences_alike(trained_run: Path, tmp_path: Path, command: Command) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    answer = command("export", trained_run, there, "--to", "huggingface")
    assert answer.code == 0, answer.err
    assert "as PegasusForConditionalGeneration, 48 sentences" in answer.out
    assert command("import", there, back).code == 0
    ours, again = Translator.load(trained_run), Translator.load(back)
    theirs = GeneratorPeer(TransformersGenerator(transformers.AutoModelForSeq2SeqLM.from_pretrained(there)))
    texts = [pair.source for pair in toy_pairs()][:100]
    assert ours(texts, beam=4) == again(texts, beam=4)
    agreement = compare(ours, theirs, sample_sources(ours, texts))
    assert agreement.same == {"greedy": (100, 100), "beam 4": (100, 100)}
    assert agreement.difference < 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(there)
    inputs = tokenizer(["I love apples", "You buy tea and apples"], return_tensors="pt", padding=True)
    written = theirs.generator.model.generate(**inputs, num_beams=4, max_new_tokens=20)
    assert tokenizer.batch_decode(written, skip_special_tokens=True) == ["我喜欢苹果", "你买茶和苹果"]


def test_their_tokenizer_cuts_and_joins_like_ours(trained_run: Path, tmp_path: Path) -> None:
    export(trained_run, tmp_path / "there", "huggingface")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")
    ours = Translator.load(trained_run).vocabularies.source
    for text in ["I love apples", " two  spaces ", "é e\u0301", "<eos> <0x41>", "我喜欢苹果", "x\ny", "ü▁ 😀", "I"]:
        assert theirs(text).input_ids == [*ours.encode(text), ours.EOS], text
        assert theirs.decode(ours.encode(text), skip_special_tokens=True) == ours.decode(ours.encode(text)), text


def test_a_card_tells_scores_and_signature(toy: Path, trained_run: Path, tmp_path: Path, command: Command) -> None:
    import shutil

    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    assert command("evaluate", run, "--src", toy / "train.en", "--ref", toy / "train.zh").code == 0
    export(run, tmp_path / "there", "huggingface")
    card = (tmp_path / "there" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "- validation perplexity" in card
    assert "BLEU" in card and "|tok:" in card and "| width | 32 |" in card and "| source |" in card


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_images_go_there_and_back(name: str, tmp_path: Path, command: Command) -> None:
    torch.manual_seed(0)
    if name == "vit":
        model = ViT(ViTConfig(image=32, patch=8, classes=5, width=32, layers=2, heads=4, hidden=48))
    else:
        model = Swin(SwinConfig.mini(classes=5, width=24))
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.2)
    names = ("bee", "cat", "dog", "elk", "fox")
    preprocessing = ImagePreprocessing(classes=names, size=32, channels=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3))
    run, there, back = tmp_path / "run", tmp_path / "there", tmp_path / "back"
    run.mkdir()
    Classifier(model.eval(), preprocessing).save(run)
    answer = command("export", run, there, "--to", "huggingface")
    assert answer.code == 0, answer.err
    assert "ForImageClassification: batches of 1 and 8 images, logits within" in answer.out
    assert command("import", there, back).code == 0
    again = Classifier.load(back)
    images = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(again.model(images), model(images), atol=1e-5, rtol=0)
    assert again.preprocessing == preprocessing


def test_a_vit_that_pools_otherwise_is_refused(tmp_path: Path, command: Command) -> None:
    preprocessing = ImagePreprocessing(classes=("a", "b"), size=32, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    (tmp_path / "run").mkdir()
    Classifier(ViT(ViTConfig.micro(classes=2)), preprocessing).save(tmp_path / "run")
    refusal = command("export", tmp_path / "run", tmp_path / "there", "--to", "huggingface").error
    assert "transformers' ViT has pooling class" in refusal
    assert not (tmp_path / "there").exists()
    assert "no way to write" in command("export", tmp_path / "run", tmp_path / "x", "--to", "ctranslate2").error
