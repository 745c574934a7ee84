"""Training steps of ViT-B/16 next to ViTForImageClassification of transformers, with the same weights.

    python benchmarks/vision_speed.py --device cuda [--compile] [--out FILE] [--quick]

Batches of 256 random images of 224×224 on the device; bfloat16 autocast, cross-entropy, fused AdamW. Float32 logits of
all systems are compared first. regard runs eagerly and with training.cuda_graph; --compile adds training.compile
without and with CUDA graphs, and transformers compiled. Systems are added in stages: new systems warm up, all systems
alternate, and the result is written, so that a later failure loses nothing. Takes about 2.5 minutes on an H200, mostly
for compilation. --quick uses a tiny model.

Writes benchmarks/results/vision-speed-gpu.json or -cpu.json, or --out.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from harness import environment, measure_alternately, save_result, synchronize
from torch import Tensor, nn

from regard.interop.huggingface_vision import from_huggingface
from regard.models.vit import ViT, ViTConfig
from regard.ops.linear import HalfWeights
from regard.training.cuda_graph import WARMUP_STEPS, StepGraph

CLASSES = 1000
NORM_EPS = 1e-12
QUICK = {"image": 32, "patch": 8, "width": 64, "layers": 2, "heads": 4, "hidden": 128}
Batch = tuple[Tensor, Tensor]


class System:
    """A model with its optimizer.

    Args:
        name: Name of the system.
        model: The model.
        compiled: The compiled model, if steps use it.
        capture: Whether steps are captured as a CUDA graph.
    """

    def __init__(
        self, name: str, model: nn.Module, compiled: Callable[[Tensor], Any] | None = None, capture: bool = False
    ) -> None:
        self.name, self.model, self.forward = name, model, compiled or model
        self.device = next(model.parameters()).device
        cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-4, weight_decay=0.05, fused=True, capturable=capture and cuda
        )
        use_half_weights = cuda and isinstance(model, ViT) and compiled is None
        self.half_weights = HalfWeights(model) if use_half_weights else nullcontext()
        self.graph: StepGraph[Batch, Tensor] | None = StepGraph([self._run_step], self.device) if capture else None
        self.warm_up_seconds, self.step_bytes, self.error = 0.0, 0, ""

    def step(self, batch: Batch) -> Tensor:
        if self.graph is None:
            return self._run_step([batch])
        loss = self.graph.try_replay([batch])
        if loss is not None:
            return loss
        with self.graph.eager():
            return self._run_step([batch])

    def _run_step(self, batches: Sequence[Batch]) -> Tensor:
        images, labels = batches[0]
        with torch.autocast(self.device.type, torch.bfloat16), self.half_weights:
            loss = F.cross_entropy(get_logits(self.forward(images)).float(), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def run_steps(self, steps: int, batch: Batch) -> None:
        for _ in range(steps):
            loss = self.step(batch)
        assert loss.isfinite(), f"{self.name}: the loss is {loss}"

    def warm_up(self, batch: Batch) -> None:
        """Run the first steps and measure their time and memory; an exception is stored in `error`."""
        cuda = self.device.type == "cuda"
        start = time.perf_counter()
        try:
            self.run_steps(1, batch)
            allocated = torch.cuda.memory_allocated() if cuda else 0
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            self.run_steps(WARMUP_STEPS + 2, batch)  # captures the graph
            synchronize(self.device)
            self.warm_up_seconds = time.perf_counter() - start
            self.step_bytes = torch.cuda.max_memory_allocated() - allocated if cuda else 0
        except Exception as error:
            self.error = f"{type(error).__name__}: {str(error)[:200]}"
        print(f"{self.name}: {self.error or f'warm-up {self.warm_up_seconds:.1f} s'}", flush=True)

    def describe(self, step_seconds: list[float], images: int) -> dict[str, Any]:
        if self.error:
            return {"name": self.name, "error": self.error}
        speeds = sorted(images / seconds for seconds in step_seconds)
        return {
            "name": self.name,
            "images_per_second": round(median(speeds), 1),
            "slowest": round(speeds[0], 1),
            "fastest": round(speeds[-1], 1),
            "step_ms": round(1000 * median(step_seconds), 2),
            "step_gib": round(self.step_bytes / 2**30, 2),
            "warm_up_s": round(self.warm_up_seconds, 1),
        }


def get_logits(output: Any) -> Tensor:
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


def build_stages(config: ViTConfig, device: torch.device, compile_models: bool) -> list[list[System]]:
    """Build all systems with the same weights, grouped by the stage in which they are added."""
    their_config = transformers.ViTConfig(
        image_size=config.image[0],
        patch_size=config.patch[0],
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=config.hidden,
        num_labels=config.classes,
        layer_norm_eps=NORM_EPS,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    weights = transformers.ViTForImageClassification(their_config).state_dict()

    def build_theirs() -> nn.Module:
        model = transformers.ViTForImageClassification(their_config)
        model.load_state_dict(weights)
        return model.to(device).train()

    def build_ours() -> nn.Module:
        model = ViT(config)
        model.load_state_dict(from_huggingface(weights, config))
        return model.to(device).train()

    stages = [
        [System("regard", build_ours()), System("transformers", build_theirs())],
        [System("regard, captured", build_ours(), capture=True)],
    ]
    if compile_models:
        ours, theirs = build_ours(), build_theirs()
        compiled = torch.compile(ours)
        stages += [
            [
                System("regard, compiled", ours, compiled),
                System("regard, compiled and captured", ours, compiled, capture=True),
            ],
            [System("transformers, compiled", theirs, torch.compile(theirs))],
        ]
    return stages


@torch.no_grad()
def compare_logits(systems: list[System], images: Tensor) -> dict[str, float]:
    """Return the largest difference of each system's float32 logits from those of the first system."""
    logits = []
    for system in systems:
        logits.append(get_logits(system.model.eval()(images)))
        system.model.train()
    return {system.name: (other - logits[0]).abs().max().item() for system, other in zip(systems, logits, strict=True)}


def compare_speeds(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the speed of every variant of regard relative to every variant of transformers."""
    speeds = {row["name"]: row["images_per_second"] for row in rows if "error" not in row}
    return {
        f"{ours} over {theirs}": round(speeds[ours] / speeds[theirs], 3)
        for theirs in speeds
        for ours in speeds
        if theirs.startswith("transformers") and ours.startswith("regard")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="number of steps in each turn")
    parser.add_argument("--compile", action="store_true", help="also measure compiled models")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps; written only to --out")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = False  # for the float32 comparison; training uses autocast
    config = ViTConfig.base(CLASSES, norm_eps=NORM_EPS)
    size, turns, steps = options.batch, options.turns, options.steps
    if options.quick:
        config, size, turns, steps = config.changed(**QUICK), 4, 2, 2
    stages = build_stages(config, device, options.compile)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(size, config.channels, *config.image, generator=generator).to(device)
    labels = torch.randint(config.classes, (size,), generator=generator).to(device)
    batch = images, labels
    differences = compare_logits([system for stage in stages for system in stage], images[:8])
    print("largest difference of float32 logits:", differences, flush=True)
    assert max(differences.values()) < 1e-4, "the models differ"
    result: dict[str, Any] = {
        "what": f"training steps of ViT-B/16, batch {size}, bfloat16 autocast, fused AdamW, transformers with sdpa; "
        f"medians of {turns} turns of {steps} steps",
        "rows": [],
        "largest_difference_of_logits": differences,
        **environment(device, "transformers"),
    }
    systems: list[System] = []
    for stage in stages:
        for system in stage:
            system.warm_up(batch)
        systems += stage
        times = measure_alternately(
            {s.name: lambda s=s: s.run_steps(steps, batch) for s in systems if not s.error},
            device=device,
            repetitions=turns,
        )
        result["rows"] = [s.describe([turn / steps for turn in times.get(s.name, [])], size) for s in systems]
        result["ratios"] = compare_speeds(result["rows"])
        for row in result["rows"]:
            print("   ", *row.values(), flush=True)
        if options.out or not options.quick:
            save_result(result, options.out or f"vision-speed-{'gpu' if device.type == 'cuda' else device.type}")
    for names, ratio in result["ratios"].items():
        print(f"{names}: {ratio}", flush=True)


if __name__ == "__main__":
    main()
