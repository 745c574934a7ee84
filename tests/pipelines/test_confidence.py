"""Confidences and flags of translations, and lists of lines to review."""

import json
import random
import shutil
from pathlib import Path

import pytest

from regard import Translator
from regard.data.text.readers import Pair
from regard.errors import UserError
from regard.evaluation.calibration import calibrate_translator, save_calibration
from regard.pipelines.confidence import Calibration
from regard.pipelines.review import review_path
from tests.conftest import Command, toy_pairs

KNOWN, UNKNOWN = "I love apples", "Zwölf q xx Boxkämpfer jagen 77 z"


@pytest.fixture(scope="module")
def calibrated(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is calibrated on sentences that it translates, and on as many that it does not."""
    folder = tmp_path_factory.mktemp("calibrated") / "model"
    shutil.copytree(trained_run / "best", folder)
    letters = random.Random(0)
    wrong = [Pair(" ".join(letters.choices("qxzäüyw123", k=8)), "错") for _ in range(40)]
    save_calibration(calibrate_translator(Translator.load(folder), [*toy_pairs()[:40], *wrong]), folder)
    return folder


@pytest.fixture(scope="module")
def translator(calibrated: Path) -> Translator:
    return Translator.load(calibrated)


def confidence_of(translator: Translator, text: str) -> float:
    [[hypothesis]] = translator.hypotheses([text], confidence=True)
    assert hypothesis.confidence is not None
    return hypothesis.confidence


def test_known_sentences_have_a_higher_confidence_than_others(translator: Translator) -> None:
    known, unknown = confidence_of(translator, KNOWN), confidence_of(translator, UNKNOWN)
    assert 0 < unknown < 0.5 < known <= 1


def test_tokens_have_confidences_and_others_are_not_computed(translator: Translator) -> None:
    [[hypothesis]] = translator.hypotheses([KNOWN], confidence=True)
    assert len(hypothesis.token_confidences) == len(hypothesis.subwords)
    assert all(0 < value <= 1 for value in hypothesis.token_confidences)
    assert hypothesis.flags is None
    [[plain]] = translator.hypotheses([KNOWN])
    assert (plain.confidence, plain.token_confidences, plain.flags) == (None, [], None)
    assert (plain.text, plain.score) == (hypothesis.text, hypothesis.score)


def test_text_has_the_lowest_confidence_and_all_flags_of_its_sentences(translator: Translator) -> None:
    [[text]] = translator.hypotheses([f"{KNOWN}. {UNKNOWN}."], confidence=True, flags=True)
    first, second = text.parts
    assert text.confidence == min(first.confidence or 0, second.confidence or 0)
    assert text.flags is not None
    assert text.flags.keys() == (first.flags or {}).keys() | (second.flags or {}).keys()
    assert text.flags["missing-number"] == "77"
    assert (first.flags or {}) == {}


def test_confidence_does_not_depend_on_the_batch(translator: Translator) -> None:
    texts = [KNOWN, "They buy tea and dogs", UNKNOWN, "We see cats"]
    together = [best[0] for best in translator.hypotheses(texts, confidence=True)]
    for text, hypothesis in zip(texts, together, strict=True):
        assert confidence_of(translator, text) == pytest.approx(hypothesis.confidence, abs=2e-4)


def test_blank_text_needs_no_review(translator: Translator) -> None:
    [[blank]] = translator.hypotheses([" "], confidence=True, flags=True)
    assert (blank.confidence, blank.flags) == (1.0, {})


def test_translation_of_the_maximum_length_is_flagged(translator: Translator) -> None:
    settings = translator.resolve_settings().changed(max_length=3)
    [[cut]] = translator.hypotheses(["We love apples and tea"], settings, flags=True)
    assert cut.truncated
    assert "truncation" in (cut.flags or {})
    [[complete]] = translator.hypotheses(["We love apples and tea"], flags=True)
    assert "truncation" not in (complete.flags or {})


def test_model_without_calibration_has_flags_only(trained_run: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_run / "best", tmp_path / "model")
    (tmp_path / "model" / "confidence.json").unlink()
    translator = Translator.load(tmp_path / "model")
    [[hypothesis]] = translator.hypotheses(["I love 42 apples"], flags=True)
    assert (hypothesis.flags or {})["missing-number"] == "42"
    with pytest.raises(UserError, match=r"contains no confidence\.json, .* run regard calibrate"):
        translator.hypotheses([KNOWN], confidence=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "damaged"),
        ("[]", "expected keys and values"),
        ('{"format": 2}', "format: input should be 1"),
        ('{"tokens": {"mean": [0], "scale": [0], "weights": [1], "bias": 0}}', "every scale must be above 0"),
        ('{"tokens": {"mean": [0], "scale": [1, 2], "weights": [1], "bias": 0}}', "must have the same length"),
    ],
)
def test_damaged_calibration_is_one_sentence(trained_run: Path, tmp_path: Path, content: str, message: str) -> None:
    shutil.copytree(trained_run / "best", tmp_path / "model")
    (tmp_path / "model" / "confidence.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Translator.load(tmp_path / "model").hypotheses([KNOWN], confidence=True)


@pytest.mark.parametrize("name", ["tokens", "sentences"])
def test_calibration_of_other_features_is_rejected(calibrated: Path, name: str) -> None:
    values = json.loads((calibrated / "confidence.json").read_text(encoding="utf-8"))
    for key in ("mean", "scale", "weights"):
        values[name][key] = values[name][key][:-1]
    with pytest.raises(UserError, match=rf"{name} must have \d+ weights, not {len(values[name]['weights'])}"):
        Calibration.parse(values, "x")


def test_saved_model_keeps_its_calibration(translator: Translator, tmp_path: Path) -> None:
    translator.save_pretrained(tmp_path / "saved")
    assert confidence_of(Translator.load(tmp_path / "saved"), KNOWN) == confidence_of(translator, KNOWN)


# The command line


def test_json_contains_confidences_flags_and_review(calibrated: Path, command: Command) -> None:
    answer = command("translate", calibrated, KNOWN, UNKNOWN, "--json", "--reject", "0.5")
    known, unknown = map(json.loads, answer.out.splitlines())
    assert (known["needs_review"], unknown["needs_review"]) == (False, True)
    assert unknown["flags"] == {"missing-number": "77"}
    [hypothesis] = known["sentences"][0]["hypotheses"]
    assert hypothesis["confidence"] == known["confidence"]
    assert len(hypothesis["token_confidences"]) == len(hypothesis["subwords"])
    assert answer.err.endswith("regard: 1 of 2 lines need review\n")
    assert "needs_review" not in command("translate", calibrated, KNOWN, "--json").out


def test_rejected_lines_are_listed_beside_the_output(calibrated: Path, tmp_path: Path, command: Command) -> None:
    output = tmp_path / "out.txt"
    lines = "".join(f"{line}\n" for line in (KNOWN, UNKNOWN, KNOWN, UNKNOWN)).encode()
    plain = command("translate", calibrated, stdin=lines).out
    words = ("translate", calibrated, "--output", output, "--reject", 0.5)
    assert f"2 of 4 lines need review; see {output}.review.tsv" in command(*words, stdin=lines).err
    assert output.read_text(encoding="utf-8") == plain
    listed = review_path(output).read_text(encoding="utf-8")
    header, *rows = (row.split("\t") for row in listed.splitlines())
    assert header == ["line", "confidence", "flags", "source", "translation"]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("2", "missing-number (77)", UNKNOWN),
        ("4", "missing-number (77)", UNKNOWN),
    ]
    # An interruption after the third line, in the middle of a row of the list
    output.write_text("".join(plain.splitlines(keepends=True)[:3]), encoding="utf-8")
    review_path(output).write_text(listed[:-5], encoding="utf-8")
    assert "2 of 4 lines" in command(*words, "--resume", stdin=lines).err
    assert (output.read_text(encoding="utf-8"), review_path(output).read_text(encoding="utf-8")) == (plain, listed)


def test_rejected_lines_of_standard_output_are_named(calibrated: Path, command: Command) -> None:
    answer = command("translate", calibrated, KNOWN, UNKNOWN, "--reject", 0.5)
    assert len(answer.out.splitlines()) == 2
    assert "regard: line 2 needs review: confidence 0." in answer.err
    assert "line 1" not in answer.err


def test_reject_explains_wrong_values(calibrated: Path, tmp_path: Path, command: Command) -> None:
    assert "between 0 and 1" in command("translate", calibrated, KNOWN, "--reject", 40).error
    shutil.copytree(calibrated, tmp_path / "model")
    (tmp_path / "model" / "confidence.json").unlink()
    output = tmp_path / "out.txt"
    answer = command("translate", tmp_path / "model", "--output", output, "--reject", 0.4, stdin=b"I love tea\n")
    assert "contains no confidence.json" in answer.error
    assert not output.exists()
    review_path(output).write_text("mine", encoding="utf-8")
    answer = command("translate", calibrated, "--output", output, "--reject", 0.4, stdin=b"I love tea\n")
    assert "out.txt.review.tsv already exists" in answer.error
    assert not output.exists()
    assert review_path(output).read_text(encoding="utf-8") == "mine"
