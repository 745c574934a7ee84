"""Views of image models: classes, attention, arithmetic and interventions of a classifier, matches of a two-view model.

Shapes: H heads, T tokens that attend to each other: all of the image, or those of one window.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.data.images.preprocessing import Pixels, Resize, decode_image
from regard.errors import UserError
from regard.inspection.flow import record_flow
from regard.inspection.image_attention import check_patch, global_attention, patch_grid, window_attention
from regard.inspection.interventions import scale_heads, scale_scores
from regard.inspection.probe import QUANTITIES, Quantity, check_heads, find_attentions, probe
from regard.inspection.two_view import cross_attention_names
from regard.models.croco import CroCo
from regard.models.swin import Swin
from regard.models.vit import ViT
from regard.pipelines.classifier import Classifier
from regard.serving.page_data.attention import arithmetic_packet, attention_module, shrink
from regard.serving.page_data.packet import Arrays, pack

PADDING = "·"
"""Label of a token that only fills an incomplete window."""
TOP_CLASSES = 5
PATCHES_PER_SIDE = 12
"""Size to which the images for a two-view model, which accepts any size, are resized."""


def view_image(classifier: Classifier, request: dict[str, Any]) -> bytes:
    """Return a packet with the classes, the array `pixels` of the model's input, and its attention.

    Without a patch in the request, the attention of a ViT is that of the class token (or of the mean over patches):
    `rollout` (layers, patches) and `heads` (layers, heads, patches). For a Swin, `layerN` (heads, tokens) contains the
    attention that each token receives within its window, or that the patch pays; `windows` describes the layers. The
    attention of other models is not shown, and `grid` is null.
    """
    model, pixels = classifier.model, open_image(classifier, request["image"], request["pixels"])
    if not isinstance(model, ViT | Swin):
        return pack({"classes": classify_pixels(classifier, pixels), "grid": None}, {"pixels": (pixels, "b1")})
    grid = patch_grid(model, pixels.shape[:2])
    patch = None if request["patch"] is None else divmod(request["patch"], grid[1])
    check_patch(patch, grid)
    with probe(model) as records:
        classes = classify_pixels(classifier, pixels)
    arrays: Arrays = {"pixels": (pixels, "b1")}
    content: dict[str, Any] = {"classes": classes, "grid": grid, "patch": model.config.patch, "windows": None}
    if isinstance(model, ViT):
        attention = global_attention(model, records, patch)
        arrays |= {"rollout": (attention.rollout, "u2"), "heads": (attention.heads, "u2")}
    else:
        layers = window_attention(model, records, pixels.shape[:2], patch)
        content["windows"] = [{key: value for key, value in vars(layer).items() if key != "heads"} for layer in layers]
        arrays |= {f"layer{number}": (layer.heads, "u2") for number, layer in enumerate(layers)}
    return pack(content, arrays)


def classify_pixels(classifier: Classifier, pixels: Pixels) -> list[tuple[str, float]]:
    """Return the most probable classes of an opened image and their probabilities."""
    (ranking,) = classifier.rank(classifier.predict([pixels]), TOP_CLASSES)
    return [(name, round(probability, 4)) for name, probability in ranking]


@torch.no_grad()
def view_image_pair(model: CroCo, request: dict[str, Any]) -> bytes:
    """Return a packet with the pixels of two views and the cross-attention between their patches in both directions.

    The array `crossN` (patches of view 1, patches of view 2) contains the mean weights of layer N. `reverseN` (patches
    of view 2, patches of view 1) contains those of the views in the other order.
    """
    views, (first, second) = open_views(model, request)
    arrays: Arrays = {"pixels0": (views[0], "b1"), "pixels1": (views[1], "b1")}
    for direction, pair in (("cross", (first, second)), ("reverse", (second, first))):
        with probe(model, cross_attention_names(model)) as records:
            model.decode_views(*pair)
        for layer, record in enumerate(records.values()):
            arrays[f"{direction}{layer}"] = record.weights[0].float().mean(0).cpu().numpy(), "u2"
    return pack({"grid": [PATCHES_PER_SIDE, PATCHES_PER_SIDE], "layers": len(records)}, arrays)


def view_image_attention(classifier: Classifier, request: dict[str, Any]) -> bytes:
    """Return a packet with small maps of each attention module, (H + 1, T, T); the last is the mean of the heads.

    `labels` are those of the tokens of each module. Of a model with windows, the window that contains the patch of the
    request is shown.
    """
    pixels = open_image(classifier, request["image"], request["pixels"])
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
    pixels = open_image(classifier, request["image"], request["pixels"])
    model = classifier.model
    rankings = {"original": classify_pixels(classifier, pixels)}
    with scale_heads(model, request["factors"]), scale_scores(model, request["sharpness"]):
        rankings["changed"] = classify_pixels(classifier, pixels)
    classes = {key: [{"name": name, "probability": p} for name, p in ranking] for key, ranking in rankings.items()}
    heads = {name: attention.heads for name, attention in find_attentions(model).items()}
    return classes | {"heads": heads}


def open_image(classifier: Classifier, image: bytes, max_pixels: int) -> Pixels:
    """Decode an image and return the pixels that the model reads."""
    preprocessing = classifier.preprocessing
    min_side = preprocessing.resize.min_side
    return preprocessing.open(decode_image(image, preprocessing.mode, max_pixels=max_pixels, min_side=min_side))


def open_views(model: CroCo, request: dict[str, Any]) -> tuple[list[Pixels], list[Tensor]]:
    """Decode the two images of a request; return their pixels, and the tensors that the model reads."""
    resize = Resize(PATCHES_PER_SIDE * model.config.patch)
    views = [
        resize(decode_image(image, "RGB", max_pixels=request["pixels"], min_side=resize.min_side))
        for image in request["images"]
    ]
    tensors = [torch.from_numpy(view.copy()).permute(2, 0, 1)[None].float() / 255 for view in views]
    return views, [tensor.to(model.mask_token.device) for tensor in tensors]


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
) -> tuple[dict[Quantity, Tensor], list[str]]:
    """Return recorded quantities of one window of an attention module, (H, T, …), and the labels of its tokens."""
    name = request["name"]
    find_attentions(classifier.model, [name])
    pixels = open_image(classifier, request["image"], request["pixels"])
    with probe(classifier.model, [name], record=quantities) as records:
        classifier.predict([pixels])
    window, labels = locate_window(classifier, name, pixels, request["patch"])
    (call,) = records[name].calls
    return {quantity: tensor[window] for quantity, tensor in call.items()}, labels
