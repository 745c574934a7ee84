"""Batch work on a simulated Ray cluster of three nodes. Not part of the test suite; run it with `make ray`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.decoding.settings import SearchSettings
from regard.errors import UserError
from regard.pipelines.executors import LocalExecutor
from regard.pipelines.ray_executor import RayExecutor
from regard.pipelines.shard_jobs import TranslateJob, TranslatorSource
from regard.pipelines.shards import Folder, ShardRun
from tests.conftest import Command, toy_pairs
from tests.pipelines.slow_job import Slow

ray = pytest.importorskip("ray")

SHARDS, ROWS = 4, 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose head node has no CPU for workers, and two other nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "4")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crawl")
    pairs = toy_pairs()
    for shard in range(SHARDS):
        rows = [{"source": pairs[(shard + i) % len(pairs)].source, "id": shard * ROWS + i} for i in range(ROWS)]
        (folder / f"{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def open_run(crawl: Path, out: Path) -> ShardRun:
    return ShardRun(Folder(crawl), Folder(out), "test", {}, part_bytes=3000)


def ids(out: Path) -> list[int]:
    return [json.loads(line)["id"] for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_cluster_gives_the_bytes_of_one_machine(cluster: Any, crawl: Path, trained_run: Path, tmp_path: Path) -> None:
    job = TranslateJob(TranslatorSource((trained_run,), "cpu"), SearchSettings(beam=2))
    done = {}
    for name, executor in (("local", LocalExecutor(2, 1)), ("ray", RayExecutor("ray"))):
        run = open_run(crawl, tmp_path / name)
        done[name] = list(run.run(job, executor))
        run.finish()
    for shard in range(SHARDS):
        contents = [(tmp_path / name / f"{shard}.jsonl").read_bytes() for name in done]
        assert contents[0] == contents[1]
    assert {len({one.worker for one in results}) for results in done.values()} == {2}


def test_killed_actors_are_replaced(cluster: Any, crawl: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = open_run(crawl, tmp_path / "out")
    list(run.run(Slow(log, 0.01, die=True), RayExecutor("ray")))
    run.finish()
    assert ids(tmp_path / "out") == list(range(SHARDS * ROWS))
    assert len(log.read_text().splitlines()) > len(set(log.read_text().splitlines()))


def test_parts_of_a_lost_node_are_computed_elsewhere(cluster: Any, crawl: Path, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    run = open_run(crawl, tmp_path / "out")
    results = run.run(Slow(tmp_path / "log"), RayExecutor("ray"))
    for _ in range(5):
        next(results)
    cluster.remove_node(node, allow_graceful=False)
    rest = list(results)
    run.finish()
    assert len({one.worker for one in rest}) >= 2
    assert ids(tmp_path / "out") == list(range(SHARDS * ROWS))


def test_errors_are_one_sentence(cluster: Any, crawl: Path, trained_run: Path, tmp_path: Path) -> None:
    job = TranslateJob(TranslatorSource((trained_run,), "cpu"), SearchSettings(), key="text")
    with pytest.raises(UserError, match=r"\.jsonl, line 1: the key \"text\" is missing"):
        list(open_run(crawl, tmp_path / "out").run(job, RayExecutor("ray")))
    assert not (tmp_path / "out").exists()


def test_command_runs_on_the_cluster(
    cluster: Any, crawl: Path, trained_run: Path, tmp_path: Path, command: Command
) -> None:
    given = ["evaluate", trained_run, "--score", "--src"]
    distilled, scored = tmp_path / "distilled", tmp_path / "scored"
    words = ["distill", trained_run, "--src", crawl, "--out", distilled, "--beam", 1, "--on", "ray", "--workers", 2]
    assert command(*words).code == 0
    result = command(*given, distilled, "--out", scored, "--on", "ray")
    assert result.code == 0, result.err
    assert "1,200 rows in, 1,200 rows out" in result.out
    assert ids(scored) == list(range(SHARDS * ROWS))
