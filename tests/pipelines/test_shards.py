"""Batch work over folders of shards."""

import gzip
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest

from regard.data.text.cleaning.cleaner import Cleaner
from regard.data.text.cleaning.settings import CleaningSettings
from regard.data.text.readers import Pair, PairRecord
from regard.errors import UserError
from regard.pipelines.executors import Done, Executor, Item, LocalExecutor, Result, Work, timed
from regard.pipelines.shard_cleaning import Cleaning, ShardCleaner
from regard.pipelines.shards import (
    MANIFEST,
    PARTS,
    WINDOW,
    Column,
    Folder,
    Job,
    Part,
    Results,
    Rows,
    ShardRun,
    divide,
    find_shards,
    read_rows,
)

SMALL_PARTS = {"part_bytes": 600, "part_rows": 16}


@dataclass(frozen=True)
class Reverse(Job):
    """Adds the reversed text, twice for rows that ask for it; `log` lists the parts that were computed."""

    columns: ClassVar[dict[str, Column]] = {"reversed": "text"}
    log: Path | None = None
    fail_at: str = ""
    kill_at: str = ""

    def load(self) -> Callable[[Part, Rows], Results]:
        def run(part: Part, rows: Rows) -> Results:
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(f"{part}\n")
            if str(part) == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if str(part) == self.fail_at:
                raise UserError("no")
            texts = rows.texts("source")
            places = [row for row, text in enumerate(texts) for _ in range(1 + ("twice" in text))]
            return Results(places, {"reversed": [texts[row][::-1] for row in places]}, {"long": sum(map(len, texts))})

        return run


class Vectors(Job):
    """Two numbers for each row."""

    columns: ClassVar[dict[str, Column]] = {"vector": "vector"}
    suffix = ".npy"

    def load(self) -> Callable[[Part, Rows], Results]:
        return lambda part, rows: Results(
            range(len(rows)), {"vector": [(len(text), int(text)) for text in rows.texts("source")]}
        )


@dataclass
class Interrupted(Executor):
    """Stops after some items."""

    items: int

    def run(self, work: Work[Item, Result], items: Sequence[Item]) -> Iterator[Done[Result]]:
        function = work.open()
        for item in items[: self.items]:
            yield timed(function, item)
        raise KeyboardInterrupt


def write_jsonl(folder: Path, shards: int = 3, rows: int = 50) -> list[dict[str, Any]]:
    folder.mkdir()
    values = [{"source": f"line {i} {'twice' * (i % 7 == 0)}", "id": i} for i in range(shards * rows)]
    for shard in range(shards):
        lines = (json.dumps(value) + "\n" for value in values[shard * rows : (shard + 1) * rows])
        (folder / f"{shard}.jsonl").write_text("".join(lines))
    return values


def read_jsonl(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def expected_rows(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [value | {"reversed": value["source"][::-1]} for value in values]
    return [row for row in rows for _ in range(1 + ("twice" in row["source"]))]


def run_all(source: Path | str, target: Path | str, job: Job, executor: Executor | None = None, **sizes: int) -> int:
    run = ShardRun(Folder(source), Folder(target), "test", {"a": 1}, **(sizes or SMALL_PARTS))
    parts = sum(1 for _ in run.run(job, executor or LocalExecutor()))
    run.finish()
    return parts


def test_rows_are_written_once_and_in_order(tmp_path: Path) -> None:
    values = write_jsonl(tmp_path / "in")
    assert run_all(tmp_path / "in", tmp_path / "out", Reverse()) > 6
    assert read_jsonl(tmp_path / "out") == expected_rows(values)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.jsonl", "1.jsonl", "2.jsonl", MANIFEST]
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert (manifest["complete"], manifest["rows"], manifest["written"]) == (True, 150, 172)


def test_interrupted_work_continues_without_repeating_parts(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    run_all(tmp_path / "in", tmp_path / "whole", Reverse())
    log = tmp_path / "log"
    for items in (2, 4, 0):
        with pytest.raises(KeyboardInterrupt):
            run_all(tmp_path / "in", tmp_path / "out", Reverse(log), Interrupted(items))
    run_all(tmp_path / "in", tmp_path / "out", Reverse(log))
    names = log.read_text().splitlines()
    assert len(names) == len(set(names)) > 6
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_complete_output_is_left_alone(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    run_all(tmp_path / "in", tmp_path / "out", Reverse())
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert run_all(tmp_path / "in", tmp_path / "out", Reverse()) == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_killed_workers_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.pipelines.executors.get_context", lambda _: get_context("fork"))  # faster than spawn
    values = write_jsonl(tmp_path / "in", shards=1)
    log = tmp_path / "log"
    job = KillOnce(log=log, kill_at="0.jsonl, part 2 of 3")
    run_all(tmp_path / "in", tmp_path / "out", job, LocalExecutor(workers=2, threads=1))
    assert read_jsonl(tmp_path / "out") == expected_rows(values)
    assert log.read_text().splitlines().count("0.jsonl, part 2 of 3") == 2


class KillOnce(Reverse):
    """Kills its process at a part, unless the log lists that part."""

    def load(self) -> Callable[[Part, Rows], Results]:
        assert self.log is not None
        again = self.log.exists() and self.kill_at in self.log.read_text()
        return (Reverse(self.log) if again else Reverse(self.log, kill_at=self.kill_at)).load()


def test_part_that_kills_its_workers_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.pipelines.executors.get_context", lambda _: get_context("fork"))
    write_jsonl(tmp_path / "in", shards=1)
    job = Reverse(kill_at="0.jsonl, part 2 of 3")
    with pytest.raises(UserError, match=r"0.jsonl, part 2 of 3: 3 workers were killed while they worked on it"):
        run_all(tmp_path / "in", tmp_path / "out", job, LocalExecutor(workers=2))


def test_errors_of_worker_processes_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.pipelines.executors.get_context", lambda _: get_context("fork"))
    write_jsonl(tmp_path / "in", shards=1)
    with pytest.raises(UserError, match=r"^no$"):
        run_all(tmp_path / "in", tmp_path / "out", Reverse(fail_at="0.jsonl, part 2 of 3"), LocalExecutor(workers=2))
    with pytest.raises(RuntimeError, match="invalid literal for int"):
        run_all(tmp_path / "in", tmp_path / "vectors", Vectors(), LocalExecutor(workers=2))


def test_failed_command_leaves_no_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in", shards=1)
    with pytest.raises(UserError, match="no"):
        run_all(tmp_path / "in", tmp_path / "out", Reverse(fail_at="0.jsonl, part 1 of 3"))
    assert not (tmp_path / "out").exists()


def test_parquet_keeps_columns_and_types(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in").mkdir()
    ids = np.arange(100, dtype=np.int16)
    table = pyarrow.table({"source": [f"line {i}" for i in ids], "id": ids, "more": [{"x": 0.5}] * 100})
    parquet.write_table(table, tmp_path / "in" / "a.parquet", row_group_size=30)
    parquet.write_table(table.slice(0, 0), tmp_path / "in" / "empty.parquet")
    assert run_all(tmp_path / "in", tmp_path / "out", Reverse()) == 8
    found = parquet.read_table(tmp_path / "out" / "a.parquet")
    assert found.drop_columns("reversed").equals(table)
    assert found["reversed"].to_pylist() == [f"line {i}"[::-1] for i in ids]
    assert parquet.read_table(tmp_path / "out" / "empty.parquet").schema == found.schema


def test_vectors_are_in_the_order_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = "".join(json.dumps({"source": str(i)}) + "\n" for i in range(100))
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "in" / "b.jsonl").write_text(lines)
    run_all(tmp_path / "in", tmp_path / "out", Vectors())
    for name in ("a", "b"):
        assert np.load(tmp_path / "out" / f"{name}.npy").tolist() == [[len(str(i)), i] for i in range(100)]


def test_folders_may_be_on_any_file_system(tmp_path: Path) -> None:
    values = write_jsonl(tmp_path / "in", shards=2)
    files = fsspec.filesystem("memory")
    for path in (tmp_path / "in").iterdir():
        files.pipe(f"/bucket/in/{path.name}", path.read_bytes())
    run_all("memory://bucket/in", "memory://bucket/out", Reverse())
    found = [json.loads(line) for i in range(2) for line in files.cat(f"/bucket/out/{i}.jsonl").splitlines()]
    assert found == expected_rows(values)
    assert not files.exists(f"/bucket/out/{PARTS}")


@pytest.mark.parametrize("length", [1, 7, 64, 10_000])
def test_every_line_belongs_to_one_part(tmp_path: Path, length: int) -> None:
    texts = ["", "x" * 50, "é" * 9, "b", "line", "y" * 200, ""]
    content = "\ufeff" + "\n\n".join(json.dumps({"source": text}, ensure_ascii=False) for text in texts)
    (tmp_path / "a.jsonl").write_text(content, encoding="utf-8")
    folder = Folder(tmp_path)
    parts = divide(folder, "a.jsonl", len(content.encode()), part_bytes=length)
    found = [text for part in parts for rows in read_rows(folder, part) for text in rows.texts("source")]
    assert found == texts


def test_rows_are_read_in_windows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "a"}\n' * (2 * WINDOW + 1))
    (part,) = divide(Folder(tmp_path), "a.jsonl", (tmp_path / "a.jsonl").stat().st_size)
    assert [len(rows) for rows in read_rows(Folder(tmp_path), part)] == [WINDOW, WINDOW, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a.jsonl, line 3: not valid JSON"),
        ("[1]", r"a.jsonl, line 3: not a JSON object"),
        ('{"text": "a"}', r'a.jsonl, line 3: the key "source" is missing; the keys of this line are "text"'),
        ('{"source": "a", "reversed": "b"}', r'a.jsonl, line 3: has "reversed" already'),
    ],
)
def test_errors_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"source": "a"}\n' * 2 + line + "\n")
    with pytest.raises(UserError, match=message):
        run_all(tmp_path / "in", tmp_path / "out", Reverse(), part_bytes=20, part_rows=1)


def test_errors_name_the_row_of_a_table(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in").mkdir()
    parquet.write_table(pyarrow.table({"source": ["a"] * 20 + [None]}), tmp_path / "in" / "a.parquet")
    with pytest.raises(UserError, match=r'a.parquet, row 21: the value of "source" is null'):
        run_all(tmp_path / "in", tmp_path / "out", Reverse())


def test_output_of_something_else_is_not_continued(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in")
    source, target = Folder(tmp_path / "in"), Folder(tmp_path / "out")
    ShardRun(source, target, "test", {"models": ["a"]}).start()
    with pytest.raises(UserError, match=r'was started with models \["a"\], not \["b"\]'):
        ShardRun(source, target, "test", {"models": ["b"]})
    (tmp_path / "in" / "1.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"1.jsonl: has changed since"):
        ShardRun(source, target, "test", {"models": ["a"]})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        ShardRun(source, Folder(tmp_path / "other"), "test", {})
    with pytest.raises(UserError, match="is the folder of the input"):
        ShardRun(source, source, "test", {})


def test_shards_with_the_same_output_are_rejected(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.jsonl.gz"):
        (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=r"a.jsonl and a.jsonl.gz would have the same output"):
        find_shards(Folder(tmp_path))


def clean_at_once(pairs: list[Pair], settings: CleaningSettings) -> tuple[list[Pair], Cleaner]:
    cleaner = Cleaner(settings, ("en", "de"))
    records = [PairRecord(pair, "", i) for i, pair in enumerate(pairs)]
    chunks = list(cleaner.clean(lambda: iter(records)))
    return [record.pair for part, kept in chunks for record, k in zip(part, kept, strict=True) if k], cleaner


@pytest.mark.parametrize("limit", [2000, None])
def test_cleaning_shards_equals_cleaning_their_pairs_in_order(
    tmp_path: Path, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is not None:  # so that the sample does not hold all pairs
        monkeypatch.setattr("regard.pipelines.shard_cleaning.MAX_SAMPLE_CHARACTERS", limit)
        monkeypatch.setattr("regard.data.text.cleaning.fingerprints.Sample.__init__.__defaults__", (limit,))
    names = ["".join(letters) for letters in islice(product("bdfg", "aeiou", "klmn", "stu"), 240)]
    pairs = [Pair(f"the {name} sees a house", f"die {name} sieht ein Haus") for name in names]
    pairs = [*pairs[:90], *pairs[40:50], Pair("The BAKS sees a house!", "die baks sieht ein Haus."), *pairs[90:]]
    pairs = [*pairs, Pair("", "leer"), Pair("copy copy", "copy copy"), Pair("a" * 400, "b")]
    (tmp_path / "in").mkdir()
    for shard in range(3):
        rows = [pair._asdict() | {"id": i} for i, pair in enumerate(pairs)][shard::3]
        (tmp_path / "in" / f"{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    in_order = [pair for shard in range(3) for pair in pairs[shard::3]]
    settings = CleaningSettings()
    expected, cleaner = clean_at_once(in_order, settings)

    run = ShardRun(Folder(tmp_path / "in"), Folder(tmp_path / "out"), "clean", {}, part_bytes=3000)
    shards = ShardCleaner(run, Cleaning(settings, ("en", "de")), LocalExecutor())
    passes = list(shards.prepare())
    list(run.run(shards.job(), shards.executor))
    shards.finish()
    run.finish()
    found = read_jsonl(tmp_path / "out")
    assert [Pair(row["source"], row["target"]) for row in found] == expected
    assert all(row["id"] >= 0 for row in found)
    assert sum(n for name, n in passes if name == "reading") == len(pairs)
    if limit is None:
        assert shards.report.summary() == cleaner.report.summary()
    (example,) = shards.report.examples("near-duplicate")
    path, line = example.file, example.line
    assert json.loads(Path(path).read_text().splitlines()[line - 1])["source"] == example.source
