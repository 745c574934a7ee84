"""Triton kernels run on a GPU, or in Triton's interpreter, which must be enabled before Triton is imported."""

import os
from collections.abc import Iterator

import pytest
import torch

from regard.ops import dispatch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="module")
def interpreted() -> Iterator[None]:
    """Let functions that select an implementation use kernels on a CPU too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "INTERPRETED", not torch.cuda.is_available())
        yield
