"""`Translator` and the command line with trained non-autoregressive models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.evaluation.benchmark.translation import Sentences, TranslationSystem, benchmark_translators
from regard.evaluation.metrics import bleu
from regard.inspection.translation import translation_scene
from regard.training.run import run_recipe
from tests.conftest import Command, small_recipe, toy_pairs

SENTENCES = [pair.source for pair in toy_pairs()[::9]]
REFERENCES = [pair.target for pair in toy_pairs()[::9]]
STEPS = {"classifier": 250, "ctc": 120, "end": 250, "dag": 160}
UPSAMPLE_RATIOS = {"ctc": 1, "end": 1, "dag": 4}


@pytest.fixture(scope="module")
def runs(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Read-only training runs on the toy corpus, one for each kind of length prediction."""
    folder = tmp_path_factory.mktemp("nat")
    for length, steps in STEPS.items():
        recipe = small_recipe(
            toy / "train.en",
            toy / "train.zh",
            model__kind="nat",
            model__length=length,
            training__steps=steps,
            training__validate_every=steps,
            model__upsample_ratio=UPSAMPLE_RATIOS.get(length),
        )
        run_recipe(recipe, folder / length)
    return {length: folder / length for length in STEPS}


@pytest.fixture(scope="module")
def classifier_model(runs: dict[str, Path]) -> regard.Translator:
    return regard.Translator.load(runs["classifier"])


@pytest.fixture(scope="module")
def ctc_model(runs: dict[str, Path]) -> regard.Translator:
    return regard.Translator.load(runs["ctc"])


@pytest.fixture(scope="module")
def end_model(runs: dict[str, Path]) -> regard.Translator:
    return regard.Translator.load(runs["end"])


@pytest.fixture(scope="module")
def dag_model(runs: dict[str, Path]) -> regard.Translator:
    return regard.Translator.load(runs["dag"])


def test_models_have_learned_the_corpus(
    classifier_model: regard.Translator,
    ctc_model: regard.Translator,
    end_model: regard.Translator,
    dag_model: regard.Translator,
) -> None:
    assert bleu(end_model(SENTENCES), REFERENCES, "zh").value > 60
    assert bleu(classifier_model(SENTENCES, iterations=1), REFERENCES, "zh").value > 60
    assert bleu(classifier_model(SENTENCES, iterations=4), REFERENCES, "zh").value > 80
    assert bleu(ctc_model(SENTENCES), REFERENCES, "zh").value > 80
    assert bleu(ctc_model(SENTENCES, beam=4), REFERENCES, "zh").value > 80
    assert bleu(dag_model(SENTENCES), REFERENCES, "zh").value > 60
    assert bleu(dag_model(SENTENCES, path="viterbi"), REFERENCES, "zh").value > 60
    assert bleu(dag_model(SENTENCES, beam=4), REFERENCES, "zh").value > 70


@pytest.mark.parametrize("name", ["classifier_model", "ctc_model", "end_model", "dag_model"])
def test_string_gives_a_string_and_list_gives_a_list(name: str, request: pytest.FixtureRequest) -> None:
    translator = request.getfixturevalue(name)
    one = translator("I love apples")
    assert isinstance(one, str)
    assert translator(["I love apples", "", " \t"]) == [one, "", " \t"]
    assert translator([]) == []
    assert [best[0].text for best in translator.stream(iter(["I love apples", ""]))] == [one, ""]


def test_settings_follow_the_kind_of_model(runs: dict[str, Path]) -> None:
    config = json.loads((runs["ctc"] / "best" / "config.json").read_text(encoding="utf-8"))
    assert (config["model"]["kind"], config["model"]["length"]) == ("nat", "ctc")
    translator = regard.Translator.load(runs["ctc"])
    assert isinstance(translator.model, regard.NATransformer)
    assert translator.resolve_settings() == regard.NATSettings(iterations=1)
    assert regard.Translator.load(runs["classifier"]).resolve_settings() == regard.NATSettings(iterations=4)


def test_hypotheses_have_scores_and_alignments(classifier_model: regard.Translator) -> None:
    source, target = classifier_model.vocabularies.source, classifier_model.vocabularies.target
    trained = {len(target.encode(pair.target)) - len(source.encode(pair.source)) for pair in toy_pairs()}
    possible = [length for difference in trained if (length := len(source.encode("I love apples")) + difference) > 0]
    best = classifier_model("I love apples", n_best=9, lengths=9)
    assert sorted(len(one.tokens) for one in best) == sorted(possible)
    assert len(best) > 1 and [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    for one in best:
        assert one.labels == one.subwords  # no END
        assert len(one.token_log_probs) == len(one.tokens) == len(one.alignment)
        assert np.asarray(one.alignment).shape == (len(one.tokens), len(one.source_subwords) + 1)
        assert np.asarray(one.alignment).sum(1) == pytest.approx(1, abs=1e-4)


def test_ctc_tokens_are_aligned(ctc_model: regard.Translator) -> None:
    for beam in (1, 3):
        (best,) = ctc_model("They buy tea and dogs", n_best=1, beam=beam)
        assert np.asarray(best.alignment).shape == (len(best.tokens), len(best.source_subwords) + 1)
        assert best.labels == best.subwords


def test_positions_after_end_are_only_in_the_snapshot(end_model: regard.Translator) -> None:
    (best,) = end_model("They buy tea and dogs", n_best=1)
    assert best.labels == [*best.subwords, "END"]
    assert len(best.token_log_probs) == len(best.tokens) + 1
    assert np.asarray(best.alignment).shape == (len(best.tokens) + 1, len(best.source_subwords) + 1)
    (snapshot,) = end_model.hypotheses(["They buy tea and dogs"], snapshots=True)[0][0].iterations
    assert snapshot.subwords[: len(best.labels)] == best.labels
    assert len(snapshot.subwords) > len(best.labels)
    scored = end_model.score("They buy tea and dogs", best.text)
    assert scored.score == pytest.approx(best.score, abs=1e-4)
    assert scored.score > end_model.score("They buy tea and dogs", "我喜欢苹果").score


def test_snapshots_contain_every_iteration(classifier_model: regard.Translator, ctc_model: regard.Translator) -> None:
    settings = regard.NATSettings(iterations=3)
    best = classifier_model.hypotheses(["They buy tea and dogs"], settings, snapshots=True)[0][0]
    assert [len(snapshot.subwords) for snapshot in best.iterations] == [len(best.tokens)] * len(best.iterations)
    assert best.iterations[-1].subwords == best.subwords
    assert sum(best.iterations[1].updated) < len(best.tokens)
    (snapshot,) = ctc_model.hypotheses(["They buy tea"], snapshots=True)[0][0].iterations
    assert "·" in snapshot.subwords
    assert classifier_model.hypotheses([" "], snapshots=True)[0][0].iterations == []
    assert classifier_model.hypotheses(["They buy tea and dogs"], settings)[0][0].iterations is None


def test_given_translations_are_scored(classifier_model: regard.Translator, ctc_model: regard.Translator) -> None:
    for translator in (classifier_model, ctc_model):
        right, wrong = translator.score(["I love apples"] * 2, ["我喜欢苹果", "狗和茶"])
        assert right.score > wrong.score
        assert len(right.token_log_probs) == len(right.tokens)


def test_results_are_reranked_by_another_model(
    classifier_model: regard.Translator, trained_run: Path, tmp_path: Path
) -> None:
    reranker = regard.Translator.load(trained_run)
    with torch.no_grad():  # negative logits, so that this model prefers other translations
        for tensor in reranker.model.decoder_norm.parameters():
            tensor.neg_()
    reranker.save_pretrained(tmp_path)
    settings = {"iterations": 1, "lengths": 4, "n_best": 4}
    plain = classifier_model(SENTENCES[:12], **settings)
    scored = classifier_model(SENTENCES[:12], **settings, rerank=tmp_path)
    for source, one, other in zip(SENTENCES, plain, scored, strict=False):
        assert {h.text for h in one} == {h.text for h in other}
        scores = [reranker.score(source, hypothesis.text).score for hypothesis in other]
        assert scores == sorted(scores, reverse=True)
        assert [hypothesis.score for hypothesis in other] == pytest.approx(scores, abs=1e-4)
    assert [[h.text for h in one] for one in plain] != [[h.text for h in one] for one in scored]
    best = classifier_model(SENTENCES[:12], iterations=1, lengths=4, rerank=tmp_path)
    assert best == [one[0].text for one in scored]


def test_invalid_reranker_is_rejected_before_generation(
    classifier_model: regard.Translator, runs: dict[str, Path], image_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classifier_model.generator, "generate", None)
    for path, message in (
        (runs["ctc"], "is non-autoregressive; give an autoregressive model"),
        (Path("nowhere"), "rerank: nowhere: no such model folder"),
        (image_run, "is an image model; use regard classify"),
    ):
        with pytest.raises(regard.UserError, match=message):
            classifier_model("I love apples", lengths=2, rerank=path)
        with pytest.raises(regard.UserError, match=message):
            classifier_model.resolve_settings(regard.NATSettings(lengths=2, rerank=path))


def test_invalid_reranker_leaves_no_output(runs: dict[str, Path], toy: Path, command: Command, tmp_path: Path) -> None:
    search = ("--lengths", 2, "--search", "rerank=nowhere")
    for words in (
        ("translate", runs["classifier"], "--input", toy / "train.en", "--output", tmp_path / "out"),
        ("distill", runs["classifier"], "--src", toy / "train.en", "--out", tmp_path / "out.tsv"),
    ):
        assert "rerank: nowhere: no such model folder" in command(*words, *search).error
        assert list(tmp_path.iterdir()) == []


def test_invalid_reranker_is_rejected_before_training(
    toy: Path, small_settings: list[str], command: Command, tmp_path: Path
) -> None:
    files = ("--src", toy / "train.en", "--tgt", toy / "train.zh", "--out", tmp_path / "run")
    changes = ("--set", "model.kind=nat", "--set", "search.lengths=3", "--set", "search.rerank=nowhere")
    assert "search.rerank: nowhere: no such model folder" in command("train", *files, *small_settings, *changes).error
    assert list(tmp_path.iterdir()) == []


def test_parameters_of_the_reranker_are_counted(classifier_model: regard.Translator, trained_run: Path) -> None:
    reranker = regard.Translator.load(trained_run)
    own = sum(parameter.numel() for parameter in classifier_model.model.parameters())
    assert classifier_model.count_parameters() == own
    reranked = TranslationSystem(
        "reranked", classifier_model, regard.NATSettings(iterations=1, lengths=2, rerank=trained_run)
    )
    sentences = Sentences(SENTENCES[:2], None, "two sentences")
    (found,) = benchmark_translators([reranked], sentences, [1], 0).results
    assert found.parameters == own + reranker.count_parameters() > own


def test_probe_records_all_target_positions(classifier_model: regard.Translator) -> None:
    with regard.probe(classifier_model.model) as records:
        best = classifier_model.hypotheses(["I love apples"], regard.NATSettings(iterations=2))[0][0]
    weights = records["decoder.1.cross"].weights
    assert weights.shape == (1, 2, len(best.tokens), len(best.source_subwords) + 1)
    assert records["decoder.0.attention"].weights.shape[2:] == (len(best.tokens), len(best.tokens))
    unseen = classifier_model.hypotheses(["I love apples"], regard.NATSettings(iterations=2))[0][0]
    assert unseen.tokens == best.tokens


@pytest.mark.parametrize(
    ("name", "beam"), [("classifier_model", 1), ("ctc_model", 1), ("ctc_model", 3), ("dag_model", 1), ("dag_model", 3)]
)
def test_all_target_positions_are_drawn(name: str, beam: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    translator = request.getfixturevalue(name)
    settings = translator.resolve_settings(regard.NATSettings(beam=beam, n_best=beam))
    scene = translation_scene(translator, "I love apples", ["decoder.1.cross"], settings)
    assert scene.views[0].weights.shape[1] == len(scene.labels["decoder_output"])
    for best in translator.hypotheses(["I love apples"], settings, snapshots=True)[0]:
        assert {len(snapshot.subwords) for snapshot in best.iterations} == {len(scene.labels["decoder_output"])}
    scene.save(tmp_path / "attention.svg")
    assert translator("I love apples", beam=beam) in (tmp_path / "attention.svg").read_text(encoding="utf-8")


def test_embedding_is_the_mean_encoder_output(classifier_model: regard.Translator) -> None:
    (vector,) = classifier_model.embed(["I love apples"])
    assert vector.shape == (32,)


# The command line


def test_commands_accept_iterations_and_lengths(
    runs: dict[str, Path], classifier_model: regard.Translator, toy: Path, command: Command, tmp_path: Path
) -> None:
    answer = command("translate", runs["classifier"], *SENTENCES[:5], "--iterations", 3, "--lengths", 2)
    assert answer.out.splitlines() == classifier_model(SENTENCES[:5], iterations=3, lengths=2)
    answer = command(
        "translate", runs["classifier"], "I love apples", "--json", "--alignments", "--lengths", 2, "--n-best", 2
    )
    (record,) = map(json.loads, answer.out.splitlines())
    assert [len(sentence["hypotheses"]) for sentence in record["sentences"]] == [2]
    words = ("--src", toy / "train.en", "--ref", toy / "train.zh", "--no-save")
    answer = command("evaluate", runs["classifier"], *words, "--iterations", 2)
    assert "iterations 2" in answer.out.splitlines()[0]
    answer = command("evaluate", runs["ctc"], *words, "--search", "beam=3", "--json")
    assert json.loads(answer.out)["evaluations"][0]["conditions"]["search"]["beam"] == 3


def test_autoregressive_and_nat_models_are_compared(
    runs: dict[str, Path], trained_run: Path, toy: Path, command: Command
) -> None:
    words = ("--src", toy / "train.en", "--ref", toy / "train.zh", "--no-save", "--paired")
    answer = command("evaluate", runs["ctc"], *words, "--against", trained_run)
    assert answer.code == 0, answer.err
    assert "p = " in answer.out


INVALID = {
    "a beam": ("classifier", ("--beam", 5), "beam 5 needs a model with length: ctc"),
    "iterations of ctc": (
        "ctc",
        ("--iterations", 4),
        "iterations 4 needs a model with length: classifier; this one has",
    ),
    "sampling": ("ctc", ("--temperature", 1), "temperature is a setting of autoregressive models"),
    "a length penalty": ("ctc", ("--length-penalty", "wu"), "length_penalty is a setting of autoregressive models"),
    "a prefix": ("ctc", ("--prefix", "我"), "prefix: needs an autoregressive model"),
    "a phrase": ("ctc", ("--require", "我"), "required phrases: needs an autoregressive model"),
    "an unknown setting": ("ctc", ("--search", "lenghts=3"), "unknown key lenghts; did you mean lengths?"),
    "iterations of a search": (
        "",
        ("--iterations", 4),
        "iterations is a setting of non-autoregressive models; this model is",
    ),
    "lengths of a search": ("", ("--lengths", 4), "lengths is a setting of non-autoregressive models"),
}


@pytest.mark.parametrize(("length", "options", "message"), INVALID.values(), ids=INVALID)
def test_unsupported_options_are_rejected_by_name(
    runs: dict[str, Path],
    trained_run: Path,
    command: Command,
    length: str,
    options: tuple[object, ...],
    message: str,
) -> None:
    answer = command("translate", runs.get(length, trained_run), "I love apples", *options)
    assert message in answer.error


def test_bench_names_the_model_with_unsupported_settings(
    runs: dict[str, Path], trained_run: Path, command: Command
) -> None:
    answer = command("bench", trained_run, f"{runs['classifier']}:beam=5")
    assert answer.error.startswith(f"{runs['classifier']}:beam=5: beam 5 needs a model with length: ctc")


def test_nat_models_cannot_form_an_ensemble(runs: dict[str, Path], trained_run: Path, command: Command) -> None:
    for one, other in ((runs["ctc"], trained_run), (trained_run, runs["ctc"])):
        assert "translates alone" in command("translate", one, "I", "--with", other).error


def test_settings_of_the_other_kind_are_rejected(classifier_model: regard.Translator, trained_run: Path) -> None:
    with pytest.raises(regard.UserError, match="pass NATSettings, not SearchSettings"):
        classifier_model.hypotheses(["I"], regard.SearchSettings())
    autoregressive = regard.Translator.load(trained_run)
    with pytest.raises(regard.UserError, match="pass SearchSettings, not NATSettings"):
        autoregressive.hypotheses(["I"], regard.NATSettings())
    with pytest.raises(regard.UserError, match="snapshots need a non-autoregressive model"):
        autoregressive.hypotheses(["I"], snapshots=True)
    with pytest.raises(regard.UserError, match="trees: needs an autoregressive model"):
        classifier_model.hypotheses(["I"], trees=True)
