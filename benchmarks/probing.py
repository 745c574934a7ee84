"""What looking costs: a base model's forward pass never probed, with a probe that has ended, and with one layer probed.

Rounds of all ways are interleaved, so that a machine that slows down slows them all; the middle of the ratios counts.

    python benchmarks/probing.py --out benchmarks/results/probing.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from regard.attention.masks import Padded
from regard.evaluation.bench.speed import describe_machine
from regard.inspection.interventions import ablate
from regard.inspection.probe import QUANTITIES, probe
from regard.models.transformer import Transformer, TransformerConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--preset", default="base", choices=["base", "tiny"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = getattr(TransformerConfig, options.preset)(vocab=8000)
    torch.manual_seed(0)
    fresh, used = (Transformer(config).eval().to(options.device) for _ in range(2))
    used.load_state_dict(fresh.state_dict())
    with probe(used, record=QUANTITIES), torch.no_grad():
        run(used, options)
    name = f"decoder.{config.decoder_layers // 2}.cross"
    ways: dict[str, tuple[Transformer, Callable[[], AbstractContextManager[Any]]]] = {
        "never probed": (fresh, nullcontext),
        "probed before": (used, nullcontext),
        f"{name}: weights": (used, lambda: probe(used, [name])),
        f"{name}: one head's weights": (used, lambda: probe(used, [name], heads=[0])),
        f"{name}: everything": (used, lambda: probe(used, [name], record=QUANTITIES)),
        "all attentions: weights": (used, lambda: probe(used)),
        f"{name}: one head off": (used, lambda: ablate(used, {name: [0]})),
    }
    report = measure(ways, options)
    print(json.dumps(report, indent=2))
    if options.out:
        options.out.write_text(json.dumps(report, indent=2) + "\n")


def run(model: Transformer, options: argparse.Namespace) -> None:
    """One pass over a batch of padded sentences."""
    source = torch.randint(3, 8000, (options.sentences, options.tokens), device=options.device)
    layout = Padded.of([options.tokens] * options.sentences, device=torch.device(options.device))
    model(source, source, layout, layout)
    if options.device != "cpu":
        torch.cuda.synchronize()


def measure(
    ways: dict[str, tuple[Transformer, Callable[[], AbstractContextManager[Any]]]], options: argparse.Namespace
) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for number in range(options.rounds + 2):
            for name, (model, watching) in ways.items():
                with watching():
                    start = time.perf_counter()
                    run(model, options)
                    taken = time.perf_counter() - start
                if number >= 2:  # the first rounds warm up
                    times[name].append(taken)
    base = times["never probed"]
    return {
        "machine": describe_machine(torch.device(options.device)),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
        "batch": f"{options.sentences} pairs of {options.tokens} + {options.tokens} tokens, {options.preset}",
        "ways": {
            name: {
                "milliseconds": round(1000 * statistics.median(taken), 2),
                "against never probed, %": round(
                    100 * (statistics.median(t / b for t, b in zip(taken, base, strict=True)) - 1), 2
                ),
            }
            for name, taken in times.items()
        },
    }


if __name__ == "__main__":
    main()
