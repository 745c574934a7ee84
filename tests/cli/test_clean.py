"""`regard clean`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.data.builtin.corpus import load_pairs
from tests.conftest import Command

PAIRS = load_pairs("train", 40)
BAD = [("A <b>dog</b>", "一只狗"), ("Hello", "Hello"), (PAIRS[3].source.upper(), PAIRS[3].target)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with noisy.en and noisy.zh, whose last three pairs are bad, and test.en."""
    pairs = [*PAIRS, *BAD]
    for side, language in enumerate(("en", "zh")):
        (tmp_path / f"noisy.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    (tmp_path / "test.en").write_text(f"{PAIRS[7].source}\n", "utf-8")
    return tmp_path


def read(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def test_line_files_are_cleaned_with_a_report(corpus: Path, command: Command) -> None:
    words = ["--src", corpus / "noisy.en", "--tgt", corpus / "noisy.zh", "--exclude", corpus / "test.en"]
    out = ["--out-src", corpus / "clean.en", "--out-tgt", corpus / "clean.zh"]
    result = command("clean", *words, *out, "--report", corpus / "report.html")
    assert result.code == 0, result.err
    kept = [pair for pair in PAIRS if pair != PAIRS[7]]
    assert read(corpus / "clean.en") == [pair.source for pair in kept]
    assert read(corpus / "clean.zh") == [pair.target for pair in kept]
    expected = ["39 of 43 pairs kept (90.7%)", "markup: 1", "copy: 1", "overlap: 1", "near-duplicate: 1"]
    assert result.out.splitlines()[:5] == expected
    assert "noisy.en:41" in read_report(corpus / "report.html")


def read_report(path: Path) -> str:
    text = path.read_text("utf-8")
    assert "<h1>Cleaning report</h1>" in text
    return text


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_files_with_both_sides_are_cleaned_by_a_recipe_and_options(corpus: Path, command: Command, suffix: str) -> None:
    pairs = list(zip(read(corpus / "noisy.en"), read(corpus / "noisy.zh"), strict=True))
    rows = {
        ".tsv": "en\tzh\n" + "".join(f"{source}\t{target}\n" for source, target in pairs),
        ".jsonl": "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs),
    }
    (corpus / f"noisy{suffix}").write_text(rows[suffix], "utf-8")
    (corpus / "clean.yaml").write_text("markup: false\nduplicates: exact\ncopies: null\n", "utf-8")
    words = ["--src", corpus / f"noisy{suffix}", "--out", corpus / f"clean{suffix}", "--recipe", corpus / "clean.yaml"]
    result = command("clean", *words, "--set", "markup=true", "--report", corpus / "r.json", "--languages", "en,zh")
    assert result.code == 0, result.err
    report = json.loads((corpus / "r.json").read_text("utf-8"))
    # The copy is not written in Chinese.
    assert {rule: number for rule, number in report["removed"].items() if number} == {"markup": 1, "script": 1}
    assert report["settings"]["duplicates"] == "exact"
    assert report["languages"] == ["en", "zh"]
    assert len(read(corpus / f"clean{suffix}")) == report["kept"] == 41


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "clean.txt"], "--out holds both sides"),
        ([], "clean needs either --out"),
        (["--out", "test.en"], "--out holds both sides"),
        (["--out-src", "noisy.en", "--out-tgt", "x.zh"], "noisy.en: is an input file"),
        (["--out-src", "test.en", "--out-tgt", "x.zh"], "test.en: already exists"),
        (["--out-src", "no/x.en", "--out-tgt", "x.zh"], "there is no folder no"),
        (["--out", "x.tsv", "--report", "x.html", "--report", "x.pdf"], "--report writes .html or .json"),
        (["--out", "x.tsv", "--set", "rato=3"], "unknown key rato; did you mean ratio?"),
        (["--out", "x.tsv", "--set", "ratio=1"], "ratio: input should be greater than 1"),
        (["--out", "x.tsv", "--languages", "english"], "write two language codes"),
        (["--out", "x.tsv", "--exclude", "missing.en"], "missing.en does not exist"),
        (["--out", "x.tsv", "--recipe", "test.en"], "keys and values"),
    ],
)
def test_wrong_options_are_explained_and_nothing_is_written(
    corpus: Path, command: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(corpus)
    before = {path: path.read_bytes() for path in corpus.iterdir()}
    assert message in command("clean", "--src", "noisy.en", "--tgt", "noisy.zh", *words).error
    assert {path: path.read_bytes() for path in corpus.iterdir()} == before


def test_different_numbers_of_lines_leave_no_output(
    corpus: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus)
    (corpus / "noisy.zh").write_text("一\n二\n", "utf-8")
    error = command("clean", "--src", "noisy.en", "--tgt", "noisy.zh", "--out", "x.tsv", "--report", "r.html").error
    assert "parallel files need the same number of lines" in error
    assert sorted(path.name for path in corpus.iterdir()) == ["noisy.en", "noisy.zh", "test.en"]


def test_pipe_is_rejected_because_the_corpus_is_read_twice(corpus: Path, command: Command) -> None:
    os.mkfifo(corpus / "pipe.tsv")
    error = command("clean", "--src", corpus / "pipe.tsv", "--out", corpus / "x.tsv").error
    assert error.endswith("is a pipe, but must be a regular file")


def test_corpus_without_good_pairs_is_an_error(corpus: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(corpus)
    for language in ("en", "zh"):
        (corpus / f"noisy.{language}").write_text("Hello\nHello\n", "utf-8")
    error = command("clean", "--src", "noisy.en", "--tgt", "noisy.zh", "--out", "x.tsv").error
    assert error == "noisy.en: the rules remove all pairs (copy: 2); change their thresholds"
    assert not (corpus / "x.tsv").exists()


def test_interrupted_command_leaves_no_output(tmp_path: Path) -> None:
    pairs = PAIRS * 5000
    source, target = tmp_path / "noisy.en", tmp_path / "noisy.zh"
    source.write_text("".join(f"{pair.source} {n}\n" for n, pair in enumerate(pairs)), "utf-8")
    target.write_text("".join(f"{pair.target} {n}\n" for n, pair in enumerate(pairs)), "utf-8")
    words = ["clean", "--src", source, "--tgt", target, "--out", tmp_path / "x.tsv", "--report", tmp_path / "r.html"]
    process = subprocess.Popen([sys.executable, "-m", "regard", *map(str, words)], stderr=subprocess.PIPE)
    while not any(path.name.startswith(".x.") for path in tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.read().decode().endswith("regard: interrupted\n")
    assert process.wait() == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["noisy.en", "noisy.zh"]
