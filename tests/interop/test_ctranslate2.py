"""Export to CTranslate2, and translation with it."""

import json
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("ctranslate2")

from regard.decoding.settings import SearchSettings
from regard.errors import UserError
from regard.inspection.probe import probe
from regard.interop.ctranslate2 import export_ctranslate2, load_translator, save_ctranslate2
from regard.interop.export_model import export_model
from regard.interop.verification import SEARCHES, check_agreement, compare, sample_sources
from regard.models.folder import FOREIGN_CONFIG
from regard.models.transformer import TransformerConfig
from regard.pipelines.constraints import Constraints
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs
from tests.interop.random_models import COMBINED, random_translator


def in_ctranslate2(translator: Translator, folder: Path, quantization: str = "float32") -> Translator:
    save_ctranslate2(translator, folder, quantization)
    return Translator.load(folder)


@pytest.mark.parametrize("option", COMBINED)
def test_exported_model_agrees_for_every_option(option: str, tmp_path: Path) -> None:
    translator = random_translator(option)
    exported = in_ctranslate2(translator, tmp_path)
    agreement = compare(translator, exported.generator, sample_sources(translator)[:24])
    check_agreement(agreement, "the exported model")
    assert sum(compared for _, compared in agreement.identical.values()) >= 4


def test_300_translations_of_a_trained_model_are_identical(trained_run: Path) -> None:
    native, engine = Translator.load(trained_run), load_translator(trained_run, engine="ctranslate2")
    texts = [pair.source for pair in toy_pairs()][:300]
    for settings in SEARCHES.values():
        expected, actual = native.hypotheses(texts, settings), engine.hypotheses(texts, settings)
        assert [beam[0].text for beam in actual] == [beam[0].text for beam in expected]
        assert [beam[0].score for beam in actual] == pytest.approx([beam[0].score for beam in expected], abs=1e-4)
    assert len({beam[0].text for beam in actual}) > 200


def test_n_best_length_limit_and_penalties_have_the_same_meaning(trained_run: Path) -> None:
    native, engine = Translator.load(trained_run), load_translator(trained_run, engine="ctranslate2")
    texts = [pair.source for pair in toy_pairs()][:40]
    for options in ({"n_best": 3}, {"alpha": 0.4}, {"length_penalty": "none"}):
        settings = SearchSettings.parse({"beam": 4, "stop": "first"} | options, "test")
        # Without a length penalty, CTranslate2 stops when no hypothesis can improve.
        native_settings = settings.changed(stop="exact") if "length_penalty" in options else settings
        expected, actual = native.hypotheses(texts, native_settings), engine.hypotheses(texts, settings)
        assert [[h.text for h in beam] for beam in actual] == [[h.text for h in beam] for beam in expected], options
    # Hypotheses cut at the length limit may differ, but they are short and have the scores of the regard model.
    cut = SearchSettings(beam=4, max_length=3)
    for text, beam in zip(texts, engine.hypotheses(texts, cut), strict=True):
        assert len(beam[0].tokens) <= 2
        (scored,) = native.score_tokens([native.vocabularies.source.encode(text)], [beam[0].tokens], cut)
        assert beam[0].score == pytest.approx(scored.score, abs=1e-4)


def test_quantisation_does_not_change_the_regard_model(tmp_path: Path) -> None:
    translator = random_translator("post")
    before = [tensor.clone() for tensor in translator.model.parameters()]
    save_ctranslate2(translator, tmp_path, "int8")
    assert all(map(torch.equal, before, translator.model.parameters()))


def test_quantised_files_are_smaller(tmp_path: Path) -> None:
    sizes = {}
    for quantization in ("float32", "float16", "int8"):
        (tmp_path / quantization).mkdir()
        save_ctranslate2(random_translator("post"), tmp_path / quantization, quantization)
        sizes[quantization] = (tmp_path / quantization / "model.bin").stat().st_size
    assert sizes["float16"] < 0.6 * sizes["float32"]
    assert sizes["int8"] < 0.8 * sizes["float32"]  # of a large model a quarter: here embeddings and scales prevail


def test_translations_do_not_depend_on_the_batch(trained_run: Path) -> None:
    engine = load_translator(trained_run, engine="ctranslate2")
    texts = ["I love apples", "We see dogs and cats", "You buy tea"]
    batch = engine.hypotheses(texts, SearchSettings(beam=4, max_ratio=1, max_extra=1))
    single = [engine.hypotheses([text], SearchSettings(beam=4, max_ratio=1, max_extra=1))[0] for text in texts]
    assert [best[0].text for best in batch] == [best[0].text for best in single]


def test_results_have_the_same_interface(trained_run: Path) -> None:
    engine = load_translator(trained_run, engine="ctranslate2")
    assert engine("I love apples") == "我喜欢苹果"
    assert engine(["I love apples", "", "You buy tea"]) == ["我喜欢苹果", "", "你买茶"]
    best = engine("I love apples", n_best=2)
    assert [one.alignment for one in best] == [None, None]
    assert best[0].subwords and best[0].source_subwords
    scored = engine.score("I love apples", "我喜欢苹果")
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
def test_unsupported_settings_are_rejected(trained_run: Path, options: dict[str, object], name: str) -> None:
    engine = load_translator(trained_run, engine="ctranslate2")
    with pytest.raises(UserError, match=f"has no {name}"):
        engine("I love apples", **options)


def test_exported_models_keep_their_precision_and_are_no_ensembles(trained_run: Path, tmp_path: Path) -> None:
    (tmp_path / FOREIGN_CONFIG).write_text("{}")
    with pytest.raises(UserError, match="its precision was chosen when it was exported; omit precision"):
        Translator.load(tmp_path, precision="int8")
    with pytest.raises(UserError, match="CTranslate2 has no ensembles; give training runs"):
        Translator.load(tmp_path, trained_run)


def test_features_that_need_the_weights_are_rejected(trained_run: Path) -> None:
    engine = load_translator(trained_run, engine="ctranslate2")
    for constraints, name in ((Constraints(prefix="我"), "prefix"), (Constraints(required=("我",)), "required")):
        with pytest.raises(UserError, match=f"has no {name}"):
            engine.hypotheses(["I love apples"], constraints=constraints)
    with pytest.raises(UserError, match="alignments"):
        engine.hypotheses(["I love apples"], alignments=True)
    with pytest.raises(UserError, match="probe"), probe(engine.model):
        engine("I love apples")
    with pytest.raises(UserError, match="encoder outputs"):
        engine.embed(["I love apples"])
    with pytest.raises(UserError, match="ensembles"):
        load_translator(trained_run, trained_run, engine="ctranslate2")
    with pytest.raises(UserError, match="not one of regard, ctranslate2"):
        load_translator(trained_run, engine="onnx")


def test_command_exports_and_translates(trained_run: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "exported"
    readme = out / "README.md"
    answer = command("export", trained_run, out, "--to", "ctranslate2", "--quantization", "int8")
    assert (answer.code, answer.err) == (0, "")
    assert "log-probabilities within" in answer.out
    assert "quantised: identical translations (greedy" in answer.out
    assert command("translate", out, "I love apples", "--beam", 4).out == "我喜欢苹果\n"
    assert command("translate", trained_run, "You buy tea", "--engine", "ctranslate2").out == "你买茶\n"
    assert "exists already" in command("export", trained_run, out, "--to", "ctranslate2").error
    for other in (
        ("export", out, tmp_path / "on", "--to", "onnx"),
        ("evaluate", out, "--src", readme, "--ref", readme),
    ):
        assert "is an export for CTranslate2, which regard translate and regard serve accept" in command(*other).error
    assert "engine ctranslate2" in command("translate", out, "You buy tea", "--engine", "regard").error
    assert "Trained with regard" in readme.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention": {"kind": "local", "window": 4}}, "only full attention"),
        ({"encoder_layers": 0}, "at least one encoder layer"),
    ],
)
def test_unsupported_models_are_rejected(changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    translator = random_translator("post")
    translator.model.config = TransformerConfig.parse(translator.model.config.model_dump() | changes, "test")
    with pytest.raises(UserError, match=reason):
        save_ctranslate2(translator, tmp_path)


def test_few_learned_positions_limit_the_length(tmp_path: Path) -> None:
    translator = random_translator("pre-learned", max_length=24)
    (summary,) = export_ctranslate2(translator, tmp_path, sample_sources(translator), None)
    assert re.search(r"identical translations \(greedy [1-9].*, beam 4 [1-9].*\); log-probabilities within", summary), (
        summary
    )


def test_failed_verification_leaves_no_files(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(translator: Translator, folder: Path, quantization: str = "float32") -> None:
        with torch.no_grad():
            translator.model.decoder[0].cross.out.weight[0] *= 1.5
        save_ctranslate2(translator, folder, quantization)
        with torch.no_grad():
            translator.model.decoder[0].cross.out.weight[0] /= 1.5

    monkeypatch.setattr("regard.interop.ctranslate2.save_ctranslate2", spoil)
    with pytest.raises(UserError, match="nothing was written"):
        export_model(trained_run, tmp_path / "out", "ctranslate2")
    assert list(tmp_path.iterdir()) == []


def test_damaged_export_is_rejected_before_the_engine_reads_it(trained_run: Path, tmp_path: Path) -> None:
    save_ctranslate2(Translator.load(trained_run), tmp_path)
    vocabularies = [path.name for path in tmp_path.glob("*_vocabulary.*")]
    assert vocabularies
    for name in ("model.bin", "config.json", *vocabularies):
        path = tmp_path / name
        complete = path.read_bytes()
        for content in (complete[: len(complete) // 2], b"", b"x" * 100, bytes([complete[0] ^ 1]) + complete[1:]):
            path.write_bytes(content)
            with pytest.raises(UserError, match=f"{name}: does not match its checksum in the export; export the model"):
                Translator.load(tmp_path)
        path.write_bytes(complete)
    config = json.loads((tmp_path / "regard.json").read_text(encoding="utf-8"))
    for files in (None, [], {}, {"model.bin": 1}):
        (tmp_path / "regard.json").write_text(json.dumps(config | {"files": files}), encoding="utf-8")
        with pytest.raises(UserError, match="checksum"):
            Translator.load(tmp_path)
