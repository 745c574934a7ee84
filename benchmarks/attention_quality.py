"""Quality of each kind of attention: recall and copying over long distances, and the built-in corpus.

    python benchmarks/attention_quality.py [--device cuda] [--jobs 4] [--tasks recall copy] [--kinds full ...]

recall: pairs of a key and a value, noise, then the keys in another order; the model predicts the value after each key.
copy: random letters, a separator, and the same letters again. Both use two causal blocks of width 64 with 2 heads on
128 tokens; accuracy is over 1,000 unseen sequences and all predictable tokens. corpus: BLEU of the demo recipe on its
validation set. Every task, kind and seed runs in its own process. Updates benchmarks/results/attention-quality.json:
other rows of the file are kept, each with its machine, version and date.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import RESULTS, environment, save_result
from pydantic import TypeAdapter
from torch import Tensor, nn

from regard.attention.kinds import AttentionSettings
from regard.attention.multi_head import Attention, Rotary
from regard.layers import EncoderBlock, FeedForward
from regard.masks import Mask
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

KINDS: dict[str, Any] = {
    "full": {"kind": "full"},
    "local": {"kind": "local", "window": 16},
    "linear": {"kind": "linear"},
    "linear-random": {"kind": "linear", "features": "random"},
    "linear-plain": {"kind": "linear", "features": "plain"},
    "routing": {"kind": "routing", "clusters": 8},
}
LENGTH, WIDTH, HEADS, LAYERS = 128, 64, 2, 2
VOCAB, PAIRS, LETTERS = 96, 16, 60  # 32 keys, 32 values, 31 noise tokens, a separator
Batch = tuple[Tensor, Tensor]  # tokens, and labels with -100 where nothing is predicted


# Tasks


def recall(batch: int, device: torch.device) -> Batch:
    keys = torch.rand(batch, 32, device=device).argsort(1)[:, :PAIRS] + 1
    values = torch.randint(33, 65, (batch, PAIRS), device=device)
    shown = torch.stack((keys, values), 2).flatten(1)
    noise = torch.randint(65, 95, (batch, LENGTH - 2 * shown.shape[1]), device=device)
    order = torch.rand(batch, PAIRS, device=device).argsort(1)
    queried = torch.stack((keys.gather(1, order), values.gather(1, order)), 2).flatten(1)
    tokens = torch.cat((shown, noise, queried), 1)
    labels = torch.full_like(tokens, -100)
    labels[:, LENGTH - 2 * PAIRS :: 2] = values.gather(1, order)
    return tokens, labels


def copy(batch: int, device: torch.device) -> Batch:
    letters = torch.randint(1, 33, (batch, LETTERS), device=device)
    separator = torch.full((batch, 1), 95, device=device)
    tokens = torch.cat((letters, separator, letters), 1)
    labels = torch.full_like(tokens, -100)
    labels[:, LETTERS:-1] = letters
    return tokens, labels


TASKS: dict[str, Callable[[int, torch.device], Batch]] = {"recall": recall, "copy": copy}


class LanguageModel(nn.Module):
    """A causal stack of blocks."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        settings: Any = TypeAdapter(AttentionSettings).validate_python(attention)
        width = WIDTH // HEADS
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                Attention(WIDTH, HEADS, rotary=Rotary(width), kind=settings.build(HEADS, width)),
                FeedForward(WIDTH, 4 * WIDTH),
                "pre",
            )
            for _ in range(LAYERS)
        )
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB))

    def forward(self, tokens: Tensor) -> Tensor:
        x, mask = self.embedding(tokens), Mask(causal=True)
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        for block in self.blocks:
            x = block(x, mask, positions)
        y: Tensor = self.out(x)
        return y


def run_task(task: str, kind: str, seed: int, steps: int, device: torch.device) -> dict[str, Any]:
    """Train on new sequences in every step, and return the accuracy on unseen ones."""
    torch.manual_seed(seed)
    make, model = TASKS[task], LanguageModel(KINDS[kind]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    start = time.perf_counter()
    for step in range(steps):
        tokens, labels = make(32, device)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"{task} {kind} {seed} {step}: {loss.item():.3f}", file=sys.stderr, flush=True)
    model.eval()
    torch.manual_seed(1000)
    correct = total = 0
    with torch.no_grad():
        for _ in range(10):
            tokens, labels = make(100, device)
            predicted = labels >= 0
            correct += int((model(tokens).argmax(-1) == labels)[predicted].sum())
            total += int(predicted.sum())
    return {"accuracy": correct / total, "steps": steps, "seconds": round(time.perf_counter() - start, 1)}


def run_corpus(kind: str, seed: int, steps: int | None, device: torch.device) -> dict[str, Any]:
    """Train the demo recipe with this kind of attention."""
    changes = [f"model.attention={json.dumps(KINDS[kind])}", f"training.device={device.type}", f"training.seed={seed}"]
    changes += [] if steps is None else [f"training.steps={steps}", f"training.validate_every={steps}"]
    recipe = load_recipe(Path("demo"), changes)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_recipe(recipe, Path(folder) / "run")
    return {**outcome.scores, "steps": outcome.steps, "seconds": round(outcome.seconds, 1)}


def run_all(arguments: argparse.Namespace) -> None:
    """Run every task with every kind and seed in its own process, and save each row at once."""
    lock = threading.Lock()

    def run(job: tuple[str, str, int]) -> None:
        command = [sys.executable, __file__, "--only", *job, "--device", arguments.device]
        command += ["--threads", arguments.threads]
        command += [] if arguments.steps is None else ["--steps", arguments.steps]
        completed = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
        row: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
        print(json.dumps(row), flush=True)
        with lock:
            save_row(arguments.out, row, arguments.device)

    jobs = [(task, kind, seed) for seed in arguments.seeds for task in arguments.tasks for kind in arguments.kinds]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, jobs))


def save_row(path: Path, row: dict[str, Any], device: str) -> None:
    """Add a row to the result, or replace the row of the same task, kind and seed."""

    def key(row: dict[str, Any]) -> tuple[str, int, int]:
        return row["task"], list(KINDS).index(row["kind"]), row["seed"]

    previous = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    rows = sorted([row, *(other for other in previous if key(other) != key(row))], key=key)

    def list_values(name: str) -> str:
        return ", ".join(sorted({row[name] for row in rows}))

    result = {
        "what": f"recall of {PAIRS} pairs and copying of {LETTERS} letters, {LAYERS} causal blocks, width {WIDTH}; "
        "the demo's recipe",
        "kinds": KINDS,
        "rows": rows,
        "machine": list_values("machine"),
        "date": list_values("date"),
        "versions": {"torch": list_values("torch")},
        "command": f"python benchmarks/attention_quality.py --device {device}",
    }
    save_result(result, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", nargs="+", default=["corpus", *TASKS])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="by default 1,000, or those of the demo recipe")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes at a time")
    parser.add_argument("--threads", type=int, default=2, help="threads of each process")
    parser.add_argument("--only", nargs=3, metavar=("TASK", "KIND", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "attention-quality.json")
    arguments = parser.parse_args()
    if not arguments.only:
        run_all(arguments)
        return
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    task, kind, seed = arguments.only[0], arguments.only[1], int(arguments.only[2])
    if task == "corpus":
        outcome = run_corpus(kind, seed, arguments.steps, device)
    else:
        outcome = run_task(task, kind, seed, arguments.steps or 1000, device)
    current = environment(device)
    about = {"machine": current["machine"], "torch": torch.__version__, "date": current["date"]}
    print(json.dumps({"task": task, "kind": kind, "seed": seed} | about | outcome))


if __name__ == "__main__":
    main()
