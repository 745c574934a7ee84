"""Kernels are tested on a GPU where there is one; elsewhere Triton interprets them, if told before it is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
