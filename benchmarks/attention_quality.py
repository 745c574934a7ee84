"""What each kind of attention keeps and loses: recall and copying at long range, and the built-in corpus.

    python benchmarks/attention_quality.py [--device cuda] [--jobs 4] [--tasks recall copy] [--kinds full ...]

recall: pairs of a key and a value, noise, then the keys again in another order; the value must be named after each.
copy: random letters, a sign, and the same letters again. Both are read by a causal stack of two blocks, width 64,
2 heads, 128 tokens; accuracy is over 1,000 unseen sequences, on what can be known. corpus: the demo's recipe, with one
line changed; BLEU on the validation set. Each with several seeds, every one in a process of its own. Writes
benchmarks/results/attention-quality.json, where it replaces what it has measured anew and keeps the rest, each row with
its machine, version and date.
"""

import argparse
import datetime
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
from pydantic import TypeAdapter
from torch import Tensor, nn

from regard.attention.kinds import AttentionSettings
from regard.attention.masks import Mask
from regard.attention.multi_head import Attention
from regard.attention.positions import Rotary
from regard.layers import EncoderBlock, FeedForward
from regard.training.recipe import Recipe
from regard.training.run import run_recipe

RESULTS = Path(__file__).parent / "results" / "attention-quality.json"
KINDS: dict[str, Any] = {
    "full": {"kind": "full"},
    "local": {"kind": "local", "window": 16},
    "linear": {"kind": "linear"},
    "linear-random": {"kind": "linear", "features": "random"},
    "linear-plain": {"kind": "linear", "features": "plain"},
    "routing": {"kind": "routing", "clusters": 8},
}
LENGTH, WIDTH, HEADS, LAYERS = 128, 64, 2, 2
VOCAB, PAIRS, LETTERS = 96, 16, 60  # 32 keys, 32 values, 31 letters of noise, a sign
Batch = tuple[Tensor, Tensor]  # tokens, and what must be named at each place; -100: nothing


# Tasks


def recall(batch: int, device: torch.device) -> Batch:
    keys = torch.rand(batch, 32, device=device).argsort(1)[:, :PAIRS] + 1
    values = torch.randint(33, 65, (batch, PAIRS), device=device)
    told = torch.stack((keys, values), 2).flatten(1)
    noise = torch.randint(65, 95, (batch, LENGTH - 2 * told.shape[1]), device=device)
    order = torch.rand(batch, PAIRS, device=device).argsort(1)
    asked = torch.stack((keys.gather(1, order), values.gather(1, order)), 2).flatten(1)
    tokens = torch.cat((told, noise, asked), 1)
    labels = torch.full_like(tokens, -100)
    labels[:, LENGTH - 2 * PAIRS :: 2] = values.gather(1, order)
    return tokens, labels


def copy(batch: int, device: torch.device) -> Batch:
    letters = torch.randint(1, 33, (batch, LETTERS), device=device)
    sign = torch.full((batch, 1), 95, device=device)
    tokens = torch.cat((letters, sign, letters), 1)
    labels = torch.full_like(tokens, -100)
    labels[:, LETTERS:-1] = letters
    return tokens, labels


TASKS: dict[str, Callable[[int, torch.device], Batch]] = {"recall": recall, "copy": copy}


class Reader(nn.Module):
    """A causal stack that names the next token."""

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
    """Trains on fresh sequences, never one twice; the accuracy is on unseen ones."""
    torch.manual_seed(seed)
    make, model = TASKS[task], Reader(KINDS[kind]).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps, pct_start=0.1)
    begin = time.perf_counter()
    for step in range(steps):
        tokens, labels = make(32, device)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"{task} {kind} {seed} {step}: {loss.item():.3f}", file=sys.stderr, flush=True)
    model.eval()
    torch.manual_seed(1000)
    right = asked = 0
    with torch.no_grad():
        for _ in range(10):
            tokens, labels = make(100, device)
            known = labels >= 0
            right += int((model(tokens).argmax(-1) == labels)[known].sum())
            asked += int(known.sum())
    return {"accuracy": right / asked, "steps": steps, "seconds": round(time.perf_counter() - begin, 1)}


def run_corpus(kind: str, seed: int, steps: int | None, device: torch.device) -> dict[str, Any]:
    """The demo's recipe with another attention."""
    changes = [f"model.attention={json.dumps(KINDS[kind])}", f"training.device={device.type}", f"training.seed={seed}"]
    changes += [] if steps is None else [f"training.steps={steps}", f"training.validate_every={steps}"]
    recipe = Recipe.load(Path("demo"), changes)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_recipe(recipe, Path(folder) / "run")
    return {**outcome.scores, "steps": outcome.steps, "seconds": round(outcome.seconds, 1)}


def run_all(arguments: argparse.Namespace) -> None:
    """Every task with every kind and seed, each in a process of its own; whatever is done is saved at once."""
    saving = threading.Lock()

    def one(job: tuple[str, str, int]) -> None:
        command = [sys.executable, __file__, "--only", *job, "--device", arguments.device]
        command += ["--threads", arguments.threads]
        command += [] if arguments.steps is None else ["--steps", arguments.steps]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(row), flush=True)
        with saving:
            save(arguments.out, row, arguments.device)

    # The longest first, and one seed of all before the next of any.
    jobs = [(task, kind, seed) for seed in arguments.seeds for task in arguments.tasks for kind in arguments.kinds]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, jobs))


def save(target: Path, row: dict[str, Any], device: str) -> None:
    """Puts one row into the results, in place of the same one measured before."""

    def name(row: dict[str, Any]) -> tuple[str, int, int]:
        return row["task"], list(KINDS).index(row["kind"]), row["seed"]

    before = json.loads(target.read_text("utf-8"))["rows"] if target.exists() else []
    row = {"torch": torch.__version__, "date": datetime.datetime.now(datetime.UTC).date().isoformat()} | row
    rows = sorted([row, *(old for old in before if name(old) != name(row))], key=name)
    result = {
        "what": f"recall of {PAIRS} pairs and copying of {LETTERS} letters, {LAYERS} causal blocks, width {WIDTH}; "
        "the demo's recipe",
        "kinds": KINDS,
        "rows": rows,
        **{key: _all_of(rows, key) for key in ("machine", "date")},
        "versions": {"torch": _all_of(rows, "torch")},
        "command": f"python benchmarks/attention_quality.py --device {device}",
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _all_of(rows: list[dict[str, Any]], key: str) -> str:
    """What rows say of this, all that they say."""
    return ", ".join(sorted({row[key] for row in rows}))


def machine(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description="What each kind of attention keeps and loses.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", nargs="+", default=["corpus", *TASKS])
    parser.add_argument("--kinds", nargs="+", default=[*KINDS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="for a trial; otherwise 1,000, and what the recipe says")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--only", nargs=3, metavar=("TASK", "KIND", "SEED"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    if arguments.only:
        task, kind, seed = arguments.only[0], arguments.only[1], int(arguments.only[2])
        if task == "corpus":
            found = run_corpus(kind, seed, arguments.steps, device)
        else:
            found = run_task(task, kind, seed, arguments.steps or 1000, device)
        print(json.dumps({"task": task, "kind": kind, "seed": seed, "machine": machine(device)} | found))
        return
    run_all(arguments)


if __name__ == "__main__":
    main()
