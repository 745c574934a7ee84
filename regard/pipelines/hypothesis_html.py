"""A hypothesis as HTML for notebooks: the text, its tokens with their probabilities, and the alignment."""

import html
import math
from typing import Any

TOKEN = "display:inline-block;padding:1px 6px;margin:1px;border-radius:6px;color:#111;background:rgb({},{},{})"
CELL = "padding:2px 6px;text-align:right;color:{};background:rgb({},{},{})"
LARGEST_TABLE = 60
"""Tokens of either side above which the alignment is not written as a table."""


def hypothesis_to_html(hypothesis: Any) -> str:
    """Return a `Hypothesis` as HTML with inline styles only; darker orange marks less probable tokens."""
    parts = [f"<div><b>{html.escape(hypothesis.text)}</b> <small>score {hypothesis.score:.3f}</small></div>"]
    for sentence in hypothesis.sentences:
        if sentence.tokens:
            parts.append(f"<div>{''.join(_tokens(sentence))}</div>")
        if sentence.alignment is not None:
            parts.append(_alignment(sentence))
    if hypothesis.warning:
        parts.append(f"<div><small>{html.escape(hypothesis.warning)}</small></div>")
    return f"<div>{''.join(parts)}</div>"


def _tokens(hypothesis: Any) -> list[str]:
    spans = []
    for label, log_prob in zip(hypothesis.labels, hypothesis.token_log_probs, strict=False):
        probability = math.exp(log_prob)
        style = TOKEN.format(*_mix((253, 186, 116), (240, 244, 250), probability))
        spans.append(f'<span style="{style}" title="{probability:.1%}">{_label(label)}</span>')
    return spans


def _alignment(hypothesis: Any) -> str:
    """Return the cross-attention as a table: a row for each target token, a column for each source token."""
    assert hypothesis.alignment is not None
    source = [*hypothesis.source_subwords, "END"]
    if max(len(source), len(hypothesis.labels)) > LARGEST_TABLE:
        return f"<div><small>alignment: {len(hypothesis.labels)} × {len(source)}</small></div>"
    head = "".join(f"<th>{_label(label)}</th>" for label in source)
    rows = []
    for label, weights in zip(hypothesis.labels, hypothesis.alignment, strict=False):
        cells = "".join(map(_cell, weights))
        rows.append(f"<tr><th>{_label(label)}</th>{cells}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(weight: float) -> str:
    style = CELL.format("#fff" if weight > 0.5 else "#111", *_mix((247, 249, 252), (8, 40, 100), weight))
    return f'<td style="{style}">{weight:.2f}</td>'


def _label(token: str) -> str:
    return html.escape(token.removeprefix("▁") or "␣")


def _mix(low: tuple[int, ...], high: tuple[int, ...], share: float) -> list[int]:
    share = min(1.0, max(0.0, share))
    return [round(a + share * (b - a)) for a, b in zip(low, high, strict=True)]
