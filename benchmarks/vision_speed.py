"""Training steps of ViT-B/16 beside Hugging Face's ViTForImageClassification, with the same weights.

    python benchmarks/vision_speed.py --device cuda [--compile] [--out FILE] [--quick]

Batches of 256 random images of 224×224 that lie on the device already; bfloat16 autocast, cross-entropy, fused AdamW.
All begin with the same weights, and their logits are compared before anything is measured, in float32. Ours takes steps
as the training loop does: plainly, then recorded (training.cuda_graph); with --compile also compiled (training.compile
with cuda_graph=false), both (training.compile), and at last transformers compiled. They come in stages: newcomers warm
up, then all take turns, so that a machine that grows warm or busy slows all alike; medians count, and the
file is written anew, so that a later stage that fails or runs out of time takes nothing away. Some two and a half
minutes on an H200, mostly of compiling. --quick is a tiny model, to see that the script runs.

Writes benchmarks/results/vision-speed-gpu.json or -cpu.json, or --out.
"""

import argparse
import datetime
import json
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from regard.evaluation.bench.environment import describe_machine
from regard.interop.huggingface_vision import from_huggingface
from regard.models.vit import ViT, ViTConfig
from regard.ops.linear import HalfWeights
from regard.training.cuda_graph import WARMUP_STEPS, StepGraph

RESULTS = Path(__file__).parent / "results"
CLASSES = 1000
EPS = 1e-12
QUICK = {"image": 32, "patch": 8, "width": 64, "layers": 2, "heads": 4, "hidden": 128}
Batch = tuple[Tensor, Tensor]


class Contender:
    """A model with its optimiser; `run` is the model, or what was compiled of it."""

    def __init__(self, name: str, model: nn.Module, run: Callable[[Tensor], Any] | None = None) -> None:
        self.name, self.model, self.run = name, model, model if run is None else run
        self.device = next(model.parameters()).device
        cuda = self.device.type == "cuda"
        recorded = "recorded" in name
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=1e-4, weight_decay=0.05, fused=True, capturable=recorded and cuda
        )
        rounds = cuda and isinstance(model, ViT) and run is None
        self.half_weights = HalfWeights(model) if rounds else nullcontext()
        self.recorder: StepGraph[Batch, Tensor] | None = StepGraph(self._take, self.device) if recorded else None
        self.seconds: list[float] = []
        self.warm_up, self.peak, self.error = 0.0, 0, ""

    def step(self, batch: Batch) -> Tensor:
        if self.recorder is None:
            return self._take([batch])
        taken = self.recorder.replay([batch])
        if taken is not None:
            return taken
        with self.recorder.eager():
            return self._take([batch])

    def _take(self, batches: Sequence[Batch]) -> Tensor:
        images, labels = batches[0]
        with torch.autocast(self.device.type, torch.bfloat16), self.half_weights:
            loss = F.cross_entropy(logits_of(self.run(images)).float(), labels)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def clock(self, steps: int, batch: Batch) -> float:
        """How many seconds so many steps take."""
        self._wait()
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step(batch)
        self._wait()
        seconds = time.perf_counter() - start
        assert loss.isfinite(), f"{self.name}: the loss is {loss}"
        return seconds

    def prepare(self, batch: Batch) -> None:
        """Warms up, and notes what a step needs beyond weights and optimiser; whatever fails is kept as the reason."""
        cuda = self.device.type == "cuda"
        try:
            first = self.clock(1, batch)
            before = torch.cuda.memory_allocated() if cuda else 0
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            self.warm_up = first + self.clock(WARMUP_STEPS + 2, batch)  # what is recorded has been by then
            self.peak = torch.cuda.max_memory_allocated() - before if cuda else 0
            self.clock(2, batch)
        except Exception as error:
            self.error = f"{type(error).__name__}: {str(error)[:200]}"
        print(f"{self.name}: {self.error or f'warm after {self.warm_up:.1f} s'}", flush=True)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def row(self, size: int) -> dict[str, Any]:
        if self.error:
            return {"name": self.name, "error": self.error}
        rates = sorted(size / seconds for seconds in self.seconds)
        return {
            "name": self.name,
            "images_per_second": round(median(rates), 1),
            "slowest": round(rates[0], 1),
            "fastest": round(rates[-1], 1),
            "step_ms": round(1000 * median(self.seconds), 2),
            "step_gib": round(self.peak / 2**30, 2),
            "warm_up_s": round(self.warm_up, 1),
        }


def logits_of(answer: Any) -> Tensor:
    logits: Tensor = answer if isinstance(answer, Tensor) else answer.logits
    return logits


def build(config: ViTConfig, device: torch.device, compiled: bool) -> list[list[Contender]]:
    """Everybody, with the same weights, by the stage at which they come in."""
    sizes = {
        "image_size": config.image[0],
        "patch_size": config.patch[0],
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
        "num_labels": config.classes,
        "layer_norm_eps": EPS,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(0)
    weights = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes)).state_dict()

    def theirs() -> nn.Module:
        model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))
        model.load_state_dict(weights)
        return model.to(device).train()

    def ours() -> nn.Module:
        model = ViT(config)
        model.load_state_dict(from_huggingface(weights, config))
        return model.to(device).train()

    stages = [
        [Contender("regard", ours()), Contender("transformers", theirs())],
        [Contender("regard, captured", ours())],
    ]
    if compiled:
        mine, other = ours(), theirs()
        run = torch.compile(mine)
        stages += [
            [Contender("regard, compiled", mine, run), Contender("regard, compiled and captured", mine, run)],
            [Contender("transformers, compiled", other, torch.compile(other))],
        ]
    return stages


@torch.no_grad()
def largest_differences(people: list[Contender], images: Tensor) -> dict[str, float]:
    """How far each one's logits lie from the first one's, in float32."""
    logits = []
    for one in people:
        logits.append(logits_of(one.model.eval()(images)))
        one.model.train()
    return {one.name: (mine - logits[0]).abs().max().item() for one, mine in zip(people, logits, strict=True)}


def take_turns(people: list[Contender], batch: Batch, rounds: int, steps: int) -> None:
    """So many rounds of so many steps each, there and back; what was measured before counts no more."""
    for one in people:
        one.seconds = []
    for number in range(rounds):
        for one in people if number % 2 == 0 else people[::-1]:
            one.seconds.append(one.clock(steps, batch) / steps)
        if not number:
            print(f"turns take about {rounds * steps * sum(one.seconds[0] for one in people):.0f} s", flush=True)


def compare(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Every one of ours over every one of theirs."""
    rates = {row["name"]: row["images_per_second"] for row in rows if "error" not in row}
    return {
        f"{mine} over {other}": round(rates[mine] / rates[other], 3)
        for other in rates
        for mine in rates
        if other.startswith("transformers") and mine.startswith("regard")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Training steps of ViT-B/16 beside Hugging Face's.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="of each turn")
    parser.add_argument("--compile", action="store_true", help="compiled models take part too")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps; written only to --out")
    parser.add_argument("--out", type=Path, help="file for the results")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = False  # for the comparison in float32; training runs under autocast
    config = ViTConfig.base(CLASSES, norm_eps=EPS)
    size, rounds, steps = options.batch, options.rounds, options.steps
    if options.quick:
        config, size, rounds, steps = config.changed(**QUICK), 4, 2, 2
    stages = build(config, device, options.compile)
    random = torch.Generator().manual_seed(1)
    images = torch.randn(size, config.channels, *config.image, generator=random).to(device)
    labels = torch.randint(config.classes, (size,), generator=random).to(device)
    differences = largest_differences([one for stage in stages for one in stage], images[:8])
    print("largest difference of logits, float32:", differences, flush=True)
    assert max(differences.values()) < 1e-4, "these are not the same models"
    result: dict[str, Any] = {
        "what": f"training steps of ViT-B/16, batch {size}, bfloat16 autocast, fused AdamW, transformers with sdpa; "
        f"medians of {rounds} turns of {steps} steps",
        "rows": [],
        "largest_difference_of_logits": differences,
        "machine": describe_machine(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python benchmarks/vision_speed.py --device {device.type}"
        + (" --compile" if options.compile else ""),
    }
    target = options.out or RESULTS / f"vision-speed-{'gpu' if device.type == 'cuda' else device.type}.json"
    people: list[Contender] = []
    for stage in stages:
        for one in stage:
            one.prepare((images, labels))
        people += stage
        take_turns([one for one in people if not one.error], (images, labels), rounds, steps)
        result["rows"] = rows = [one.row(size) for one in people]
        result["ratios"] = compare(rows)
        for row in rows:
            print("   ", *row.values(), flush=True)
        if options.out or not options.quick:
            target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for names, ratio in result["ratios"].items():
        print(f"{names}: {ratio}", flush=True)


if __name__ == "__main__":
    main()
