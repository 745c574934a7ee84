"""Hugging Face `generate`, made to do the same work as our search: so many tokens, END the last and only there."""

from collections.abc import Callable
from typing import Any

import torch
from marian import marian_inputs
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, MarianMTModel


class OnlyEndAt(LogitsProcessor):
    """Leaves nothing but END at the last token, with the probability that the model gives it.

    Marian's own forced_eos_token_id gives it probability 1, and so another best hypothesis.
    """

    def __init__(self, length: int, end: int) -> None:
        self.length, self.end = length, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] != self.length:  # the start token and all but the last
            return scores
        only = torch.full_like(scores, -torch.inf)
        only[:, self.end] = scores[:, self.end]
        return only


def their_decoder(
    marian: MarianMTModel, length: int, cache: str | None = None
) -> Callable[[list[list[int]], int], list[list[int]]]:
    """Hugging Face generate with its defaults, fused attention and a dynamic cache unless another is named."""
    options: dict[str, Any] = {} if cache is None else {"cache_implementation": cache}

    def decode(sources: list[list[int]], beam: int) -> list[list[int]]:
        inputs = {name: x.to(marian.device) for name, x in marian_inputs(sources, marian.config).items()}
        found = marian.generate(
            **inputs,
            num_beams=beam,
            do_sample=False,
            min_new_tokens=length - 1,
            max_new_tokens=length,
            logits_processor=LogitsProcessorList([OnlyEndAt(length, marian.config.eos_token_id)]),
            **options,
        )
        return [row[1:-1] for row in found.tolist()]  # without the start token and END

    return decode
