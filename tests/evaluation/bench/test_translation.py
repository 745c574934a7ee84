"""`regard bench` of translators: what they are timed on, peers with the same weights, what is written and refused."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from regard.decoding.config import SearchSettings
from regard.errors import UserError
from regard.evaluation.bench.comparison import Race
from regard.evaluation.bench.sentences import MOST, kept_sentences, make_up_sentences
from regard.evaluation.bench.translation import race_translators
from regard.pipelines.transformers import load_in_transformers
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs

SOURCES = ["I love apples", "They buy tea and dogs", "We see cats", "You want books", "Children love tea"]
TARGETS = ["我喜欢苹果", "他们买茶和狗", "我们看见猫", "你要书", "孩子喜欢茶"]
CPU = torch.device("cpu")


@pytest.fixture
def model_alone(trained_run: Path, tmp_path: Path) -> Path:
    """A model folder that no run is beside."""
    return shutil.copytree(trained_run / "best", tmp_path / "model")


def lines_of(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_run_alone_is_timed_on_its_own_validation_sentences(trained_run: Path, command: Command) -> None:
    answer = command("bench", trained_run, "--seconds", 0, "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "| ms a batch of 1 | ms a batch of 8 |\n" in answer.out  # and not of 64, for which there are too few
    assert "30 validation sentences of the run" in answer.out
    assert "from text to text" in answer.out


def test_the_sentences_are_those_that_the_run_has_kept(trained_run: Path, model_alone: Path) -> None:
    kept = kept_sentences(trained_run)
    assert kept is not None
    assert len(set(kept.sources)) == 30
    assert set(kept.sources) <= {pair.source for pair in toy_pairs()}
    assert kept_sentences(trained_run / "best") == kept
    assert kept_sentences(model_alone) is None


def test_a_model_without_a_run_is_timed_on_made_up_sentences(model_alone: Path) -> None:
    found = race_translators([str(model_alone)], Race((1,), 0))
    assert "made-up sentences" in found.on
    translator = Translator.load(model_alone)
    made = make_up_sentences(translator).sources
    assert len(made) == MOST
    assert made == make_up_sentences(translator).sources
    assert all(translator.vocabularies.source.encode(text) for text in made)


@pytest.mark.parametrize("beam", [1, 3])
def test_transformers_translates_with_the_same_weights(trained_run: Path, beam: int) -> None:
    pytest.importorskip("transformers")
    theirs = load_in_transformers(trained_run, CPU)
    assert theirs(SOURCES, beam=beam) == Translator.load(trained_run)(SOURCES, beam=beam) == TARGETS


def test_transformers_stops_where_our_search_does(trained_run: Path) -> None:
    pytest.importorskip("transformers")
    theirs, ours = load_in_transformers(trained_run, CPU), Translator.load(trained_run)
    asked: list[object] = []
    generate = theirs.generator.peer.model.generate  # type: ignore[attr-defined]

    def listen(**options: object) -> object:
        asked.append(options.get("early_stopping"))
        return generate(**options)

    theirs.generator.peer.model.generate = listen  # type: ignore[attr-defined]
    for stop in ("exact", "first"):
        settings = SearchSettings(beam=3, stop=stop)
        found, other = (one.hypotheses(SOURCES, settings) for one in (ours, theirs))
        assert [best[0].tokens for best in other] == [best[0].tokens for best in found]
    assert asked == ["never", True]


@pytest.mark.parametrize("options", [{"coverage": 0.2}, {"temperature": 1.0}, {"length_penalty": "wu"}])
def test_a_search_that_transformers_lacks_is_refused(trained_run: Path, options: dict[str, object]) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match=f"transformers' generate has no {next(iter(options))}"):
        load_in_transformers(trained_run, CPU)(SOURCES, **options)


def test_peers_are_further_rows_and_say_the_same(trained_run: Path, command: Command, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    out, src = tmp_path / "bench.json", lines_of(tmp_path / "src.en", SOURCES)
    peers = ("--peer", "huggingface", "--peer", "ctranslate2")
    options = ("--src", src, "--batch", 2, "--seconds", 0, "--device", "cpu", "--out", out)
    answer = command("bench", f"{trained_run}:beam=2", *peers, *options)
    assert answer.code == 0, answer.err
    record = json.loads(out.read_text(encoding="utf-8"))
    names = [row["name"].removeprefix(f"{trained_run}:beam=2") for row in record["results"]]
    assert names == ["", " in transformers", " in CTranslate2, stop=first"]
    assert [row["same"] for row in record["results"]] == [1, 1, 1]
    assert [row["settings"]["beam"] for row in record["results"]] == [2, 2, 2]
    assert len({row["parameters"] for row in record["results"]}) == 1
    assert record["versions"].keys() == {"python", "torch", "regard", "transformers", "ctranslate2"}
    assert record.keys() >= {"machine", "date", "timed", "on"}


@pytest.mark.parametrize("settings", ["beam=1", "beam=2,stop=first"])
def test_what_ctranslate2_stops_at_is_named_only_where_it_differs(trained_run: Path, settings: str) -> None:
    pytest.importorskip("ctranslate2")
    run = f"{trained_run}:{settings}"
    assert race_translators([run], Race((1,), 0, ("ctranslate2",))).results[1].name == f"{run} in CTranslate2"


def test_a_peer_that_has_no_such_model_is_refused(
    trained_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = command("bench", f"{trained_run}:length-penalty=wu", "--peer", "ctranslate2").refusal
    assert refusal.startswith(f"--peer ctranslate2: {trained_run}:length-penalty=wu")
    assert "the engine ctranslate2 has no length_penalty wu" in refusal
    monkeypatch.setitem(sys.modules, "transformers", None)
    refusal = command("bench", trained_run, "--peer", "huggingface").refusal
    assert (
        refusal == "--peer huggingface: this needs the package transformers; to get it, run: pip install 'regard[hf]'"
    )


def test_bench_writes_a_table_json_and_a_picture(trained_run: Path, command: Command, tmp_path: Path) -> None:
    out, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    src, ref = lines_of(tmp_path / "src.en", SOURCES), lines_of(tmp_path / "ref.zh", TARGETS)
    files = ("--src", src, "--ref", ref, "--out", out, "--plot", plot)
    batches = ("--batch", 2, "--batch", 1, "--seconds", 0, "--device", "cpu")
    answer = command("bench", f"{trained_run}:beam=1", f"{trained_run}:beam=3", *files, *batches)
    assert answer.code == 0, answer.err
    assert "| ms a batch of 1 | ms a batch of 2 |" in answer.out
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [one["settings"]["beam"] for one in record["results"]] == [1, 3]
    assert record["results"][0]["score"]["value"] > 50
    assert "tok:zh" in record["results"][0]["score"]["signature"]
    assert record["on"] == f"5 sentences of {src}"
    assert plot.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--src", "src.en", "--plot", "trade.svg"), "--plot shows quality against speed, so it needs --ref"),
        (("--plot", "trade.txt"), "a plot is written as .png, .svg, .pdf"),
        (("--src", "src.en", "--batch", 600), "5 sentences of src.en do not make a batch of 600"),
        (("--src", "empty.en"), "0 sentences of empty.en: there is nothing to time"),
        (("--batch", 600), "30 validation sentences of the run do not make a batch of 600"),
        (("--out", "no/such/file.json"), "no file can be written there"),
        (("--ref", "src.en"), "--ref needs --src"),
        (("--peer", "fairseq"), "--peer fairseq: known are huggingface, ctranslate2"),
        (("--training", "--attention"), "two things to time; choose one"),
        (("--training", "--src", "src.en"), "--src: is of no use with --training"),
        (("--attention", "--peer", "huggingface"), "--peer: is of no use with --attention"),
    ],
)
def test_bench_refuses_before_it_loads_a_model(
    trained_run: Path,
    command: Command,
    options: tuple[object, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Translator, "load", None)
    lines_of(tmp_path / "src.en", SOURCES)
    lines_of(tmp_path / "empty.en", [])
    assert said in command("bench", trained_run, *options).refusal


@pytest.mark.parametrize(
    "options", [("--batch", 600), ("--out", "no/such/file.json"), ("--training",), ("--attention",)]
)
def test_a_missing_model_is_named_before_all_else(
    command: Command, options: tuple[object, ...], toy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("bench", "no/such/run", *options).refusal.startswith("no/such/run: no such")
