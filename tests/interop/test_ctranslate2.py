"""Our models in CTranslate2: every option, a trained model, refusals, and nothing left behind."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("ctranslate2")

from regard.decoding.config import SearchSettings
from regard.errors import UserError
from regard.inspection.probe import probe
from regard.interop.export import export
from regard.interop.export_ctranslate2 import load_translator, save_ctranslate2, write_ctranslate2
from regard.interop.verification import SEARCHES, GeneratorPeer, check, compare, sample_sources
from regard.models.transformer import TransformerConfig
from regard.pipelines.constraints import Constraints
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs
from tests.interop.random_models import TOGETHER, random_translator


def as_engine(translator: Translator, folder: Path, quantization: str = "float32") -> Translator:
    save_ctranslate2(translator, folder, quantization)
    return Translator.load(folder)


@pytest.mark.parametrize("option", TOGETHER)
def test_every_option_says_the_same_in_the_engine(option: str, tmp_path: Path) -> None:
    ours = random_translator(option)
    agreement = compare(ours, GeneratorPeer(as_engine(ours, tmp_path).generator), sample_sources(ours)[:24])
    check(agreement, "the engine")
    assert sum(ended for _, ended in agreement.same.values()) >= 4


def test_a_trained_model_translates_300_sentences_alike(trained_run: Path) -> None:
    ours, theirs = Translator.load(trained_run), load_translator(trained_run, engine="ctranslate2")
    texts = [pair.source for pair in toy_pairs()][:300]
    for settings in SEARCHES.values():
        found, other = ours.hypotheses(texts, settings), theirs.hypotheses(texts, settings)
        assert [best[0].text for best in found] == [best[0].text for best in other]
        assert [best[0].score for best in other] == pytest.approx([best[0].score for best in found], abs=1e-4)
    assert len({best[0].text for best in other}) > 200


def test_n_best_lengths_and_penalties_mean_the_same(trained_run: Path) -> None:
    ours, theirs = Translator.load(trained_run), load_translator(trained_run, engine="ctranslate2")
    texts = [pair.source for pair in toy_pairs()][:40]
    for options in ({"n_best": 3}, {"alpha": 0.4}, {"length_penalty": "none"}):
        settings = SearchSettings.parse({"beam": 4, "stop": "first"} | options, "test")
        # Without a penalty it stops when nothing can be better, whatever else has ended.
        mine = settings.changed(stop="exact") if "length_penalty" in options else settings
        found, other = ours.hypotheses(texts, mine), theirs.hypotheses(texts, settings)
        assert [[one.text for one in best] for best in found] == [[one.text for one in best] for best in other], options
    # What is cut at the limit depends on what a beam still holds there, which differs; it is short and scored as ours.
    cut = SearchSettings(beam=4, max_length=3)
    for text, best in zip(texts, theirs.hypotheses(texts, cut), strict=True):
        assert len(best[0].tokens) <= 2
        (judged,) = ours.score_tokens([ours.vocabularies.source.encode(text)], [best[0].tokens], cut)
        assert best[0].score == pytest.approx(judged.score, abs=1e-4)


def test_quantising_leaves_our_weights_alone(tmp_path: Path) -> None:
    ours = random_translator("post")
    before = [tensor.clone() for tensor in ours.model.parameters()]
    save_ctranslate2(ours, tmp_path, "int8")
    assert all(map(torch.equal, before, ours.model.parameters()))


def test_company_changes_nothing(trained_run: Path) -> None:
    theirs = load_translator(trained_run, engine="ctranslate2")
    texts = ["I love apples", "We see dogs and cats", "You buy tea"]
    together = theirs.hypotheses(texts, SearchSettings(beam=4, max_ratio=1, max_extra=1))
    alone = [theirs.hypotheses([text], SearchSettings(beam=4, max_ratio=1, max_extra=1))[0] for text in texts]
    assert [best[0].text for best in together] == [best[0].text for best in alone]


def test_the_interface_of_results_is_the_same(trained_run: Path) -> None:
    theirs = load_translator(trained_run, engine="ctranslate2")
    assert theirs("I love apples") == "我喜欢苹果"
    assert theirs(["I love apples", "", "You buy tea"]) == ["我喜欢苹果", "", "你买茶"]
    best = theirs("I love apples", n_best=2)
    assert [one.alignment for one in best] == [None, None]
    assert best[0].subwords and best[0].source_subwords
    scored = theirs.score("I love apples", "我喜欢苹果")
    assert scored.score == pytest.approx(
        Translator.load(trained_run).score("I love apples", "我喜欢苹果").score, abs=1e-4
    )


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": 1.0}, "temperature"),
        ({"coverage": 0.2}, "coverage"),
        ({"groups": 2, "beam": 4}, "groups"),
        ({"no_repeat": 2}, "no_repeat"),
        ({"min_length": 2}, "min_length"),
        ({"stop": "exact"}, "stop exact"),
        ({"length_penalty": "wu"}, "length_penalty wu"),
    ],
)
def test_what_the_engine_lacks_is_refused_by_name(trained_run: Path, options: dict[str, object], name: str) -> None:
    theirs = load_translator(trained_run, engine="ctranslate2")
    with pytest.raises(UserError, match=f"has no {name}"):
        theirs("I love apples", **options)


def test_what_needs_the_weights_is_refused_by_name(trained_run: Path) -> None:
    theirs = load_translator(trained_run, engine="ctranslate2")
    for constraints, name in ((Constraints(prefix="我"), "prefix"), (Constraints(required=("我",)), "required")):
        with pytest.raises(UserError, match=f"has no {name}"):
            theirs.hypotheses(["I love apples"], constraints=constraints)
    with pytest.raises(UserError, match="alignments"):
        theirs.hypotheses(["I love apples"], alignments=True)
    with pytest.raises(UserError, match="probe"), probe(theirs.model):
        theirs("I love apples")
    with pytest.raises(UserError, match="encoder outputs"):
        theirs.embed(["I love apples"])
    with pytest.raises(UserError, match="ensembles"):
        load_translator(trained_run, trained_run, engine="ctranslate2")
    with pytest.raises(UserError, match="none of regard, ctranslate2"):
        load_translator(trained_run, engine="onnx")


def test_the_command_exports_and_translates(trained_run: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "exported"
    readme = out / "README.md"
    answer = command("export", trained_run, out, "--to", "ctranslate2", "--quantization", "int8")
    assert (answer.code, answer.err) == (0, "")
    assert "log-probabilities within" in answer.out
    assert "quantised, it gives the same translations in: greedy" in answer.out
    assert command("translate", out, "I love apples", "--beam", 4).out == "我喜欢苹果\n"
    assert command("translate", trained_run, "You buy tea", "--engine", "ctranslate2").out == "你买茶\n"
    assert "exists already" in command("export", trained_run, out, "--to", "ctranslate2").error
    for other in (
        ("export", out, tmp_path / "on", "--to", "onnx"),
        ("evaluate", out, "--src", readme, "--ref", readme),
    ):
        assert "is an export for CTranslate2, which regard translate and regard serve take" in command(*other).error
    assert "engine ctranslate2" in command("translate", out, "You buy tea", "--engine", "regard").error
    assert "Trained with regard" in readme.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"attention": {"kind": "local", "window": 4}}, "full attention only"), ({"encoder_layers": 0}, "one layer")],
)
def test_what_cannot_be_expressed_is_refused_with_the_reason(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    ours = random_translator("post")
    ours.model.config = TransformerConfig.parse(ours.model.config.model_dump() | changes, "test")
    with pytest.raises(UserError, match=reason):
        save_ctranslate2(ours, tmp_path)


def test_learned_positions_that_end_soon(tmp_path: Path) -> None:
    ours = random_translator("pre-learned", max_length=24)
    (said,) = write_ctranslate2(ours, tmp_path, sample_sources(ours), None)
    assert re.search(r"the same translations \(greedy [1-9].*, beam 4 [1-9].*\); log-probabilities within", said), said


def test_an_export_that_does_not_agree_leaves_nothing(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(translator: Translator, folder: Path, quantization: str = "float32") -> None:
        with torch.no_grad():
            translator.model.decoder[0].cross.out.weight[0] *= 1.5
        save_ctranslate2(translator, folder, quantization)
        with torch.no_grad():
            translator.model.decoder[0].cross.out.weight[0] /= 1.5

    monkeypatch.setattr("regard.interop.export_ctranslate2.save_ctranslate2", spoil)
    with pytest.raises(UserError, match="nothing was written"):
        export(trained_run, tmp_path / "out", "ctranslate2")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_folder_of_the_engine_is_refused(trained_run: Path, tmp_path: Path) -> None:
    save_ctranslate2(Translator.load(trained_run), tmp_path)
    whole = (tmp_path / "model.bin").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"x" * 100):
        (tmp_path / "model.bin").write_bytes(content)
        with pytest.raises(UserError, match="CTranslate2 cannot load it"):
            Translator.load(tmp_path)
