"""Residual connections keep gradients from vanishing: gradient norm of each block with and without them."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from regard import DecoderBlock, EncoderBlock, Transformer, TransformerConfig

from .drawing import COLOURS, draw_band, panels

VOCABULARY, LENGTH, BATCH = 32, 10, 32
FIRST_TOKEN = 3  # after padding, BOS and END
LEARNING_RATE = 3e-4
SMALLEST_NORM, SMALLEST_DISTANCE = 1e-12, 1e-6
"""Smaller values, also 0, are drawn here; float32 cannot resolve smaller distances."""
VARIANTS = {
    f"{norm}-norm, {'with' if residual else 'without'} residual connections": (norm, residual)
    for norm in ("pre", "post")
    for residual in (True, False)
}


class WithoutResiduals(nn.Module):
    """The sublayers and norms of a block in a chain: each sublayer replaces its input instead of adding to it."""

    def __init__(self, block: EncoderBlock | DecoderBlock) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, *inputs: Any) -> Tensor:
        block = self.block
        if isinstance(block, EncoderBlock):
            sublayers = [partial(block.attention, mask=inputs[0]), block.feed_forward]
            norms = [block.norm1, block.norm2]
        else:
            source, mask, source_mask, _ = inputs
            cross = partial(block.cross, source=source, mask=source_mask)
            sublayers = [partial(block.attention, mask=mask), cross, block.feed_forward]
            norms = [block.norm1, block.norm2, block.norm3]
        for norm, sublayer in zip(norms, sublayers, strict=True):
            x = sublayer(norm(x)) if block.pre_norm else norm(sublayer(x))
        return x


def measure(seeds: list[int], layers: int = 12, steps: int = 100, width: int = 64) -> dict[str, Any]:
    """Train each variant on copying random tokens; record gradients at the first and the last step."""
    variants = {}
    for name, (norm, residual) in VARIANTS.items():
        runs = [train(build(norm, residual, layers, width, seed), steps, seed) for seed in seeds]
        variants[name] = {key: [run[key] for run in runs] for key in runs[0]}
        print(name, {key: [f"{value:.3g}" for value in variants[name][key]] for key in ("loss",)}, flush=True)
    return {
        "what": f"{layers}+{layers} blocks of width {width}, copying {LENGTH} random tokens, batches of {BATCH}, "
        f"Adam with a constant learning rate of {LEARNING_RATE}",
        "layers": layers,
        "steps": steps,
        "seeds": seeds,
        "loss_of_guessing": math.log(VOCABULARY - FIRST_TOKEN),
        "variants": variants,
    }


def build(norm: str, residual: bool, layers: int, width: int, seed: int) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"width": width, "heads": 4, "hidden": 2 * width, "encoder_layers": layers, "decoder_layers": layers}
    model = Transformer(TransformerConfig.base(VOCABULARY, norm=norm, dropout=0.0, **sizes))
    if not residual:
        for stack in (model.encoder, model.decoder):
            for i, block in enumerate(stack):
                stack[i] = WithoutResiduals(block)
    return model


def train(model: Transformer, steps: int, seed: int) -> dict[str, Any]:
    """Return gradient norms by block before and after these steps, the loss, and the similarity of the tokens."""
    torch.manual_seed(seed)
    similarity = token_similarity(model)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    first, losses = None, []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        losses.append(backward(model))
        last = gradient_norms(model)
        first = last if first is None else first
        optimizer.step()
    return {"first": first, "last": last, "loss": fmean(losses[-10:]), "similarity": similarity}


def backward(model: Transformer) -> float:
    """Compute the gradients of a random batch and return its loss."""
    tokens = torch.randint(FIRST_TOKEN, VOCABULARY, (BATCH, LENGTH))
    inputs = F.pad(tokens[:, :-1], (1, 0), value=model.config.bos)
    loss = F.cross_entropy(model(tokens, inputs).flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss.item()


def gradient_norms(model: Transformer) -> list[float]:
    """Return the norm of the gradient of each block's parameters, from the first encoder block to the last decoder."""
    blocks = [*model.encoder, *model.decoder]
    return [math.hypot(*(p.grad.norm().item() for p in b.parameters() if p.grad is not None)) for b in blocks]


@torch.no_grad()
def token_similarity(model: Transformer) -> list[float]:
    """Return the mean cosine between the outputs of a sentence's tokens after each encoder block."""
    outputs: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda *call: outputs.append(call[-1])) for block in model.encoder]
    model.encode(torch.randint(FIRST_TOKEN, VOCABULARY, (BATCH, LENGTH)))
    for hook in hooks:
        hook.remove()
    found = []
    for output in outputs:
        directions = F.normalize(output, dim=-1)
        cosines = (directions @ directions.transpose(1, 2)).mean(0)
        found.append((cosines.sum() - cosines.trace()).item() / (LENGTH * (LENGTH - 1)))
    return found


def draw(result: dict[str, Any]) -> Figure:
    layers = result["layers"]
    figure, axes = panels(3, "")
    for number, (name, variant) in enumerate(result["variants"].items()):
        style = {"color": COLOURS[number // 2], "linestyle": ("-", "--", "-", ":")[number], "label": name}
        distances = [[1 - cosine for cosine in run] for run in variant["similarity"]]
        for panel, values in zip(axes, (variant["first"], variant["last"], distances), strict=True):
            floor = SMALLEST_DISTANCE if panel is axes[2] else SMALLEST_NORM
            blocks = range(1, len(values[0]) + 1)
            draw_band(panel, blocks, [[max(value, floor) for value in run] for run in values], **style)
    titles = (
        "gradient norm at initialisation",
        f"gradient norm after {result['steps']} steps",
        "1 − cosine of two tokens",
    )
    for panel, title in zip(axes, titles, strict=True):
        panel.set_yscale("log")
        floor = SMALLEST_DISTANCE if panel is axes[2] else SMALLEST_NORM
        panel.yaxis.set_major_formatter(lambda value, _, floor=floor: f"{'≤ ' if value <= floor else ''}{value:g}")
        panel.set_title(title, loc="left", fontsize=11)
        panel.set_xlabel("encoder block")
    for panel in axes[:2]:
        panel.axvline(layers + 0.5, color="#888888", linewidth=0.8)
        panel.set_xlabel(f"block: encoder 1 to {layers}, decoder {layers + 1} to {2 * layers}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
