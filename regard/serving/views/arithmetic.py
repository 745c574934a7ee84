"""Section "arithmetic": one query of one head, step by step, with the model's own numbers."""

from __future__ import annotations

from typing import Any

import torch

from regard.decoding.config import DecodingSettings
from regard.errors import UserError
from regard.inspection.interventions import score_scale
from regard.inspection.probe import check_heads, find_attentions
from regard.inspection.translation import MAP_AXES, parse_attention_name, record_translation
from regard.pipelines.translator import Translator
from regard.serving.views.packet import Array, Precision, pack


@torch.no_grad()
def show_arithmetic(translator: Translator, settings: DecodingSettings, asked: dict[str, Any]) -> bytes:
    """A packet with everything between a query and what its attention gives.

    `q` (D), `k` and `v` (S, D), `products` q·k, `scores` scaled and masked (-inf), `weights`, all (S), `heads`, what
    each head made of its values (H, D), and `output`, what the output projection makes of these (W).

    Raises:
        UserError: the model has no such attention, head or query, or cannot read the sentence.
    """
    name, head, query = asked["name"], asked["head"], asked["query"]
    attention = find_attentions(translator.model, [name])[name]
    check_heads(name, attention, [head])
    quantities = ["q", "k", "v", "scores", "weights", "context"]
    read = record_translation(translator, asked["text"], asked["target"], settings, [name], quantities)  # type: ignore[arg-type]
    group, _ = parse_attention_name(name)
    rows, columns = (read.labels[side] for side in MAP_AXES[group])
    if not 0 <= query < len(rows):
        raise UserError(f"{name} has no query {query} here; it has 0 to {len(rows) - 1}")
    seen = read.records[name]
    q, k, v = seen.q[0, head, query].double(), seen.k[0, head].double(), seen.v[0, head].double()
    context = seen.context[0, :, query]
    made = {
        "q": q,
        "k": k,
        "v": v,
        "products": k @ q,
        "scores": seen.scores[0, head, query],
        "weights": seen.weights[0, head, query],
        "heads": context,
        "output": attention.out(context.reshape(1, -1))[0],
    }
    arrays: dict[str, tuple[Array, Precision]] = {key: (x.float().cpu().numpy(), "f4") for key, x in made.items()}
    about = {
        "rows": rows,
        "columns": columns,
        "scale": score_scale(attention),
        "softmax": bool(torch.allclose(made["scores"].softmax(-1), made["weights"].float(), atol=1e-3)),
    }
    return pack(about, arrays)
