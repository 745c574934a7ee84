"""Unusual and invalid input of `regard translate` and `Translator`."""

import json
from pathlib import Path

import pytest

from regard import Translator
from regard.console import LineProgress
from regard.errors import UserError
from tests.conftest import Command

LONE_SURROGATE = "caf\udce9"  # how Python represents an argument that is not valid UTF-8


@pytest.fixture(autouse=True)
def without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is printed after some seconds, which may pass on a busy machine."""
    monkeypatch.setattr(LineProgress, "SECONDS_BETWEEN_LINES", float("inf"))


@pytest.mark.parametrize("words", [(), ("--beam", "1"), ("--top-k", "3"), ("--require", "苹果"), ("--prefix", "我")])
def test_empty_line_gives_an_empty_line(words: tuple[str, ...], trained_run: Path, command: Command) -> None:
    answer = command("translate", trained_run, *words, stdin=b"\nI love apples\n\n")
    assert answer.code == 0
    first, middle, last, rest = answer.out.split("\n")
    assert (first, last, rest) == ("", "", "")
    assert middle


def test_blank_lines_are_unchanged(trained_run: Path, command: Command) -> None:
    assert command("translate", trained_run, stdin="  \n\t\n\u3000\n".encode()).out == "  \n\t\n\u3000\n"


@pytest.mark.parametrize("beam", [1, 2])
def test_line_of_thousands_of_tokens_is_translated(beam: int, trained_run: Path, command: Command) -> None:
    line = "I love apples and books " * 600
    assert len(Translator.load(trained_run).vocabularies.source.encode(line)) > 2_000
    words = ("--beam", beam, "--search", "max_length=8")
    answer = command("translate", trained_run, *words, stdin=f"{line}\nI love apples\n".encode())
    assert answer.code == 0
    assert answer.err.startswith("regard: line 1: ")
    assert "but the longest training source has" in answer.err
    assert answer.out.count("\n") == 2
    assert answer.out.endswith("\n我喜欢苹果\n")


def test_control_characters_do_not_break_lines(trained_run: Path, command: Command) -> None:
    controls = "".join(map(chr, [*range(1, 10), *range(11, 32), 127, *range(128, 160), 0x2028, 0x2029, 0xFEFF]))
    answer = command(
        "translate", trained_run, "--search", "max_length=9", stdin=f"{controls}\nI love apples\n".encode()
    )
    assert answer.code == 0
    assert answer.err.startswith("regard: line 1: ")
    assert "but the longest training source has" in answer.err
    assert answer.out.count("\n") == 2
    assert answer.out.endswith("\n我喜欢苹果\n")
    as_json = command("translate", trained_run, "--json", "--search", "max_length=9", stdin=f"{controls}\n".encode())
    assert json.loads(as_json.out)["source"] == controls


def test_null_character_is_accepted(trained_run: Path, command: Command) -> None:
    answer = command("translate", trained_run, "--search", "max_length=9", stdin=b"I \x00 apples\n\x00\n")
    assert (answer.code, answer.out.count("\n")) == (0, 2)


def test_lone_surrogate_in_json_is_rejected_with_its_line(trained_run: Path, tmp_path: Path, command: Command) -> None:
    source, output = tmp_path / "source.jsonl", tmp_path / "output"
    source.write_text('{"source": "I love apples"}\n{"source": "caf\\udce9"}\n')
    answer = command("translate", trained_run, "--input", source, "--output", output)
    assert "source.jsonl, line 2" in answer.error
    assert "lone surrogate" in answer.error
    assert answer.out == ""
    assert not output.exists()


INVALID_PHRASES = {
    "required, cannot be encoded": (("--require", LONE_SURROGATE), "--require 'caf\\udce9' contains a lone surrogate"),
    "forbidden, cannot be encoded": (("--forbid", LONE_SURROGATE), "--forbid 'caf\\udce9' contains a lone surrogate"),
    "prefix, cannot be encoded": (("--prefix", LONE_SURROGATE), "--prefix 'caf\\udce9' contains a lone surrogate"),
    "required, empty": (("--require", ""), "empty"),
    "forbidden, blank": (("--forbid", "  "), "empty"),
    "required and forbidden": (("--require", "苹果", "--forbid", "苹果"), "'苹果' is both required and forbidden"),
}

CONTRADICTIONS = {
    "alpha without a penalty": (("--length-penalty", "none", "--alpha", "0.6"), "alpha 0.6 has no effect"),
    "top-k with a beam": (("--top-k", "5", "--beam", "4"), "beam 4 and top_k exclude each other"),
    "top-p with a beam": (("--top-p", "0.5", "--beam", "4"), "beam 4 and top_p exclude each other"),
    "temperature with a beam": (("--temperature", "1", "--beam", "2"), "beam 2 and temperature exclude each other"),
    "sampling with groups": (("--top-k", "5", "--search", "groups=2"), "groups and coverage require beam search"),
    "sampling with a required phrase": (("--top-k", "5", "--require", "苹果"), "need a beam"),
    "seed without sampling": (("--seed", "3"), "seed requires sampling"),
    "diversity of one group": (("--search", "diversity=0.7"), "diversity requires groups > 1"),
    "more than the beam": (("--n-best", "6"), "n_best 6 exceeds the beam width 5"),
    "more than one greedy": (("--n-best", "2", "--beam", "1"), "n_best 2 exceeds the beam width 1"),
    "groups that do not divide": (("--beam", "4", "--search", "groups=3"), "beam 4 is not divisible by 3 groups"),
    "no room for a length": (
        ("--search", "min_length=9", "--search", "max_length=9"),
        "min_length 9 must be less than max_length 9",
    ),
    "no hypotheses": (("--n-best", "0"), "n_best"),
    "no temperature": (("--temperature", "0"), "temperature"),
    "more than all": (("--top-p", "1.5"), "top_p"),
    "negative seed": (("--top-k", "2", "--seed", "-1"), "seed"),
}


@pytest.mark.parametrize(
    ("words", "message"), [*INVALID_PHRASES.values(), *CONTRADICTIONS.values()], ids=[*INVALID_PHRASES, *CONTRADICTIONS]
)
def test_contradicting_options_are_rejected_without_output(
    words: tuple[str, ...], message: str, trained_run: Path, tmp_path: Path, command: Command
) -> None:
    output = tmp_path / "output"
    answer = command("translate", trained_run, "I love apples", "--output", output, *words)
    assert message in answer.error
    assert answer.out == ""
    assert not output.exists()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "expected a list of texts, found NoneType"),
        (b"I love apples", "expected a list of texts, found bytes"),
        (["I love apples", None], "sentence 2: expected a string, found NoneType"),
        ([1], "sentence 1: expected a string, found int"),
    ],
)
def test_texts_that_are_not_strings_are_rejected(texts: object, message: str, trained_run: Path) -> None:
    translator = Translator.load(trained_run)
    for call in (translator, translator.hypotheses, translator.embed, lambda given: translator.score(given, ["x"])):
        with pytest.raises(UserError, match=message):
            call(texts)


def test_texts_may_be_iterators(trained_run: Path) -> None:
    translator = Translator.load(trained_run)
    assert translator(text for text in ["I love apples"]) == ["我喜欢苹果"]
    assert len(translator.embed(iter(["I love apples", "I"]))) == 2
    assert len(translator.score(iter(["I love apples"]), iter(["我喜欢苹果"]))) == 1


@pytest.mark.parametrize("setting", ["max_ratio=inf", "max_ratio=1e9", "max_length=1000000000", "coverage=inf"])
def test_unbounded_settings_are_rejected(setting: str, trained_run: Path, command: Command) -> None:
    answer = command("translate", trained_run, "I love apples", "--search", setting)
    assert answer.code == 2
    assert setting.partition("=")[0] in answer.err


def test_unknown_pooling_is_rejected(trained_run: Path) -> None:
    with pytest.raises(UserError, match="pool: 'max' must be mean"):
        Translator.load(trained_run).embed(["I love apples"], pool="max")  # type: ignore[arg-type]
