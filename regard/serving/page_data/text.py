"""Views of a translator: translations, attention maps, search steps, interventions and explanations.

Shapes: H heads, T queries, S keys, D head width, W model width.
"""

import math
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from regard.decoding.nat import NATGenerator
from regard.decoding.settings import DecodingSettings, NATSettings, SearchSettings
from regard.errors import UserError
from regard.inspection.explain.explanation import explain
from regard.inspection.explain.lens import read_layers
from regard.inspection.explain.target_word import translate_tokens
from regard.inspection.flow import record_flow
from regard.inspection.html import render_page
from regard.inspection.interventions import bias_scores, scale_heads, scale_scores
from regard.inspection.probe import QUANTITIES, check_heads, find_attentions
from regard.inspection.translation import (
    MAP_AXES,
    check_not_blank,
    mark_pieces,
    parse_attention_name,
    record_translation,
    source_labels,
    translation_scene,
)
from regard.inspection.words import END, readable_labels
from regard.models.nat import NATransformer
from regard.pipelines.hypothesis import Hypothesis, Iteration, TreeNode
from regard.pipelines.translator import Translator, to_glossary
from regard.serving.messages import Quality
from regard.serving.page_data.attention import arithmetic_packet, attention_module, shrink
from regard.serving.page_data.packet import Arrays, pack

DIGITS = 4
MAX_POINTS = 1024
"""Number of gradients of an attribution, which bounds the time of a request."""


def view_translation(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> bytes:
    """Return a packet with the source tokens and the hypotheses, best first.

    The array `alignmentN` contains the alignment of hypothesis N; an engine without attention weights has none.
    """
    check_not_blank(request["text"])
    has_attention = translator.generator.has_attention
    hypotheses = translator.hypotheses(
        [request["text"]],
        settings,
        alignments=has_attention,
        split=False,
        confidence=translator.quality.is_calibrated,
        flags=True,
        glossary=to_glossary(request.get("glossary") or None),
    )[0]
    source = source_labels(translator, hypotheses[0].source_subwords)
    arrays: Arrays = {}
    if has_attention:
        for number, hypothesis in enumerate(hypotheses):
            weights = np.array(hypothesis.alignment, float).reshape(len(hypothesis.labels), len(source))
            arrays[f"alignment{number}"] = weights, "u2"
    content = {
        "source": source,
        "source_pieces": mark_pieces(hypotheses[0].source_subwords, source),
        "hypotheses": [_hypothesis(one) | {"quality": _quality(translator, one)} for one in hypotheses],
    }
    return pack(content, arrays)


def quality_of(translator: Translator, hypothesis: Hypothesis) -> Quality | None:
    """Return the confidence and flags of a hypothesis; None if they were not requested."""
    if hypothesis.flags is None:
        return None
    tokens = hypothesis.tokens if hypothesis.token_confidences else []
    spans = zip(translator.vocabularies.target.char_spans(tokens), hypothesis.token_confidences, strict=True)
    return Quality(hypothesis.confidence, [(*span, confidence) for span, confidence in spans], hypothesis.flags)


def _quality(translator: Translator, hypothesis: Hypothesis) -> dict[str, Any] | None:
    quality = quality_of(translator, hypothesis)
    return None if quality is None else quality.as_dict()


def view_attention(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> bytes:
    """Return a packet with small maps of each attention module, (H + 1, T, S); the last is the mean of the heads."""
    record = record_translation(translator, request["text"], request["target"], settings)
    arrays: Arrays = {}
    modules = []
    for name, module_record in record.records.items():
        weights_HTS = module_record.weights[0].float().cpu()
        maps = torch.cat([weights_HTS, weights_HTS.mean(0, keepdim=True)])
        arrays[name] = shrink(maps).numpy(), "u1"
        modules.append(attention_module(name, *parse_attention_name(name), weights_HTS.numpy()))
    return pack({"labels": record.labels, "views": modules}, arrays)


def view_map(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> bytes:
    """Return a packet with the array `map`, (T, S): weights or scores of one head, or the mean weights of all heads.

    With `every_head`, `map` contains every head, (H, T, S). `row_pieces` and `column_pieces` mark the tokens that
    continue the word of the token before them.
    """
    name, head, quantity = request["name"], request["head"], request["quantity"]
    every_head = request.get("every_head", False)
    attention = find_attentions(translator.model, [name])[name]
    if head is not None:
        check_heads(name, attention, [head])
    elif quantity == "scores" and not every_head:
        raise UserError("the scores of different heads are not comparable and have no mean; choose a head")
    record = record_translation(translator, request["text"], request["target"], settings, [name], [quantity])
    maps_HTS = getattr(record.records[name], quantity)[0].float()
    chosen = maps_HTS if every_head else maps_HTS.mean(0) if head is None else maps_HTS[head]
    group, _ = parse_attention_name(name)
    rows, columns = MAP_AXES[group]
    content = {
        "rows": record.labels[rows],
        "columns": record.labels[columns],
        "row_pieces": record.pieces[rows],
        "column_pieces": record.pieces[columns],
    }
    return pack(content, {"map": (chosen.cpu().numpy(), "u2")})


def view_look(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> str:
    """Return the attention maps of a sentence as a self-contained HTML page."""
    return render_page(translation_scene(translator, request["text"], settings=settings))


@torch.no_grad()
def view_arithmetic(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> bytes:
    """Return a packet with all intermediate results of one query of one head.

    The arrays are `q` (D), `k` and `v` (S, D), `products` q·k (S), `scores` after scaling and masking (S), `weights`
    (S), `heads`, the output of each head (H, D), and `output`, that of the output projection (W); and what precedes
    and follows the attention in its block, see `_block_arithmetic`.
    """
    name, head, query = request["name"], request["head"], request["query"]
    attention = find_attentions(translator.model, [name])[name]
    check_heads(name, attention, [head])
    text, target = request["text"], request["target"]
    with record_flow(translator.model) as flow:
        record = record_translation(translator, text, target, settings, [name], QUANTITIES)
    group, _ = parse_attention_name(name)
    rows, columns = (record.labels[axis] for axis in MAP_AXES[group])
    if not 0 <= query < len(rows):
        raise UserError(f"{name} has no query {query}; the queries are 0 to {len(rows) - 1}")
    seen = record.records[name]
    tensors = {quantity: getattr(seen, quantity)[0] for quantity in QUANTITIES}
    return arithmetic_packet(name, attention, tensors, head, query, (rows, columns), flow)


def view_beam(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of a beam search, or the candidates of a non-autoregressive model with their iterations.

    For a model that predicts a graph of tokens, return the graph and its paths instead of candidates.
    """
    check_not_blank(request["text"])
    model, is_search = translator.model, isinstance(settings, SearchSettings)
    all_candidates = settings if is_search else settings.changed(n_best=settings.candidates)
    hypotheses = translator.hypotheses(
        [request["text"]], all_candidates, trees=is_search, snapshots=not is_search, split=False
    )[0]
    best = hypotheses[0]
    is_graph = isinstance(model, NATransformer) and model.config.length == "dag"
    return {
        "text": best.text,
        "score": round(best.score, DIGITS),
        "settings": public_settings(settings),
        "length": model.config.length if isinstance(model, NATransformer) else None,
        "tree": [_beam_node(node) for node in best.tree or ()],
        "candidates": [] if is_graph else [_nat_candidate(one) for one in hypotheses if one.iterations],
        "graph": _graph(translator, request["text"], settings) if is_graph else None,
    }


def _graph(translator: Translator, text: str, settings: DecodingSettings) -> dict[str, Any]:
    """Return the graph of a sentence. The first and the last vertex predict no token."""
    generator, target = translator.generator, translator.vocabularies.target
    assert isinstance(generator, NATGenerator)
    assert isinstance(settings, NATSettings)
    trace = generator.trace_graph(translator.vocabularies.source.encode(text), settings)
    labels = ["START", *readable_labels(target.tokens(trace.tokens[1:-1])), END]
    return {
        "tokens": labels,
        "probabilities": [1.0, *map(_probability, trace.token_log_probs[1:-1]), 1.0],
        "visits": [round(visit, DIGITS) for visit in trace.visits],
        "transitions": [(*vertices, round(prob, DIGITS)) for *vertices, prob in trace.transitions],
        "paths": [
            {
                "search": name,
                "text": target.decode(path.tokens),
                "score": round(path.score, DIGITS),
                "vertices": path.positions,
                "tokens": [*readable_labels(target.tokens(path.tokens)), END],
                "transitions": [*map(_probability, transitions)],
            }
            for name, (path, transitions) in trace.paths.items()
        ],
    }


def _probability(log_prob: float) -> float:
    return round(math.exp(log_prob), DIGITS)


def view_change(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the best translation with head outputs scaled by `factors`, and attention scores by `sharpness`.

    `bias` is added to the cross-attention scores of source tokens.
    """
    check_not_blank(request["text"])
    model = translator.model
    with ExitStack() as stack:
        stack.enter_context(scale_heads(model, request["factors"]))
        stack.enter_context(scale_scores(model, request["sharpness"]))
        stack.enter_context(bias_scores(model, request.get("bias") or {}))
        best = translator.hypotheses([request["text"]], settings, split=False)[0][0]
    heads = {name: attention.heads for name, attention in find_attentions(model).items()}
    source = [*readable_labels(best.source_subwords), "END"]
    return {"translation": _hypothesis(best), "source": source, "heads": heads}


def view_why(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the explanation of a word of the translation."""
    text, target = request["text"], request["target"]
    options = {"target": target, "settings": settings, "max_points": MAX_POINTS}
    return explain(translator, text, request["word"], request["contrast"], request["against"], **options).to_json()


def view_lens(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the states of decoder and encoder, read as tokens."""
    text, target = request["text"], request["target"]
    found = read_layers(
        translator, text, translate_tokens(translator, text, settings) if target is None else target, request["top"]
    )
    encoder = None if found.encoder is None else found.encoder.to_json()
    return {"decoder": found.decoder.to_json(), "encoder": encoder}


def public_settings(settings: DecodingSettings) -> dict[str, Any]:
    """Return the settings without the path of the reranker, which clients should not see."""
    return {key: value for key, value in settings.resolved().items() if key != "rerank"}


def _hypothesis(hypothesis: Hypothesis) -> dict[str, Any]:
    log_probs = hypothesis.token_log_probs[: len(hypothesis.labels)]
    return {
        "text": hypothesis.text,
        "score": round(hypothesis.score, DIGITS),
        "tokens": hypothesis.tokens,
        "labels": readable_labels(hypothesis.labels),
        "terms": [use.as_dict() for use in hypothesis.terms],
        "pieces": mark_pieces(hypothesis.subwords, hypothesis.labels),
        "probabilities": [*map(_probability, log_probs)],
    }


def _beam_node(tree_node: TreeNode) -> dict[str, Any]:
    node, token = tree_node.node, tree_node.subword
    return {
        "parent": node.parent,
        "step": node.step,
        "token": token if token == "END" else readable_labels([token])[0],
        "outcome": node.outcome,
        "log_prob": _finite(node.log_prob),
        "cumulative_log_prob": _finite(node.cumulative_log_prob),
        "score": _finite(node.score),
    }


def _finite(value: float) -> float | None:
    """Round a value for JSON, which has no infinity."""
    return round(value, DIGITS) if math.isfinite(value) else None


def _nat_candidate(hypothesis: Hypothesis) -> dict[str, Any]:
    iterations = [_nat_iteration(iteration) for iteration in hypothesis.iterations or ()]
    return {"text": hypothesis.text, "score": round(hypothesis.score, DIGITS), "iterations": iterations}


def _nat_iteration(iteration: Iteration) -> dict[str, Any]:
    return {
        "tokens": readable_labels(iteration.subwords),
        "probabilities": [*map(_probability, iteration.token_log_probs)],
        "predicted": iteration.updated,
    }
