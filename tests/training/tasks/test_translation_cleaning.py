"""`data.clean`: the rules of `regard clean` in a training recipe."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.text.corpus import Corpus
from regard.data.text.readers import Pair, Shard
from regard.errors import UserError
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.tasks.translation.data import open_corpora, open_data, prepare_data
from regard.training.tasks.translation.recipe import DataSettings
from tests.conftest import SMALL, Command, settings_of, small_recipe, toy_pairs

BAD = [Pair("<b>I see</b>", "我看见"), Pair("I see tea", "I see tea"), toy_pairs()[5]]
Write = Callable[[str, list[Pair]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes pairs to a .tsv file and returns its path."""

    def write(name: str, pairs: list[Pair]) -> str:
        path = tmp_path / f"{name}.en-zh.tsv"
        path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), "utf-8")
        return str(path)

    return write


def open_cleaned(**values: Any) -> Any:
    return open_corpora(DataSettings.parse({"clean": True, **values}, "data"), 1)


def test_bad_pairs_are_removed_before_some_are_held_out(write: Write) -> None:
    pairs = toy_pairs()
    opened = open_cleaned(source=write("noisy", [*BAD[:2], *pairs, BAD[2]]), hold_out=40)
    assert sorted([*opened.pairs(), *opened.valid]) == sorted(pairs)
    assert opened.total == len(pairs) - len(opened.valid)
    assert opened.cleaning.removed == {"markup": 1, "copy": 1, "duplicate": 1}


def test_corpora_are_cleaned_together(write: Write) -> None:
    pairs = toy_pairs()
    corpora = [{"source": write("one", [BAD[0], *pairs[:60]])}, {"source": write("two", [*pairs[40:120], BAD[1]])}]
    opened = open_cleaned(corpora=corpora, hold_out=1)
    texts = [list(corpus.pairs()) for corpus in opened.train]
    held_out = {pair.source for pair in opened.valid}
    assert texts[0] == [pair for pair in pairs[:60] if pair.source not in held_out]
    assert texts[1] == [pair for pair in pairs[60:120] if pair.source not in held_out]


def test_texts_of_validation_and_excluded_files_are_removed(write: Write, tmp_path: Path) -> None:
    pairs = toy_pairs()
    (tmp_path / "test.zh").write_text(f"{pairs[9].target}\n", "utf-8")
    opened = open_cleaned(
        source=write("train", pairs), valid_source=write("valid", pairs[:3]), clean={"exclude": [tmp_path / "test.zh"]}
    )
    assert list(opened.pairs()) == [pair for pair in pairs[3:] if pair.target != pairs[9].target]
    assert opened.total == len(list(opened.pairs()))


def test_built_in_corpus_is_cleaned(short_builtin_corpus: None) -> None:
    opened = open_cleaned(builtin="en-zh")
    assert 250 < opened.total == len(list(opened.pairs())) <= 300


def test_corpus_without_good_pairs_is_an_error(write: Write) -> None:
    with pytest.raises(UserError, match=r"two\.en-zh\.tsv: the rules of data\.clean remove all pairs"):
        open_cleaned(corpora=[{"source": write("one", toy_pairs())}, {"source": write("two", BAD[:2])}])


def test_removed_pairs_keep_alignments_in_step(tmp_path: Path) -> None:
    (tmp_path / "links").write_text("0-0\n0-1\n1-0\n1-1\n", "utf-8")
    pairs = [Pair(f"a{n} b", f"c{n} d") for n in range(4)]
    corpus = Corpus([Shard("one", lambda: iter(pairs))], tmp_path / "links", kept=np.array([True, False, True, True]))
    assert [(record.line, record.links) for record in corpus.records()] == [(1, [(0, 0)]), (3, [(1, 0)]), (4, [(1, 1)])]
    held_out = Corpus(corpus.shards, kept=corpus.kept, held_out=frozenset({1}))
    assert list(held_out.pairs()) == [pairs[0], pairs[3]]


def test_removed_pairs_are_counted_in_the_run_and_printed(write: Write, tmp_path: Path, command: Command) -> None:
    train = write("train", [*toy_pairs(), *BAD])
    short = SMALL | {"training.steps": 2, "training.validate_every": 2, "training.valid_sentences": 2}
    words = ["train", "--src", train, "--out", tmp_path / "run", *settings_of(short)]
    result = command(*words, "--set", "data.clean=true")
    assert result.code == 0, result.err
    line = f"cleaning removed 3 pairs (markup 1, copy 1, duplicate 1); see {tmp_path}/run/data/cleaning.json"
    assert line in result.out.replace("\n", " ").replace("  ", " ")
    report = json.loads((tmp_path / "run" / "data" / "cleaning.json").read_text("utf-8"))
    assert report["kept"] == len(toy_pairs())
    assert [example["line"] for example in report["examples"]["markup"]] == [len(toy_pairs()) + 1]
    assert report["languages"] == ["en", "zh"]


def test_damaged_store_is_recreated_with_the_same_pairs(write: Write, tmp_path: Path) -> None:
    recipe = cleaned_recipe(write, tmp_path)
    progress = Progress(1)
    (tmp_path / "data").mkdir()
    prepare_data(tmp_path / "data", recipe, progress)
    (tmp_path / "data" / "train" / "source.npy").unlink()
    data = open_data(tmp_path / "data", recipe, progress)
    assert len(data.train) + len(data.valid) == len(toy_pairs())
    assert data.removed == {"markup": 1, "copy": 1, "duplicate": 1}


def test_shared_store_belongs_to_its_rules(write: Write, tmp_path: Path) -> None:
    recipe = cleaned_recipe(write, tmp_path, store=str(tmp_path / "store"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        prepare_data(tmp_path / name, recipe, Progress(1))
        assert (tmp_path / name / "cleaning.json").is_file()
    for clean in (None, {"ratio": 2.0}):
        other = cleaned_recipe(write, tmp_path, store=recipe.data.store, clean=clean)
        with pytest.raises(UserError, match=r"store: was made with data\.clean="):
            prepare_data(tmp_path / "one", other, Progress(1))


def cleaned_recipe(write: Write, folder: Path, clean: Any = True, **data: Any) -> Recipe:
    changes = {f"data__{key}": value for key, value in data.items()}
    return small_recipe(Path(write("train", [*toy_pairs(), *BAD])), data__clean=clean, **changes)


def test_thresholds_are_validated() -> None:
    assert DataSettings.parse({"builtin": "en-zh", "clean": False}, "data").clean is None
    settings = DataSettings.parse({"builtin": "en-zh", "clean": {"ratio": 3}}, "data").clean
    assert settings is not None
    assert settings.ratio == 3
    with pytest.raises(UserError, match=r"unknown key clean\.rato; did you mean clean\.ratio"):
        DataSettings.parse({"builtin": "en-zh", "clean": {"rato": 3}}, "data")
