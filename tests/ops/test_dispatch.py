"""Selection of kernels and fused blocks by environment variables, device, dtype and grad mode."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from regard.ops import dispatch

FLAGS = """
import os, sys
for variable in ("NONE", "REGARD_KERNELS", "REGARD_FUSED"):
    os.environ[variable] = "0"
    from regard.ops import dispatch
    print(dispatch.KERNELS_ENABLED, dispatch.FUSED_ENABLED)
    del os.environ[variable], sys.modules["regard.ops.dispatch"], sys.modules["regard.ops"].dispatch
"""


def test_environment_variables_disable_kernels_and_fused_blocks() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REGARD_")}
    done = subprocess.run([sys.executable, "-c", FLAGS], env=environment, capture_output=True, text=True, check=True)
    triton = dispatch.TRITON_INSTALLED
    assert done.stdout.splitlines() == [f"{triton} True", "False True", f"{triton} False"]


def test_kernels_do_not_apply_to_cpu_tensors() -> None:
    x, norm = torch.randn(2, 8), nn.LayerNorm(8)
    assert not dispatch.kernels_available(x.device)
    assert not dispatch.kernels_apply(x)
    assert not dispatch.add_norm_kernel_applies(x, norm)
    assert not dispatch.embedding_kernel_applies(torch.zeros(1, dtype=torch.long), x.requires_grad_())


@pytest.mark.skipif(not dispatch.KERNELS_ENABLED, reason="Triton is not installed")
def test_conditions_of_the_add_norm_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    x, norm = torch.randn(2, 8), nn.LayerNorm(8)
    assert dispatch.add_norm_kernel_applies(x, norm)
    assert not dispatch.add_norm_kernel_applies(x.double(), norm)
    assert not dispatch.add_norm_kernel_applies(x[:0], norm)
    assert not dispatch.add_norm_kernel_applies(x, nn.LayerNorm(8, elementwise_affine=False))
    wide = dispatch.MAX_ROW_WIDTH + 1
    assert not dispatch.add_norm_kernel_applies(torch.randn(2, wide), nn.LayerNorm(wide))
    assert not dispatch.add_norm_inference_kernel_applies(x, x, norm)
    with torch.no_grad():
        assert not dispatch.add_norm_kernel_applies(x, norm)
        assert dispatch.add_norm_inference_kernel_applies(x, x, norm)
        assert not dispatch.add_norm_inference_kernel_applies(x, x.double(), norm)


def test_linear_layers_compute_in_the_dtype_of_autocast() -> None:
    x = torch.randn(2, 8)
    assert dispatch.matmul_dtype(x) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert dispatch.matmul_dtype(x) == torch.bfloat16
        assert not dispatch.mixed_precision_training(x)  # only on a GPU
