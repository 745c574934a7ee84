"""Selects the device, and an implementation for every op: the PyTorch formula, a Triton kernel or a fused block.

All conditions on device, dtype, shape, grad mode and compiler are defined here. Environment variables, read at import:

- `REGARD_KERNELS=0` disables all Triton kernels, for comparison or where Triton finds no C compiler.
- `REGARD_FUSED=0` disables all fused blocks: those of training on a GPU (`regard.ops.fused`) and those of decoding on a
  CPU (`regard.decoding.cpu_blocks`).
"""

import os
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.masks import Mask, Packed

TRITON_INSTALLED = find_spec("triton") is not None
KERNELS_ENABLED = TRITON_INSTALLED and os.environ.get("REGARD_KERNELS") != "0"
FUSED_ENABLED = os.environ.get("REGARD_FUSED") != "0"
INTERPRETED = False
"""Use kernels for CPU tensors too. Set by tests that run Triton's interpreter (TRITON_INTERPRET=1)."""
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HALF_DTYPES = (torch.bfloat16, torch.float16)
MAX_ROW_WIDTH = 4096
"""Widest row of the training kernels, which hold rows in registers."""
MAX_INFERENCE_ROW_WIDTH = 8192


def choose_device(name: str) -> torch.device:
    """Return the torch device with this name; "auto" selects a GPU if one is available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used here ({reason}); try auto or cpu") from None
    return device


def kernels_available(device: torch.device) -> bool:
    """Return whether Triton kernels run on a device."""
    return KERNELS_ENABLED and (device.type == "cuda" or INTERPRETED)


def kernels_apply(*tensors: Tensor) -> bool:
    """Return whether all tensors have a device and dtype that Triton kernels support, and at least one element."""
    for x in tensors:
        if not (x.is_cuda or INTERPRETED) or x.dtype not in KERNEL_DTYPES or not x.numel():
            return False
    return KERNELS_ENABLED


def training_kernels_apply(*tensors: Tensor) -> bool:
    """Return whether kernels with a backward pass are used: in grad mode, unless torch.compile fuses the formula."""
    return kernels_apply(*tensors) and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def inference_kernels_apply(*tensors: Tensor) -> bool:
    """Return whether kernels without a backward pass are used: without grad mode and outside torch.compile."""
    return kernels_apply(*tensors) and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def mixed_precision_training(x: Tensor) -> bool:
    """Return whether linear layers on x use our own backward pass: training on a GPU under autocast."""
    on_gpu = x.is_cuda or INTERPRETED
    return on_gpu and torch.is_grad_enabled() and x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type)


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which linear layers compute on x: autocast's, or x's own without autocast."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


# Conditions of single kernels


def add_norm_kernel_applies(x: Tensor, norm: nn.LayerNorm) -> bool:
    """Return whether Add & Norm of x, (..., W), is one kernel forward and one backward."""
    if not training_kernels_apply(x):
        return False
    return norm.weight is not None and norm.bias is not None and x.shape[-1] <= MAX_ROW_WIDTH


def add_norm_inference_kernel_applies(x: Tensor, update: Tensor, norm: nn.LayerNorm) -> bool:
    """Return whether Add & Norm of two contiguous tensors of one dtype is one kernel without a backward pass."""
    if not inference_kernels_apply(x) or norm.weight is None or norm.bias is None:
        return False
    same = x.dtype == update.dtype == norm.weight.dtype and x.shape == update.shape
    contiguous = x.is_contiguous() and update.is_contiguous()
    on_current_device = not x.is_cuda or x.device.index == torch.cuda.current_device()
    return same and contiguous and on_current_device and x.shape[-1] <= MAX_INFERENCE_ROW_WIDTH


def embedding_kernel_applies(tokens: Tensor, table: Tensor) -> bool:
    """Return whether tokens are embedded by kernel; only training profits, and only float32 tables are supported."""
    if not training_kernels_apply(table) or not table.requires_grad:
        return False
    return table.dtype == torch.float32 and table.shape[1] <= MAX_ROW_WIDTH and tokens.numel() > 0


def feed_forward_backward_kernel_applies(grad: Tensor, weight: Tensor, activated: Tensor, columns: int) -> bool:
    """Return whether the matmul with fused ReLU backward applies; its tiles of `columns` are tuned for Hopper GPUs."""
    tensors = grad, weight, activated
    half = grad.dtype in HALF_DTYPES and grad.dtype == weight.dtype == activated.dtype
    if not (grad.is_cuda and half and kernels_apply(*tensors)):
        return False
    aligned = all(x.data_ptr() % 16 == 0 for x in tensors) and weight.shape[0] % 8 == 0
    return aligned and weight.shape[1] % columns == 0 and torch.cuda.get_device_capability(grad.device) == (9, 0)


def dag_kernels_apply(emissions: Tensor, transitions: Tensor) -> bool:
    """Return whether paths through graphs of tokens are summed by kernels, which keep all sums in float32."""
    return kernels_apply(emissions, transitions) and emissions.dtype == transitions.dtype == torch.float32


# Fused blocks, see `regard.ops.fused`. Modules are passed as `Any` because ops must not import layers.


def fused_block_applies(block: Any, x: Tensor) -> bool:
    """Return whether a block on x, (B, T, W), is computed by its fused function, which calls no hooks of submodules."""
    if not fused_kernels_apply(x, block.norm1):
        return False
    if not block.pre_norm and (block.drop_path.rate or block.scale1 is not None):
        return False
    attentions = (block.attention, getattr(block, "cross", block.attention))
    if any(attention.projection_dropout.p for attention in attentions):
        return False
    return not any(map(_has_hooks, list_modules(block)[1:]))


def fused_kernels_apply(x: Tensor, norm: nn.LayerNorm) -> bool:
    """Return whether the kernels of fused blocks support x, (B, T, W), and a norm of the block."""
    return FUSED_ENABLED and add_norm_kernel_applies(x, norm)


def class_token_block_applies(blocks: Any) -> bool:
    """Return whether the last of several blocks may be computed for the class token alone.

    Hooks of an attention, such as those of `probe`, need the queries of all tokens.
    """
    return FUSED_ENABLED and not any(block.attention.qkv_hook is not None for block in blocks)


def fused_embedding_applies(embedding: Any, tokens: Tensor) -> bool:
    """Return whether tokens are embedded by kernel, which supports position tables without gradient only."""
    learned = embedding.positions is not None and any(True for _ in embedding.positions.parameters())
    return FUSED_ENABLED and not learned and embedding_kernel_applies(tokens, embedding.weight)


def list_modules(model: nn.Module) -> list[nn.Module]:
    """Return the model and all its submodules; a shared module is listed once per parent.

    `nn.Module.modules` removes duplicates and takes ten times as long, too long for conditions checked at every call.
    """
    modules = [model]
    for module in modules:  # the list grows during the loop
        if children := module._modules:
            modules += [child for child in children.values() if child is not None]
    return modules


def _has_hooks(module: nn.Module) -> bool:
    forward, backward = module._forward_hooks or module._forward_pre_hooks, module._backward_hooks
    return bool(forward or backward or module._backward_pre_hooks)


# Attention; q, k and v are (B, H, tokens, D)

AttentionImplementation = Literal[
    "auto", "reference", "sdpa", "matmul", "decode", "padded", "flash_varlen", "triton_varlen"
]
"""The implementations of attention, see `regard.attention.core`; "auto" selects one of the others."""
HEAD_WIDTHS = (16, 32, 64, 128)
"""Head widths that the attention kernels support."""
MAX_MATMUL_QUERIES = 16
"""On CPU, two matmuls are faster than SDPA up to this many queries."""
MIN_MATMUL_HEADS = 64
"""On CPU, two matmuls are faster than SDPA for a single query from this many heads of the whole batch."""
MAX_DECODE_QUERIES = 16
"""The decoding kernel is faster than SDPA up to this many queries per row."""
SMALL_DECODE_QUERIES, SMALL_DECODE_KEYS = 2048, 128
"""It is also faster up to this many queries of the whole batch and keys per row, where launches take most time."""
MAX_TRITON_VARLEN_LENGTH = 1024
"""Our varlen kernels, whose tiles hold several sequences, are faster than PyTorch's up to this sequence length."""
CUDNN_TILE = 64
"""cuDNN can return NaN gradients if a length is a multiple of this: it treats rows that fill up a tile as real rows of
score 0, and exp(0 - lse) overflows in its backward pass if all other scores are below -88. Observed for 64 tokens on an
H200 (PyTorch 2.11); also pytorch/pytorch#196678 and NVIDIA/cudnn-frontend#1072."""


def records_grad(*tensors: Tensor) -> bool:
    """Return whether autograd records operations on any of these tensors."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def select_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float, bias: Tensor | None
) -> AttentionImplementation:
    """Return the fastest implementation of attention for these inputs."""
    if mask.packed:
        return _select_packed_attention(q, k, v, mask, dropout, bias)
    if torch.compiler.is_compiling():  # a compiled graph must not depend on the lengths of one batch
        return "sdpa"
    # In half precision a plain matmul rounds the scores.
    precise_on_cpu = q.device.type == "cpu" and q.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if dropout and q.device.type == "cpu":  # where SDPA draws its dropout mask one number at a time
        return "matmul" if precise_on_cpu else "reference"
    if dropout or records_grad(q, k, v):
        return "sdpa"
    if bias is None and decode_attention_applies(q, k, v, mask):
        return "decode"
    B, H, T, _ = q.shape
    few_queries = B * H >= MIN_MATMUL_HEADS if T == 1 else T <= MAX_MATMUL_QUERIES and not mask.causal
    return "matmul" if precise_on_cpu and few_queries else "sdpa"


def _select_packed_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float, bias: Tensor | None
) -> AttentionImplementation:
    if bias is not None or mask.allowed is not None:
        return "reference"
    assert isinstance(mask.queries, Packed) and isinstance(mask.keys, Packed)
    short = max(mask.queries.longest, mask.keys.longest) <= MAX_TRITON_VARLEN_LENGTH
    if short and q.dtype in HALF_DTYPES and attention_kernels_apply(q, k, v):
        return "triton_varlen"
    has_keys = mask.keys.longest > 0  # the backward pass of varlen_attn fails without any key
    return "flash_varlen" if not dropout and has_keys and flash_varlen_applies(q, v) else "padded"


def attention_kernels_apply(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether the Triton kernels of attention support these queries, keys and values."""
    same = q.dtype == k.dtype == v.dtype and q.shape[-1] == k.shape[-1] == v.shape[-1]
    supported = q.dtype in KERNEL_DTYPES and q.shape[-1] in HEAD_WIDTHS
    return kernels_available(q.device) and same and supported and all(map(_offsets_fit, (q, k, v)))


def decode_attention_applies(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
    """Return whether the kernel for few queries supports these inputs, without a backward pass."""
    if not kernels_available(q.device):  # checked first: decoding steps on a CPU are short
        return False
    (B, _, T, _), S = q.shape, k.shape[-2]
    few_queries = T <= MAX_DECODE_QUERIES or (B * T <= SMALL_DECODE_QUERIES and S <= SMALL_DECODE_KEYS)
    supported_mask = mask.reach == (None, None) and not mask.packed
    if not few_queries or not supported_mask or torch.compiler.is_compiling() or records_grad(q, k, v):
        return False
    return attention_kernels_apply(q, k, v)


def flash_varlen_applies(q: Tensor, v: Tensor) -> bool:
    """Return whether PyTorch's varlen_attn supports these queries and values."""
    D = q.shape[-1]
    return q.is_cuda and q.dtype in HALF_DTYPES and D % 8 == 0 and D <= 256 and v.shape[-1] == D


def linear_attention_kernel_applies(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """Return whether the kernels of linear attention are used.

    Only in bfloat16: features overflow float16, and a float32 state does not fit into the registers.
    """
    aligned = not causal or q.shape[-2] == k.shape[-2]
    return aligned and q.dtype == torch.bfloat16 and attention_kernels_apply(q, k, v)


def key_ranges_kernel_applies(offsets: Tensor) -> bool:
    """Return whether the key ranges of a packed batch are found by kernel; torch.compile fuses the formula itself."""
    return kernels_available(offsets.device) and not torch.compiler.is_compiling()


def cudnn_gradients_are_unreliable(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether the gradients of cuDNN's attention can be NaN; see `CUDNN_TILE`."""
    return records_grad(q, k, v) and any(x.shape[-2] % CUDNN_TILE == 0 for x in (q, k))


def _offsets_fit(x: Tensor) -> bool:
    return x.shape[-2] * x.stride(-2) < 2**31  # kernels address the tokens of a head with 32 bits


# Launching


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Make the device of x current: Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 1 for other devices."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def tile_rows(width: int, tile: int, warps: int) -> dict[str, int]:
    """Return the launch options of a kernel whose programs process complete rows.

    These are the width of a row, W; the width padded to a power of two, P; the number of rows per program, R; and the
    number of warps, num_warps.

    Args:
        width: Width of a row.
        tile: Number of elements that a program processes at once; more if a single row is wider.
        warps: Number of warps per `tile` elements.
    """
    padded = max(16, 1 << (width - 1).bit_length())
    if padded > tile:
        return {"W": width, "R": 1, "P": padded, "num_warps": warps * (padded // tile)}
    return {"W": width, "R": tile // padded, "P": padded, "num_warps": warps}
