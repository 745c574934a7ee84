"""Time and peak memory of each kind of attention from 256 to 65,536 tokens, next to full attention and other libraries.

    python benchmarks/attention.py [--device cuda] [--libraries FOLDER] [--systems local linear] [--lengths 256 1024]

One causal sequence, 8 heads of width 64; float32 on a CPU, bfloat16 on a GPU. Local attention attends to the previous
128 tokens; routing has √n clusters, balanced on other random tokens. Systems alternate, and medians are reported. A
system is skipped at lengths where a call is expected to exceed the budget, judged by half the length. On a CPU, malloc
keeps freed memory, so that no system pays for allocating the same memory repeatedly.

Other libraries are those of local-attention, routing-transformer, performer-pytorch, linear-attention-transformer and
flash-linear-attention that FOLDER contains (pip install --no-deps --target FOLDER ... einops axial-positional-embedding
mixture-of-experts product-key-memory hyper-connections torch-einops-utils CoLT5-attention linformer fla-core).

Updates benchmarks/results/attention-cpu.json or -gpu.json, or --out: other rows of the file are kept with their date,
if machine and versions are the same. --plot only draws docs/images/attention-cost.svg from both files.
"""

import argparse
import importlib
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import RESULTS, default_threads, environment, save_result
from torch import Tensor, nn

from regard.evaluation.benchmark.attention import KINDS, WINDOW, AttentionFunction, Heads, Row, measure_length, too_slow

HEADS, WIDTH = 8, 64
FIGURE = Path(__file__).parent.parent / "docs" / "images" / "attention-cost.svg"
LENGTHS = [2**power for power in range(8, 17)]
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**35)}


# Other libraries


def local_attention(length: int) -> AttentionFunction:
    module = importlib.import_module("local_attention").LocalAttention(
        window_size=WINDOW, causal=True, look_backward=1, exact_windowsize=True, autopad=True, dim=None
    )
    return lambda q, k, v: module(q[0], k[0], v[0])[None]


def routing_transformer(length: int) -> AttentionFunction:
    attention = importlib.import_module("routing_transformer.routing_transformer").KmeansAttention
    clusters = round(math.sqrt(length))
    module = attention(clusters, length // clusters, HEADS, WIDTH, causal=True)
    return _as_function(module, lambda output: output[0])


def performer(length: int) -> AttentionFunction:
    attention = importlib.import_module("performer_pytorch").FastAttention
    return _as_function(attention(WIDTH, nb_features=256, causal=True), lambda output: output)


def linear_attention_transformer(length: int) -> AttentionFunction:
    """Exact linear attention: buckets of one token, with a matrix for every token."""
    if length > 8192:
        raise MemoryError("a matrix for every token would take many gigabytes")
    attend = importlib.import_module("linear_attention_transformer.linear_attention_transformer").causal_linear_attn
    return lambda q, k, v: attend(q, k, v, bucket_size=1)


def linear_attention_transformer_coarse(length: int) -> AttentionFunction:
    """Attends only to earlier buckets of 64 tokens: less work than the others, and another result."""
    attend = importlib.import_module("linear_attention_transformer.linear_attention_transformer").causal_linear_attn
    return lambda q, k, v: attend(q, k, v, bucket_size=64)


def flash_linear_attention(length: int) -> AttentionFunction:
    """Triton kernels for the same features and formula, with the normaliser summed in bfloat16; GPU only."""
    attend = importlib.import_module("fla.ops.linear_attn").chunk_linear_attn

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context: Tensor = attend(F.elu(q) + 1, F.elu(k) + 1, v, normalize=True)[0]
        return context

    return call


LIBRARIES: dict[str, tuple[str, Callable[[int], AttentionFunction]]] = {  # name: our kind with the same work
    "local-attention": ("local", local_attention),
    "routing-transformer": ("routing", routing_transformer),
    "performer-pytorch": ("linear-random", performer),
    "linear-attention-transformer": ("linear", linear_attention_transformer),
    "linear-attention-transformer, coarse": ("", linear_attention_transformer_coarse),
    "flash-linear-attention": ("linear", flash_linear_attention),
}
TOKENS_FIRST = {"flash-linear-attention"}
"""Libraries whose inputs are (B, T, H, D)."""


def _as_function(module: nn.Module, get_context: Callable[[Any], Tensor]) -> AttentionFunction:
    """Return a module as a function that moves it to the device of the inputs."""
    module.eval()
    return lambda q, k, v: get_context(module.to(q.device)(q, k, v))


# Plotting and saving


def plot(target: Path) -> None:
    """Plot time and memory of the forward and backward pass, one row of panels for each device."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "regard"
    from matplotlib import pyplot as plt

    from regard.evaluation.benchmark.plot import COLOURS

    results = [
        json.loads(path.read_text("utf-8"))
        for path in (RESULTS / "attention-cpu.json", RESULTS / "attention-gpu.json")
        if path.exists()
    ]
    dashes = {kind: iter(("--", ":", "-.")) for kind in KINDS}
    lines = [(name, name, "o-") for name in KINDS]
    lines += [(name, kind, next(dashes[kind])) for name, (kind, _) in LIBRARIES.items() if kind]
    figure, panels = plt.subplots(len(results), 2, figsize=(11, 4.5 * len(results)), squeeze=False)
    for (time_panel, memory_panel), result in zip(panels, results, strict=True):
        for panel, what, label, factor in (
            (time_panel, "both", "time, ms", 1e3),
            (memory_panel, "both_bytes", "peak memory, MiB", 2**-20),
        ):
            for name, kind, style in lines:
                points = [
                    (row["length"], row[what] * factor) for row in result["rows"] if row["name"] == name and what in row
                ]
                if points:
                    colour = COLOURS[list(KINDS).index(kind)]
                    width = 1.6 if name in KINDS else 1.0
                    panel.loglog(*zip(*points, strict=True), style, ms=3, lw=width, label=name, color=colour)
            panel.set(xlabel="tokens", ylabel=label)
            panel.set_xscale("log", base=2)
            panel.set_title(result["machine"], fontsize=8)
            panel.grid(True, which="major", alpha=0.3)
        memory_panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def print_rows(rows: list[Row]) -> None:
    for row in rows:
        if "both" in row:
            costs = f"{row['forward'] * 1e3:10.2f} {row['both'] * 1e3:10.2f} ms {row['both_bytes'] / 2**20:9.1f} MiB"
            print(f"{row['length']:6} {row['name']:30} {costs}", flush=True)


def describe(device: torch.device, budget: float) -> dict[str, Any]:
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    return {
        "what": f"causal attention of one sequence, {HEADS} heads of width {WIDTH}, {dtype}; seconds and bytes of "
        "forward, and of forward and backward",
        "other_libraries": {name: kind for name, (kind, _) in LIBRARIES.items()},
        "budget": budget,
        **environment(device),
    }


def read_previous(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return the existing result; exit if it is of another machine or of other versions."""
    if not path.exists():
        return about | {"rows": []}
    previous: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for key in ("what", "machine", "versions"):
        if previous[key] != about[key]:
            sys.exit(
                f"{path}: {key} is {previous[key]}, not {about[key]}; measure everything into a new file with --out"
            )
    return previous


def merge(path: Path, result: dict[str, Any]) -> None:
    """Add the rows of a result to a file; rows that were not measured again keep their date."""
    rows = {}
    for source in (read_previous(path, result), result):
        rows |= {(row["name"], row["length"]): {"date": source["date"]} | row for row in source["rows"]}
    save_result(result | {"rows": [rows[key] for key in sorted(rows)]}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--libraries", type=Path, help="folder of other libraries")
    parser.add_argument("--systems", nargs="+", default=[*KINDS, *LIBRARIES])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--budget", type=float, default=10.0, help="maximum seconds of a call")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--out", type=Path, help="result file, instead of one in benchmarks/results")
    parser.add_argument("--plot", action="store_true", help="only draw the figure")
    arguments = parser.parse_args()
    if arguments.plot:
        plot(FIGURE)
        return
    if arguments.device == "cpu" and not os.environ.keys() >= MALLOC_SETTINGS.keys():  # malloc reads them at start
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | MALLOC_SETTINGS)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    heads = Heads(HEADS, WIDTH, causal=True, device=device)
    if arguments.libraries:
        # Without this folder, whose modules would shadow packages that the libraries import.
        others = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
        sys.path[:] = [*others, str(arguments.libraries)]
    path = arguments.out or RESULTS / f"attention-{'gpu' if device.type == 'cuda' else 'cpu'}.json"
    about = describe(device, arguments.budget)
    read_previous(path, about)  # fails early
    rows: list[Row] = []
    skipped: set[str] = set()
    for length in arguments.lengths:
        skipped |= too_slow(rows, length, arguments.budget)
        selected = [name for name in arguments.systems if name not in skipped]
        systems = {name: heads.bind(build(heads, length)) for name, build in KINDS.items() if name in selected}
        for name, (_, build) in LIBRARIES.items() if arguments.libraries else ():
            try:
                if name in selected:
                    systems[name] = build(length)
            except Exception as error:  # a library may be missing or unable to run here
                rows.append({"name": name, "length": length, "error": f"{type(error).__name__}: {error}"[:200]})
        measured = measure_length(systems, heads, length, arguments.repetitions, arguments.budget, TOKENS_FIRST)
        print_rows(measured)
        rows += measured
        merge(path, about | {"rows": rows})


if __name__ == "__main__":
    main()
