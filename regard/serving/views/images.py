"""Views of image models: classes and attention of a classifier, cross-attention of a two-view model."""

from typing import Any

import torch

from regard.data.images.preprocessing import Pixels, Resize, decode_image
from regard.inspection.patches import check_patch, global_attention, patch_grid, window_attention
from regard.inspection.probe import probe
from regard.inspection.two_view import cross_attention_names
from regard.models.croco import CroCo
from regard.models.swin import Swin
from regard.models.vit import ViT
from regard.pipelines.classifier import Classifier
from regard.serving.views.packet import Arrays, pack

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
    preprocessing, model = classifier.preprocessing, classifier.model
    decoded = decode_image(
        request["image"], preprocessing.mode, max_pixels=request["pixels"], min_side=preprocessing.resize.min_side
    )
    pixels = preprocessing.open(decoded)
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
    resize = Resize(PATCHES_PER_SIDE * model.config.patch)
    views = [
        resize(decode_image(image, "RGB", max_pixels=request["pixels"], min_side=resize.min_side))
        for image in request["images"]
    ]
    device = model.mask_token.device
    first, second = (_to_tensor(view).to(device) for view in views)
    arrays: Arrays = {"pixels0": (views[0], "b1"), "pixels1": (views[1], "b1")}
    for direction, pair in (("cross", (first, second)), ("reverse", (second, first))):
        with probe(model, cross_attention_names(model)) as records:
            model.decode_views(*pair)
        for layer, record in enumerate(records.values()):
            arrays[f"{direction}{layer}"] = record.weights[0].float().mean(0).cpu().numpy(), "u2"
    return pack({"grid": [PATCHES_PER_SIDE, PATCHES_PER_SIDE], "layers": len(records)}, arrays)


def _to_tensor(view: Pixels) -> torch.Tensor:
    return torch.from_numpy(view.copy()).permute(2, 0, 1)[None].float() / 255
