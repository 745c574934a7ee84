"""Contract: every fused block computes the outputs and gradients of its plain forward pass.

In float64, the autograd functions of `regard.ops.fused` run with reference formulas in place of kernels, and must agree
exactly. In float32 and float16, the kernels run too, on a GPU or in Triton's interpreter.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from regard.attention.linear import LinearSettings
from regard.attention.local import LocalSettings
from regard.attention.multi_head import Attention, Rotary
from regard.layers import DecoderBlock, EncoderBlock, FeedForward
from regard.masks import Layout, Mask, Packed, Padded
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.ops import dispatch, fused
from regard.ops.linear import HalfWeights
from tests.kernel_references import use_add_norm_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH, HEADS = 16, 2
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 0.02}
"""Norm of the difference, relative to the norm of the plain result."""
LAYOUTS: dict[str, Callable[[], tuple[Layout | None, tuple[int, int]]]] = {
    "unpadded": lambda: (None, (3, 6)),
    "padded": lambda: (Padded(torch.tensor([6, 2, 4], device=DEVICE), 6), (3, 6)),
    "packed": lambda: (Packed.of([5, 1, 3], DEVICE), (1, 9)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm": "pre"},
    "pre-drop-path": {"norm": "pre", "drop_path": 0.5},
    "pre-layer-scale": {"norm": "pre", "layer_scale": 0.5},
    "pre-both": {"norm": "pre", "drop_path": 0.5, "layer_scale": 0.5},
}


@pytest.fixture(params=[torch.float64, torch.float32, torch.float16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if request.param != torch.float64 and not dispatch.TRITON_INSTALLED:
        pytest.skip("Triton is not installed")
    chosen: torch.dtype = request.param
    return chosen


@contextmanager
def fused_enabled(dtype: torch.dtype) -> Iterator[None]:
    """Select fused blocks on any device. In float64 no kernels are used; float16 means autocast."""
    with pytest.MonkeyPatch.context() as patch:
        if dtype == torch.float64:
            patch.setattr(dispatch, "fused_kernels_apply", lambda x, norm: torch.is_grad_enabled())
            patch.setattr(dispatch, "mixed_precision_training", lambda x: torch.is_grad_enabled())
            use_add_norm_reference(patch)
        else:
            patch.setattr(dispatch, "INTERPRETED", True)
        with torch.autocast(DEVICE.type, torch.float16) if dtype == torch.float16 else nullcontext():
            yield


@contextmanager
def fused_disabled() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "FUSED_ENABLED", False)
        patch.setattr(dispatch, "KERNELS_ENABLED", False)
        yield


def assert_same(
    module: nn.Module, run: Callable[[], Tensor], inputs: list[Tensor], dtype: torch.dtype, function: str
) -> None:
    """Compare the output and all gradients of a module, plain and fused, and check that the function is called."""
    parameters = [*module.parameters()]

    def differentiate() -> list[Tensor | None]:
        torch.manual_seed(1)  # of stochastic depth
        y = run()
        upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)
        return [y, *torch.autograd.grad(y, [*inputs, *parameters], upstream, allow_unused=True)]

    with fused_disabled():
        plain = differentiate()
    calls: list[str] = []
    usual = getattr(fused, function)
    half_weights = HalfWeights(module) if dtype == torch.float16 else nullcontext()
    with pytest.MonkeyPatch.context() as patch, fused_enabled(dtype), half_weights:
        patch.setattr(fused, function, lambda *given, **named: (calls.append(function), usual(*given, **named))[1])
        found = differentiate()
    assert calls, f"{function} was not called"
    for one, other in zip(found, plain, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert_close(one, other, TOLERANCE[dtype])


def assert_close(one: Tensor, other: Tensor, tolerance: float) -> None:
    assert (one.double() - other.double()).norm() <= tolerance * other.double().norm() + tolerance * 1e-2


def feed_forward(dtype: torch.dtype) -> FeedForward:
    """In float16, use GELU: rounding can change on which side of its kink ReLU is, and thus a gradient altogether."""
    return FeedForward(WIDTH, 32, "gelu" if dtype == torch.float16 else "relu")


def randomise(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Draw all parameters, so that no bias is zero."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.to(DEVICE, torch.float64 if dtype == torch.float64 else torch.float32)


def draw(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(DEVICE, torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
def test_encoder_block(dtype: torch.dtype, layout: str, causal: bool, options: dict[str, Any]) -> None:
    block = randomise(EncoderBlock(Attention(WIDTH, HEADS), feed_forward(dtype), **options), dtype)
    tokens, shape = LAYOUTS[layout]()
    x, mask = draw(*shape, WIDTH, dtype=dtype, seed=3), Mask.between(tokens, tokens, causal=causal)
    assert_same(block, lambda: block(x, mask), [x], dtype, "encoder_block")


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_activations(dtype: torch.dtype, norm: Any, activation: Any) -> None:
    if activation == "relu" and dtype == torch.float16:
        pytest.skip("see feed_forward()")
    block = randomise(EncoderBlock(Attention(WIDTH, HEADS), FeedForward(WIDTH, 32, activation), norm), dtype)
    x = draw(2, 5, WIDTH, dtype=dtype, seed=3)
    assert_same(block, lambda: block(x), [x], dtype, "encoder_block")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoder_block(dtype: torch.dtype, layout: str, options: dict[str, Any]) -> None:
    attention, cross = Attention(WIDTH, HEADS), Attention(WIDTH, HEADS)
    block = randomise(DecoderBlock(attention, cross, feed_forward(dtype), **options), dtype)
    tokens, shape = LAYOUTS[layout]()
    x, source = (draw(*shape, WIDTH, dtype=dtype, seed=seed) for seed in (3, 4))
    masks = Mask.between(tokens, tokens, causal=True), Mask.between(tokens, tokens)
    assert_same(block, lambda: block(x, source, *masks), [x, source], dtype, "decoder_block")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_block_with_rotary_attention_and_source_norm(dtype: torch.dtype, norm: Any) -> None:
    attention, cross = (Attention(WIDTH, HEADS, qkv_bias=False, rotary=Rotary(WIDTH // HEADS)) for _ in range(2))
    block = randomise(DecoderBlock(attention, cross, feed_forward(dtype), norm, source_norm=True), dtype)
    x, source = draw(2, 5, WIDTH, dtype=dtype, seed=3), draw(2, 7, WIDTH, dtype=dtype, seed=4)
    positions = {
        "positions": torch.arange(5, device=DEVICE)[None],
        "source_positions": torch.arange(7, device=DEVICE)[None],
    }
    assert_same(block, lambda: block(x, source, **positions), [x, source], dtype, "decoder_block")


@pytest.mark.parametrize("settings", [LocalSettings(window=(1, 1)), LinearSettings()], ids=["local", "linear"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_kinds_of_attention(dtype: torch.dtype, norm: Any, settings: Any) -> None:
    attention = Attention(WIDTH, HEADS, kind=settings.build(HEADS, WIDTH // HEADS, None))
    block = randomise(EncoderBlock(attention, feed_forward(dtype), norm), dtype)
    x = draw(2, 5, WIDTH, dtype=dtype, seed=3)
    assert_same(block, lambda: block(x), [x], dtype, "encoder_block")


@pytest.mark.parametrize("drop_path", [0.0, 0.5])
def test_swin_block(dtype: torch.dtype, drop_path: float) -> None:
    config = SwinConfig(width=WIDTH, heads=(HEADS,), layers=(2,), window=(2, 2), patch=(2, 2), drop_path=drop_path)
    model = randomise(Swin(config), dtype)
    images = draw(3, 3, 6, 8, dtype=dtype, seed=3)
    assert_same(model, lambda: model(images), [images], dtype, "swin_block")


@pytest.mark.parametrize("changes", [{}, {"layer_scale": 0.5, "drop_path": 0.3}, {"positions": "rotary"}], ids=str)
def test_class_token_block(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    sizes = {"image": 8, "patch": 4, "width": WIDTH, "heads": HEADS, "hidden": 32, "layers": 2}
    model = randomise(ViT(ViTConfig.base(3, **sizes | changes)), dtype)
    images = draw(4, 3, 8, 8, dtype=dtype, seed=3)
    assert_same(model, lambda: model(images), [images], dtype, "class_token_block")


@torch.no_grad()
def test_class_token_block_in_inference() -> None:
    sizes = {"image": 8, "patch": 4, "width": WIDTH, "heads": HEADS, "hidden": 32, "layers": 2}
    model = randomise(ViT(ViTConfig.base(3, **sizes)), torch.float64).eval()
    images = draw(4, 3, 8, 8, dtype=torch.float64, seed=3)
    one_token = model(images)
    with fused_disabled():
        torch.testing.assert_close(one_token, model(images))


@pytest.mark.parametrize("residual_dtype", [None, torch.float16], ids=str)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_transformer(norm: str, layout: str, residual_dtype: torch.dtype | None) -> None:
    """The complete path of training on a GPU: embeddings, both stacks, half-precision copies of the weights."""
    if not dispatch.TRITON_INSTALLED:
        pytest.skip("Triton is not installed")
    sizes: dict[str, Any] = {"width": 32, "heads": 2, "hidden": 64, "encoder_layers": 2, "decoder_layers": 2}
    sizes |= {"dropout": 0.0, "activation": "gelu"}
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.base(20, norm=norm, **sizes)).to(DEVICE)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.3)  # a bias of zero could be omitted or added twice
    tokens, shape = LAYOUTS[layout]()
    source, target = (torch.randint(3, 20, shape, device=DEVICE) for _ in range(2))

    def differentiate() -> list[Tensor]:
        y = model(source, target, tokens, tokens).float()
        return [y, *torch.autograd.grad(y.log_softmax(-1)[..., 5].sum(), list(model.parameters()))]

    with fused_disabled():
        plain = differentiate()
    model.residual_dtype = residual_dtype
    with fused_enabled(torch.float16), HalfWeights(model):
        found = differentiate()
    for one, other in zip(found, plain, strict=True):
        assert one.dtype == torch.float32
        assert_close(one, other, TOLERANCE[torch.float16])


def test_fused_blocks_do_not_modify_gradients_of_the_caller() -> None:
    """Gradients are accumulated in place inside a block; tensors that are visible outside must not change."""
    block = randomise(EncoderBlock(Attention(WIDTH, HEADS), FeedForward(WIDTH, 32)), torch.float64)
    x = draw(2, 5, WIDTH, dtype=torch.float64, seed=3)
    with fused_enabled(torch.float64):
        first = block(x)
        second = block(first)
        seen: list[Tensor] = []
        first.register_hook(seen.append)
        first.retain_grad()
        upstream = torch.randn_like(second)
        given = upstream.clone()
        second.backward(upstream)
    assert torch.equal(upstream, given)
    assert first.grad is not None
    assert torch.equal(seen[0], first.grad)
    with fused_disabled():
        again = first.detach().requires_grad_()
        (expected,) = torch.autograd.grad(block(again), again, given)
    torch.testing.assert_close(first.grad, expected)


def test_hooks_of_submodules_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    block = EncoderBlock(Attention(WIDTH, HEADS), FeedForward(WIDTH, 32)).to(DEVICE)
    monkeypatch.setattr(dispatch, "fused_kernels_apply", lambda x, norm: True)
    x, calls = torch.randn(2, 5, WIDTH, device=DEVICE), []
    assert dispatch.fused_block_applies(block, x)
    handle = block.feed_forward.outer.register_forward_hook(lambda *_: calls.append("outer"))
    assert not dispatch.fused_block_applies(block, x)
    block(x)
    handle.remove()
    assert calls == ["outer"]
    assert dispatch.fused_block_applies(block, x)


def test_fused_blocks_add_no_gradients_in_separate_operations() -> None:
    """The gradients of both readers of the residual stream are added in the matmul of a linear layer."""

    class Counter(TorchDispatchMode):
        additions = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.additions += func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)
            return func(*args, **(kwargs or {}))

    attention, cross = Attention(WIDTH, HEADS), Attention(WIDTH, HEADS)
    block = randomise(DecoderBlock(attention, cross, FeedForward(WIDTH, 32)), torch.float64)
    x, source = (draw(2, 5, WIDTH, dtype=torch.float64, seed=seed) for seed in (3, 4))
    additions = []
    for context in (fused_enabled(torch.float64), fused_disabled()):
        with context:
            y = block(x, source)
            with Counter() as counter:
                y.backward(torch.ones_like(y))
            additions.append(counter.additions)
        block.zero_grad()
        x.grad = source.grad = None
    assert additions == [0, 3]


def test_fused_blocks_are_not_used_without_a_gpu_in_inference_or_if_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    block = EncoderBlock(Attention(WIDTH, HEADS), FeedForward(WIDTH, 32))
    x = torch.randn(2, 5, WIDTH)
    assert not dispatch.fused_block_applies(block, x)
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    assert dispatch.fused_block_applies(block, x) == dispatch.KERNELS_ENABLED
    with torch.no_grad():
        assert not dispatch.fused_block_applies(block, x)
    monkeypatch.setattr(dispatch, "FUSED_ENABLED", False)
    assert not dispatch.fused_block_applies(block, x)
