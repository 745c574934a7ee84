"""`regard translate` of documents: the output, the report, and continuing after an interruption."""

import json
import os
import signal
from pathlib import Path

import pytest

from regard.data.documents.segment_translation import AlignedTranslation, Requests, SentenceRequest
from regard.data.text.sentences import LengthWarnings
from regard.pipelines import translate_document as module
from regard.pipelines.translator import Translator
from tests.conftest import Command
from tests.data.documents.stubs import reverse

SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\n<i>I love apples</i>\n\n2\n00:00:03,000 --> 00:00:04,000\n♪\n"


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.srt"
    path.write_text(SUBTITLES, encoding="utf-8")
    return path


def test_subtitles_are_translated(trained_run: Path, talk: Path, command: Command) -> None:
    output = talk.with_name("talk.zh.srt")
    result = command("translate", trained_run, "--input", talk, "--output", output, "--beam", 1)
    assert result.code == 0
    assert output.read_text("utf-8") == SUBTITLES.replace("I love apples", "我喜欢苹果")
    assert result.err == "regard: 1 segments translated (1 sentences)\n"
    assert sorted(path.name for path in talk.parent.iterdir()) == ["talk.srt", "talk.zh.srt"]
    again = command("translate", trained_run, "--input", talk, "--output", output)
    assert "already exists" in again.error
    complete = command("translate", trained_run, "--input", talk, "--output", output, "--resume")
    assert (complete.code, complete.err) == (0, f"regard: {output} is complete\n")


def test_the_report_is_json_on_request(trained_run: Path, tmp_path: Path, command: Command) -> None:
    source, output = tmp_path / "a.json", tmp_path / "b.json"
    source.write_text('{"title": "I love apples", "id": "a_b"}', encoding="utf-8")
    result = command("translate", trained_run, "--input", source, "--output", output, "--json")
    report = json.loads(result.out)
    assert output.read_text("utf-8") == '{"title": "我喜欢苹果", "id": "a_b"}'
    assert (report["format"], report["segments"], report["sentences"], report["resumed"]) == ("json", 1, 1, 0)
    assert report["untranslated"] == [{"where": "$.id", "text": "a_b", "reason": "looks like an identifier"}]


def test_a_column_of_a_csv_file_is_translated(trained_run: Path, tmp_path: Path, command: Command) -> None:
    source, output = tmp_path / "a.csv", tmp_path / "b.csv"
    source.write_bytes(b"id,text\r\n7,I love apples\r\n")
    words = ("translate", trained_run, "--input", source, "--output", output)
    assert "name the column to translate (--column); the first row has id, text" in command(*words).error
    assert command(*words, "--column", "text").code == 0
    assert output.read_bytes().decode("utf-8") == "id,text\r\n7,我喜欢苹果\r\n"


def test_text_files_are_lines_unless_the_format_is_given(trained_run: Path, tmp_path: Path, command: Command) -> None:
    source, output = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_bytes("I love apples\r\n\r\n* I love apples\r\n".encode("utf-16"))
    words = ("translate", trained_run, "--input", source)
    assert "looks like UTF-16" in command(*words).error
    assert command(*words, "--format", "txt", "--output", output).code == 0
    assert output.read_bytes().decode("utf-16") == "我喜欢苹果\r\n\r\n* 我喜欢苹果\r\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "is a document; name the file to write with --output, or use --format lines"),
        (("--output", "x.docx"), "talk.srt, which is srt; choose a name that ends in .srt"),
        (("--output", "x.srt", "--n-best", 2), "--n-best: has no effect with the document"),
        (("--output", "x.srt", "--no-split"), "--no-split: has no effect with the document"),
        (("--output", "x.srt", "--require", "a"), "--require: has no effect with the document"),
        (("--output", "x.srt", "--format", "word"), "--format word: unknown; choose lines, txt, md"),
        (("--output", "x.srt", "--column", "a"), "files of the format srt have no column; omit --column"),
        (("--server", "http://localhost:1"), "is a document, which --server does not translate"),
    ],
)
def test_wrong_options_are_rejected(
    options: tuple[object, ...], message: str, trained_run: Path, talk: Path, command: Command
) -> None:
    result = command("translate", trained_run, "--input", talk, *options)
    assert message in result.error
    assert not Path("x.srt").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
def test_an_interrupted_translation_continues(
    number: signal.Signals | None,
    trained_run: Path,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, output = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("".join(f"line {'x' * i}\n" for i in range(1, 10)), encoding="utf-8")
    translated: list[str] = []

    def interrupted(requests: Requests) -> list[AlignedTranslation]:
        if number is not None and translated and translated[-1] == "line xxxx":
            os.kill(os.getpid(), number)
        translated.extend(one.text for one in requests)
        return reverse(requests)

    monkeypatch.setattr(module, "WINDOW", 2)
    monkeypatch.setattr(module, "translate_with", lambda *arguments: interrupted)
    words = ("translate", trained_run, "--input", source, "--output", output, "--format", "txt")
    result, journal = command(*words), tmp_path / "b.txt.journal"
    if number is not None:
        assert result.code == 128 + number
        done = f"{journal} has the translations of 4 segments; continue with the same command"
        assert result.err == f"regard: interrupted; {done}\n"
        assert not output.exists()
        lines = journal.read_bytes()[:-5].splitlines()  # killed while writing: the last segment is translated again
        journal.write_bytes(b"\n".join([*lines[:2], lines[2].replace(b"LINE", b"LIES"), *lines[3:]]))
        monkeypatch.setattr(module, "translate_with", lambda *arguments: reverse)
        result = command(*words)
        assert "regard: 9 segments translated (9 sentences), 2 of them before the interruption" in result.err
    assert output.read_text("utf-8") == "".join(f"{'X' * i} LINE\n" for i in range(1, 10))
    assert not journal.exists()


def test_texts_in_another_language_are_reported_before_they_are_translated(
    trained_run: Path, tmp_path: Path, command: Command
) -> None:
    source, output = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("I love apples\n我喜欢苹果\n我喜欢苹果\n", encoding="utf-8")
    warning = "regard: {} 2 is Chinese, not English, from which the model translates: '我喜欢苹果'\n"
    result = command("translate", trained_run, "--input", source, "--output", output, "--format", "txt")
    assert result.err.startswith(warning.format("text"))
    assert command("translate", trained_run, "--input", source).err == warning.format("line")
    assert command("translate", trained_run, "I love apples", "我喜欢苹果").err == warning.format("text")


def test_the_direction_is_checked_and_the_script_is_converted(trained_run: Path, command: Command) -> None:
    assert command("translate", trained_run, "I love apples", "--to", "zh-TW").out == "我喜歡蘋果\n"
    result = command("translate", trained_run, "I love apples", "--from", "de")
    assert result.error == "the model does not translate de to any; its directions are en to zh"


def test_a_journal_of_other_options_is_not_used(
    trained_run: Path, talk: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = talk.with_name("out.srt")
    journal = talk.with_name("out.srt.journal")
    journal.write_text('{"conditions": {}}\n{"key": "x"}\n', encoding="utf-8")
    result = command("translate", trained_run, "--input", talk, "--output", output)
    assert result.err.startswith(f"regard: {journal} belongs to another model or other options; starting again\n")
    assert "我喜欢苹果" in output.read_text("utf-8")
    assert not journal.exists()


def test_long_sentences_of_a_document_are_numbered(trained_run: Path) -> None:
    warnings = LengthWarnings("sentence")
    translate = module.translate_with(Translator.load(trained_run), warnings=warnings)
    translate([SentenceRequest("I love apples")])
    translate([SentenceRequest("I love apples"), SentenceRequest("I love apples and " * 9 + "tea")])
    assert warnings.message is not None
    assert warnings.message.startswith("sentence 3: ")
