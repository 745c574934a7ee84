"""Training steps of ViT-B/16 beside Hugging Face's ViTForImageClassification, with the same weights.

    python benchmarks/vision_speed.py --device cuda [--compile] [--quick]

Batches of 256 random images of 224×224 that lie on the device already; bfloat16 autocast, cross-entropy, fused AdamW.
All begin with the same weights, and their logits are compared before anything is measured, in float32. Everybody warms
up, then all take turns, so that a machine that grows warm or busy slows all alike; medians count. With --compile those
models that torch.compile has gone over take part too. --quick is a tiny model, to see that the script runs.

Writes benchmarks/results/vision-speed-gpu.json or -cpu.json.
"""

import argparse
import datetime
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from regard.evaluation.speed import describe_machine
from regard.interop import from_huggingface
from regard.models.vit import ViT, ViTConfig

RESULTS = Path(__file__).parent / "results"
CLASSES = 1000
EPS = 1e-12
QUICK = {"image": 32, "patch": 8, "width": 64, "layers": 2, "heads": 4, "hidden": 128}


class Contender:
    """A model with its optimiser, and how its logits are had."""

    def __init__(self, name: str, model: nn.Module, compiled: bool = False) -> None:
        self.name = name
        self.model = model.train()
        self.run: Callable[[Tensor], Any] = torch.compile(model) if compiled else model
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
        self.seconds: list[float] = []
        self.warm_up = 0.0
        self.peak = 0

    def logits(self, images: Tensor) -> Tensor:
        answer = self.run(images)
        logits: Tensor = answer if isinstance(answer, Tensor) else answer.logits
        return logits

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            loss = F.cross_entropy(self.logits(images).float(), labels)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def steps(self, count: int, images: Tensor, labels: Tensor) -> float:
        """How many seconds so many steps take."""
        synchronise(images.device)
        start = time.perf_counter()
        for _ in range(count):
            loss = self.step(images, labels)
        synchronise(images.device)
        assert loss.isfinite(), f"{self.name}: the loss is {loss}"
        return time.perf_counter() - start


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def build(config: ViTConfig, device: torch.device, compiled: bool) -> list[Contender]:
    """Everybody, with the same weights."""
    sizes = {
        "image_size": config.image[0],
        "patch_size": config.patch[0],
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
        "num_labels": config.classes,
        "layer_norm_eps": EPS,
    }
    torch.manual_seed(0)
    first = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))
    weights = first.state_dict()

    def theirs(attention: str) -> nn.Module:
        model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, attn_implementation=attention))
        model.load_state_dict(weights)
        return model.to(device)

    def ours() -> nn.Module:
        model = ViT(config)
        model.load_state_dict(from_huggingface(weights, config))
        return model.to(device)

    people = [
        Contender("regard", ours()),
        Contender("transformers, sdpa", theirs("sdpa")),
        Contender("transformers, eager", theirs("eager")),
    ]
    if compiled:
        people += [
            Contender("regard, compiled", ours(), compiled=True),
            Contender("transformers, sdpa, compiled", theirs("sdpa"), compiled=True),
        ]
    return people


@torch.no_grad()
def largest_difference(people: list[Contender], images: Tensor) -> dict[str, float]:
    """How far each one's logits lie from the first one's, in float32."""
    logits = []
    for one in people:
        answer = one.model.eval()(images)
        logits.append(answer if isinstance(answer, Tensor) else answer.logits)
        one.model.train()
    return {one.name: (mine - logits[0]).abs().max().item() for one, mine in zip(people, logits, strict=True)}


def measure(people: list[Contender], images: Tensor, labels: Tensor, rounds: int, steps: int) -> None:
    """Everybody warms up alone, then all take turns."""
    cuda = images.device.type == "cuda"
    for one in people:
        one.warm_up = one.steps(max(2, steps), images, labels)
        before = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        one.steps(1, images, labels)
        one.peak = torch.cuda.max_memory_allocated() - before if cuda else 0
    for number in range(rounds):
        order = people if number % 2 == 0 else people[::-1]
        for one in order:
            one.seconds.append(one.steps(steps, images, labels) / steps)


def report(people: list[Contender], batch: int) -> list[dict[str, Any]]:
    rows = []
    for one in people:
        rates = sorted(batch / seconds for seconds in one.seconds)
        rows.append(
            {
                "name": one.name,
                "images_per_second": round(median(rates), 1),
                "slowest": round(rates[0], 1),
                "fastest": round(rates[-1], 1),
                "step_ms": round(1000 * median(one.seconds), 2),
                "step_gib": round(one.peak / 2**30, 2),
                "warm_up_s": round(one.warm_up, 1),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Training steps of ViT-B/16 beside Hugging Face's.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="of each turn")
    parser.add_argument("--compile", action="store_true", help="compiled models take part too")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and few steps; the result is written nowhere"
    )
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = False  # for the comparison in float32; training runs under autocast
    config = ViTConfig.base(CLASSES, norm_eps=EPS)
    batch, rounds, steps = arguments.batch, arguments.rounds, arguments.steps
    if arguments.quick:
        config, batch, rounds, steps = config.changed(**QUICK), 4, 2, 2
    people = build(config, device, arguments.compile)
    random = torch.Generator().manual_seed(1)
    images = torch.randn(batch, config.channels, *config.image, generator=random).to(device)
    labels = torch.randint(config.classes, (batch,), generator=random).to(device)
    differences = largest_difference(people, images[:8])
    print("largest difference of logits, float32:", differences)
    assert max(differences.values()) < 1e-4, "these are not the same models"
    measure(people, images, labels, rounds, steps)
    rows = report(people, batch)
    for row in rows:
        print(f"{row['name']:32} {row['images_per_second']:>9} images/s {row['step_ms']:>9} ms {row['step_gib']} GiB")
    rate = {row["name"]: row["images_per_second"] for row in rows}
    result = {
        "what": f"training steps of ViT-B/16, batch {batch}, bfloat16 autocast, fused AdamW; medians of {rounds} turns "
        f"of {steps} steps",
        "rows": rows,
        "ratio_to_transformers": {
            name: round(mine / rate["transformers, sdpa"], 3)
            for name, mine in rate.items()
            if name.startswith("regard")
        },
        "largest_difference_of_logits": differences,
        "machine": describe_machine(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": f"python benchmarks/vision_speed.py --device {device.type}"
        + (" --compile" if arguments.compile else ""),
    }
    if arguments.quick:
        print(json.dumps(result, indent=1))
        return
    target = RESULTS / f"vision-speed-{'gpu' if device.type == 'cuda' else device.type}.json"
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
