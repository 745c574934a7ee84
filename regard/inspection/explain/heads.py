"""Rank attention heads by how much the score of one word depends on them.

Shapes: B rows, H heads, T queries, D head width.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.inspection.explain.scoring import evaluation_mode, score_word
from regard.inspection.explain.target_word import Tokens
from regard.inspection.probe import find_attentions

Replacement = Literal["zero", "mean"]


class HeadEffect(NamedTuple):
    """How much the score of a word decreases without one head; negative if the head speaks against the word."""

    name: str
    head: int
    effect: float


@torch.no_grad()
def rank_heads_of_word(
    translator: Any,
    sentence: str,
    word: str | int,
    contrast: str | None = None,
    target: Tokens | None = None,
    replacement: Replacement = "zero",
) -> list[HeadEffect]:
    """Rank all heads by the decrease of a word's log-probability when each of them is ablated, largest first.

    Args:
        translator: A `Translator` with one autoregressive model.
        sentence: The sentence that is translated.
        word: Text that occurs in the translation, END, or the position of a token, counted from 1.
        contrast: A word to compare with; the score is then the difference of the log-probabilities.
        target: Token ids of the translation, without END. Defaults to the best translation of the model.
        replacement: What replaces the output of a head: "zero", or its "mean" over the queries of the sentence, which
            keeps what the head adds at every position alike.
    """
    if replacement not in get_args(Replacement):
        raise UserError(f"replacement: {replacement!r} is not one of {', '.join(get_args(Replacement))}")
    score, _ = score_word(translator, sentence, word, contrast, target)
    effects: list[HeadEffect] = []
    with evaluation_mode(score.model):
        x_NW = score.embed()
        value = float(score(x_NW[None]))
        for name, attention in find_attentions(score.model).items():
            handle = attention.out.register_forward_pre_hook(_ablation_of_row(attention, replacement))
            try:
                values: Sequence[float] = score(x_NW.expand(attention.heads, -1, -1)).tolist()
            finally:
                handle.remove()
            effects += [HeadEffect(name, head, value - ablated) for head, ablated in enumerate(values)]
    return sorted(effects, key=lambda effect: -effect.effect)


def _ablation_of_row(attention: Attention, replacement: Replacement) -> Any:
    """Return a pre-hook of the output projection that ablates head h in row h of the batch."""

    def ablate(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        context = arguments[0]
        B, T, W = context.shape
        heads_BTHD = context.reshape(B, T, attention.heads, -1).clone()
        rows = torch.arange(attention.heads, device=context.device)
        mean = heads_BTHD.mean(1, keepdim=True).expand(-1, T, -1, -1)
        heads_BTHD[rows, :, rows] = 0.0 if replacement == "zero" else mean[rows, :, rows]
        return (heads_BTHD.reshape(B, T, W), *arguments[1:])

    return ablate
