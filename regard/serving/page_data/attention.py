"""Parts of the views of all models: descriptions of attention modules, and the arithmetic of one query.

Shapes: H heads, T queries, S keys, D head width, W model width.
"""

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.multi_head import Attention
from regard.inspection.flow import Flow, Sublayer
from regard.inspection.interventions import score_scale
from regard.inspection.maps import distance, entropy
from regard.inspection.probe import Quantity
from regard.serving.page_data.packet import Array, pack

INPUT_FEATURES = 3
THUMBNAIL_SIZE = 52
"""Maximum number of rows and columns of a small attention map: its size on the page in pixels."""


def attention_module(name: str, group: str, layer: int, weights_HTS: Array) -> dict[str, Any]:
    """Describe an attention module for the page; entropy and distance are None where they are undefined."""
    is_distribution = not (weights_HTS < 0).any()
    has_distance = is_distribution and group in ("encoder", "decoder")
    return {
        "name": name,
        "group": group,
        "layer": layer,
        "heads": len(weights_HTS),
        "entropy": np.round(entropy(weights_HTS), 2).tolist() if is_distribution else None,
        "distance": np.round(distance(weights_HTS), 2).tolist() if has_distance else None,
    }


def shrink(maps: Tensor) -> Tensor:
    """Reduce maps to the size of a thumbnail by max pooling."""
    rows, columns = (min(THUMBNAIL_SIZE, size) for size in maps.shape[1:])
    return F.adaptive_max_pool2d(maps, (rows, columns)) if maps.numel() else maps


def arithmetic_packet(
    name: str,
    attention: Attention,
    tensors: dict[Quantity, Tensor],
    head: int,
    query: int,
    labels: tuple[list[str], list[str]],
    flow: Flow | None,
) -> bytes:
    """Return a packet with all intermediate results of one query of one head; see `view_arithmetic`.

    Args:
        tensors: recorded quantities of all heads without the batch dimension, such as q of (H, T, D).
        labels: labels of the queries and of the keys.
        flow: recorded inputs and outputs of the block; None omits what precedes and follows the attention.
    """
    q_D, k_SD, v_SD = tensors["q"][head, query].double(), tensors["k"][head].double(), tensors["v"][head].double()
    heads_HD = tensors["context"][:, query]
    scores_S, weights_S = tensors["scores"][head, query], tensors["weights"][head, query]
    results = {
        "q": q_D,
        "k": k_SD,
        "v": v_SD,
        "products": k_SD @ q_D,
        "scores": scores_S,
        "weights": weights_S,
        "heads": heads_HD,
        "output": attention.out(heads_HD.reshape(1, -1))[0],
        **({} if flow is None else _block_arithmetic(flow, name, head, query)),
    }
    content = {
        "rows": labels[0],
        "columns": labels[1],
        "scale": score_scale(attention),
        "softmax": torch.allclose(scores_S.softmax(-1), weights_S.float(), atol=1e-3),
        "rotary": attention.rotary is not None,
    }
    if flow is not None:
        block = flow.module(name.rpartition(".")[0])
        content |= {
            "pre_norm": block.pre_norm,
            "cross": name.endswith(".cross"),
            "activation": block.feed_forward.activation,
        }
    return pack(content, {key: (tensor.float().cpu().numpy(), "f4") for key, tensor in results.items()})


def _block_arithmetic(flow: Flow, name: str, head: int, query: int) -> dict[str, Tensor]:
    """Return what precedes and follows the attention of a query in its block.

    `x` (W) and `y` (S, F) are the inputs of q and of k and v; `projections` (3, W) and `biases` (3) compute feature 0
    of q, k and v of the head. `residual`, `update` and `added` (W) belong to Add & Norm, `hidden` and `transformed` to
    the feed-forward layer of the block.
    """
    block, _, sublayer = name.rpartition(".")
    module, attention = flow.module(block), flow.module(name)
    x_TW = flow.input(name)
    y_SW = flow.output("encoder_norm") if sublayer == "cross" else x_TW
    rows = [part * attention.width + head * (attention.width // attention.heads) for part in range(3)]
    bias = attention.qkv.bias
    steps = flow.steps(block)
    number = [step.sublayer for step in steps].index(cast(Sublayer, sublayer))
    hidden_H = module.feed_forward.hidden(flow.input(f"{block}.feed_forward")[None, query, None])[0, 0]
    return {
        "x": x_TW[query],
        "y": y_SW[:, :INPUT_FEATURES],
        "projections": attention.qkv.weight[rows],
        "biases": torch.zeros(3) if bias is None else bias[rows],
        "residual": (flow.input(block) if number == 0 else steps[number - 1].output)[query],
        "update": steps[number].update[query],
        "added": steps[number].output[query],
        "hidden": hidden_H,
        "transformed": steps[-1].update[query],
    }
