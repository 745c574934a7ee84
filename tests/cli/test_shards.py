"""Commands over folders of shards."""

import json
from pathlib import Path

import numpy as np
import pytest

from regard import Translator
from tests.conftest import Command, toy_pairs

PAIRS = toy_pairs()[:60]


@pytest.fixture
def crawl(tmp_path: Path) -> Path:
    folder = tmp_path / "crawl"
    folder.mkdir()
    for shard in range(2):
        rows = [pair._asdict() | {"id": i} for i, pair in enumerate(PAIRS)][shard::2]
        (folder / f"{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def read(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_shards_have_the_translations_of_single_files(
    command: Command, crawl: Path, trained_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = command("translate", trained_run, "--input", crawl, "--output", out, "--beam", 2, "--workers", 1)
    assert result.code == 0, result.err
    assert "2 shards, 60 rows in, 60 rows out" in result.out
    assert "30 rows, " not in result.out
    assert "60 rows, " in result.out
    for shard in range(2):
        single = command("translate", trained_run, "--input", crawl / f"{shard}.jsonl", "--beam", 2).out.splitlines()
        rows = [json.loads(line) for line in (out / f"{shard}.jsonl").read_text().splitlines()]
        assert [row["translation"] for row in rows] == single
        assert [row["id"] for row in rows] == list(range(shard, 60, 2))
    again = command("translate", trained_run, "--input", crawl, "--output", out, "--beam", 2, "--workers", 1)
    assert "60 rows out; they were complete already" in again.out
    other = command("translate", trained_run, "--input", crawl, "--output", out, "--beam", 3, "--workers", 1)
    assert "was started with search" in other.error


def test_distilled_pairs_equal_those_of_a_file(
    command: Command, crawl: Path, trained_run: Path, tmp_path: Path
) -> None:
    options = ["--closest", "chrf", "--beam", "3", "--keep-reference", "--back-translate"]
    command("distill", trained_run, "--src", crawl, "--out", tmp_path / "one.jsonl", *options)
    result = command("distill", trained_run, "--src", crawl, "--out", tmp_path / "out", *options, "--workers", 1)
    assert result.code == 0, result.err
    rows = read(tmp_path / "out")
    expected = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    assert [{"source": row["source"], "target": row["target"]} for row in rows] == expected
    assert [row["id"] for row in rows] == [i for shard in range(2) for i in range(shard, 60, 2) for _ in range(2)]


def test_scores_of_pairs_are_cross_entropies(command: Command, crawl: Path, trained_run: Path, tmp_path: Path) -> None:
    result = command("evaluate", trained_run, "--score", "--src", crawl, "--out", tmp_path / "out", "--workers", 1)
    assert result.code == 0, result.err
    (row,) = [row for row in read(tmp_path / "out") if row["id"] == 7]
    (scored,) = Translator.load(trained_run).score([PAIRS[7].source], [PAIRS[7].target])
    assert row["score"] == pytest.approx(-np.mean(scored.token_log_probs), abs=1e-5)


def test_embeddings_of_shards_equal_those_of_files(
    command: Command, crawl: Path, trained_run: Path, tmp_path: Path
) -> None:
    assert command("embed", trained_run, "--input", crawl, "--out", tmp_path / "out", "--workers", 1).code == 0
    command("embed", trained_run, "--input", crawl / "1.jsonl", "--out", tmp_path / "one.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out" / "1.npy"), np.load(tmp_path / "one.npy"), atol=1e-5)


def test_cleaned_shards_equal_a_cleaned_file(command: Command, crawl: Path, tmp_path: Path) -> None:
    with (crawl / "1.jsonl").open("a") as file:
        file.write(json.dumps(PAIRS[0]._asdict()) + "\n")
    report = tmp_path / "report.json"
    result = command("clean", "--src", crawl, "--out", tmp_path / "out", "--report", report, "--workers", 1)
    assert result.code == 0, result.err
    assert "60 of 61 pairs kept (98.4%)" in result.out
    assert json.loads(report.read_text())["removed"]["duplicate"] == 1
    assert command("clean", "--src", crawl, "--out", tmp_path / "one.jsonl").code == 0
    expected = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    found = [{"source": row["source"], "target": row["target"]} for row in read(tmp_path / "out")]
    assert found == expected
    assert "complete already" in command("clean", "--src", crawl, "--out", tmp_path / "out").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("translate RUN --input crawl", "crawl is a folder of shards, so --output must name a folder"),
        ("translate RUN --input crawl --output out --json", "--json: has no effect with a folder of shards; omit it"),
        ("translate RUN --input crawl --output crawl", "crawl is the folder of the input; choose another one"),
        ("translate RUN --input crawl --output out --key text", 'crawl/0.jsonl, line 1: the key "text" is missing'),
        ("translate RUN I --on ray", "--on ray: is for folders of .jsonl or .parquet shards"),
        ("translate RUN --input crawl --output out --on dask", "--on dask: write ray, for the cluster of this machine"),
        ("distill RUN --src crawl --out out --resume", "--resume: has no effect with a folder of shards"),
        ("evaluate RUN --score --src crawl/0.jsonl --out out", "--score needs --src, a folder of .jsonl or .parquet"),
        ("evaluate RUN --src crawl --reverse-model RUN", "--reverse-model: has no effect with a test set"),
        ("embed RUN --input . --out out", "contains no .jsonl or .parquet files; give a folder of shards"),
        ("clean --src crawl --out out --languages en", "--languages en: write two language codes"),
        ("embed RUN --input xyz://a/b --out out", "xyz://a/b: cannot be opened (Protocol not known: xyz)"),
    ],
)
def test_wrong_options_are_rejected(
    command: Command,
    crawl: Path,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(trained_run) if word == "RUN" else word for word in words.split()]
    workers = (
        ["--workers", "1"] if "--on" not in given and given[-1] != "test" and "--reverse-model" not in given else []
    )
    assert message in command(*given, *workers).error
    assert not (tmp_path / "out").exists()
