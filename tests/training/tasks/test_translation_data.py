"""Preparation of translation data: corpora, weights, token stores, and skipped pairs."""

import gzip
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from regard.data.text.readers import Pair
from regard.data.text.tokens import ParallelTokens
from regard.errors import UserError
from regard.pipelines.constraints import Constraints
from regard.pipelines.translator import Translator
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.state import DataPosition, DataShard
from regard.training.tasks.registry import load_recipe
from regard.training.tasks.translation import data as training_data
from regard.training.tasks.translation.data import open_corpora, open_data, prepare_data, take_evenly, write_data
from regard.training.tasks.translation.recipe import DataSettings
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import collate
from tests.conftest import SMALL, build_task, small_recipe, toy_pairs
from tests.data.text.test_tokens import rows_of

CPU = torch.device("cpu")


class RecordingProgress(Progress):
    """Records messages instead of printing them."""

    def __init__(self) -> None:
        super().__init__(1, Console(file=open(os.devnull, "w")))  # noqa: SIM115, PTH123
        self.messages: list[str] = []

    def print(self, text: str) -> None:
        self.messages.append(text)


def recipe_of(corpora: list[dict[str, Any]], **changes: object) -> Recipe:
    given = SMALL | {"data.corpora": corpora} | {key.replace("__", "."): value for key, value in changes.items()}
    return load_recipe(None, [], given)


def write_tsv(path: Path, start: int, end: int) -> Path:
    rows = (f"{pair.source}\t{pair.target}\n" for pair in toy_pairs()[start:end])
    path.write_text("".join(rows), encoding="utf-8")
    return path


def count_rows(task: TranslationTask, epochs: int) -> Iterator[Counter[int]]:
    """Count how often each row occurs in each epoch."""
    plans = task._plan_from(DataPosition())
    plan = next(plans)
    for epoch in range(epochs):
        counts: Counter[int] = Counter()
        while plan.after.epoch == epoch:
            counts.update(plan.item.tolist())
            plan = next(plans)
        yield counts


# Several corpora


def test_weights_determine_how_often_a_sentence_occurs_per_epoch(tmp_path: Path, toy: Path) -> None:
    corpora = [
        {"source": str(write_tsv(tmp_path / "a.tsv", 0, 40)), "weight": 0.5},
        {"source": str(write_tsv(tmp_path / "b.tsv", 40, 70)), "weight": 3},
        {"source": str(write_tsv(tmp_path / "c.tsv", 70, 120))},
    ]
    valid = {"data__valid_source": toy / "train.en", "data__valid_target": toy / "train.zh"}
    task = build_task(recipe_of(corpora, **valid), CPU, RecordingProgress())
    assert task.train_tokens.sizes == (40, 30, 50)
    first, second = count_rows(task, 2)
    for counts in (first, second):
        assert sum(counts.values()) == 20 + 90 + 50 == len(task.order)
        assert [counts[row] for row in range(40, 70)] == [3] * 30
        assert [counts[row] for row in range(70, 120)] == [1] * 50
    assert [(first + second)[row] for row in range(40)] == [1] * 40  # one half each


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("both_directions", [False, True])
def test_tag_is_one_token_before_the_sources_of_its_corpus(
    tmp_path: Path, toy: Path, dropout: float, both_directions: bool
) -> None:
    corpora = [
        {"source": str(write_tsv(tmp_path / "real.tsv", 0, 60))},
        {"source": str(write_tsv(tmp_path / "back.tsv", 60, 90)), "tag": "<BT>", "weight": 0.5},
    ]
    valid = {"data__valid_source": str(toy / "train.en"), "data__valid_target": str(toy / "train.zh")}
    changes = {"tokenizer__dropout": dropout, "data__both_directions": both_directions}
    task = build_task(recipe_of(corpora, **valid, **changes), CPU, RecordingProgress())
    vocabulary = task.translator.vocabularies.source
    tag = vocabulary.find_token("<BT>")
    assert tag is not None
    assert tag == len(vocabulary) - 1
    sources = rows_of(task.train_tokens.source.take(np.arange(len(task.train_tokens))))
    assert [row.count(tag) for row in sources] == [0] * 60 + [1] * 30 + [0] * 90 * both_directions
    assert all(row[0] == tag for row in sources[60:90])
    plain = [vocabulary.encode(pair.source) for pair in toy_pairs()[60:90]]
    assert dropout or [row[1:-1] for row in sources[60:90]] == plain
    assert not any(tag in row for row in rows_of(task.train_tokens.target.take(np.arange(len(task.train_tokens)))))


def test_model_without_the_tag_is_trained_further_with_it(tmp_path: Path, toy: Path, trained_run: Path) -> None:
    corpora = [{"source": str(write_tsv(tmp_path / "back.tsv", 0, 30)), "tag": "<BT>"}]
    valid = {"data.valid_source": str(toy / "train.en"), "data.valid_target": str(toy / "train.zh")}
    given = valid | {
        "init.from": str(trained_run),
        "data.corpora": corpora,
        "training.steps": 1,
        "training.valid_sentences": 0,
    }
    for name in ("first", "second"):
        run_recipe(load_recipe(None, [], given), tmp_path / name)
        given |= {"init.from": str(tmp_path / "first")}
    before, *after = (Translator.load(path) for path in (trained_run, tmp_path / "first", tmp_path / "second"))
    sizes = [len(translator.vocabularies.source) for translator in after]
    assert sizes == [len(before.vocabularies.source) + 1] * 2
    assert after[0].vocabularies.source.vocabulary[-1] == "<BT>"


def test_corpora_of_all_formats_are_joined(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    shards = tmp_path / "shards"
    shards.mkdir()
    pairs = toy_pairs()[:400]
    write_tsv(shards / "0.tsv", 0, 100)
    rows = (json.dumps({"en": pair.source, "zh": pair.target}) + "\n" for pair in pairs[100:200])
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress("".join(rows).encode()))
    table = {"en": [p.source for p in pairs[200:300]], "zh": [p.target for p in pairs[200:300]]}
    parquet.write_table(pyarrow.table(table), tmp_path / "2.parquet")
    for side, name in enumerate(("3.en", "3.zh")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs[300:]), encoding="utf-8")
    corpora = [
        {"source": str(shards)},
        {"source": str(tmp_path / "1.jsonl.gz"), "keys": ["en", "zh"]},
        {"source": str(tmp_path / "2.parquet"), "keys": ["en", "zh"]},
        {"source": str(tmp_path / "3.en"), "target": str(tmp_path / "3.zh")},
    ]
    opened = open_corpora(DataSettings.parse({"corpora": corpora, "hold_out": 40}, "data"), 1)
    train = list(opened.pairs())
    assert len(train) == opened.total == 360
    assert sorted(train + opened.valid) == sorted(pairs)
    assert train == [pair for pair in pairs if pair not in opened.valid]
    held_out = [sum(pair in opened.valid for pair in pairs[i : i + 100]) for i in range(0, 400, 100)]
    assert min(held_out) > 3


# Validation pairs


def open_with_messages(source: Path, seed: int = 1, **settings: object) -> tuple[training_data.Corpora, list[str]]:
    progress = RecordingProgress()
    opened = open_corpora(DataSettings.parse({"source": source} | settings, "data"), seed, progress)
    return opened, progress.messages


def sources(pairs: Iterable[Pair]) -> list[str]:
    return [" ".join(pair.source.lower().split()) for pair in pairs]


@pytest.fixture
def repetitive(tmp_path: Path) -> Path:
    """Three copies of 300 pairs, each in another case and with other spaces and targets."""
    rows = [
        f"{change(pair.source)}\t{pair.target}{copy}\n"
        for copy, change in enumerate((str, str.upper, lambda text: f" {text} ".replace(" ", "  ")))
        for pair in toy_pairs()[:300]
    ]
    path = tmp_path / "a.tsv"
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_held_out_sources_do_not_occur_in_training(repetitive: Path) -> None:
    opened, messages = open_with_messages(repetitive, hold_out=25)
    train, valid = sources(opened.pairs()), sources(opened.valid)
    assert len(set(valid)) == len(valid) == 25
    assert not set(valid) & set(train)
    assert len(train) == opened.total == 900 - 75
    assert messages == ["not used: 50 pairs with the same source as a pair held out for validation"]


def test_at_most_a_tenth_of_the_distinct_sources_is_held_out(repetitive: Path) -> None:
    assert len(open_with_messages(repetitive, hold_out=31)[0].valid) == 30
    assert len(open_with_messages(repetitive, hold_out=1000)[0].valid) == 30


def test_held_out_pairs_depend_on_the_seed_and_not_on_the_order(repetitive: Path) -> None:
    first, same, other = (open_with_messages(repetitive, seed, hold_out=20)[0].valid for seed in (1, 1, 2))
    assert first == same
    assert len(set(sources(first)) & set(sources(other))) < 10
    lines = repetitive.read_text(encoding="utf-8").splitlines()
    repetitive.write_text("\n".join(lines[::-1]), encoding="utf-8")
    assert set(sources(open_with_messages(repetitive, hold_out=20)[0].valid)) == set(sources(first))


def test_blank_pairs_are_not_held_out(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "a.tsv", 0, 40)
    path.write_text("\t空\n" + "nothing\t \n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    for seed in range(20):
        opened, _ = open_with_messages(path, seed)
        assert len(opened.valid) == 4
        assert all(text.strip() for pair in opened.valid for text in pair)
        assert opened.total == 38


def test_too_few_distinct_sources_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in toy_pairs()[:9]) * 20, encoding="utf-8")
    message = r"a\.tsv: 180 pairs with 9 different sources are too few to hold some out; give data\.valid_source"
    with pytest.raises(UserError, match=message):
        open_with_messages(path)


def test_validation_sources_in_the_training_data_are_reported(tmp_path: Path) -> None:
    train, valid = write_tsv(tmp_path / "a.tsv", 0, 100), tmp_path / "v.tsv"
    valid.write_text("I love apples\t我爱苹果\nWe run\t我们跑\n you  BUY tea\t你买茶\n", encoding="utf-8")
    opened, messages = open_with_messages(train, valid_source=valid)
    assert (opened.total, len(opened.valid)) == (100, 3)
    assert messages == [
        "warning: 2 of 3 validation pairs have a source that also occurs in the training data, so that their scores "
        "are too high; the first is 'I love apples'"
    ]
    assert open_with_messages(train, valid_source=write_tsv(valid, 100, 110))[1] == []


# Languages and headers


def write_as(path: Path, header: str = "", keys: tuple[str, str] = ("source", "target")) -> Path:
    rows = (
        json.dumps(dict(zip(keys, pair, strict=True))) if path.suffix == ".jsonl" else "\t".join(pair)
        for pair in toy_pairs()[:60]
    )
    path.write_text(header + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def languages_of(source: Path, **data: object) -> tuple[tuple[str, str], list[str]]:
    progress = RecordingProgress()
    given = SMALL | {"data.source": str(source)} | {f"data.{key}": value for key, value in data.items()}
    completed = TranslationTask.complete_recipe(load_recipe(None, [], given), progress)
    return completed.data.language_pair(), progress.messages


def test_languages_of_files_without_language_in_their_names(tmp_path: Path) -> None:
    by_script = "the language of the target is Chinese by its script"
    advice = "set data.languages, such as [en, zh]"
    plain, header = write_as(tmp_path / "plain.tsv"), write_as(tmp_path / "header.tsv", "English\tzh-CN\n")
    rows = write_as(tmp_path / "rows.jsonl")
    keys = write_as(tmp_path / "keys.jsonl", keys=("en", "zh"))
    unknown = f"warning: the language of the source is unknown and {by_script}; {advice}"
    assert languages_of(plain) == (("source", "zh"), [unknown])
    assert languages_of(rows) == (("source", "zh"), [unknown])
    assert languages_of(rows, languages=["en", ""]) == (("en", "zh"), [f"warning: {by_script}; {advice}"])
    assert languages_of(rows, languages=["fr", "de"]) == (("fr", "de"), [])
    assert languages_of(keys, keys=["en", "zh"]) == (("en", "zh"), [])
    assert languages_of(header) == (("en", "zh-CN"), [])
    named = write_as(tmp_path / "x.de-fr.tsv", "en\tzh\n")
    assert languages_of(named) == (("en", "zh"), []), "the columns are more specific than the name of the file"


def test_chinese_without_a_language_is_scored_as_chinese_and_the_run_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_as(tmp_path / "plain.tsv")
    steps = {"training__steps": 2, "optim__schedule": "constant", "training__valid_sentences": 2}
    run_recipe(small_recipe(source, **steps), tmp_path / "run")
    assert "source → zh: 54 training pairs, 6 for validation" in capsys.readouterr().out
    assert load_recipe(tmp_path / "run" / "recipe.yaml").data.languages == ("", "zh")
    assert Translator.load(tmp_path / "run").languages == ("source", "zh")
    run_recipe(small_recipe(source, **steps | {"training__steps": 3}), tmp_path / "run")
    output = capsys.readouterr().out
    assert "source → zh" in output
    assert "warning" not in output
    task = TranslationTask.open(
        tmp_path / "run" / "data", load_recipe(tmp_path / "run" / "recipe.yaml"), CPU, Progress(1)
    )
    assert task.tokenisation == "zh"


def test_missing_tokenizer_of_a_language_is_reported_and_characters_are_scored(
    prepared: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", None)
    progress = RecordingProgress()
    task = TranslationTask.open(prepared, recipe.with_group("data", languages=["en", "ja"]), CPU, progress)
    assert task.tokenisation == "char"
    assert any(line.startswith("validation computes BLEU of characters: sacreBLEU's") for line in progress.messages)
    assert task.validate(task.model).scores["bleu"] >= 0


def test_header_is_reported_and_counts_as_a_line(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for name in ("a.tsv", "b.tsv"):
        write_as(folder / name, "en\tzh\n\t空\n")
    (tmp_path / "data").mkdir()
    progress = RecordingProgress()
    write_data(tmp_path / "data", small_recipe(folder), progress)
    assert progress.messages[0] == (
        f"{folder / 'a.tsv'}: the first line is a header and not used as a pair, as in 1 other file"
    )
    _, *rows = (tmp_path / "data" / "skipped.tsv").read_text(encoding="utf-8").splitlines()
    assert [row.split("\t")[:3] for row in rows] == [
        [str(folder / name), "2", "an empty side"] for name in ("a.tsv", "b.tsv")
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give either source"),
        ({"source": "a.tsv", "corpora": [{"source": "b.tsv"}]}, "give either source"),
        ({"builtin": "en-zh", "corpora": [{"source": "b.tsv"}]}, "give either source"),
        ({"corpora": [{"source": "b.tsv"}], "alignments": "x"}, "target, alignments and tag need source"),
        ({"source": "a.tsv", "alignments": "x", "tag": "<BT>"}, "tag and directions exclude alignments"),
        ({"builtin": "en-zh", "valid_source": "a"}, "builtin en-zh excludes files; give source and target without it"),
        ({"source": "a.tsv", "tag": "x", "directions": [["en", "zh"]]}, "directions exclude tag"),
        ({"corpora": [{"source": "b.tsv", "weight": 0}]}, r"corpora\.0\.weight: input should be greater than 0"),
        ({"corpora": [{"source": "b.tsv", "wieght": 2}]}, r"unknown key corpora\.0\.wieght"),
    ],
)
def test_contradictory_data_settings_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DataSettings.parse(values, "data")


def test_embeddings_of_separate_vocabularies_cannot_all_be_tied(make_recipe: Callable[..., Recipe]) -> None:
    assert make_recipe(model__tie="all", tokenizer__joint=True).model_settings().tie == "all"
    with pytest.raises(
        UserError, match=r"^model\.tie: 'all' needs one vocabulary for both sides; set model\.tie=target$"
    ):
        make_recipe(model__tie="all", tokenizer__joint=False)


def test_corpus_without_usable_pairs_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_text("I love apples\t\n" * 40)
    corpora = [{"source": str(write_tsv(tmp_path / "a.tsv", 0, 90))}, {"source": str(tmp_path / "b.tsv")}]
    with pytest.raises(
        UserError, match=r"b\.tsv: no training pair is left with data\.max_length=256: \d+ have an empty side"
    ):
        build_task(recipe_of(corpora), CPU, RecordingProgress())


@pytest.mark.parametrize(("total", "number"), [(10, 3), (7, 7), (5, 9), (1000, 333)])
def test_selected_items_are_evenly_spaced(total: int, number: int) -> None:
    chosen = list(take_evenly(range(total), total, number))
    assert len(chosen) == min(total, number)
    assert np.ptp(np.diff([-1, *chosen])) <= 1


def test_sampling_for_the_tokenizer_is_reported(make_recipe: Callable[..., Recipe]) -> None:
    progress = RecordingProgress()
    build_task(make_recipe(tokenizer__sample=100), CPU, progress)
    assert "training the tokenizer on 100 of 470 pairs, evenly spaced" in progress.messages


def test_progress_of_long_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.progress.REPORT_INTERVAL", 0)
    progress = RecordingProgress()
    assert list(progress.track(range(25_000), "tokenising")) == list(range(25_000))
    assert [line.split(" pairs, ")[0] for line in progress.messages] == ["tokenising: 10,000", "tokenising: 20,000"]


# Windows


def test_windows_of_an_epoch_cover_every_sentence_once_and_can_be_resumed(
    make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build_task(make_recipe(batch__tokens=128), CPU, RecordingProgress())
    task.order = type(task.order)(task.order.seed, task.order.parts, window=100)
    assert task.order.windows == 5
    for counts in count_rows(task, 2):
        assert counts == Counter(range(len(task.train_tokens)))
    plans = list(islice(task._plan_from(DataPosition()), 150))
    assert {item.after.window for item in plans} == {0, 1, 2, 3, 4}
    assert plans[-1].after.epoch > 0
    for used in range(0, 149, 7):
        again = next(task._plan_from(plans[used].after))
        assert again.after == plans[used + 1].after
        assert again.item.tolist() == plans[used + 1].item.tolist()


# Alignments


@pytest.fixture
def aligned(tmp_path: Path) -> dict[str, object]:
    """The toy corpus with spaces between target words; first and last words are aligned."""
    pairs = [(pair.source, " ".join(pair.target)) for pair in toy_pairs()]
    for side, name in enumerate(("a.en", "a.zh")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    links = (f"0-0 {len(pair[0].split()) - 1}-{len(pair[1].split()) - 1}\n" for pair in pairs)
    (tmp_path / "a.links").write_text("".join(links))
    names = {"source": "a.en", "target": "a.zh", "alignments": "a.links"}
    return {f"data__{key}": str(tmp_path / name) for key, name in names.items()}


@pytest.mark.parametrize("packed", [False, True])
def test_batches_contain_the_links_of_aligned_words(
    packed: bool, aligned: dict[str, object], make_recipe: Callable[..., Recipe]
) -> None:
    task = build_task(make_recipe(**aligned), CPU, RecordingProgress())
    rows = np.array([5, 400, 17])
    batch = collate(task.train_tokens, rows, packed, 0)
    assert batch.links is not None
    corpus = task.train_tokens
    for number, row in enumerate(rows):
        source, target = (ragged.take(np.array([row])).tokens for ragged in (corpus.source, corpus.target))
        source_words, target_words = (
            np.array([*vocabulary.word_ids(ids), -2])  # -2: END
            for vocabulary, ids in (
                (task.translator.vocabularies.source, source[:-1]),
                (task.translator.vocabularies.target, target[1:-1]),
            )
        )
        linked = {(0, 0), (source_words[:-1].max(), target_words[:-1].max()), (-2, -2)}
        expected = {
            (t, s)
            for t, right in enumerate(target_words)
            for s, left in enumerate(source_words)
            if (left, right) in linked
        }
        links = batch.links[batch.links[:, 0] == number][:, 1:]
        assert len(links) == len(expected)
        assert {tuple(link) for link in links.tolist()} == expected
    assert batch.to(CPU).links is batch.links


def test_wrong_alignment_is_rejected_before_the_tokenizer_is_trained(
    aligned: dict[str, object], make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(training_data, "train_tokenizers", None)
    path = tmp_path / "a.links"
    path.write_text(path.read_text().replace("0-0", "0-99", 1))
    with pytest.raises(UserError, match=r'a\.links, line 1: the link "0-99" refers to target word 99'):
        run_recipe(make_recipe(**aligned), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Skipped pairs


def test_skipped_pairs_are_listed_in_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tsv(tmp_path / "a.tsv", 0, 90)
    with (tmp_path / "a.tsv").open("a", encoding="utf-8") as file:
        file.write("I love apples\t\n" + "I love apples " * 30 + "\t我喜欢苹果\n")
    valid = write_tsv(tmp_path / "valid.tsv", 90, 100)
    with valid.open("a", encoding="utf-8") as file:
        file.write("We buy tea\t" + "我们买茶" * 40 + "\n")
    learned = {"model__positions": "learned", "model__max_length": 40, "training__steps": 1}
    recipe = small_recipe(tmp_path / "a.tsv", data__valid_source=valid, **learned)
    run_recipe(recipe, tmp_path / "run")
    output = capsys.readouterr().out
    for reason in ("an empty side", "over 40 tokens", "over 40 tokens in validation"):
        assert f"skipped: 1 pair with {reason}; see {tmp_path / 'run' / 'data' / 'skipped.tsv'}\n" in output
    _, *rows = (tmp_path / "run" / "data" / "skipped.tsv").read_text(encoding="utf-8").splitlines()
    assert [row.split("\t")[:3] for row in rows] == [
        [str(tmp_path / "a.tsv"), "91", "an empty side"],
        [str(tmp_path / "a.tsv"), "92", "over 40 tokens"],
        ["validation", "11", "over 40 tokens in validation"],
    ]


# Stores


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "corpus").mkdir()
    write_tsv(tmp_path / "corpus" / "0.tsv", 0, 200)
    write_tsv(tmp_path / "corpus" / "1.tsv", 200, 500)
    return small_recipe(tmp_path / "corpus", training__steps=2, training__valid_sentences=2)


@pytest.fixture
def prepared(recipe: Recipe, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_data(folder, recipe, RecordingProgress())
    return folder


def are_equal(one: ParallelTokens, other: ParallelTokens) -> bool:
    return rows_of(one.source) == rows_of(other.source) and rows_of(one.target) == rows_of(other.target)


def test_prepared_data_is_opened_without_the_corpus(prepared: Path, recipe: Recipe, tmp_path: Path) -> None:
    before = open_data(prepared, recipe, RecordingProgress())
    shutil.rmtree(tmp_path / "corpus")
    again = open_data(prepared, recipe, RecordingProgress())
    assert are_equal(again.train, before.train)
    assert again.valid == before.valid
    assert len(again.train) + len(again.valid) == 500


@pytest.mark.parametrize("name", ["source.npy", "target.offsets.npy", "store.json"])
def test_damaged_store_is_recreated(prepared: Path, recipe: Recipe, name: str) -> None:
    before = {path.name: path.read_bytes() for path in (prepared / "train").glob("*.npy")}
    path = prepared / "train" / name
    path.write_bytes(path.read_bytes()[:-3])
    progress = RecordingProgress()
    opened = open_data(prepared, recipe, progress)
    assert progress.messages[0].startswith(f"{prepared / 'train'}: damaged ({name}")
    assert progress.messages[0].endswith("; creating it again")
    assert {path.name: path.read_bytes() for path in (prepared / "train").glob("*.npy")} == before
    assert len(opened.train) == 470
    assert not list(prepared.rglob(".*"))


def test_recreated_store_with_other_tokens_is_rejected(prepared: Path, recipe: Recipe, tmp_path: Path) -> None:
    shutil.rmtree(prepared / "train")
    write_tsv(tmp_path / "corpus" / "1.tsv", 199, 499)
    with pytest.raises(UserError, match="the corpus now gives other tokens than when the run was created"):
        open_data(prepared, recipe, RecordingProgress())


def test_changed_tokenizer_is_rejected(prepared: Path, recipe: Recipe) -> None:
    path = prepared / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["merges"] = content["model"]["merges"][:-1]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="the tokenizer is not the one that the tokens were made with"):
        open_data(prepared, recipe, RecordingProgress())


def test_changed_validation_pairs_are_rejected(prepared: Path, recipe: Recipe) -> None:
    path = prepared / "valid.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("apples", "pears"), encoding="utf-8")
    with pytest.raises(UserError, match=r"valid\.jsonl: is missing or has changed"):
        open_data(prepared, recipe, RecordingProgress())


def test_changed_shards_are_rejected_on_resuming(recipe: Recipe, tmp_path: Path) -> None:
    run_recipe(recipe, tmp_path / "run")
    longer = recipe.changed(training=recipe.training.model_dump() | {"steps": 3}, optim={"schedule": "constant"})
    run_recipe(longer.changed(training=recipe.training.model_dump()), tmp_path / "other")
    corpus = tmp_path / "corpus"
    write_tsv(corpus / "2.tsv", 0, 3)
    with pytest.raises(UserError, match=r"2\.tsv: was added since the run in .*other was created"):
        run_recipe(longer, tmp_path / "other")
    (corpus / "2.tsv").unlink()
    (corpus / "1.tsv").rename(tmp_path / "1.tsv")
    with pytest.raises(UserError, match=r"source/1\.tsv: was removed since"):
        run_recipe(longer, tmp_path / "other")
    write_tsv(corpus / "1.tsv", 199, 499)
    with pytest.raises(UserError, match=r"1\.tsv: has changed since the run in"):
        run_recipe(longer, tmp_path / "other")
    shutil.copyfile(tmp_path / "1.tsv", corpus / "1.tsv")  # with another modification time
    run_recipe(longer, tmp_path / "other")


def test_file_with_unchanged_size_and_time_is_not_read(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = recipe.changed(optim={"schedule": "constant"})
    run_recipe(constant, tmp_path / "run")
    monkeypatch.setattr("regard.training.prepared_data.hashlib", None)
    monkeypatch.setattr(training_data, "open_corpora", None)
    result = run_recipe(constant.with_group("training", steps=4), tmp_path / "run")
    assert result.steps == 4


# Shared stores


def test_runs_share_a_store(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    separate = run_recipe(recipe, tmp_path / "separate")
    sharing = recipe.with_group("data", store=tmp_path / "shared" / "store")
    run_recipe(sharing, tmp_path / "first")
    monkeypatch.setattr(training_data, "write_data", None)
    run_recipe(sharing, tmp_path / "second")
    models = [(tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("separate", "first", "second")]
    assert models[0] == models[1] == models[2]
    assert separate.steps == 2
    assert not (tmp_path / "second" / "data" / "train").exists()
    assert (tmp_path / "shared" / "store" / "train" / "source.npy").exists()


def test_store_with_other_settings_or_files_is_rejected(recipe: Recipe, tmp_path: Path) -> None:
    sharing = recipe.with_group("data", store=tmp_path / "store")
    run_recipe(sharing, tmp_path / "first")
    other = sharing.changed(tokenizer={"size": 330})
    with pytest.raises(UserError, match=r"store: was made with tokenizer\.size=340, not 330"):
        run_recipe(other, tmp_path / "second")
    write_tsv(tmp_path / "corpus" / "1.tsv", 199, 499)
    with pytest.raises(UserError, match=r"1\.tsv: has changed since the store .* was created"):
        run_recipe(sharing, tmp_path / "second")
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"hold_out": 20}}, r"data\.hold_out=30, not 20"),
        ({"training": {"seed": 2}}, r"training\.seed=1, not 2"),
        ({"data": {"max_length": 100}}, r"data\.max_length=256, not 100"),
        ({"data": {"columns": [1, 0]}}, r"data\.corpora\.0\.columns=\[0, 1\], not \[1, 0\]"),
        ({"data": {"tag": "<BT>"}}, r'data\.corpora\.0\.tag=(None|""|null), not "<BT>"'),
        ({"data": {"keys": ["a", "b"]}}, r'data\.corpora\.0\.keys=\["source", "target"\], not \["a", "b"\]'),
        ({"tokenizer": {"sample": 99}}, r"tokenizer\.sample=1000000, not 99"),
    ],
)
def test_store_that_was_made_with_other_settings_is_rejected(
    changes: dict[str, dict[str, Any]], message: str, recipe: Recipe, tmp_path: Path
) -> None:
    for name in ("data", "other"):
        (tmp_path / name).mkdir()
    sharing = with_settings(recipe, {"data": {"store": tmp_path / "store"}})
    training_data.prepare_data(tmp_path / "data", sharing, RecordingProgress())
    other = with_settings(sharing, changes)
    with pytest.raises(UserError, match=f"store: was made with {message}; set the old value or another data"):
        training_data.prepare_data(tmp_path / "other", other, RecordingProgress())


def test_store_with_validation_files_does_not_depend_on_held_out_pairs_and_seed(recipe: Recipe, tmp_path: Path) -> None:
    valid = write_tsv(tmp_path / "valid.tsv", 0, 20)
    sharing = with_settings(recipe, {"data": {"store": tmp_path / "store", "valid_source": valid}})
    other = with_settings(sharing, {"data": {"hold_out": 7}, "training": {"seed": 2}})
    opened = []
    for name, one in (("data", sharing), ("other", other)):
        (tmp_path / name).mkdir()
        training_data.prepare_data(tmp_path / name, one, RecordingProgress())
        opened.append(open_data(tmp_path / name, one, RecordingProgress()))
    assert are_equal(opened[0].train, opened[1].train)


def with_settings(recipe: Recipe, changes: dict[str, dict[str, Any]]) -> Recipe:
    """Return a recipe with other values, by group and key."""
    return recipe.changed(**{group: getattr(recipe, group).model_dump() | new for group, new in changes.items()})


def test_other_folder_is_not_used_as_a_store(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.txt").write_text("x")
    sharing = recipe.with_group("data", store=tmp_path / "store")
    with pytest.raises(UserError, match=r"store: exists and is not a store of tokens"):
        run_recipe(sharing, tmp_path / "run")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["thesis.txt"]


def test_concurrent_runs_create_a_store_once(recipe: Recipe, tmp_path: Path) -> None:
    sharing = recipe.with_group("data", store=tmp_path / "store")
    prepared: list[Path] = []

    def count(folder: Path, *rest: Any) -> None:
        prepared.append(folder)
        write_data(folder, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_data, "write_data", count)
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
        threads = [Thread(target=prepare_data, args=(folder, sharing, RecordingProgress())) for folder in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(prepared) == 1
    assert [open_data(folder, sharing, RecordingProgress()).vocabularies.fingerprint() for folder in folders]


def test_shards_of_all_processes_cover_every_epoch(prepared: Path, recipe: Recipe) -> None:
    task = TranslationTask.open(prepared, recipe, CPU, RecordingProgress())
    shards = [DataShard(rank, 3).select(task._plan_from(DataPosition())) for rank in range(3)]
    seen: Counter[int] = Counter()
    for group in zip(*shards, strict=True):
        seen.update(row for placed in group for row in placed.item.tolist())
        if group[0].after.epoch >= 3:
            break
    counts = [seen[row] for row in range(len(task.train_tokens))]
    assert (min(counts), max(counts) <= 4) == (3, True)


# BPE-dropout


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_batches_with_dropout_do_not_depend_on_workers_and_position(layout: str, toy: Path) -> None:
    def build(**changes: object) -> TranslationTask:
        corpus = (toy / "train.en", toy / "train.zh")
        changes |= {"batch__layout": layout, "training__cuda_graph": layout == "packed"}
        return build_task(small_recipe(*corpus, tokenizer__dropout=0.3, **changes), CPU, RecordingProgress())

    def read(task: TranslationTask, start: DataPosition, number: int) -> list[tuple[list[int], ...]]:
        batches = [placed.item for placed in islice(task.batches(start, DataShard()), number)]
        assert all(batch.padded_tokens <= 256 for batch in batches)
        return [tuple(each.flatten().tolist() for each in (one.source, one.inputs, one.labels)) for one in batches]

    task = build()
    positions = [DataPosition(), *(plan.after for plan in islice(task._plan_from(DataPosition()), 60))]
    assert positions[-1].epoch > 1
    all_batches = read(task, DataPosition(), 60)
    assert read(build(training__workers=2), DataPosition(), 60) == all_batches
    assert read(build(), positions[37], 23) == all_batches[37:]
    assert read(build(training__seed=2), DataPosition(), 60) != all_batches


def test_halves_of_a_batch_keep_its_segmentations(toy: Path) -> None:
    task = build_task(
        small_recipe(toy / "train.en", toy / "train.zh", tokenizer__dropout=0.4), CPU, RecordingProgress()
    )
    batch = next(task.batches(DataPosition(3), DataShard())).item
    labels = torch.cat([half.labels for half in task.split(batch)])
    assert torch.equal(labels, batch.labels)
    assert batch.count > task.collate(task.train_tokens, batch.rows % len(task.train_tokens)).count


def test_dropout_changes_neither_validation_nor_the_model_folder(toy: Path, tmp_path: Path) -> None:
    recipes = [small_recipe(toy / "train.en", toy / "train.zh", tokenizer__dropout=rate) for rate in (0.0, 0.4)]
    plain, dropped = (build_task(recipe, CPU, RecordingProgress()) for recipe in recipes)
    assert rows_of(plain.valid_tokens.source) == rows_of(dropped.valid_tokens.source)
    assert plain.translator.vocabularies.fingerprint() == dropped.translator.vocabularies.fingerprint()
    assert plain.shape == dropped.shape


def test_dropout_needs_bpe_and_excludes_alignments(toy: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.dropout needs tokenizer.kind=bpe, not word"):
        small_recipe(toy / "train.en", toy / "train.zh", tokenizer__dropout=0.1, tokenizer__kind="word")
    with pytest.raises(UserError, match=r"tokenizer\.dropout excludes alignments"):
        small_recipe(toy / "train.en", toy / "train.zh", tokenizer__dropout=0.1, data__alignments=str(toy / "links"))


def test_shared_store_is_not_used_with_other_dropout(toy: Path, tmp_path: Path) -> None:
    changes = {"data__store": str(tmp_path / "store"), "tokenizer__size": 340}
    plain, dropped = (
        small_recipe(toy / "train.en", toy / "train.zh", tokenizer__dropout=rate, **changes) for rate in (0.0, 0.1)
    )
    (tmp_path / "run").mkdir()
    prepare_data(tmp_path / "run", plain, RecordingProgress())
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"made with tokenizer\.dropout=0\.0, not 0\.1"):
        prepare_data(tmp_path / "other", dropped, RecordingProgress())


# Both directions


def test_both_directions_contain_every_pair_twice_and_no_held_out_pair(toy: Path) -> None:
    settings = {"training__valid_sentences": 0, "data__hold_out": 20}
    one, both = (
        build_task(
            small_recipe(toy / "train.en", toy / "train.zh", data__both_directions=given, **settings),
            CPU,
            RecordingProgress(),
        )
        for given in (False, True)
    )
    assert one.valid_pairs == both.valid_pairs
    assert both.train_tokens.sizes == (len(one.train_tokens), len(one.train_tokens))
    target = one.translator.vocabularies.target
    forward = list(zip(rows_of(one.train_tokens.source), rows_of(one.train_tokens.target), strict=True))
    backward = [(t[1:], [target.BOS, *s]) for s, t in forward]
    assert (
        list(zip(rows_of(both.train_tokens.source), rows_of(both.train_tokens.target), strict=True))
        == forward + backward
    )
    assert one.translator.vocabularies.fingerprint() == both.translator.vocabularies.fingerprint()
    (counts,) = count_rows(both, 1)
    assert set(counts.values()) == {1}
    assert len(counts) == 2 * len(one.train_tokens)


def test_both_directions_keep_weights_alignments_and_skipped_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one two\n" + "one " * 99 + "\nthree\n", encoding="utf-8")
    (tmp_path / "a.de").write_text("eins zwei\nzwei\ndrei\n", encoding="utf-8")
    (tmp_path / "links").write_text("0-1\n\n0-0\n", encoding="utf-8")
    corpus = {name: str(tmp_path / file) for name, file in (("source", "a.en"), ("target", "a.de"))}
    corpora = [corpus | {"alignments": str(tmp_path / "links"), "weight": 2}]
    valid = {"data__valid_source": str(tmp_path / "a.en"), "data__valid_target": str(tmp_path / "a.de")}
    recipe = recipe_of(corpora, data__both_directions=True, data__max_length=40, **valid)
    task = build_task(recipe, CPU, RecordingProgress())
    assert [part.per_epoch for part in task.order.parts] == [4, 4]
    forward, _, backward, _ = rows_of(task.train_tokens.links)
    links = [set(zip(row[::2], row[1::2], strict=True)) for row in (forward, backward)]
    assert links[1] == {(source, target) for target, source in links[0]}
    prepare_data(tmp_path, recipe, RecordingProgress())
    assert len((tmp_path / "skipped.tsv").read_text("utf-8").splitlines()) == 2


def test_one_direction_continues_from_both(toy: Path, tmp_path: Path) -> None:
    recipe = small_recipe(toy / "train.en", toy / "train.zh", data__both_directions=True, training__steps=4)
    run_recipe(recipe, tmp_path / "both")
    init = {"init__from": str(tmp_path / "both"), "training__steps": 1, "optim__lr": 1e-9}
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", **init), tmp_path / "one")
    first, second = (Translator.load(tmp_path / name / "last") for name in ("both", "one"))
    assert torch.allclose(first.model.target_embedding.weight, second.model.target_embedding.weight, atol=1e-6)
    assert first.vocabularies.fingerprint() == second.vocabularies.fingerprint()


def test_both_directions_need_one_vocabulary(toy: Path) -> None:
    changes = {"tokenizer__joint": False, "model__tie": "target"}
    with pytest.raises(UserError, match=r"data\.both_directions needs one vocabulary"):
        small_recipe(toy / "train.en", toy / "train.zh", data__both_directions=True, **changes)


# Several directions


def test_directions_use_each_corpus_with_the_token_of_the_target(tmp_path: Path) -> None:
    for name, text in {"a.en": "one", "a.de": "eins", "b.fr": "un", "b.en": "one"}.items():
        (tmp_path / name).write_text(f"{text}\n" * 40, encoding="utf-8")
    names = (("a.en", "a.de"), ("b.fr", "b.en"))
    corpora = [{"source": str(tmp_path / source), "target": str(tmp_path / target)} for source, target in names]
    valid = {"data__valid_source": str(tmp_path / "a.en"), "data__valid_target": str(tmp_path / "a.de")}
    directions = [["en", "de"], ["de", "en"], ["en", "fr"]]
    task = build_task(recipe_of(corpora, data__directions=directions, **valid), CPU, RecordingProgress())
    source, target = task.translator.vocabularies.source, task.translator.vocabularies.target
    pairs = zip(rows_of(task.train_tokens.source), rows_of(task.train_tokens.target), strict=True)
    found = Counter((source.tokens(s[:1])[0], source.decode(s), target.decode(t)) for s, t in pairs)
    assert found == {(">>de<<", "one", "eins"): 40, (">>en<<", "eins", "one"): 40, (">>fr<<", "one", "un"): 40}
    assert task.valid_pairs[:2] == [(">>de<< one", "eins"), (">>en<< eins", "one")]
    assert source.tokens(row[0] for row in rows_of(task.valid_tokens.source)[:2]) == [">>de<<", ">>en<<"]
    assert task.translator.languages == ("en", "de")
    assert task.translator.directions == (("en", "de"), ("de", "en"), ("en", "fr"))


def test_corpus_without_a_direction_is_rejected(tmp_path: Path) -> None:
    corpora = []
    for code, text in (("de", "eins"), ("fr", "un")):
        (tmp_path / f"a.{code}").write_text(f"{text}\n" * 40, encoding="utf-8")
        (tmp_path / "a.en").write_text("one\n" * 40, encoding="utf-8")
        corpora.append({"source": str(tmp_path / "a.en"), "target": str(tmp_path / f"a.{code}")})
    valid = {"data__valid_source": str(tmp_path / "a.en"), "data__valid_target": str(tmp_path / "a.de")}
    with pytest.raises(UserError, match=r"data\.directions: no direction for the corpus en-fr; add or omit it"):
        build_task(recipe_of(corpora, data__directions=[["en", "de"]], **valid), CPU, RecordingProgress())


def test_validation_pairs_must_have_two_sides(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "blank.zh").write_text("\n" * 3)
    (tmp_path / "good.en").write_text("I love apples\n" * 3)
    valid = {"data__valid_source": str(tmp_path / "good.en"), "data__valid_target": str(tmp_path / "blank.zh")}
    with pytest.raises(UserError, match="none of the 3 validation pairs has two sides that this model can read"):
        build_task(small_recipe(toy / "train.en", toy / "train.zh", **valid), CPU, RecordingProgress())


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        ([["en", "zh"], ["en", "fr"]], "no corpus for en-fr, only for en-zh; set its languages"),
        ([["fr", "en"]], "no corpus for fr-en"),
    ],
)
def test_directions_need_a_corpus(directions: list[list[str]], message: str, toy: Path) -> None:
    recipe = small_recipe(toy / "train.en", toy / "train.zh", data__directions=directions)
    with pytest.raises(UserError, match=message):
        build_task(recipe, CPU, RecordingProgress())


def test_a_run_with_directions_translates_in_each_of_them(toy: Path, tmp_path: Path) -> None:
    directions = [["zh-Hans", "en"], ["en", "zh-Hans"]]
    changes = {"data__directions": directions, "training__steps": 2}
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", **changes), tmp_path / "run")
    translator = Translator.load(tmp_path / "run")
    for target, expected in (("en", ("zh-Hans", "en")), ("zh-CN", ("en", "zh-Hans"))):
        selected = translator.select(None, target)
        best = selected.hypotheses(["I love apples"], alignments=True)[0][0]
        assert selected.languages == expected
        assert best.source_subwords[0] == f">>{expected[1]}<<"
    assert translator.languages == ("zh-Hans", "en")
    with pytest.raises(UserError, match="does not translate en to fr; its directions are zh-Hans to en, en to zh-Hans"):
        translator.select("en", "fr")
    translator.select("en", "zh").save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["directions"] == directions
    changes |= {"init__from": str(tmp_path / "run"), "training__steps": 1, "tokenizer__size": 400}
    with pytest.raises(UserError, match=r"has the directions zh-Hans-en, en-zh-Hans; set data\.directions"):
        run_recipe(
            small_recipe(toy / "train.en", toy / "train.zh", **changes | {"data__directions": []}), tmp_path / "a"
        )
    changes["data__directions"] = [["en", "zh-Hans"]]
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", **changes), tmp_path / "a")
    assert Translator.load(tmp_path / "a").directions == (("en", "zh-Hans"),)


def test_text_is_converted_to_the_script_of_the_model(trained_run: Path) -> None:
    translator = Translator.load(trained_run)
    traditional = translator.select(None, "zh-Hant")
    assert (translator("I love apples"), traditional("I love apples")) == ("我喜欢苹果", "我喜歡蘋果")
    assert (traditional.languages, translator.select("en", "zh-CN").languages) == (("en", "zh-Hant"), ("en", "zh"))
    (scored,), (own,) = (
        traditional.score(["I love apples"], ["我喜歡蘋果"]),
        translator.score(["I love apples"], ["我喜欢苹果"]),
    )
    assert (scored.text, scored.score) == ("我喜歡蘋果", own.score)


def test_glossaries_and_constraints_are_converted_to_the_script_of_the_model(trained_run: Path) -> None:
    translator = Translator.load(trained_run)
    traditional = translator.select(None, "zh-Hant")
    (own,) = translator("I love apples", glossary={"apple": "书"}, n_best=1)
    for target in ("書", "书"):
        (best,) = traditional("I love apples", glossary={"apple": target}, n_best=1)
        assert (best.text, best.score) == ("我喜歡書", own.score)
        assert [(use.target, use.kept) for use in best.terms] == [(target, True)]
    constraints = Constraints(prefix="我們", forbidden=("蘋果",))
    (best, *_) = traditional.hypotheses(["I love apples"], constraints=constraints)[0]
    assert best.text.startswith("我們") and "蘋果" not in best.text and best.phrases == {"蘋果": True}
