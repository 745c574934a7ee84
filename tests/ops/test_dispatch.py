"""Selection of kernels and fused blocks by environment variables, device, dtype and grad mode."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from regard.masks import Mask, Packed
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


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return queries, keys or values of one head, (1, 1, tokens, D), or with the given dimensions."""
    return torch.zeros((1, 1, *shape)[-4:], dtype=dtype)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that could run in Triton's interpreter count as available; none is run."""
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    monkeypatch.setattr(dispatch, "KERNELS_ENABLED", True)


def test_attention_kernels_need_equal_supported_widths_and_dtypes(interpreted: None) -> None:
    x = rows(5, 32)
    assert dispatch.attention_kernels_apply(x, rows(7, 32), rows(7, 32))
    assert not dispatch.attention_kernels_apply(rows(5, 48), rows(7, 48), rows(7, 48))
    assert not dispatch.attention_kernels_apply(x, rows(7, 64), rows(7, 32))
    assert not dispatch.attention_kernels_apply(x, rows(7, 32), rows(7, 64))
    assert not dispatch.attention_kernels_apply(x, x.half(), x)
    assert not dispatch.attention_kernels_apply(x, x, x.half())
    assert not dispatch.attention_kernels_apply(x.double(), x.double(), x.double())
    distant = torch.empty(1, device="meta", dtype=torch.half).as_strided((1, 1, 2**10, 32), (0, 0, 2**21, 1))
    assert not dispatch.attention_kernels_apply(distant, distant, distant)
    near = distant.as_strided((1, 1, 2**10, 32), (0, 0, 2**21 - 1, 1))
    assert dispatch.attention_kernels_apply(near, near, near)


def test_attention_kernels_do_not_apply_without_a_gpu() -> None:
    x = rows(5, 32)
    assert not dispatch.attention_kernels_apply(x, x, x)
    assert not dispatch.decode_attention_applies(x, x, x, Mask())
    assert not dispatch.key_ranges_kernel_applies(torch.zeros(2, dtype=torch.int32))


@pytest.mark.parametrize(
    ("batch", "queries", "keys", "applies"),
    [
        (1, 16, 999, True),
        (1, 17, 128, True),
        (1, 17, 129, False),
        (64, 32, 128, True),
        (64, 33, 128, False),
    ],
)
def test_decode_attention_is_for_few_queries(
    batch: int, queries: int, keys: int, applies: bool, interpreted: None
) -> None:
    q, k = torch.zeros(batch, 1, queries, 32), torch.zeros(batch, 1, keys, 32)
    assert dispatch.decode_attention_applies(q, k, k, Mask()) == applies


def test_decode_attention_is_for_inference_with_plain_masks(interpreted: None) -> None:
    q, k = rows(1, 32), rows(9, 32)
    assert dispatch.decode_attention_applies(q, k, k, Mask())
    assert dispatch.select_attention(q, k, k, Mask(), 0.0, None) == "decode"
    assert dispatch.select_attention(q, k, k, Mask(), 0.0, torch.zeros(1, 1, 1, 9)) != "decode"
    assert not dispatch.decode_attention_applies(q, k, k, Mask(causal=True))
    assert not dispatch.decode_attention_applies(q, k, k, Mask(window=(2, None)))
    assert not dispatch.decode_attention_applies(q, k, k.requires_grad_(), Mask())
    with torch.no_grad():
        assert dispatch.decode_attention_applies(q, k, k, Mask())


@pytest.mark.parametrize(
    ("queries", "options", "path"),
    [
        ((1, 1, 16), {}, "matmul"),
        ((1, 1, 17), {}, "sdpa"),
        ((1, 1, 16), {"causal": True}, "sdpa"),
        ((2, 32, 1), {}, "matmul"),
        ((1, 63, 1), {}, "sdpa"),
    ],
)
def test_cpu_attention_of_few_queries_is_two_matmuls(
    queries: tuple[int, int, int], options: dict[str, bool], path: str
) -> None:
    B, H, T = queries
    q, k = torch.zeros(B, H, T, 8), torch.zeros(B, H, 20, 8)
    assert dispatch.select_attention(q, k, k, Mask(**options), 0.0, None) == path
    assert dispatch.select_attention(q.bfloat16(), k.bfloat16(), k.bfloat16(), Mask(**options), 0.0, None) == "sdpa"
    assert dispatch.select_attention(q.requires_grad_(), k, k, Mask(**options), 0.0, None) == "sdpa"


def test_cpu_attention_with_dropout_avoids_sdpa() -> None:
    x = rows(5, 8)
    assert dispatch.select_attention(x, x, x, Mask(), 0.1, None) == "matmul"
    assert dispatch.select_attention(x.double(), x.double(), x.double(), Mask(), 0.1, None) == "reference"
    with torch.autocast("cpu", torch.bfloat16):
        assert dispatch.select_attention(x, x, x, Mask(), 0.1, None) == "reference"


def test_packed_attention_on_a_cpu_is_padded_or_the_reference() -> None:
    layout = Packed.of([3, 2])
    mask, x = Mask(layout, layout), rows(5, 32)
    assert dispatch.select_attention(x, x, x, mask, 0.0, None) == "padded"
    assert dispatch.select_attention(x, x, x, mask, 0.0, torch.zeros(1, 1, 5, 5)) == "reference"
    allowed = mask & Mask(allowed=torch.ones(1, 1, 5, 5, dtype=torch.bool))
    assert dispatch.select_attention(x, x, x, allowed, 0.0, None) == "reference"


def test_short_packed_sequences_in_half_precision_use_our_kernels(interpreted: None) -> None:
    for lengths, dtype, path in (
        ([1024, 2], torch.half, "triton_varlen"),
        ([1025, 2], torch.half, "padded"),
        ([1024, 2], torch.float32, "padded"),
    ):
        layout, x = Packed.of(lengths), rows(sum(lengths), 32, dtype=dtype)
        assert dispatch.select_attention(x, x, x, Mask(layout, layout), 0.0, None) == path


def test_kernels_of_linear_attention_need_bfloat16_and_aligned_tokens_if_causal(interpreted: None) -> None:
    q, k = rows(5, 32, dtype=torch.bfloat16), rows(7, 32, dtype=torch.bfloat16)
    assert dispatch.linear_attention_kernel_applies(q, k, k, causal=False)
    assert not dispatch.linear_attention_kernel_applies(q, k, k, causal=True)
    assert dispatch.linear_attention_kernel_applies(q, q, q, causal=True)
    assert not dispatch.linear_attention_kernel_applies(q.half(), k.half(), k.half(), causal=False)


@pytest.mark.parametrize(("T", "S", "unreliable"), [(63, 65, False), (64, 65, True), (63, 128, True)])
def test_cudnn_gradients_are_avoided_for_full_tiles(T: int, S: int, unreliable: bool) -> None:
    q, k = rows(T, 8), rows(S, 8).requires_grad_()
    assert dispatch.cudnn_gradients_are_unreliable(q, k, k) == unreliable
    assert not dispatch.cudnn_gradients_are_unreliable(q, k.detach(), k.detach())
