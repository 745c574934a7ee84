"""Whole files of translations: order, bounded memory, interruptions and going on, and what is refused."""

import gzip
import io
import json
import lzma
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest
from rich.console import Console

from regard import Constraints, SearchSettings, Translator, UserError
from regard.pipelines import translate_files as files
from regard.pipelines import translator
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.records import AlignedRecordFiles, RecordFile, count_aligned, count_lines
from regard.pipelines.translate_files import count_records, format_record, read_texts, translate_lines
from regard.runtime import Interrupted, Interruptions, LineProgress
from tests.forks import Forked

Command = Callable[..., "CommandResult"]  # noqa: F821  the fixtures of tests/conftest.py
GREEDY = ("--beam", "1", "--device", "cpu")
LINES = 50


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> int:
    """Windows of a few lines, so that a short file has many."""
    monkeypatch.setattr(translator, "WINDOW", 8)
    monkeypatch.setattr(files, "WINDOW", 8)
    return 8


@pytest.fixture
def source(toy: Path, tmp_path: Path) -> Path:
    """Some lines of the toy corpus, with blank ones among them and at the end."""
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
def test_every_kind_of_input_gives_the_same_lines(
    kind: str, source: Path, trained_run: Path, tmp_path: Path, command: Command
) -> None:
    content = source.read_bytes()
    if "jsonl" in kind:
        lines = content.decode().splitlines()
        content = "".join(json.dumps({"id": 1, "en": line}) + "\n" for line in lines).encode()
    if "tsv" in kind:
        content = "".join(f"3\t{line}\n" for line in content.decode().splitlines()).encode()
    squeeze = {"gz": gzip.compress, "xz": lzma.compress}.get(kind.rpartition(".")[2], bytes)
    path, output = tmp_path / f"input.{kind}", tmp_path / "output.zh"
    path.write_bytes(squeeze(content))
    key = ("--key", "en") if "jsonl" in kind else ("--key", "1") if "tsv" in kind else ()
    answer = command("translate", trained_run, "--input", path, *key, "--output", output, *GREEDY)
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    expected = command("translate", trained_run, *GREEDY, stdin=source.read_bytes()).out
    assert output.read_text(encoding="utf-8") == expected
    assert [line == "" for line in expected.split("\n")[:-1]] == [
        line == "" for line in source.open().read().split("\n")[:-1]
    ]
    assert expected.startswith("我喜欢苹果\n")


def test_a_line_end_within_a_text_does_not_break_the_lines(trained_run: Path, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text('{"source": "\\n\\r\\n"}\n{"source": "I love apples"}\n')
    assert command("translate", trained_run, "--input", path, *GREEDY).out == "   \n我喜欢苹果\n"
    two = [Hypothesis("a\nb", -1.0)]
    assert format_record("n-best", 7, "x", two) == "7 ||| a b ||| -1.000000\n"
    assert json.loads(format_record("json", 7, "x", two))["hypotheses"][0]["text"] == "a\nb"


def test_n_best_lines_name_their_line_and_score(trained_run: Path, command: Command) -> None:
    answer = command("translate", trained_run, "--n-best", 3, "--beam", 4, stdin=b"I love apples\n\nYou buy tea\n")
    rows = [line.split(" ||| ") for line in answer.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "3", "3", "3"]
    assert (rows[0][1], rows[3][1], rows[4][1]) == ("我喜欢苹果", "", "你买茶")
    scores = [float(row[2]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)


def test_json_says_all_that_is_known(trained_run: Path, command: Command) -> None:
    words = ("--json", "--alignments", "--n-best", 2, "--require", "苹果", "--forbid", "狗")
    first, second = map(json.loads, command("translate", trained_run, "I love apples", "", *words).out.splitlines())
    assert first["source"] == "I love apples"
    assert first["source_subwords"][-1].endswith("apples")
    best, other = first["hypotheses"]
    assert best["text"] == "我喜欢苹果"
    assert best["score"] >= other["score"]
    assert len(best["token_log_probs"]) == len(best["alignment"]) == len(best["subwords"]) + 1
    assert {len(row) for row in best["alignment"]} == {len(first["source_subwords"]) + 1}
    assert sum(best["alignment"][0]) == pytest.approx(1, abs=1e-3)
    assert best["phrases"] == {"苹果": True, "狗": True}
    assert second["hypotheses"] == [{"text": "", "score": 0.0, "subwords": [], "token_log_probs": []}]
    plain = json.loads(command("translate", trained_run, "I love apples", "--json").out)
    assert plain.keys() == {"source", "hypotheses"}
    assert plain["hypotheses"][0].keys() == {"text", "score", "subwords", "token_log_probs"}


def test_wishes_that_are_not_met_are_counted(trained_run: Path, command: Command) -> None:
    said = ("--require", "我", "--search", "max_length=1")  # which leaves room for END alone
    answer = command("translate", trained_run, "I love apples", "", "We want tea", *said)
    assert answer.code == 0
    assert answer.err == "regard: 2 of 3 translations violate --require or --forbid\n"
    assert command("translate", trained_run, "I love apples", "--forbid", "狗").err == ""


def test_an_ensemble_of_a_model_with_itself_says_the_same(trained_run: Path, command: Command) -> None:
    words = ("I love apples", "We want tea and dogs", "--n-best", 1)
    alone = command("translate", trained_run, *words)
    assert command("translate", trained_run, *words, "--with", trained_run, "--with", trained_run).out == alone.out


def test_every_search_setting_can_be_given(
    trained_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SearchSettings] = []

    def stop(self: Translator, lines: object, settings: SearchSettings, **wanted: object) -> Iterator[object]:
        seen.append(settings)
        return iter(())

    monkeypatch.setattr(Translator, "stream", stop)
    further = {"coverage": 0.2, "stop": "first", "min-length": 2, "max_length": 9, "groups": 2, "diversity": 0.1}
    words = [word for key, value in further.items() for word in ("--search", f"{key}={value}")]
    assert command("translate", trained_run, "I", "--beam", 4, "--alpha", 0.6, *words).code == 0
    assert (
        command("translate", trained_run, "I", "--temperature", 0.7, "--top-k", 3, "--top-p", 0.5, "--seed", 4).code
        == 0
    )
    given = {key.replace("-", "_"): value for key, value in further.items()}
    assert seen[0] == SearchSettings(beam=4, alpha=0.6, **given)
    assert seen[1] == SearchSettings(temperature=0.7, top_k=3, top_p=0.5, seed=4)


def test_no_more_than_a_window_of_lines_is_read_ahead(loaded: Translator, small_windows: int) -> None:
    read = written = furthest = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for line in islice(cycle(["I love apples", "", "You buy tea"]), 10 * small_windows + 3):
            read += 1
            yield line

    def write(record: str) -> None:
        nonlocal written, furthest
        furthest = max(furthest, read - written)
        written += 1

    tally = translate_lines(loaded, lines(), write, SearchSettings(beam=1, max_length=3))
    assert tally.records == tally.translations == written == read == 10 * small_windows + 3
    assert furthest <= small_windows + 1


def test_progress_is_told_window_by_window(loaded: Translator, small_windows: int) -> None:
    for done, expected in ((0, [8, 8, 3]), (5, [3, 8, 3]), (8, [8, 3]), (19, [])):
        seen: list[int] = []
        translate_lines(
            loaded, ["I"] * 19, len, SearchSettings(beam=1, max_length=3), done=done, on_progress=seen.append
        )
        assert seen == expected


def test_errors_name_the_line_of_the_file_in_later_windows_too(loaded: Translator, small_windows: int) -> None:
    lines = ["I"] * 20 + ["\ud800"]
    for done in (0, 9, 20):
        with pytest.raises(UserError, match="sentence 21"):
            translate_lines(loaded, lines, len, SearchSettings(beam=1, max_length=3), done=done)


# Going on


FORMS = {
    "text": (),
    "n-best": ("--n-best", "2"),
    "json": ("--json", "--n-best", "2", "--alignments", "--require", "苹果"),
}


def finish(trained_run: Path, source: Path, output: Path, command: Command, *words: object) -> bytes:
    answer = command("translate", trained_run, "--input", source, "--output", output, "--beam", 2, *words)
    assert (answer.code, answer.out) == (0, "")
    return output.read_bytes()


@pytest.mark.parametrize("form", FORMS)
def test_going_on_gives_the_same_bytes_wherever_it_stopped(
    form: str, source: Path, trained_run: Path, tmp_path: Path, command: Command, small_windows: int
) -> None:
    whole = finish(trained_run, source, tmp_path / "whole", command, *FORMS[form])
    part = tmp_path / "part"
    middle = whole.index(b"\n", len(whole) // 2) + 1
    for cut in (0, 1, len(whole) // 3, middle, middle + 1, len(whole) - 1, len(whole)):
        part.write_bytes(whole[:cut])
        assert finish(trained_run, source, part, command, *FORMS[form], "--resume") == whole, cut


def test_going_on_with_standard_input_and_without_a_file(
    source: Path, trained_run: Path, tmp_path: Path, command: Command, small_windows: int
) -> None:
    output = tmp_path / "output"
    words = ("translate", trained_run, "--output", output, "--resume", *GREEDY)
    assert command(*words, stdin=source.read_bytes()).code == 0
    whole = output.read_bytes()
    assert whole.count(b"\n") == LINES
    output.write_bytes(whole[:60])
    assert command(*words, stdin=source.read_bytes()).code == 0
    assert output.read_bytes() == whole
    output.write_bytes(whole[:60])
    answer = command(*words, stdin=b"I love apples\n")
    assert "but the input has only 1; they do not belong together" in answer.error
    assert output.read_bytes() == whole[:60]  # the wrong file may be somebody's


def test_a_finished_output_says_so(source: Path, trained_run: Path, tmp_path: Path, command: Command) -> None:
    output = tmp_path / "output"
    whole = finish(trained_run, source, output, command)
    written = output.stat().st_mtime_ns
    answer = command("translate", trained_run, "--input", source, "--output", output, "--resume")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == f"regard: {output} is complete: it holds the translations of all {LINES} lines\n"
    assert (output.read_bytes(), output.stat().st_mtime_ns) == (whole, written)


def test_an_n_best_list_is_counted_by_whole_groups(tmp_path: Path) -> None:
    path = tmp_path / "list"
    first, second = "1 ||| a ||| -1\n1 ||| b ||| -2\n", "2 ||| c ||| -1\n2 ||| 3 ||| d ||| -2\n"
    for content, records in ((first, 1), (first + second, 2), (first + second[:-1], 1), (first[:-5], 0), ("", 0)):
        path.write_text(content)
        assert count_records(path, "n-best", 2) == (records, len((first + second)[: (0, len(first), 99)[records]]))
    for wrong in ("a line\n", "2 ||| a ||| -1\n", first + "3 ||| a ||| -1\n", "0 ||| a ||| -1\n"):
        path.write_text(wrong)
        with pytest.raises(UserError, match="not an n-best list"):
            count_records(path, "n-best", 2)


# Interruptions


def wait_for(path: Path, size: int, process: Forked) -> None:
    """Until the file has so many bytes; a minute at the most."""
    limit = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < size:
        assert process.poll() is None, "it ended before it could be interrupted"
        assert time.monotonic() < limit, "nothing was written for a minute"
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_process_leaves_whole_lines_and_can_go_on(
    number: signal.Signals,
    toy: Path,
    trained_run: Path,
    tmp_path: Path,
    command: Command,
    fork: Callable[..., Forked],
) -> None:
    lines = (toy / "train.en").read_text(encoding="utf-8").splitlines()
    count = 3 * translator.WINDOW + 100
    source, part, whole = tmp_path / "source.en", tmp_path / "part.zh", tmp_path / "whole.zh"
    source.write_text("".join(f"{line}\n" for line in islice(cycle(lines), count)), encoding="utf-8")
    words = ("translate", trained_run, "--input", source, *GREEDY, "--search", "max_length=6")
    process = fork(*words, "--output", part)
    wait_for(part, 1, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    content = part.read_bytes()
    done = content.count(b"\n")
    assert content.endswith(b"\n")
    assert 0 < done < count
    *_, said = err.splitlines()  # a slow machine may have shown its progress
    assert said.startswith(f"regard: interrupted after {done} lines")
    assert "--resume" in said
    assert command(*words, "--output", part, "--resume").code == 0
    assert command(*words, "--output", whole).code == 0
    assert part.read_bytes().startswith(content)
    assert part.read_bytes() == whole.read_bytes()


def test_an_interruption_waits_for_the_record_unless_it_is_insisted_on(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interruptions() as interruptions:
        reached = []
        with pytest.raises(Interrupted) as once, interruptions.defer():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the record")
        assert (reached, once.value.signal) == (["the end of the record"], signal.SIGTERM)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
    with Interruptions() as interruptions, pytest.raises(Interrupted), interruptions.defer():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one was not heard")


def test_held_back_within_held_back_an_interruption_waits_for_the_outer_one() -> None:
    reached = []
    with Interruptions() as interruptions, pytest.raises(Interrupted), interruptions.defer():
        with interruptions.defer():
            signal.raise_signal(signal.SIGTERM)
        reached.append("the end")
    assert reached == ["the end"]


def test_outputs_side_by_side_stay_in_step(tmp_path: Path) -> None:
    paths = (tmp_path / "source", tmp_path / "target")
    with pytest.raises(UserError, match="target already exists"):
        paths[1].write_text("mine\n")
        with AlignedRecordFiles(paths, Interruptions()):
            pytest.fail("it is somebody's")
    assert not paths[0].exists()
    paths[1].unlink()
    with (
        pytest.raises(Interrupted),
        Interruptions() as interruptions,
        AlignedRecordFiles(paths, interruptions) as sides,
    ):
        append = sides._files[0].append
        sides._files[0].append = lambda record: (append(record), signal.raise_signal(signal.SIGINT))
        sides.append("a\n", "b\n")
    assert [path.read_text() for path in paths] == ["a\n", "b\n"]
    paths[0].write_text("a\nc\ne\n")  # as a killed process may leave it
    paths[1].write_text("b\nd")
    with AlignedRecordFiles(paths, Interruptions(), count_aligned(paths)) as sides:
        assert sides.count == 1
        sides.append("C\n", "D\n")
    assert [path.read_text() for path in paths] == ["a\nC\n", "b\nD\n"]


def test_lines_are_counted_by_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"1\n22\n333\n4")
    assert [count_lines(path), count_lines(path, 2), count_lines(path, 3), count_lines(path, 4)] == [
        (3, 9),
        (1, 5),
        (1, 9),
        (0, 0),
    ]
    assert count_lines(path, most=2) == (2, 5)


def test_an_output_cuts_off_what_an_error_leaves_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "output"
    with pytest.raises(Interrupted), Interruptions() as interruptions, RecordFile(path, interruptions) as output:
        output.append("whole\n")
        assert path.read_text() == "whole\n"
        path.write_text("whole\nha")
        raise Interrupted(signal.SIGINT)
    assert path.read_text() == "whole\n"
    assert f"interrupted after 1 lines; {path} has the translations of 1 lines" in output.explain_interruption()
    nothing = tmp_path / "nothing"
    with pytest.raises(ZeroDivisionError), RecordFile(nothing, Interruptions()) as output:
        _ = 1 / 0
    assert not nothing.exists()
    assert output.explain_interruption() == "interrupted after 0 lines"


def test_a_full_disk_is_one_sentence_and_whole_lines(
    source: Path, trained_run: Path, tmp_path: Path, command: Command
) -> None:
    whole = finish(trained_run, source, tmp_path / "whole", command)
    output = tmp_path / "output"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) // 2, hard))  # a file that may not grow, like a full disk
    try:
        answer = command("translate", trained_run, "--input", source, "--output", output, "--beam", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    content = output.read_bytes()
    assert whole.startswith(content)
    assert content.endswith(b"\n")
    assert 0 < len(content) <= len(whole) // 2
    assert f"{output}: cannot be written (File too large)" in answer.error
    assert f"translations of {content.count(bytes([10]))} lines" in answer.error
    assert finish(trained_run, source, output, command, "--resume") == whole


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_device_that_is_full_is_one_sentence(trained_run: Path, command: Command) -> None:
    answer = command("translate", trained_run, "I love apples", "--output", "/dev/full")
    assert "/dev/full: cannot be written (No space left on device)" in answer.error
    with open("/dev/full", "wb") as full:  # noqa: PTH123  the word for what is meant
        done = subprocess.run(
            [sys.executable, "-m", "regard", "translate", trained_run, "I love apples"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=120,
        )
    assert done.returncode == 2
    assert done.stderr == b"regard: standard output: cannot be written (No space left on device)\n"


# Progress


def test_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineProgress, "SECONDS_BETWEEN_LINES", 0)
    said = io.StringIO()
    with LineProgress(10, 4, console=Console(file=said)) as lines:
        lines.advance(1)
        lines.advance(2)
    assert [line[: len("regard: 5 of 10 lines, ")] for line in said.getvalue().splitlines()] == [
        "regard: 5 of 10 lines, ",
        "regard: 7 of 10 lines, ",
    ]
    with LineProgress(None, console=Console(file=said)) as lines:
        lines.advance(3)
    assert "regard: 3 lines, " in said.getvalue()


def test_progress_is_silent_before_some_seconds_and_where_it_is_not_wanted() -> None:
    said = io.StringIO()
    for console, shown in ((Console(file=said), True), (Console(file=said, force_terminal=True), False)):
        with LineProgress(10, shown=shown, console=console) as lines:
            lines.advance(10)
    assert said.getvalue() == ""


@pytest.mark.parametrize("total", [10, None])
def test_progress_is_a_bar_on_a_terminal(total: int | None) -> None:
    said = io.StringIO()
    with LineProgress(total, console=Console(file=said, force_terminal=True, width=120)) as lines:
        lines.advance(10)
    assert ("10 of 10 lines" if total else "10 lines") in said.getvalue()


# What is refused


def test_wrong_use_of_files_is_refused_and_nothing_is_touched(
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
        (("--input", tmp_path / "two.tsv", "--key", 2), "two.tsv, line 1: 2 tab-separated"),
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
    for words, said in cases:
        answer = command("translate", trained_run, *words)
        assert said in answer.error, words
        assert answer.out == ""
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_the_first_column_of_a_table_is_the_source(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("I\t我\n\t\nYou\t你\n")
    assert list(read_texts(path)) == ["I", "", "You"]


def test_a_column_of_a_parquet_file_is_chosen_by_its_name(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    parquet.write_table(arrow.table({"source": ["I", ""], "en": ["You", "We"], "number": [1, 2]}), path)
    assert list(read_texts(path)) == ["I", ""]
    assert list(read_texts(path, "en")) == ["You", "We"]


def test_the_keys_of_objects_are_read_without_their_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "objects.jsonl"
    path.write_text('{"en": "I", "source": 3}\n{"en": ""}\n\n')
    assert list(read_texts(path, "en")) == ["I", ""]


def test_a_tally_counts_what_is_not_met(loaded: Translator) -> None:
    records: list[str] = []
    constraints, short = (
        Constraints(required=("你",)),
        SearchSettings(beam=2, max_length=1),
    )  # which leaves room for END alone
    tally = translate_lines(loaded, ["I love apples", ""], records.append, short, constraints)
    assert (tally.records, tally.translations, tally.violations, len(records)) == (2, 2, 1, 2)
