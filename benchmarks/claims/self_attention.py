"""Each token is said to score itself highest: the attention that tokens give to themselves, by layer and head."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from regard import Mask, Transformer, Translator, attention_weights, probe
from regard.data.builtin.corpus import load_examples

from .drawing import COLOURS, panels
from .training import STEPS, decoder_inputs, train

STACKS = ("encoder", "decoder")
Tokens = list[tuple[Tensor, Tensor]]


def measure(seeds: list[int], runs: Path, sentences: int = 300) -> dict[str, Any]:
    """Measure self-attention of trained models, of untrained ones, and of their inputs without projections."""
    return measure_models([train(runs, seed) for seed in seeds], seeds, sentences)


def measure_models(translators: list[Translator], seeds: list[int], sentences: int) -> dict[str, Any]:
    found: dict[str, list[Any]] = {"trained": [], "untrained": [], "without_projections": []}
    uniform: dict[str, Any] = {}
    for translator, seed in zip(translators, seeds, strict=True):
        tokens = [decoder_inputs(translator, *example.pair) for example in load_examples("test", sentences)]
        torch.manual_seed(seed)
        untrained = Transformer(translator.model.config).eval()
        found["trained"].append(by_head(translator.model, tokens))
        found["untrained"].append(by_head(untrained, tokens))
        found["without_projections"].append(without_projections(translator.model, tokens))
        uniform = {stack: mean_of(map(uniform_weights, (pair[i] for pair in tokens), [stack] * len(tokens)))
                   for i, stack in enumerate(STACKS)}  # fmt: skip
    return {
        "what": f"the demo recipe with {STEPS} steps, {sentences} test sentences with their references",
        "steps": STEPS,
        "seeds": seeds,
        "uniform": uniform,
        **found,
    }


@torch.no_grad()
def by_head(model: Transformer, tokens: Tokens) -> dict[str, dict[str, list[float]]]:
    """Return, for each self-attention, the weight and the share of highest scores on the token itself by head."""
    names = [f"{stack}.{i}.attention" for stack in STACKS for i in range(len(getattr(model, stack)))]
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    for source, target in tokens:
        with probe(model, names) as seen:
            model(source, target)
        for name in names:
            parts[name].append(seen[name].weights[0])
    return {name: mean_of(weights) for name, weights in parts.items()}


@torch.no_grad()
def without_projections(model: Transformer, tokens: Tokens) -> dict[str, dict[str, list[float]]]:
    """Return the same for softmax(x xᵀ / √W), with the inputs x of each self-attention as queries and keys."""
    inputs: dict[str, Tensor] = {}
    hooks = []
    for stack in STACKS:
        for i, block in enumerate(getattr(model, stack)):
            name = f"{stack}.{i}.attention"
            keep = lambda module, arguments, name=name: inputs.update({name: arguments[0]})  # noqa: E731
            hooks.append(block.attention.register_forward_pre_hook(keep))
    parts: dict[str, list[Tensor]] = {}
    for source, target in tokens:
        model(source, target)
        for name, x in inputs.items():
            weights = attention_weights(x[:, None], x[:, None], Mask(causal=name.startswith("decoder")))
            parts.setdefault(name, []).append(weights[0])
    for hook in hooks:
        hook.remove()
    return {name: mean_of(weights) for name, weights in parts.items()}


def uniform_weights(tokens: Tensor, stack: str) -> Tensor:
    """Return equal weights for the keys that a query may attend to, (1, T, T)."""
    allowed = torch.ones(1, tokens.shape[1], tokens.shape[1])
    allowed = allowed.tril() if stack == "decoder" else allowed
    return allowed / allowed.sum(-1, keepdim=True)


def mean_of(sentences: Iterable[Tensor]) -> dict[str, list[float]]:
    """Return the mean weight of each head on the token itself, and the share of tokens with the highest weight there.

    Each sentence has weights (H, T, T). Queries with a single key, such as BOS, are not counted; ties count in part.
    """
    weight, highest, count = torch.zeros(()), torch.zeros(()), 0
    for weights in sentences:
        counted = (weights > 0).any(0).sum(-1) > 1
        own, largest = weights.diagonal(dim1=1, dim2=2), weights.amax(-1)
        ties = (weights == largest[..., None]).sum(-1)
        weight = weight + own[:, counted].sum(-1)
        highest = highest + ((own == largest) / ties)[:, counted].sum(-1)
        count += int(counted.sum())
    return {"weight": (weight / count).tolist(), "highest": (highest / count).tolist()}


def draw(result: dict[str, Any]) -> Figure:
    names = list(result["trained"][0])
    heads = len(result["trained"][0][names[0]]["weight"])
    figure, axes = panels(2, "")
    titles = {
        "weight": "weight on the token itself",
        "highest": "share of tokens with their highest weight on themselves",
    }
    for panel, (key, title) in zip(axes, titles.items(), strict=True):
        for layer, name in enumerate(names):
            places = [layer * (heads + 1) + head for head in range(heads)]
            ends = [places[0] - 0.5, places[-1] + 0.5]
            for run in result["trained"]:
                panel.plot(places, sorted(run[name][key]), "o", color=COLOURS[0], markersize=4, label="a head, trained")
            for colour, kind, label in (
                (2, "untrained", "untrained, mean"),
                (1, "without_projections", "without projections"),
            ):
                values = [value for run in result[kind] for value in run[name][key]]
                panel.plot(ends, [sum(values) / len(values)] * 2, color=COLOURS[colour], linewidth=1.6, label=label)
            panel.plot(
                ends,
                result["uniform"][name.partition(".")[0]][key] * 2,
                "--",
                color="#000000",
                linewidth=1,
                label="uniform",
            )
        labels = [f"{name.split('.')[0]}\nblock {int(name.split('.')[1]) + 1}" for name in names]
        panel.set_xticks([layer * (heads + 1) + (heads - 1) / 2 for layer in range(len(names))], labels)
        panel.set_ylim(0, 1.03)
        panel.grid(axis="x", visible=False)
        panel.set_title(title, loc="left", fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
