"""Views of the attention modules of an image classifier: maps, arithmetic and interventions.

Shapes: H heads, T tokens that attend to each other: all of the image, or those of one window.
"""

from contextlib import nullcontext
from typing import Any

import torch

from regard.data.images.preprocessing import Pixels, decode_image
from regard.errors import UserError
from regard.inspection.flow import record_flow
from regard.inspection.interventions import scale_heads, scale_scores
from regard.inspection.patches import check_patch, patch_grid
from regard.inspection.probe import QUANTITIES, Quantity, check_heads, find_attentions, probe
from regard.models.swin import Swin
from regard.models.vit import ViT
from regard.pipelines.classifier import Classifier
from regard.serving.views.images import classify_pixels
from regard.serving.views.packet import Arrays, pack
from regard.serving.views.text import arithmetic_packet, attention_module, shrink

PADDING = "·"
"""Label of a token that only fills an incomplete window."""


def view_image_attention(classifier: Classifier, request: dict[str, Any]) -> bytes:
    """Return a packet with small maps of each attention module, (H + 1, T, T); the last is the mean of the heads.

    `labels` are those of the tokens of each module. Of a model with windows, the window that contains the patch of the
    request is shown.
    """
    pixels = open_image(classifier, request)
    with probe(classifier.model) as records:
        classifier.predict([pixels])
    arrays: Arrays = {}
    modules: list[dict[str, Any]] = []
    labels: dict[str, list[str]] = {}
    for layer, (name, record) in enumerate(records.items()):
        window, labels[name] = locate_window(classifier, name, pixels, request["patch"])
        weights_HTT = record.weights[window].float().cpu()
        maps = torch.cat([weights_HTT, weights_HTT.mean(0, keepdim=True)])
        arrays[name] = shrink(maps).numpy(), "u1"
        modules.append(attention_module(name, "patches", layer, weights_HTT.numpy()))
    return pack({"views": modules, "labels": labels}, arrays)


def view_image_map(classifier: Classifier, request: dict[str, Any]) -> bytes:
    """Return a packet with the array `map`: one head (T, T), the mean of all heads (T, T), or every head (H, T, T)."""
    name, head, quantity, every_head = (request[key] for key in ("name", "head", "quantity", "every_head"))
    if head is not None:
        check_heads(name, find_attentions(classifier.model, [name])[name], [head])
    elif quantity == "scores" and not every_head:
        raise UserError("the scores of different heads are not comparable and have no mean; choose a head")
    tensors, labels = _record(classifier, request, [quantity])
    values = tensors[quantity].float()
    chosen = values if every_head else values.mean(0) if head is None else values[head]
    pieces = [False] * len(labels)
    content = {"rows": labels, "columns": labels, "row_pieces": pieces, "column_pieces": pieces}
    return pack(content, {"map": (chosen.cpu().numpy(), "u2")})


@torch.no_grad()
def view_image_arithmetic(classifier: Classifier, request: dict[str, Any]) -> bytes:
    """Return a packet with all intermediate results of one query of one head; see `arithmetic_packet`.

    Of a model with windows, the results before and after the attention are omitted.
    """
    name, head, query = request["name"], request["head"], request["query"]
    attention = find_attentions(classifier.model, [name])[name]
    check_heads(name, attention, [head])
    is_global = isinstance(classifier.model, ViT)
    with record_flow(classifier.model) if is_global else nullcontext() as flow:
        tensors, labels = _record(classifier, request, QUANTITIES)
    if not 0 <= query < len(labels):
        raise UserError(f"{name} has no query {query}; the queries are 0 to {len(labels) - 1}")
    return arithmetic_packet(name, attention, tensors, head, query, (labels, labels), flow)


def view_image_change(classifier: Classifier, request: dict[str, Any]) -> dict[str, Any]:
    """Return the classes with head outputs scaled by `factors` and attention scores by `sharpness`."""
    pixels = open_image(classifier, request)
    model = classifier.model
    rankings = {"original": classify_pixels(classifier, pixels)}
    with scale_heads(model, request["factors"]), scale_scores(model, request["sharpness"]):
        rankings["changed"] = classify_pixels(classifier, pixels)
    classes = {key: [{"name": name, "probability": p} for name, p in ranking] for key, ranking in rankings.items()}
    heads = {name: attention.heads for name, attention in find_attentions(model).items()}
    return classes | {"heads": heads}


def open_image(classifier: Classifier, request: dict[str, Any]) -> Pixels:
    """Decode the image of a request and return the pixels that the model reads."""
    preprocessing = classifier.preprocessing
    min_side = preprocessing.resize.min_side
    image = decode_image(request["image"], preprocessing.mode, max_pixels=request["pixels"], min_side=min_side)
    return preprocessing.open(image)


def locate_window(classifier: Classifier, name: str, pixels: Pixels, patch_index: int | None) -> tuple[int, list[str]]:
    """Return the window of a patch in an attention module, and the labels of its tokens: the class token, row, column.

    A model without windows has the window 0, which contains all tokens.
    """
    model = classifier.model
    assert isinstance(model, ViT | Swin)
    rows, columns = patch_grid(model, pixels.shape[:2])
    patch = divmod(patch_index or 0, columns)
    check_patch(patch, (rows, columns))
    if isinstance(model, ViT):
        prefix = ["CLS"] if model.config.pooling == "class" else []
        prefix += [f"REG{number}" for number in range(1, model.config.registers + 1)]
        return 0, [*prefix, *(f"{row},{column}" for row in range(rows) for column in range(columns))]
    stage = int(name.split(".")[1])
    for _ in range(stage):  # patch merging halves the grid, rounding up
        columns = -(-columns // 2)
    windows = model.windows(pixels.shape[:2])[name]
    token = (patch[0] // 2**stage) * columns + patch[1] // 2**stage
    window = int(windows.cells[token]) // windows.tokens.shape[1]
    tokens = windows.tokens[window].tolist()
    return window, [_name_cell(token, columns) if token < len(windows.cells) else PADDING for token in tokens]


def _name_cell(token: int, columns: int) -> str:
    row, column = divmod(token, columns)
    return f"{row},{column}"


def _record(
    classifier: Classifier, request: dict[str, Any], quantities: Any
) -> tuple[dict[Quantity, torch.Tensor], list[str]]:
    """Return recorded quantities of one window of an attention module, (H, T, …), and the labels of its tokens."""
    name = request["name"]
    find_attentions(classifier.model, [name])
    pixels = open_image(classifier, request)
    with probe(classifier.model, [name], record=quantities) as records:
        classifier.predict([pixels])
    window, labels = locate_window(classifier, name, pixels, request["patch"])
    (call,) = records[name].calls
    return {quantity: tensor[window] for quantity, tensor in call.items()}, labels
