import pytest
import torch
from torch import Tensor

from regard.attention.kinds import Cache, Full, KVCache
from regard.attention.local import Local
from regard.attention.multi_head import Attention, Rotary, use_qkv_hook
from regard.masks import Mask

B, W = 3, 16


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[False, True], ids=["plain", "rotary"])
def decoder(request: pytest.FixtureRequest) -> Attention:
    torch.manual_seed(0)
    return Attention(W, 2, rotary=Rotary(8) if request.param else None).eval()


def decode(module: Attention, x: Tensor, chunks: list[int], cache: Cache) -> Tensor:
    """Decode x with a cache, in chunks of tokens."""
    outputs = []
    for part in x.split(chunks, 1):
        positions = torch.arange(cache.length, cache.length + part.shape[1])[None]
        outputs.append(module(part, mask=Mask(causal=True), positions=positions, cache=cache))
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("chunks", [[1] * 9, [9], [1, 3, 2, 3], [4, 1, 1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("capacity", [1, 2, 9, 32])
@torch.no_grad()
def test_cached_decoding_agrees_with_causal_attention(decoder: Attention, chunks: list[int], capacity: int) -> None:
    x = vectors(B, 9, W)
    expected = decoder(x, mask=Mask(causal=True), positions=torch.arange(9)[None])
    cache = KVCache(decoder.kind, capacity)
    torch.testing.assert_close(decode(decoder, x, chunks, cache), expected, atol=1e-5, rtol=1e-5)
    assert cache.length == 9


@torch.no_grad()
def test_cache_grows_by_doubling() -> None:
    cache, capacities = KVCache(Full(), 2), set()
    for t in range(1, 20):
        keys, values = cache.append(torch.full((1, 1, 1, 2), float(t)), torch.full((1, 1, 1, 2), -float(t)))
        assert keys[0, 0, :, 0].tolist() == list(range(1, t + 1))
        assert values[0, 0, :, 1].tolist() == [-s for s in range(1, t + 1)]
        capacities.add(cache.capacity)
    assert capacities == {2, 4, 8, 16, 32}


@torch.no_grad()
def test_decoding_continues_with_selected_rows_of_a_cache(decoder: Attention) -> None:
    x, rows = vectors(B, 7, W), torch.tensor([2, 0, 2, 2])
    cache = KVCache(decoder.kind, 4)
    decode(decoder, x[:, :4], [1] * 4, cache)
    later = vectors(4, 3, W, seed=5)
    got = decode(decoder, later, [1, 2], cache.select(rows))
    sequences = torch.cat([x[rows, :4], later], 1)
    expected = decoder(sequences, mask=Mask(causal=True), positions=torch.arange(7)[None])[:, 4:]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_selecting_rows_does_not_change_the_cache(decoder: Attention) -> None:
    x = vectors(B, 6, W)
    cache = KVCache(decoder.kind, 8)
    decode(decoder, x[:, :3], [3], cache)
    selected = cache.select(torch.tensor([1]))
    decode(decoder, vectors(1, 2, W, seed=8), [1, 1], selected)
    assert (cache.length, selected.length) == (3, 5)
    expected = decoder(x, mask=Mask(causal=True), positions=torch.arange(6)[None])[:, 3:]
    torch.testing.assert_close(decode(decoder, x[:, 3:], [3], cache), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Local(4, 4), Local(2, 0, dilation=3), Local(0, 0)], ids=str)
@pytest.mark.parametrize(
    "chunks", [[1] * 90, [40, *[1] * 50], [3] * 30], ids=["single tokens", "prefix and tokens", "three tokens"]
)
@torch.no_grad()
def test_local_cache_evicts_keys_outside_the_window(kind: Local, chunks: list[int]) -> None:
    torch.manual_seed(0)
    module, x = Attention(W, 2, kind=kind), vectors(B, 90, W)
    cache = module.start_cache()
    assert isinstance(cache, KVCache)
    got = decode(module, x, chunks, cache)
    torch.testing.assert_close(got, module(x, mask=Mask(causal=True)), atol=1e-5, rtol=1e-5)
    assert cache.length == 90
    assert cache.capacity <= 40


@torch.no_grad()
def test_local_cache_with_global_tokens_keeps_all_keys() -> None:
    module, x = Attention(W, 2, kind=Local(2, 2, global_tokens=1)), vectors(B, 70, W)
    cache = module.start_cache()
    assert isinstance(cache, KVCache)
    got = decode(module, x, [1] * 70, cache)
    torch.testing.assert_close(got, module(x, mask=Mask(causal=True)), atol=1e-5, rtol=1e-5)
    assert cache.stored == 70


@torch.no_grad()
def test_local_cache_keeps_all_keys_for_a_hook() -> None:
    sizes: list[int] = []
    module, x = Attention(W, 2, kind=Local(2, 2)), vectors(B, 70, W)
    with use_qkv_hook([module], lambda attention, q, k, v, mask: sizes.append(k.shape[-2])):
        decode(module, x, [1] * 70, module.start_cache())  # type: ignore[arg-type]
    assert sizes == list(range(1, 71))
    cache = module.start_cache()
    decode(module, x[:, :69], [1] * 69, cache)  # type: ignore[arg-type]
    with use_qkv_hook([module], lambda *_: None), pytest.raises(ValueError, match="set it before decoding"):
        module(x[:, -1:], mask=Mask(causal=True), cache=cache)


def test_rows_of_an_empty_cache_can_be_selected() -> None:
    assert KVCache(Full()).select(torch.tensor([0, 0])).length == 0


def test_values_may_have_another_width_than_keys() -> None:
    q, k, v = vectors(2, 2, 7, 8), vectors(2, 2, 7, 8, seed=1), vectors(2, 2, 7, 5, seed=2)
    cache = KVCache(Full(), 2)
    steps = [cache.attend(*(x[:, :, t : t + 1] for x in (q, k, v)), Mask(causal=True)) for t in range(7)]
    torch.testing.assert_close(torch.cat(steps, 2), Full()(q, k, v, Mask(causal=True)))
