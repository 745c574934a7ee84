"""Translate a long file with `regard translate` and measure the memory of the process.

    python benchmarks/translate_file.py RUN [--lines 100000] [--threads 1] [--beam 1]

The built-in corpus, repeated to the given number of lines, is translated in a separate process whose resident memory is
read from /proc. Memory varies within a window of 2048 lines, so peaks are compared: after the first tenth of the lines
the peak may exceed the earlier peak by at most 50 MB. Writes benchmarks/results/translate-file-beamN.json.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from harness import environment, save_result

from regard.data.builtin.corpus import load_pairs

ALLOWED_MB = 50
SECONDS_BETWEEN_SAMPLES = 0.25


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
        samples = monitor_memory(arguments.run, source, output, arguments.threads, arguments.beam)
        written = output.read_bytes().count(b"\n")
    assert written == arguments.lines, f"{written} of {arguments.lines} lines were written"
    early, late = split(samples, arguments.lines / 10)
    growth = max(late) - max(early)
    # Measured from the first output lines, which excludes starting Python and loading the model.
    seconds = samples[-1]["seconds"] - next(sample["seconds"] for sample in samples if sample["lines"])
    first = next(sample["lines"] for sample in samples if sample["lines"])
    speed = (arguments.lines - first) / seconds
    print(
        f"{arguments.lines} lines, {speed:.0f} lines/s, {max(early):.0f} MB in the first tenth, {growth:+.0f} MB after"
    )
    result = {
        "what": f"regard translate of {arguments.lines} lines, beam {arguments.beam}: resident memory and speed",
        "lines": arguments.lines,
        "lines_per_second": round(speed, 1),
        "peak_mb_in_first_tenth": round(max(early), 1),
        "peak_mb_afterwards": round(max(late), 1),
        "growth_mb": round(growth, 1),
        "median_mb_by_tenths": [
            round(median(s["mb"] for s in samples if tenth < 10 * s["lines"] / arguments.lines <= tenth + 1), 1)
            for tenth in range(10)
        ],
        "allowed_mb": ALLOWED_MB,
        "samples": thin(samples, 40),
        "threads": arguments.threads,
        **environment(),
        "command": f"python benchmarks/translate_file.py RUN --beam {arguments.beam} --lines {arguments.lines}",
    }
    save_result(result, f"translate-file-beam{arguments.beam}")
    assert growth < ALLOWED_MB, f"memory grew by {growth:.0f} MB after the first tenth"


def monitor_memory(run: Path, source: Path, output: Path, threads: int, beam: int) -> list[dict[str, float]]:
    """Translate in a separate process and sample (seconds, output lines, resident megabytes)."""
    files = ["--input", str(source), "--output", str(output)]
    words = ["translate", str(run), *files, "--beam", str(beam), "--device", "cpu"]
    samples: list[dict[str, float]] = []
    started = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    lines = position = 0
    with subprocess.Popen([sys.executable, "-m", "regard", *words], env=environment) as process:
        while process.poll() is None:
            resident = resident_mb(process.pid)
            if output.exists():
                with output.open("rb") as file:  # only the new part
                    file.seek(position)
                    new = file.read()
                lines, position = lines + new.count(b"\n"), position + len(new)
            if resident is not None:
                samples.append({"seconds": round(time.perf_counter() - started, 2), "lines": lines, "mb": resident})
            time.sleep(SECONDS_BETWEEN_SAMPLES)
    assert process.returncode == 0, f"regard translate exited with code {process.returncode}"
    return samples


def resident_mb(pid: int) -> float | None:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return None  # the process has just ended


def split(samples: list[dict[str, float]], lines: float) -> tuple[list[float], list[float]]:
    """Memory samples up to this number of output lines, and afterwards."""
    early = [sample["mb"] for sample in samples if sample["lines"] <= lines]
    return early, [sample["mb"] for sample in samples if sample["lines"] > lines]


def thin(samples: list[dict[str, float]], count: int) -> list[dict[str, float]]:
    step = max(1, len(samples) // count)
    return samples[::step]


if __name__ == "__main__":
    main()
