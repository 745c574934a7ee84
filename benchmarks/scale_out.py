"""Batch work over shards: a cluster that loses nodes, memory and speed by the number of lines.

    python benchmarks/scale_out.py RUN [--lines 1000000] [--kills 2]          a simulated Ray cluster of three nodes
    python benchmarks/scale_out.py RUN --memory 10000 100000 1000000 5000000  one process, more and more lines
    python benchmarks/scale_out.py RUN --quick                                both with few lines, to try the script

Needs an idle machine and, for the cluster, `pip install 'regard[ray]'`. Lines are numbered sentences of the built-in
corpus, so that every line differs. RUN is a translator from English, such as runs/demo.

Cluster: some of the lines are translated by one process with one thread, to measure the speed of one core; then all on
a Ray cluster of a head node without workers and nodes with one core each, of which one is killed and replaced several
times. Every line must appear once, with the text of `Translator`. Throughput is compared with the number of working
cores times the speed of one.

Memory: peak memory and time per line of `regard translate` on one folder, in a process of its own per size.

Writes benchmarks/results/scale-out.json, or --out; --merge keeps the other part of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import RESULTS, environment, save_result

from regard.data.builtin.corpus import load_pairs
from regard.decoding.settings import SearchSettings
from regard.pipelines.executors import LocalExecutor
from regard.pipelines.ray_executor import RayExecutor
from regard.pipelines.shard_jobs import TranslateJob, TranslatorSource
from regard.pipelines.shards import Folder, ShardRun
from regard.threads import available_cpus

SHARD_LINES = 50_000
PART_BYTES = 2**19
"""Largest size of a part: some seconds of work, so that a kill costs little."""
SAMPLE = 997
"""Every so many lines, the translation is compared with that of `Translator`."""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a translator from English")
    parser.add_argument("--lines", type=int, default=1_000_000, help="lines for the cluster")
    parser.add_argument("--kills", type=int, default=2, help="how often a node is killed")
    parser.add_argument("--nodes", type=int, default=2, help="nodes with a worker, besides the head node")
    parser.add_argument("--memory", type=int, nargs="+", help="numbers of lines for the measurement of memory instead")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="both parts with few lines")
    parser.add_argument("--merge", action="store_true", help="keep the other part of the result file")
    parser.add_argument("--out", type=Path, help="result file")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_lines(folder: Path, lines: int) -> Path:
    """Write shards of lines that all differ."""
    folder.mkdir(parents=True)
    texts = [pair.source for pair in load_pairs("train")]
    for shard, start in enumerate(range(0, lines, SHARD_LINES)):
        with (folder / f"{shard:05d}.jsonl").open("w", encoding="utf-8") as file:
            for i in range(start, min(start + SHARD_LINES, lines)):
                text = f"{texts[i % len(texts)]} {i // len(texts)}" if i >= len(texts) else texts[i]
                file.write(json.dumps({"id": i, "source": text}, ensure_ascii=False) + "\n")
    return folder


def job(run: Path, beam: int) -> TranslateJob:
    return TranslateJob(TranslatorSource((run.absolute(),), "cpu"), SearchSettings(beam=beam))


def open_run(source: Path, target: Path) -> ShardRun:
    size = sum(path.stat().st_size for path in source.iterdir())
    return ShardRun(Folder(source), Folder(target), "benchmark", {}, part_bytes=min(PART_BYTES, 1 + size // 16))


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def measure_one_core(options: argparse.Namespace, folder: Path) -> float:
    """Return the lines per second of one process with one thread on a twentieth of the lines."""
    lines = max(options.lines // 20, min(options.lines, 2000))
    run = open_run(write_lines(folder / "in-one", lines), folder / "out-one")
    started = time.perf_counter()
    list(run.run(job(options.run, options.beam), LocalExecutor(1, 1)))
    return lines / (time.perf_counter() - started)


def measure_cluster(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Translate on a cluster of which a node is killed and replaced several times."""
    import ray
    from ray.cluster_utils import Cluster

    speed = measure_one_core(options, folder)
    source = write_lines(folder / "in", options.lines)
    os.environ.update(
        RAY_worker_niceness="0", RAY_health_check_period_ms="1000", RAY_health_check_failure_threshold="5"
    )
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(options.nodes)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, logging_level="ERROR")
    run = open_run(source, folder / "out")
    parts = sum(len(run.parts(shard)) for shard in run.shards)
    kills_at = [parts * (i + 1) // (options.kills + 1) for i in range(options.kills)]
    started, first = time.perf_counter(), None
    results = run.run(job(options.run, options.beam), RayExecutor("ray", workers=options.nodes))
    for finished, done in enumerate(results, 1):
        first = first or (time.perf_counter(), done.result.rows)
        if finished in kills_at:
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1))
            print(f"killed and replaced a node after {finished} of {parts} parts", flush=True)
    run.finish()
    end = time.perf_counter()
    ray.shutdown()
    cluster.shutdown()
    assert first is not None
    # Actors import torch and load the model before the first part; a longer run makes this share smaller.
    throughput = (options.lines - first[1]) / (end - first[0])
    cores = min(options.nodes, available_cpus())
    return {
        "lines": options.lines,
        "nodes": options.nodes + 1,
        "kills": options.kills,
        "parts": parts,
        "one_core_lines_per_second": round(speed, 1),
        "cluster_lines_per_second": round(throughput, 1),
        "seconds_until_first_part": round(first[0] - started, 1),
        "share_of_summed_throughput": round(throughput / (cores * speed), 3),
        **check_output(options, folder / "out"),
    }


def check_output(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Check that every line appears once and in order, and compare some texts with those of `Translator`."""
    expected, texts, translations = 0, [], []
    for row in read_rows(out):
        if row["id"] != expected:
            sys.exit(f"line {expected} is missing or out of order")
        if expected % SAMPLE == 0:
            texts.append(row["source"])
            translations.append(row["translation"])
        expected += 1
    translator = TranslatorSource((options.run.absolute(),), "cpu").load()
    differing = sum(a != b for a, b in zip(translator(texts, beam=options.beam), translations, strict=True))
    return {
        "rows": expected,
        "every_line_once": expected == options.lines,
        "compared_texts": len(texts),
        "differing_texts": differing,
    }


def measure_memory(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    rows = []
    for lines in options.memory:
        source = write_lines(folder / f"in-{lines}", lines)
        command = [sys.executable, __file__, str(options.run), "--child", str(source), "--beam", str(options.beam)]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows.append({"lines": lines} | json.loads(out.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
        shutil.rmtree(source)
    return rows


def run_child(options: argparse.Namespace) -> None:
    """Translate a folder, and print peak memory and microseconds per line without the start."""
    run = open_run(options.child, options.child.with_name(f"{options.child.name}-out"))
    results = run.run(job(options.run, options.beam), LocalExecutor(1, 1))
    seconds = rows = 0.0
    for done in results:
        seconds, rows = seconds + done.seconds, rows + done.result.rows
    run.finish()
    shutil.rmtree(run.target.path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mib": round(peak, 1), "microseconds_per_line": round(1e6 * seconds / rows, 2)}))


def main() -> None:
    options = parse_options()
    if options.child:
        run_child(options)
        return
    if options.quick:
        options.lines, sizes = 4000, [1000, 4000]
    path = options.out or RESULTS / "scale-out.json"
    result = json.loads(path.read_text("utf-8")) if options.merge and path.exists() else {}
    result |= {"what": "batch work over shards with regard translate", "beam": options.beam}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if options.memory is None or options.quick:
            result["cluster"] = measure_cluster(options, Path(folder))
            print(json.dumps(result["cluster"]), flush=True)
        if options.quick:
            options.memory = sizes
        if options.memory is not None:
            result["memory"] = measure_memory(options, Path(folder))
    result |= environment("cpu", "ray")
    if not options.quick or options.out:
        save_result(result, path)


if __name__ == "__main__":
    main()
