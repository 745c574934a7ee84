"""The features of a model's residual stream in another order: the same model, for a library that orders them so."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_READING = re.compile(r"(qkv|inner)\.weight$|^(source|target)_embedding\.|^output$")
_WRITING = re.compile(r"(out|outer)\.(weight|bias)$|norm\.(weight|bias)$")
"""Which tensors have the features of the stream in their last dimension, and which in their first."""


def reorder(tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """The tensors of an encoder-decoder whose feature i is the former feature order[i]."""
    reordered = {}
    for name, tensor in tensors.items():
        if _READING.search(name):
            reordered[name] = tensor[:, order]
        elif _WRITING.search(name):
            reordered[name] = tensor[order]
        else:
            reordered[name] = tensor
    return reordered


def sines_first(width: int) -> Tensor:
    """The order in which interleaved sines and cosines become two halves."""
    return torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))
