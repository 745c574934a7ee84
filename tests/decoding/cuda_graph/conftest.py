"""Kernels run on a GPU if there is one, else in Triton's interpreter, which must be enabled before the import."""

import os

import pytest
import torch

from tests.decoding.cuda_graph.recorded_graphs import patch_cuda

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs; without a GPU, recorded operations."""
    if not torch.cuda.is_available():
        patch_cuda(monkeypatch)
