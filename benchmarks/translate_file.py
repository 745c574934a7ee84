"""Translates a long file with `regard translate` and watches the memory of the process.

    python benchmarks/translate_file.py RUN [--lines 100000] [--threads 1] [--beam 1]

The built-in corpus, repeated to so many lines, is translated by a process of its own. Its resident memory is
read from /proc while it works. It goes up and down within a window of 2048 lines, so peaks are compared with peaks:
after the first tenth of the lines, the highest one may be no more than 50 MB above the highest before. Writes
benchmarks/results/translate-file-beamN.json.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from regard.data.builtin.corpus import load_pairs

ALLOWED_MB = 50
SECONDS_BETWEEN_SAMPLES = 0.25
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--beam", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "source.en", Path(folder) / "output.zh"
        sentences = [pair.source for pair in load_pairs("train", min(arguments.lines, 40_000))]
        source.write_text("".join(f"{line}\n" for line in islice(cycle(sentences), arguments.lines)), encoding="utf-8")
        samples = watch(arguments.run, source, output, arguments.threads, arguments.beam)
        written = output.read_bytes().count(b"\n")
    assert written == arguments.lines, f"{written} lines were written of {arguments.lines}"
    early, late = split(samples, arguments.lines / 10)
    growth = max(late) - max(early)
    # From the first lines in the output on: starting Python and loading the model are not a matter of lines.
    seconds = samples[-1]["seconds"] - next(sample["seconds"] for sample in samples if sample["lines"])
    first = next(sample["lines"] for sample in samples if sample["lines"])
    speed = (arguments.lines - first) / seconds
    print(
        f"{arguments.lines} lines, {speed:.0f} lines/s, {max(early):.0f} MB in the first tenth, {growth:+.0f} MB then"
    )
    result = {
        "what": f"regard translate of {arguments.lines} lines, beam {arguments.beam}: resident memory and speed",
        "lines": arguments.lines,
        "lines_per_second": round(speed, 1),
        "highest_mb_in_the_first_tenth": round(max(early), 1),
        "highest_mb_afterwards": round(max(late), 1),
        "growth_mb": round(growth, 1),
        "median_mb_by_tenths": [
            round(median(s["mb"] for s in samples if tenth < 10 * s["lines"] / arguments.lines <= tenth + 1), 1)
            for tenth in range(10)
        ],
        "allowed_mb": ALLOWED_MB,
        "samples": thin(samples, 40),
        "threads": arguments.threads,
        "command": f"python benchmarks/translate_file.py RUN --beam {arguments.beam} --lines {arguments.lines}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    path = RESULTS / f"translate-file-beam{arguments.beam}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    assert growth < ALLOWED_MB, f"memory grew by {growth:.0f} MB after the first tenth"


def watch(run: Path, source: Path, output: Path, threads: int, beam: int) -> list[dict[str, float]]:
    """Translates in a process of its own; seconds, lines in the output and resident megabytes, again and again."""
    files = ["--input", str(source), "--output", str(output)]
    words = ["translate", str(run), *files, "--beam", str(beam), "--device", "cpu"]
    samples: list[dict[str, float]] = []
    started = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    lines = position = 0
    with subprocess.Popen([sys.executable, "-m", "regard.cli", *words], env=environment) as process:
        while process.poll() is None:
            resident = resident_mb(process.pid)
            if output.exists():
                with output.open("rb") as file:  # only what is new
                    file.seek(position)
                    new = file.read()
                lines, position = lines + new.count(b"\n"), position + len(new)
            if resident is not None:
                samples.append({"seconds": round(time.perf_counter() - started, 2), "lines": lines, "mb": resident})
            time.sleep(SECONDS_BETWEEN_SAMPLES)
    assert process.returncode == 0, f"regard translate ended with code {process.returncode}"
    return samples


def resident_mb(pid: int) -> float | None:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return None  # it has just ended


def split(samples: list[dict[str, float]], lines: float) -> tuple[list[float], list[float]]:
    """The megabytes up to so many lines in the output, and afterwards."""
    early = [sample["mb"] for sample in samples if sample["lines"] <= lines]
    return early, [sample["mb"] for sample in samples if sample["lines"] > lines]


def thin(samples: list[dict[str, float]], count: int) -> list[dict[str, float]]:
    step = max(1, len(samples) // count)
    return samples[::step]


if __name__ == "__main__":
    main()
