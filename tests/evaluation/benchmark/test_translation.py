"""`regard bench` with translators."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.decoding.settings import SearchSettings
from regard.errors import UserError
from regard.evaluation.benchmark.harness import Result
from regard.evaluation.benchmark.translation import SENTENCES, Sentences, TranslationSystem, benchmark_translators
from regard.interop.huggingface_translation import load_in_transformers
from regard.pipelines.translator import Translator
from regard.training.benchmark import validation_sentences
from tests.conftest import Command, toy_pairs

SOURCES = ["I love apples", "They buy tea and dogs", "We see cats", "You want books", "Children love tea"]
TARGETS = ["我喜欢苹果", "他们买茶和狗", "我们看见猫", "你要书", "孩子喜欢茶"]
CPU = torch.device("cpu")
GIVEN = Sentences(SOURCES, None, "five sentences")


@pytest.fixture
def model_folder(trained_run: Path, tmp_path: Path) -> Path:
    """A model folder without a training run."""
    return shutil.copytree(trained_run / "best", tmp_path / "model")


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# Systems


def test_system_is_a_run_with_search_settings(trained_run: Path) -> None:
    default = TranslationSystem.open(str(trained_run))
    assert default.settings == SearchSettings()
    system = TranslationSystem.open(f"{trained_run}:beam=2,length-penalty=none")
    assert system.settings == SearchSettings(beam=2, length_penalty="none")
    (result,) = benchmark_translators([system], GIVEN, [1, 2], 0).results
    assert result.settings["beam"] == 2
    assert [timing.batch for timing in result.timings] == [1, 2]
    assert result.score is None
    assert result.same is None
    assert result.parameters == sum(p.numel() for p in default.translator.model.parameters())
    assert Result.from_dict(json.loads(json.dumps(result.as_dict()))) == result


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (":iterations=4", "iterations is a setting of non-autoregressive models"),
        (":beam=x", "beam: input should be a valid integer"),
        (":beam=2,wide", "write RUN:key=value,key=value"),
        ("-no", "no such model folder"),
    ],
)
def test_invalid_system_is_rejected(trained_run: Path, options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TranslationSystem.open(f"{trained_run}{options}")


def test_translations_are_compared_with_those_of_the_first_system(trained_run: Path) -> None:
    systems = [TranslationSystem.open(f"{trained_run}:beam=1"), TranslationSystem.open(f"{trained_run}:max_length=2")]
    first, cut = benchmark_translators(systems, GIVEN, [1], 0, compare=True).results
    assert first.same == 1
    assert cut.same == 0


# Sentences


def test_run_is_timed_on_its_validation_sentences(trained_run: Path, command: Command) -> None:
    answer = command("bench", trained_run, "--seconds", 0, "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "| ms per batch of 1 | ms per batch of 8 |\n" in answer.out  # too few sentences for a batch of 64
    assert "30 validation sentences of the run" in answer.out
    assert "from text to text" in answer.out


def test_validation_sentences_are_read_from_the_run(trained_run: Path, model_folder: Path) -> None:
    sentences = validation_sentences(trained_run, SENTENCES)
    assert len(set(sentences)) == 30
    assert set(sentences) <= {pair.source for pair in toy_pairs()}
    assert validation_sentences(trained_run / "best", SENTENCES) == sentences
    assert validation_sentences(model_folder, SENTENCES) == []


def test_model_without_a_run_is_timed_on_random_sentences(model_folder: Path, command: Command) -> None:
    answer = command("bench", model_folder, "--batch", 1, "--seconds", 0, "--device", "cpu")
    assert f"{SENTENCES} sentences of random tokens" in answer.out
    translator = Translator.load(model_folder)
    sources = Sentences.random(translator).sources
    assert len(sources) == SENTENCES
    assert sources == Sentences.random(translator).sources
    assert all(translator.vocabularies.source.encode(text) for text in sources)


# Other libraries


@pytest.mark.parametrize("beam", [1, 3])
def test_transformers_gives_the_same_translations(trained_run: Path, beam: int) -> None:
    pytest.importorskip("transformers")
    theirs = load_in_transformers(trained_run, CPU)
    assert theirs(SOURCES, beam=beam) == Translator.load(trained_run)(SOURCES, beam=beam) == TARGETS


def test_transformers_uses_the_same_stopping_rule(trained_run: Path) -> None:
    pytest.importorskip("transformers")
    theirs, ours = load_in_transformers(trained_run, CPU), Translator.load(trained_run)
    options: list[object] = []
    model = theirs.generator.model  # type: ignore[attr-defined]
    generate = model.generate

    def record_option(**given: object) -> object:
        options.append(given.get("early_stopping"))
        return generate(**given)

    model.generate = record_option
    for stop in ("exact", "first"):
        settings = SearchSettings(beam=3, stop=stop)
        expected, actual = (translator.hypotheses(SOURCES, settings) for translator in (ours, theirs))
        assert [best[0].tokens for best in actual] == [best[0].tokens for best in expected]
    assert options == ["never", True]


@pytest.mark.parametrize("options", [{"coverage": 0.2}, {"temperature": 1.0}, {"length_penalty": "wu"}])
def test_settings_that_transformers_lacks_are_rejected(trained_run: Path, options: dict[str, object]) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match=f"transformers has no {next(iter(options))}"):
        load_in_transformers(trained_run, CPU)(SOURCES, **options)


def test_other_libraries_are_further_rows_with_the_same_output(
    trained_run: Path, command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    out, src = tmp_path / "bench.json", write_lines(tmp_path / "src.en", SOURCES)
    libraries = ("--library", "huggingface", "--library", "ctranslate2")
    options = ("--src", src, "--batch", 2, "--seconds", 0, "--device", "cpu", "--out", out)
    answer = command("bench", f"{trained_run}:beam=2", *libraries, *options)
    assert answer.code == 0, answer.err
    record = json.loads(out.read_text(encoding="utf-8"))
    names = [row["name"].removeprefix(f"{trained_run}:beam=2") for row in record["results"]]
    assert names == ["", " in transformers", " in CTranslate2, stop=first"]
    same = [row["same"] for row in record["results"]]
    # CTranslate2 has only stop=first, which changes some translations in the same way as in regard.
    exact, first = (Translator.load(trained_run)(SOURCES, beam=2, stop=stop) for stop in ("exact", "first"))
    assert same == [1, 1, np.equal(exact, first).mean()]
    assert [row["settings"]["beam"] for row in record["results"]] == [2, 2, 2]
    assert len({row["parameters"] for row in record["results"]}) == 1
    assert record["versions"].keys() == {"python", "torch", "regard", "transformers", "ctranslate2"}
    assert record.keys() >= {"machine", "date", "timed", "on"}


@pytest.mark.parametrize("settings", ["beam=1", "beam=2,stop=first"])
def test_stopping_rule_of_ctranslate2_is_named_only_if_it_differs(
    trained_run: Path, settings: str, command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    run, out = f"{trained_run}:{settings}", tmp_path / "bench.json"
    options = ("--batch", 1, "--seconds", 0, "--device", "cpu", "--out", out)
    assert command("bench", run, "--library", "ctranslate2", *options).code == 0
    row = json.loads(out.read_text())["results"][1]
    assert (row["name"], row["same"]) == (f"{run} in CTranslate2", 1)


def test_errors_of_other_libraries_name_the_option(
    trained_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2")
    refusal = command("bench", f"{trained_run}:length-penalty=wu", "--library", "ctranslate2").error
    assert refusal.startswith(f"--library ctranslate2: {trained_run}:length-penalty=wu")
    assert "CTranslate2 has no length_penalty wu" in refusal
    monkeypatch.setitem(sys.modules, "transformers", None)
    refusal = command("bench", trained_run, "--library", "huggingface").error
    expected = "this needs the package transformers; install it with pip install 'regard[hf]'"
    assert refusal == f"--library huggingface: {expected}"


# The command


def test_bench_writes_a_table_json_and_a_plot(trained_run: Path, command: Command, tmp_path: Path) -> None:
    out, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    src, ref = write_lines(tmp_path / "src.en", SOURCES), write_lines(tmp_path / "ref.zh", TARGETS)
    files = ("--src", src, "--ref", ref, "--out", out, "--plot", plot)
    batches = ("--batch", 2, "--batch", 1, "--seconds", 0, "--device", "cpu")
    answer = command("bench", f"{trained_run}:beam=1", f"{trained_run}:beam=3", *files, *batches)
    assert answer.code == 0, answer.err
    assert "| ms per batch of 1 | ms per batch of 2 |" in answer.out
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [one["settings"]["beam"] for one in record["results"]] == [1, 3]
    assert record["results"][0]["score"]["value"] > 50
    assert "tok:zh" in record["results"][0]["score"]["signature"]
    assert record["on"] == f"5 sentences of {src}"
    assert plot.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--src", "src.en", "--plot", "plot.svg"), "--plot shows quality against speed, so it needs --ref"),
        (("--plot", "plot.txt"), "a plot is written as .png, .svg, .pdf"),
        (("--src", "src.en", "--batch", 600), "5 sentences of src.en are fewer than a batch of 600"),
        (("--src", "empty.en"), "0 sentences of empty.en: there is nothing to time"),
        (("--batch", 600), "30 validation sentences of the run are fewer than a batch of 600"),
        (("--out", "no/such/file.json"), "no file can be written there"),
        (("--ref", "src.en"), "--ref needs --src"),
        (("--library", "fairseq"), "--library fairseq: choose one of huggingface, ctranslate2"),
        (("--training", "--attention"), "are two benchmarks; choose one"),
        (("--training", "--src", "src.en"), "--src: has no effect with --training"),
        (("--attention", "--library", "huggingface"), "--library: has no effect with --attention"),
    ],
)
def test_invalid_options_are_rejected_before_a_model_is_loaded(
    trained_run: Path,
    command: Command,
    options: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Translator, "load", None)
    write_lines(tmp_path / "src.en", SOURCES)
    write_lines(tmp_path / "empty.en", [])
    assert message in command("bench", trained_run, *options).error


@pytest.mark.parametrize(
    "options", [("--batch", 600), ("--out", "no/such/file.json"), ("--training",), ("--attention",)]
)
def test_missing_model_is_reported_first(
    command: Command, options: tuple[object, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("bench", "no/such/run", *options).error.startswith("no/such/run: no such")
