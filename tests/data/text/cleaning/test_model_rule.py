"""The rule that scores pairs by models."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from regard.data.text.cleaning.cleaner import Cleaner
from regard.data.text.cleaning.settings import ModelCleaningSettings
from regard.data.text.readers import Pair, PairRecord
from regard.errors import UserError
from regard.pipelines.pair_scores import PairScorer
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs

MISALIGNED = 12


def mixed() -> list[Pair]:
    """The toy corpus, in which the targets of every tenth pair are those of another one."""
    pairs = toy_pairs()
    for number in range(MISALIGNED):
        pairs[10 * number] = Pair(pairs[10 * number].source, toy_pairs()[10 * number + 237].target)
    return pairs


def test_misaligned_pairs_are_removed_by_a_model(trained_run: Path, tmp_path: Path, command: Command) -> None:
    pairs = mixed()
    (tmp_path / "noisy.en-zh.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs), "utf-8")
    words = ["clean", "--src", tmp_path / "noisy.en-zh.tsv", "--model", trained_run, "--device", "cpu"]
    result = command(*words, "--out", tmp_path / "clean.tsv")
    assert result.code == 0, result.err
    kept = (tmp_path / "clean.tsv").read_text("utf-8").splitlines()
    bad = [f"{s}\t{t}" for s, t in pairs[: 10 * MISALIGNED : 10]]
    assert sum(line in kept for line in bad) <= 2
    assert len(kept) >= len(pairs) - MISALIGNED - 5
    assert "nats per token for typical pairs" in result.out
    result = command(*words, "--out", tmp_path / "all.tsv", "--set", "max_cross_entropy=1000")
    assert result.out.startswith(f"{len(pairs)} of {len(pairs)} pairs kept")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "model=0.4"], "model is a threshold for scores of a model; give --model too"),
        (["--reverse-model", "RUN"], "needs --model"),
        (["--model", "missing"], "missing"),
        (["--model", "RUN", "--reverse-model", "RUN"], "the model translates en to zh, but the reverse model en to zh"),
    ],
)
def test_wrong_options_are_explained(
    trained_run: Path, tmp_path: Path, command: Command, words: list[str], message: str
) -> None:
    (tmp_path / "noisy.tsv").write_text("a\t一\n", "utf-8")
    words = [str(trained_run) if word == "RUN" else word for word in words]
    assert message in command("clean", "--src", tmp_path / "noisy.tsv", "--out", tmp_path / "x.tsv", *words).error
    assert not (tmp_path / "x.tsv").exists()


class FakeTranslator:
    """Gives every token of a target the log-probability that the text itself states."""

    max_source_tokens = 4

    def __init__(self, *languages: str) -> None:
        self.languages = languages
        self.vocabularies = SimpleNamespace(target=SimpleNamespace(encode=str.split))

    def fits(self, text: str) -> bool:
        return len(text.split()) <= self.max_source_tokens

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Any]:
        return [SimpleNamespace(token_log_probs=[-float(word) for word in text.split()]) for text in targets]


def make_scorer(*translators: FakeTranslator) -> PairScorer:
    return PairScorer(*translators)  # type: ignore[arg-type]


def test_dual_cross_entropy_is_low_if_both_models_agree() -> None:
    pairs = [Pair("1 1", "2 4"), Pair("3", "3 3"), Pair("1 1 1 1 1", "1"), Pair("1", "1 1 1 1 1")]
    one = make_scorer(FakeTranslator("en", "de"))(pairs)
    assert one[:2].tolist() == [3, 3]
    assert np.isnan(one[2:]).all()  # too long for the model
    both = make_scorer(FakeTranslator("en", "de"), FakeTranslator("de", "en-GB"))(pairs)
    assert both[:2].tolist() == [abs(3 - 1) + 2, 3]
    with pytest.raises(UserError, match="the model translates en to de, but the reverse model fr to en"):
        make_scorer(FakeTranslator("en", "de"), FakeTranslator("fr", "en"))


def test_cross_entropy_is_that_of_the_model(trained_run: Path) -> None:
    translator = Translator.load(trained_run)
    good, bad = PairScorer(translator)([*toy_pairs()[:1], Pair("I love apples", "孩子要狗")])
    assert 0 <= good < 0.5 < bad


def clean(values: dict[str, float], **settings: float) -> tuple[list[bool], list[str]]:
    """Clean pairs "a", "b", … with the given cross-entropies; pairs with other targets have 9."""
    records = [PairRecord(Pair(name, f"{name}{name} x"), "file", line) for line, name in enumerate(values, start=1)]

    def score(pairs: Sequence[Pair]) -> npt.NDArray[np.float64]:
        return np.array([values[p.source] if p.target.startswith(p.source) else 9 for p in pairs])

    cleaner = Cleaner(ModelCleaningSettings(**settings), ("en", "de"), score=score)
    kept = [bool(one) for _, mask in cleaner.clean(lambda: iter(records)) for one in mask]
    return kept, cleaner.report.notes


def test_scores_are_compared_with_typical_and_random_pairs() -> None:
    values = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 4.9, "e": 5.1, "f": np.nan}
    assert clean(values)[0] == [True, True, True, True, False, True]
    assert clean(values, model=0.1)[0] == [True] * 6
    assert clean(values, max_cross_entropy=2)[0] == [True, True, True, False, False, True]


def test_model_that_does_not_distinguish_pairs_is_not_used() -> None:
    kept, notes = clean({"a": 9.0, "b": 9.0, "c": 20.0})
    assert kept == [True] * 3
    assert "The rule model is not applied" in notes[-1]
