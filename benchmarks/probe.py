"""Overhead of a probe: a forward pass never probed, after a probe has ended, and with attention layers probed.

    python benchmarks/probe.py [--device cuda] [--out FILE]

Variants alternate; the median of the ratios to the model that was never probed is reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from harness import environment, measure_alternately, save_result

from regard.inspection.interventions import ablate
from regard.inspection.probe import QUANTITIES, probe
from regard.masks import Padded
from regard.models.transformer import Transformer, TransformerConfig

BASELINE = "never probed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--preset", default="base", choices=["base", "tiny"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    config = getattr(TransformerConfig, options.preset)(vocab=8000)
    torch.manual_seed(0)
    fresh, used = (Transformer(config).eval().to(device) for _ in range(2))
    used.load_state_dict(fresh.state_dict())
    source = torch.randint(3, 8000, (options.sentences, options.tokens), device=device)
    layout = Padded.of([options.tokens] * options.sentences, device=device)

    def forward(model: Transformer, context: Callable[[], AbstractContextManager[Any]]) -> Callable[[], None]:
        def run() -> None:
            with context(), torch.no_grad():
                model(source, source, layout, layout)

        return run

    forward(used, lambda: probe(used, record=QUANTITIES))()
    name = f"decoder.{config.decoder_layers // 2}.cross"
    variants = {
        BASELINE: forward(fresh, nullcontext),
        "probed before": forward(used, nullcontext),
        f"{name}: weights": forward(used, lambda: probe(used, [name])),
        f"{name}: weights of one head": forward(used, lambda: probe(used, [name], heads=[0])),
        f"{name}: everything": forward(used, lambda: probe(used, [name], record=QUANTITIES)),
        "all attention layers: weights": forward(used, lambda: probe(used)),
        f"{name}: one head ablated": forward(used, lambda: ablate(used, {name: [0]})),
    }
    times = measure_alternately(variants, device=device, repetitions=options.repetitions, warm_up=2)
    result = {
        "batch": f"{options.sentences} pairs of {options.tokens} + {options.tokens} tokens, {options.preset}",
        "variants": {
            name: {
                "milliseconds": round(1000 * statistics.median(taken), 2),
                "overhead_percent": round(
                    100 * (statistics.median(t / b for t, b in zip(taken, times[BASELINE], strict=True)) - 1), 2
                ),
            }
            for name, taken in times.items()
        },
        **environment(device),
    }
    print(json.dumps(result, indent=1))
    if options.out:
        save_result(result, options.out)


if __name__ == "__main__":
    main()
