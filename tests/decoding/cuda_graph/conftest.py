"""Kernels run on a GPU if there is one, else in Triton's interpreter, which must be enabled before the import."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
