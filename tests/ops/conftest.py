"""Triton kernels run on a GPU, or in Triton's interpreter, which must be enabled before Triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
