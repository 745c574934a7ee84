"""Triton kernels run on a GPU if there is one, else in the interpreter (set before Triton is imported)."""

import os

import pytest
import torch

from regard.ops import linear

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Run linear layers the way they train on a GPU, in float64, where all implementations must agree."""
    monkeypatch.setattr(linear, "_learns", lambda x: torch.is_grad_enabled())
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float64)
    torch.manual_seed(0)
    return monkeypatch
