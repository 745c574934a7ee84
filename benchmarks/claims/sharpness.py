"""The scale 1/√d keeps the softmax out of its flat ends: sharpness and gradient against the head width."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from regard import Transformer, TransformerConfig, attention_weights, probe
from regard.inspection.maps import entropy

from .drawing import COLOURS, draw_band, panels
from .gradients import BATCH, FIRST_TOKEN, LENGTH, VOCABULARY, backward

KEYS = 32
QUERIES = 1024
WIDTH = 128
KINDS = {"encoder": "attention", "decoder": "cross"}
"""The attentions without a causal mask, whose queries all have the same number of keys."""
SCALES = {"scaled by 1/√d": None, "not scaled": 1.0}
QUANTITIES = {
    "entropy": "entropy, bits",
    "largest": "largest weight",
    "gradient": "gradient through the softmax, median",
}


def measure(
    seeds: list[int], widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), steps: int = 150
) -> dict[str, Any]:
    """Measure random queries and keys, and models of one width whose heads have different widths."""
    random = {
        name: {key: [[sharpness(d, scale, seed)[key] for d in widths] for seed in seeds] for key in QUANTITIES}
        for name, scale in SCALES.items()
    }
    trained = []
    for name, scale in SCALES.items():
        for head_width in (8, 32, 128):
            runs = [train(head_width, scale, steps, seed) for seed in seeds]
            row = {"scale": name, "head_width": head_width} | {key: [run[key] for run in runs] for key in runs[0]}
            trained.append(row)
            print(row, flush=True)
    return {
        "what": f"{QUERIES:,} queries and {KEYS} keys with standard normal entries; models of 2+2 blocks and width "
        f"{WIDTH}, copying {LENGTH} random tokens, batches of {BATCH}, {steps} steps of Adam at 1e-3",
        "seeds": seeds,
        "keys": KEYS,
        "steps": steps,
        "widths": list(widths),
        "random": random,
        "trained": trained,
    }


def sharpness(width: int, scale: float | None, seed: int) -> dict[str, float]:
    """Return the mean entropy and largest weight of random queries, and the median gradient that passes the softmax.

    The gradient of a query is the Frobenius norm of the Jacobian J of its softmax: the root mean square of the norm of
    Jᵀg for a standard normal g.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 1, count, width, generator=generator) for count in (QUERIES, KEYS))
    weights = attention_weights(q, k, scale=scale)[0, 0]
    squares = weights.square()
    jacobian = (weights * (1 - weights)).square().sum(-1) + squares.sum(-1).square() - squares.square().sum(-1)
    return {
        "entropy": float(entropy(weights.numpy())),
        "largest": weights.amax(-1).mean().item(),
        "gradient": jacobian.sqrt().median().item(),
    }


def train(head_width: int, scale: float | None, steps: int, seed: int) -> dict[str, float]:
    """Return the entropy of a model's self-attention before and after training, and its loss and accuracy."""
    torch.manual_seed(seed)
    sizes = {
        "width": WIDTH,
        "heads": WIDTH // head_width,
        "hidden": 2 * WIDTH,
        "encoder_layers": 2,
        "decoder_layers": 2,
    }
    config = TransformerConfig.base(VOCABULARY, norm="pre", dropout=0.0, qk_scale=scale, **sizes)
    model = Transformer(config)
    before = mean_entropy(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(backward(model))
        optimizer.step()
    return {"entropy_before": before, "entropy_after": mean_entropy(model), "loss": fmean(losses[-20:])}


@torch.no_grad()
def mean_entropy(model: Transformer) -> float:
    """Return the mean entropy of the encoder's self-attention and of the cross-attention, in bits."""
    tokens = torch.randint(FIRST_TOKEN, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    with probe(model, [f"{name}.{layer}.{kind}" for name, kind in KINDS.items() for layer in (0, 1)]) as seen:
        model(tokens, F.pad(tokens[:, :-1], (1, 0), value=model.config.bos))
    return fmean(float(entropy(record.weights.numpy()).mean()) for record in seen.values())


def draw(result: dict[str, Any]) -> Figure:
    figure, (*axes, trained) = panels(2, "", rows=2)
    for panel, (key, label) in zip(axes, QUANTITIES.items(), strict=True):
        for number, (name, values) in enumerate(result["random"].items()):
            draw_band(panel, result["widths"], values[key], color=COLOURS[number], marker="o", markersize=4, label=name)
        panel.set_title(f"random vectors: {label}", loc="left", fontsize=11)
    for number, name in enumerate(result["random"]):
        rows = [row for row in result["trained"] if row["scale"] == name]
        losses = zip(*(row["loss"] for row in rows), strict=True)
        draw_band(trained, [row["head_width"] for row in rows], list(losses), color=COLOURS[number], marker="o")
    trained.set_title(f"models: loss after {result['steps']} steps", loc="left", fontsize=11)
    for panel in (*axes, trained):
        panel.set_xscale("log", base=2)
        ticks = result["widths"] if panel is not trained else sorted({row["head_width"] for row in result["trained"]})
        panel.set_xticks(ticks, [f"{width}" for width in ticks])
        panel.set_xlabel("head width d")
        panel.set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
