"""Products as they learn on a GPU, wherever the tests run."""

import pytest
import torch

from regard import products


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Products do what they do in training on a GPU, in double precision, where every way must give the same."""
    monkeypatch.setattr(products, "_learns", lambda x: torch.is_grad_enabled())
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float64)
    torch.manual_seed(0)
    return monkeypatch
