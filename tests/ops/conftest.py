"""Triton kernels run on a GPU if there is one, else in the interpreter (set before Triton is imported)."""

import os

import pytest
import torch

from regard.ops import dispatch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Run linear layers the way they train on a GPU, in float64, where all implementations must agree."""
    monkeypatch.setattr(dispatch, "mixed_precision_training", lambda x: torch.is_grad_enabled())
    monkeypatch.setattr(dispatch, "matmul_dtype", lambda x: torch.float64)
    torch.manual_seed(0)
    return monkeypatch
