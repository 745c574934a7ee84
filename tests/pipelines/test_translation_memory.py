"""Translation memories."""

import json
from pathlib import Path

import pytest

from regard.data.text.interchange import read_interchange
from regard.errors import UserError
from regard.pipelines.translation_memory import TranslationMemory
from tests.conftest import Command

MEMORY = """<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en-GB"><seg>I love  apples</seg></tuv><tuv xml:lang="zh-CN"><seg>苹果我最爱</seg></tuv></tu>
<tu><tuv xml:lang="en-GB"><seg>You buy green tea</seg></tuv><tuv xml:lang="zh-CN"><seg>你买绿茶</seg></tuv></tu>
</body></tmx>"""


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "memory.tmx"
    path.write_text(MEMORY, encoding="utf-8")
    return path


def test_equal_and_similar_sentences_are_found(memory: Path) -> None:
    read = TranslationMemory.read(memory, ("en", "zh"), threshold=0.7)
    assert [match.as_dict() for match in read.find("I love apples ")] == [
        {"source": "I love apples", "target": "苹果我最爱", "similarity": 1.0}
    ]
    (similar,) = read.find("You buy tea")
    assert similar.target == "你买绿茶" and 0.7 < similar.similarity < 1
    assert read.find("Children want dogs") == []
    assert TranslationMemory.read(memory, ("en", "zh"), threshold=1).find("You buy tea") == []


def test_command_takes_equal_sentences_and_shows_similar_ones(
    trained_run: Path, memory: Path, tmp_path: Path, command: Command
) -> None:
    new = tmp_path / "new.tmx"
    options = ["translate", trained_run, "--memory", memory, "--memory-threshold", "0.7"]
    done = command(*options, "--output-memory", new, "--json", "I love apples. You buy tea", "We see cats")
    assert done.code == 0, done.err
    records = [json.loads(line) for line in done.out.splitlines()]
    assert records[1]["text"] == "我们看见猫"
    similar = records[0]["sentences"][1]
    assert similar["hypotheses"][0]["text"] == "你买茶" and similar["memory"][0]["target"] == "你买绿茶"
    assert "memory" not in records[1]["sentences"][0]
    whole = command(*options, "I love apples", "--n-best", "2", "--beam", "2")
    assert whole.out.startswith("1 ||| 苹果我最爱 ||| 0.000000")
    assert list(read_interchange(new))[1:] == [("You buy tea", "你买茶"), ("We see cats", "我们看见猫")]
    assert [path.name for path in tmp_path.glob("new*")] == ["new.tmx"]


def test_wrong_options_are_rejected_and_leave_no_file(
    trained_run: Path, memory: Path, tmp_path: Path, command: Command
) -> None:
    run = ["translate", trained_run, "I love apples"]
    assert "--memory-threshold needs --memory" in command(*run, "--memory-threshold", "0.5").error
    assert "is no similarity" in command(*run, "--memory", memory, "--memory-threshold", "7").error
    assert "ends in .tmx and does not exist" in command(*run, "--output-memory", memory).error
    assert "does not exist" in command(*run, "--memory", tmp_path / "x.tmx").error
    both = command(*run, "--output", tmp_path / "new.tmx", "--output-memory", tmp_path / "new.tmx")
    assert "is both --output and --output-memory" in both.error
    long = ["translate", trained_run, "I love apples", "a " * 10_000, "--output-memory", tmp_path / "new.tmx"]
    assert "tokens" in command(*long, "--no-split").error
    assert not list(tmp_path.glob("new*"))


def test_threshold_is_a_similarity() -> None:
    with pytest.raises(UserError, match="the threshold 0 of the memory is no similarity"):
        TranslationMemory([], 0)


def test_number_of_sentences_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.pipelines.translation_memory.MAX_PAIRS", 2)
    TranslationMemory([("a", "x"), ("b", "y"), ("a", "z"), (" ", "x")], 1)
    with pytest.raises(UserError, match="a translation memory has at most 2 sentences"):
        TranslationMemory([("a", "x"), ("b", "y"), ("c", "z")], 1)
