"""The whole model on one input: the tokens after every sublayer, all attention maps, and the result.

Shapes: N tokens, F shown features, W model width.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.settings import DecodingSettings
from regard.inspection.flow import Flow, record_flow
from regard.inspection.probe import AttentionRecord, probe
from regard.inspection.translation import check_not_blank, record_translation
from regard.inspection.words import label_tokens
from regard.models.croco import CroCo
from regard.models.nat import NATransformer
from regard.models.swin import Swin
from regard.models.vit import ViT
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator
from regard.serving.page_data.attention import shrink
from regard.serving.page_data.images import PATCHES_PER_SIDE, classify_pixels, open_image, open_views
from regard.serving.page_data.packet import Arrays, pack

FEATURES = 24
"""Number of features of each vector that the page shows."""
CANDIDATES = 5
DIGITS = 4


@torch.no_grad()
def view_overview(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> bytes:
    """Return a packet with the vectors of a translation between all sublayers.

    `stacks` lists the encoder and the decoder with their tokens and layers; the arrays of a layer are `NAME.update`,
    `NAME.output` (N, F) and `NAME.map` for each sublayer NAME. `candidates` are the most probable tokens at each
    position of the decoder.
    """
    check_not_blank(request["text"])
    model = translator.model
    with record_flow(model) as flow:
        record = record_translation(translator, request["text"], request["target"], settings)
    labels = record.labels
    arrays: Arrays = {}
    stacks = []
    for stack, rows in (("encoder", "source"), ("decoder", "decoder_input")):
        name = "source_embedding" if stack == "encoder" else "target_embedding"
        embedding = getattr(model, name)
        tokens = flow.input(name)
        vectors = F.embedding(tokens, embedding.weight) * embedding.scale
        blocks = [block for block in flow.blocks() if block.startswith(f"{stack}.")]
        first = flow.input(blocks[0]) if blocks else flow.output(name)
        arrays[f"{stack}.embedding"] = _features(vectors)
        if not torch.equal(first, vectors):  # rotary positions are part of the attention
            arrays[f"{stack}.input"] = _features(first)
        layers = [_layer(flow, record.records, block, arrays) for block in blocks]
        stacks.append({"name": stack, "tokens": labels[rows], "layers": layers})
    logits = model.logits(flow.output("decoder_norm").to(model.output_weight.dtype))
    content = {
        "stacks": stacks,
        "outputs": labels["decoder_output"],
        "candidates": _candidates(translator, logits),
        "parallel": isinstance(model, NATransformer),
        "width": model.config.width,
        "vocabulary": model.config.target_vocab,
    }
    return pack(content, arrays)


def view_image_overview(classifier: Classifier, request: dict[str, Any]) -> bytes:
    """Return a packet with the classes of an image, and the vectors of its patches between all sublayers."""
    model, pixels = classifier.model, open_image(classifier, request["images"][0], request["pixels"])
    with record_flow(model) as flow, probe(model) as records, torch.no_grad():
        classes = classify_pixels(classifier, pixels)
    arrays: Arrays = {"pixels": (pixels, "b1")}
    stacks = []
    if isinstance(model, ViT | Swin):
        blocks = flow.blocks()
        first = flow.input(blocks[0]) if blocks else flow.output("patches")
        arrays["encoder.embedding"] = _features(flow.output("patches"))
        if not torch.equal(first, flow.output("patches")):
            arrays["encoder.input"] = _features(first)
        layers = [_layer(flow, records, block, arrays) for block in blocks]
        prefix = model.config.prefix_tokens if isinstance(model, ViT) else 0
        stacks.append({"name": "encoder", "tokens": _patch_labels(len(first), prefix), "layers": layers})
    content = {
        "stacks": stacks,
        "classes": classes,
        "patch": getattr(model.config, "patch", None),
        "normalised": isinstance(model, Swin),  # a Swin normalises its patches and adds no positions
    }
    return pack(content, arrays)


@torch.no_grad()
def view_pair_overview(model: CroCo, request: dict[str, Any]) -> bytes:
    """Return a packet with the vectors of the patches of two views between all sublayers.

    The encoder reads the second view and then the first one with the same weights; the decoder continues the first.
    """
    views, (first, second) = open_views(model, request)
    with record_flow(model) as flow, probe(model, keep=None) as records:
        model.decode_views(first, second)
    arrays: Arrays = {"pixels0": (views[0], "b1"), "pixels1": (views[1], "b1")}
    labels = _patch_labels(PATCHES_PER_SIDE**2, 0)
    encoder, decoder = ([b for b in flow.blocks() if b.startswith(f"{stack}.")] for stack in ("encoder", "decoder"))
    stacks = []
    for name, blocks, call in (("second", encoder, 0), ("first", encoder, 1), ("decoder", decoder, -1)):
        if name != "decoder":
            arrays[f"{name}.embedding"] = _features(flow.output("patch_embedding", call))
            if model.encoder_positions is not None:
                arrays[f"{name}.input"] = _features(flow.input(blocks[0], call))
        layers = [_layer(flow, records, block, arrays, f"{name}/", call) for block in blocks]
        stacks.append({"name": name, "tokens": labels, "layers": layers})
    return pack({"stacks": stacks, "patch": [model.config.patch] * 2}, arrays)


def _layer(
    flow: Flow, records: Mapping[str, AttentionRecord], block: str, arrays: Arrays, prefix: str = "", call: int = -1
) -> dict[str, Any]:
    """Add the arrays of a block, and return its description."""
    sublayers = []
    for step in flow.steps(block, call):
        name = f"{block}.{step.sublayer}"
        arrays[f"{prefix}{name}.update"] = _features(step.update)
        arrays[f"{prefix}{name}.output"] = _features(step.output)
        if name in records:
            weights = records[name].calls[call]["weights"].float().mean((0, 1))[None].cpu()
            arrays[f"{prefix}{name}.map"] = shrink(weights)[0].numpy(), "u1"
        sublayers.append({"kind": step.sublayer, "name": name, "key": f"{prefix}{name}"})
    module = flow.module(block)
    return {
        "name": block,
        "preNorm": module.pre_norm,
        "heads": module.attention.heads,
        "width": step.output.shape[-1],
        "hidden": module.feed_forward.outer.in_features,
        "tokens": len(step.output),
        "sublayers": sublayers,
    }


def _features(vectors: Tensor) -> tuple[Any, Any]:
    """Return the first features of vectors, (..., W) to (N, F), for a packet."""
    return vectors.reshape(-1, vectors.shape[-1])[:, :FEATURES].detach().float().cpu().numpy(), "u2"


def _patch_labels(tokens: int, prefix: int) -> list[str]:
    special = ["CLASS", *(f"REG {i}" for i in range(1, prefix))][:prefix]
    return [*special, *(str(i) for i in range(tokens - prefix))]


def _candidates(translator: Translator, logits: Tensor) -> list[list[tuple[str, float, float]]]:
    """Return the label, the probability and the logit of the most probable tokens of every position."""
    probabilities, indices = torch.softmax(logits.float(), -1).topk(min(CANDIDATES, logits.shape[-1]), -1)
    rows = []
    for position, (row, values) in enumerate(zip(indices.tolist(), probabilities.tolist(), strict=True)):
        labels = label_tokens(translator.vocabularies.target, row, translator.model.config)
        scores = [round(float(logits[position, token]), 3) for token in row]
        rows.append([(name, round(p, DIGITS), score) for name, p, score in zip(labels, values, scores, strict=True)])
    return rows
