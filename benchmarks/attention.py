"""What each kind of attention costs: time and peak memory from 256 to 65,536 tokens, beside full attention and peers.

    python benchmarks/attention.py [--device cuda] [--peers FOLDER] [--who local linear] [--lengths 256 1024]

One sequence, 8 heads of width 64, causal; float32 on a CPU, bfloat16 on a GPU. Local attention sees 128 tokens back;
routing has √n clusters, whose balance was learned on other random tokens first. Repetitions of all take turns, so that
a busy machine slows all alike; medians count. A call that would take longer than the budget, judged by half its length,
is left out, and so are longer ones. On a CPU malloc keeps what is freed, so that nobody pays for the same memory again
and again.

Peers are whatever of local-attention, routing-transformer, performer-pytorch, linear-attention-transformer and
flash-linear-attention lies in FOLDER (pip install --no-deps --target FOLDER ... einops axial-positional-embedding
mixture-of-experts product-key-memory hyper-connections torch-einops-utils CoLT5-attention linformer fla-core).

Writes benchmarks/results/attention-cpu.json or -gpu.json, where it replaces what it has measured anew and keeps the
rest, each row with its date, if that is of the same machine and versions; --out writes elsewhere, and --merge brings
such files home. With --plot it draws docs/images/attention-cost.svg from both and measures nothing.
"""

import argparse
import datetime
import importlib
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.evaluation.bench.attention import KINDS, WINDOW, AttentionFunction, Heads, Row, measure_length, too_slow
from regard.evaluation.bench.harness import describe_machine

HEADS, WIDTH = 8, 64
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LENGTHS = [2**power for power in range(8, 17)]
HOW = ("device", "repetitions", "budget", "lengths")
"""Arguments that say how everyone was measured, and are told with the results."""
KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(2**33), "MALLOC_TRIM_THRESHOLD_": str(2**35)}


# Who takes part


def peer_local(length: int) -> AttentionFunction:
    module = importlib.import_module("local_attention").LocalAttention(
        window_size=WINDOW, causal=True, look_backward=1, exact_windowsize=True, autopad=True, dim=None
    )
    return lambda q, k, v: module(q[0], k[0], v[0])[None]


def peer_routing(length: int) -> AttentionFunction:
    attention = importlib.import_module("routing_transformer.routing_transformer").KmeansAttention
    clusters = round(math.sqrt(length))
    module = attention(clusters, length // clusters, HEADS, WIDTH, causal=True)
    return _as_module(module, lambda out: out[0])


def peer_performer(length: int) -> AttentionFunction:
    attention = importlib.import_module("performer_pytorch").FastAttention
    return _as_module(attention(WIDTH, nb_features=256, causal=True), lambda out: out)


def peer_linear(length: int) -> AttentionFunction:
    """Exact with buckets of one token, which take a matrix for every token."""
    if length > 8192:
        raise MemoryError("a matrix for every token would take many gigabytes")
    attend = importlib.import_module("linear_attention_transformer.linear_attention_transformer").causal_linear_attn
    return lambda q, k, v: attend(q, k, v, bucket_size=1)


def peer_linear_coarse(length: int) -> AttentionFunction:
    """Sees whole buckets before its own and nothing of its own: less work than the others', and another result."""
    attend = importlib.import_module("linear_attention_transformer.linear_attention_transformer").causal_linear_attn
    return lambda q, k, v: attend(q, k, v, bucket_size=64)


def peer_fla(length: int) -> AttentionFunction:
    """Triton kernels, for GPUs alone. The same features and formula; what it divides by, it adds up in bfloat16."""
    attend = importlib.import_module("fla.ops.linear_attn").chunk_linear_attn

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context: Tensor = attend(F.elu(q) + 1, F.elu(k) + 1, v, normalize=True)[0]
        return context

    return call


PEERS: dict[str, tuple[str, Callable[[int], AttentionFunction]]] = {
    "local-attention": ("local", peer_local),
    "routing-transformer": ("routing", peer_routing),
    "performer-pytorch": ("linear-random", peer_performer),
    "linear-attention-transformer": ("linear", peer_linear),
    "linear-attention-transformer, coarse": ("", peer_linear_coarse),
    "flash-linear-attention": ("linear", peer_fla),
}


TOKENS_FIRST = {"flash-linear-attention"}
"""Who takes (B, T, H, D), and would copy what lies otherwise."""


class _Peer:
    """A peer's module on the right device, called as ours are."""

    def __init__(self, module: nn.Module, result: Callable[[Any], Tensor]) -> None:
        self.module, self.result = module.eval(), result

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.module.to(q.device)
        return self.result(self.module(q, k, v))


def _as_module(module: nn.Module, result: Callable[[Any], Tensor]) -> AttentionFunction:
    return _Peer(module, result)


# Drawing and saving


def plot(target: Path) -> None:
    """Time and memory of forward and backward, one panel for each device that has been measured."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "regard"
    from matplotlib import pyplot as plt

    from regard.evaluation.bench.plot import COLOURS

    found = [
        json.loads(path.read_text("utf-8"))
        for path in (RESULTS / "attention-cpu.json", RESULTS / "attention-gpu.json")
        if path.exists()
    ]
    dashes = {kind: iter(("--", ":", "-.")) for kind in KINDS}
    lines = [(name, name, "o-") for name in KINDS]
    lines += [(name, kind, next(dashes[kind])) for name, (kind, _) in PEERS.items() if kind]
    figure, panels = plt.subplots(len(found), 2, figsize=(11, 4.5 * len(found)), squeeze=False)
    for (time_panel, memory_panel), result in zip(panels, found, strict=True):
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


def show(rows: list[Row]) -> list[Row]:
    for row in rows:
        if "both" in row:
            figures = f"{row['forward'] * 1e3:10.2f} {row['both'] * 1e3:10.2f} ms {row['both_bytes'] / 2**20:9.1f} MiB"
            print(f"{row['length']:6} {row['name']:30} {figures}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="What each kind of attention costs.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peers", type=Path, help="folder with the peers' packages")
    parser.add_argument("--who", nargs="+", default=[*KINDS, *PEERS])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds that one call may take")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, help="where the results go instead of benchmarks/results")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="only add these results, from --out, to ours")
    parser.add_argument("--plot", action="store_true", help="only draw what has been measured")
    arguments = parser.parse_args()
    for path in arguments.merge:
        add(RESULTS / path.name, json.loads(path.read_text("utf-8")))
    if arguments.merge:
        return
    if arguments.plot:
        plot(ROOT / "docs" / "images" / "attention-cost.svg")
        return
    if arguments.device == "cpu" and not os.environ.keys() >= KEEP_FREED.keys():  # read once, when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_FREED)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    heads = Heads(HEADS, WIDTH, causal=True, device=device)
    if arguments.peers:
        # Peers would take files beside this one for packages of theirs.
        elsewhere = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
        sys.path[:] = [*elsewhere, str(arguments.peers)]
    target = (arguments.out or RESULTS) / f"attention-{'gpu' if device.type == 'cuda' else 'cpu'}.json"
    changed = [name for name in HOW if getattr(arguments, name) != parser.get_default(name)]
    about = describe(device, arguments, changed)
    read_earlier(target, about)
    rows: list[dict[str, Any]] = []
    dear: set[str] = set()  # whoever is too slow once has no row by which the next length could be judged
    for length in arguments.lengths:
        dear |= too_slow(rows, length, arguments.budget)
        people = {name: heads.bind(build(heads, length)) for name, build in KINDS.items() if name in arguments.who}
        for name, (_, build) in PEERS.items() if arguments.peers else ():
            try:
                if name in arguments.who:
                    people[name] = build(length)
            except Exception as error:  # a peer that cannot be imported here takes no part
                rows.append({"name": name, "length": length, "error": f"{type(error).__name__}: {error}"[:200]})
        people = {name: attend for name, attend in people.items() if name not in dear}
        rows += show(measure_length(people, heads, length, arguments.repetitions, arguments.budget, TOKENS_FIRST))
        add(target, about | {"rows": rows})


def describe(device: torch.device, arguments: argparse.Namespace, changed: list[str]) -> dict[str, Any]:
    """What is measured, where and with what; `changed` are the arguments that are not as they are by themselves."""
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    return {
        "what": f"causal attention of one sequence, {HEADS} heads of width {WIDTH}, {dtype}; seconds and bytes of "
        "forward, and of forward and backward",
        "peers": {name: kind for name, (kind, _) in PEERS.items()},
        "budget": arguments.budget,
        "machine": describe_machine(device),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/attention.py", "--peers", "FOLDER", *tell(arguments, changed)]),
    }


def tell(arguments: argparse.Namespace, names: list[str]) -> Iterator[str]:
    """Words of a command that give these arguments the values that they have."""
    for name in names:
        value = getattr(arguments, name)
        yield from (f"--{name}", *map(str, value if isinstance(value, list) else [value]))


def read_earlier(target: Path, about: dict[str, Any]) -> dict[str, Any]:
    """What a file holds that new results will be added to, if there is one.

    Ends the program where it is of another machine or of other versions: side by side, times would say nothing.
    """
    if not target.exists():
        return about | {"rows": []}
    before: dict[str, Any] = json.loads(target.read_text("utf-8"))
    for key in ("what", "machine", "versions"):
        if before[key] != about[key]:
            sys.exit(
                f"{target}: {key} is {before[key]} there and {about[key]} here; measure all anew with --out, and put "
                "that in its place"
            )
    return before


def add(target: Path, result: dict[str, Any]) -> None:
    """Puts results into a file; what was measured before and not again stays, with the date that it has."""
    rows = {}
    for source in (read_earlier(target, result), result):
        rows |= {(row["name"], row["length"]): {"date": source["date"]} | row for row in source["rows"]}
    target.parent.mkdir(parents=True, exist_ok=True)
    merged = result | {"rows": [rows[name] for name in sorted(rows)]}
    target.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
