"""Translation of files with `regard translate`: formats, bounded memory, interruption and --resume."""

import gzip
import json
import lzma
import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from regard import Constraints, SearchSettings, Translator, UserError
from regard.cli.options import StandardOutput, read_texts
from regard.cli.record_files import AlignedRecordFiles, RecordFile, count_aligned, count_lines, count_records
from regard.cli.translate import TranslationCounts, format_record
from regard.console import Interrupted, Interruptions
from regard.pipelines import translator
from regard.pipelines.hypothesis import Hypothesis
from tests.conftest import Command
from tests.forks import Forked
from tests.full_disk import full_disk

GREEDY = ("--beam", "1", "--device", "cpu")
LINES = 50


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> int:
    """Use windows of a few lines, so that a short file has several."""
    monkeypatch.setattr(translator, "WINDOW", 8)
    return 8


@pytest.fixture
def source(toy: Path, tmp_path: Path) -> Path:
    """Lines of the toy corpus with blank lines in between and at the end."""
    lines = (toy / "train.en").read_text(encoding="utf-8").splitlines()[:LINES]
    lines[3] = lines[20] = lines[-1] = ""
    path = tmp_path / "source.en"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def loaded(trained_run: Path) -> Translator:
    return Translator.load(trained_run)


# Input and output


@pytest.mark.parametrize("kind", ["en", "en.gz", "en.xz", "jsonl", "jsonl.gz", "tsv", "tsv.gz"])
def test_every_input_format_gives_the_same_translations(
    kind: str, source: Path, trained_run: Path, tmp_path: Path, command: Command
) -> None:
    content = source.read_bytes()
    if "jsonl" in kind:
        lines = content.decode().splitlines()
        content = "".join(json.dumps({"id": 1, "en": line}) + "\n" for line in lines).encode()
    if "tsv" in kind:
        content = "".join(f"3\t{line}\n" for line in content.decode().splitlines()).encode()
    compress = {"gz": gzip.compress, "xz": lzma.compress}.get(kind.rpartition(".")[2], bytes)
    path, output = tmp_path / f"input.{kind}", tmp_path / "output.zh"
    path.write_bytes(compress(content))
    key = ("--key", "en") if "jsonl" in kind else ("--key", "1") if "tsv" in kind else ()
    answer = command("translate", trained_run, "--input", path, *key, "--output", output, *GREEDY)
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    expected = command("translate", trained_run, *GREEDY, stdin=source.read_bytes()).out
    assert output.read_text(encoding="utf-8") == expected
    assert [line == "" for line in expected.split("\n")[:-1]] == [
        line == "" for line in source.open().read().split("\n")[:-1]
    ]
    assert expected.startswith("我喜欢苹果\n")


def test_line_breaks_in_texts_become_spaces(trained_run: Path, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text('{"source": "\\n\\r\\n"}\n{"source": "I love apples"}\n')
    assert command("translate", trained_run, "--input", path, *GREEDY).out == "   \n我喜欢苹果\n"
    hypotheses = [Hypothesis("a\nb", -1.0)]
    assert format_record("n-best", 7, "x", hypotheses) == "7 ||| a b ||| -1.000000\n"
    assert json.loads(format_record("json", 7, "x", hypotheses))["text"] == "a\nb"


def test_n_best_format_has_line_number_and_score(trained_run: Path, command: Command) -> None:
    answer = command("translate", trained_run, "--n-best", 3, "--beam", 4, stdin=b"I love apples\n\nYou buy tea\n")
    rows = [line.split(" ||| ") for line in answer.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "3", "3", "3"]
    assert (rows[0][1], rows[3][1], rows[4][1]) == ("我喜欢苹果", "", "你买茶")
    scores = [float(row[2]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)


def test_json_format_has_scores_alignments_and_phrases(trained_run: Path, command: Command) -> None:
    words = ("--json", "--alignments", "--n-best", 2, "--require", "苹果", "--forbid", "狗")
    first, second = map(json.loads, command("translate", trained_run, "I love apples", "", *words).out.splitlines())
    assert (first["source"], first["text"]) == ("I love apples", "我喜欢苹果")
    (sentence,) = first["sentences"]
    assert sentence["source_subwords"][-1].endswith("apples")
    best, other = sentence["hypotheses"]
    assert best["text"] == "我喜欢苹果"
    assert best["score"] >= other["score"]
    assert len(best["token_log_probs"]) == len(best["alignment"]) == len(best["subwords"]) + 1
    assert {len(row) for row in best["alignment"]} == {len(sentence["source_subwords"]) + 1}
    assert sum(best["alignment"][0]) == pytest.approx(1, abs=1e-3)
    assert best["phrases"] == {"苹果": True, "狗": True}
    assert second == {"source": "", "text": "", "sentences": [], "confidence": 1.0, "flags": {}}
    plain = json.loads(command("translate", trained_run, "I love apples", "--json").out)["sentences"][0]
    assert plain.keys() == {"source", "hypotheses"}
    assert plain["hypotheses"][0].keys() == {
        "text",
        "score",
        "subwords",
        "token_log_probs",
        "confidence",
        "token_confidences",
        "flags",
    }


def test_violated_constraints_are_counted(trained_run: Path, command: Command) -> None:
    words = ("--require", "我", "--search", "max_length=1")  # room for END only
    answer = command("translate", trained_run, "I love apples", "", "We want tea", *words)
    assert answer.code == 0
    assert answer.err == "regard: 2 of 3 translations violate --require or --forbid\n"
    assert command("translate", trained_run, "I love apples", "--forbid", "狗").err == ""


def test_ensemble_of_a_model_with_itself_gives_the_same_translations(trained_run: Path, command: Command) -> None:
    words = ("I love apples", "We want tea and dogs", "--n-best", 1)
    alone = command("translate", trained_run, *words)
    assert command("translate", trained_run, *words, "--with", trained_run, "--with", trained_run).out == alone.out


def test_every_search_setting_is_passed_on(
    trained_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[SearchSettings] = []

    def record(self: Translator, texts: list[str], settings: SearchSettings, **options: object) -> object:
        received.append(settings)
        return [[Hypothesis("", 0.0)] for _ in texts]

    monkeypatch.setattr(Translator, "hypotheses", record)
    further = {"coverage": 0.2, "stop": "first", "min-length": 2, "max_length": 9, "groups": 2, "diversity": 0.1}
    words = [word for key, value in further.items() for word in ("--search", f"{key}={value}")]
    assert command("translate", trained_run, "I", "--beam", 4, "--alpha", 0.6, *words).code == 0
    assert (
        command("translate", trained_run, "I", "--temperature", 0.7, "--top-k", 3, "--top-p", 0.5, "--seed", 4).code
        == 0
    )
    given = {key.replace("-", "_"): value for key, value in further.items()}
    assert received[0] == SearchSettings(beam=4, alpha=0.6, **given)
    assert received[1] == SearchSettings(temperature=0.7, top_k=3, top_p=0.5, seed=4)


def test_at_most_one_window_of_lines_is_read_ahead(loaded: Translator, small_windows: int) -> None:
    read = written = furthest = 0

    def lines() -> Iterator[tuple[int, str]]:
        nonlocal read
        for line in islice(cycle(["I love apples", "", "You buy tea"]), 10 * small_windows + 3):
            read += 1
            yield read, line

    for number, item, hypotheses in loaded.stream_items(lines(), SearchSettings(beam=1, max_length=3)):
        furthest = max(furthest, read - written)
        written += 1
        assert (number, item, len(hypotheses)) == (written, written, 1)
    assert written == read == 10 * small_windows + 3
    assert furthest <= small_windows + 1


def test_progress_is_reported_after_each_window(loaded: Translator, small_windows: int) -> None:
    for done, expected in ((0, [8, 8, 3]), (5, [3, 8, 3]), (8, [8, 3]), (19, [])):
        progress: list[int] = []
        settings = SearchSettings(beam=1, max_length=3)
        list(loaded.stream_items([("", "I")] * 19, settings, done=done, on_progress=progress.append))
        assert progress == expected


def test_errors_name_the_line_in_later_windows(loaded: Translator, small_windows: int) -> None:
    lines = [("", "I")] * 20 + [("", "\ud800")]
    for done in (0, 9, 20):
        with pytest.raises(UserError, match="sentence 21"):
            list(loaded.stream_items(lines, SearchSettings(beam=1, max_length=3), done=done))


# Resume


FORMS = {
    "text": (),
    "n-best": ("--n-best", "2"),
    "json": ("--json", "--n-best", "2", "--alignments", "--require", "苹果"),
}


def translate_file(trained_run: Path, source: Path, output: Path, command: Command, *words: object) -> bytes:
    answer = command("translate", trained_run, "--input", source, "--output", output, "--beam", 2, *words)
    assert (answer.code, answer.out) == (0, "")
    return output.read_bytes()


@pytest.mark.parametrize("form", FORMS)
def test_resumed_output_is_identical(
    form: str, source: Path, trained_run: Path, tmp_path: Path, command: Command, small_windows: int
) -> None:
    complete = translate_file(trained_run, source, tmp_path / "complete", command, *FORMS[form])
    part = tmp_path / "part"
    middle = complete.index(b"\n", len(complete) // 2) + 1
    for cut in (0, 1, len(complete) // 3, middle, middle + 1, len(complete) - 1, len(complete)):
        part.write_bytes(complete[:cut])
        assert translate_file(trained_run, source, part, command, *FORMS[form], "--resume") == complete, cut


def test_resume_with_standard_input(
    source: Path, trained_run: Path, tmp_path: Path, command: Command, small_windows: int
) -> None:
    output = tmp_path / "output"
    words = ("translate", trained_run, "--output", output, "--resume", *GREEDY)
    assert command(*words, stdin=source.read_bytes()).code == 0
    complete = output.read_bytes()
    assert complete.count(b"\n") == LINES
    output.write_bytes(complete[:60])
    assert command(*words, stdin=source.read_bytes()).code == 0
    assert output.read_bytes() == complete
    output.write_bytes(complete[:60])
    answer = command(*words, stdin=b"I love apples\n")
    assert "but the input has only 1; they do not belong together" in answer.error
    assert output.read_bytes() == complete[:60]  # it may belong to another input


def test_resume_of_a_complete_output_changes_nothing(
    source: Path, trained_run: Path, tmp_path: Path, command: Command
) -> None:
    output = tmp_path / "output"
    complete = translate_file(trained_run, source, output, command)
    written = output.stat().st_mtime_ns
    answer = command("translate", trained_run, "--input", source, "--output", output, "--resume")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == f"regard: {output} is complete: it holds the translations of all {LINES} lines\n"
    assert (output.read_bytes(), output.stat().st_mtime_ns) == (complete, written)


def test_complete_groups_of_an_n_best_list_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "list"
    first, second = "1 ||| a ||| -1\n1 ||| b ||| -2\n", "2 ||| c ||| -1\n2 ||| 3 ||| d ||| -2\n"
    for content, records in ((first, 1), (first + second, 2), (first + second[:-1], 1), (first[:-5], 0), ("", 0)):
        path.write_text(content)
        assert count_records(path, "n-best", 2) == (records, len((first + second)[: (0, len(first), 99)[records]]))
    for invalid in ("a line\n", "2 ||| a ||| -1\n", first + "3 ||| a ||| -1\n", "0 ||| a ||| -1\n"):
        path.write_text(invalid)
        with pytest.raises(UserError, match="not an n-best list"):
            count_records(path, "n-best", 2)


# Interruptions


def wait_for(path: Path, size: int, process: Forked) -> None:
    """Wait until the file has `size` bytes, for at most a minute."""
    limit = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < size:
        assert process.poll() is None, "the process ended before it was interrupted"
        assert time.monotonic() < limit, "nothing was written for a minute"
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_process_leaves_complete_lines_and_can_be_resumed(
    number: signal.Signals,
    toy: Path,
    trained_run: Path,
    tmp_path: Path,
    command: Command,
    fork: Callable[..., Forked],
) -> None:
    lines = (toy / "train.en").read_text(encoding="utf-8").splitlines()
    count = 3 * translator.WINDOW + 100
    source, part, complete = tmp_path / "source.en", tmp_path / "part.zh", tmp_path / "complete.zh"
    source.write_text("".join(f"{line}\n" for line in islice(cycle(lines), count)), encoding="utf-8")
    words = ("translate", trained_run, "--input", source, *GREEDY, "--search", "max_length=6")
    process = fork(*words, "--output", part)
    wait_for(part, 1, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (128 + number, "")
    content = part.read_bytes()
    done = content.count(b"\n")
    assert content.endswith(b"\n")
    assert 0 < done < count
    *_, message = err.splitlines()  # on a slow machine, progress is printed before
    assert message.startswith(f"regard: interrupted after {done} lines")
    assert "--resume" in message
    assert command(*words, "--output", part, "--resume").code == 0
    assert command(*words, "--output", complete).code == 0
    assert part.read_bytes().startswith(content)
    assert part.read_bytes() == complete.read_bytes()


def test_full_disk_leaves_complete_lines(source: Path, trained_run: Path, tmp_path: Path, command: Command) -> None:
    complete = translate_file(trained_run, source, tmp_path / "complete", command)
    output = tmp_path / "output"
    with full_disk(len(complete) // 2):
        answer = command("translate", trained_run, "--input", source, "--output", output, "--beam", 2)
    content = output.read_bytes()
    assert complete.startswith(content)
    assert content.endswith(b"\n")
    assert 0 < len(content) <= len(complete) // 2
    assert f"{output}: cannot be written (File too large)" in answer.error
    assert f"translations of {content.count(bytes([10]))} lines" in answer.error
    assert translate_file(trained_run, source, output, command, "--resume") == complete


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_full_device_is_reported(trained_run: Path, command: Command, fork: Callable[..., Forked]) -> None:
    answer = command("translate", trained_run, "I love apples", "--output", "/dev/full")
    assert "/dev/full: cannot be written (No space left on device)" in answer.error
    process = fork("translate", trained_run, "I love apples", prepare=write_to_full_device)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 2
    assert errors == "regard: standard output: cannot be written (No space left on device)\n"


def write_to_full_device() -> None:
    """Replace the standard output of a forked process."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


# Errors


def test_invalid_arguments_are_rejected_and_files_unchanged(
    source: Path, trained_run: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "old").write_text("mine\n")
    (tmp_path / "long").write_text("x\n" * (LINES + 1))
    (tmp_path / "objects.jsonl").write_text('{"text": "I"}\n')
    (tmp_path / "two.tsv").write_text("I\t我\n")
    (tmp_path / "bad").write_bytes(b"I\n" * 30 + b"\xff\n")
    old, given = tmp_path / "old", ("--input", source)
    cases: list[tuple[tuple[object, ...], str]] = [
        ((*given, "--output", old), "old already exists; continue it with --resume"),
        ((*given, "--output", source, "--resume"), "is an input file"),
        ((*given, "--resume"), "--resume needs --output"),
        ((*given, "I love apples"), "choose one"),
        ((*given, "--output", tmp_path), "is a directory"),
        ((*given, "--output", tmp_path / "no" / "file"), "there is no folder"),
        ((*given, "--output", tmp_path / "out.gz"), "not compressed"),
        ((*given, "--output", "/dev/null", "--resume"), "not a regular file"),
        ((*given, "--output", tmp_path / "long", "--resume"), f"{LINES + 1} lines, but the input has only {LINES}"),
        ((*given, "--output", old, "--resume", "--n-best", 2), "old is not an n-best list"),
        ((*given, "--output", old, "--resume", "--json"), "old was not written with --json"),
        ((*given, "--key", "text"), "only .jsonl and .parquet files have keys"),
        (("--input", tmp_path / "two.tsv", "--key", "en"), "--key en is not a column"),
        (("--input", tmp_path / "two.tsv", "--key", 2), "two.tsv, line 1: "),
        (("I", "--key", "text"), "--key needs --input"),
        (("I", "--alignments"), "add --json"),
        (("--input", tmp_path / "objects.jsonl", "--output", tmp_path / "new"), 'line 1: the key "source" is missing'),
        (("--input", tmp_path / "none", "--output", tmp_path / "new"), "none does not exist"),
        (("--input", tmp_path / "bad", "--output", tmp_path / "new"), "bad, line 31"),
        (("I", "--with", tmp_path / "none"), "no such model folder"),
        (("I", "--search", "max_length"), "write KEY=VALUE"),
        (("I", "--search", "maxlength=3"), "did you mean max_length?"),
        (("I", "--search", "max_length=long"), "max_length"),
        (("I", "--beam", 3, "--search", "beam=4"), "beam is given twice"),
    ]
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for words, message in cases:
        answer = command("translate", trained_run, *words)
        assert message in answer.error, words
        assert answer.out == ""
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_first_column_of_a_tsv_file_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("I\t我\n\t\nYou\t你\n")
    assert list(read_texts(path)) == ["I", "", "You"]


def test_column_of_a_parquet_file_is_selected_by_name(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    parquet.write_table(arrow.table({"source": ["I", ""], "en": ["You", "We"], "number": [1, 2]}), path)
    assert list(read_texts(path)) == ["I", ""]
    assert list(read_texts(path, "en")) == ["You", "We"]


def test_other_keys_of_json_objects_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "objects.jsonl"
    path.write_text('{"en": "I", "source": 3}\n{"en": ""}\n\n')
    assert list(read_texts(path, "en")) == ["I", ""]


def test_counts_include_violated_constraints(loaded: Translator) -> None:
    counts = TranslationCounts()
    short = SearchSettings(beam=2, max_length=1)  # room for END only
    items = [("", "I love apples"), ("", "")]
    for number, _, hypotheses in loaded.stream_items(items, short, Constraints(required=("你",))):
        counts.add(number, hypotheses)
    assert (counts.records, counts.translations, counts.violations) == (2, 2, 1)


# Output files


def test_aligned_files_have_the_same_number_of_records(tmp_path: Path) -> None:
    paths = (tmp_path / "source", tmp_path / "target")
    with pytest.raises(UserError, match="target already exists"):
        paths[1].write_text("mine\n")
        with AlignedRecordFiles(paths, Interruptions()):
            pytest.fail("an existing file was opened")
    assert not paths[0].exists()
    paths[1].unlink()
    with (
        pytest.raises(Interrupted),
        Interruptions() as interruptions,
        AlignedRecordFiles(paths, interruptions) as files,
    ):
        append = files._files[0].append
        files._files[0].append = lambda record: (append(record), signal.raise_signal(signal.SIGINT))
        files.append("a\n", "b\n")
    assert [path.read_text() for path in paths] == ["a\n", "b\n"]
    paths[0].write_text("a\nc\ne\n")  # as a killed process may leave it
    paths[1].write_text("b\nd")
    with AlignedRecordFiles(paths, Interruptions(), count_aligned(paths)) as files:
        assert files.count == 1
        files.append("C\n", "D\n")
    assert [path.read_text() for path in paths] == ["a\nC\n", "b\nD\n"]


def test_complete_records_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n22\n333\n4")
    assert [count_lines(path), count_lines(path, 2), count_lines(path, 3), count_lines(path, 4)] == [
        (3, 9),
        (1, 5),
        (1, 9),
        (0, 0),
    ]
    assert count_lines(path, most=2) == (2, 5)


def test_incomplete_record_is_removed_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "output"
    with pytest.raises(Interrupted), Interruptions() as interruptions, RecordFile(path, interruptions) as output:
        output.append("complete\n")
        assert path.read_text() == "complete\n"
        path.write_text("complete\ninc")
        raise Interrupted(signal.SIGINT)
    assert path.read_text() == "complete\n"
    assert f"interrupted after 1 lines; {path} has the translations of 1 lines" in output.explain_interruption()
    empty = tmp_path / "empty"
    with pytest.raises(ZeroDivisionError), RecordFile(empty, Interruptions()) as output:
        _ = 1 / 0
    assert not empty.exists()
    assert output.explain_interruption() == "interrupted after 0 lines"


def test_output_that_cannot_be_resumed_is_not_advised_to(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for records in (StandardOutput(Interruptions()), RecordFile(Path("/dev/null"), Interruptions())):
        with records as output:
            output.append("complete\n")
        assert output.explain_interruption() == "interrupted after 1 lines"
