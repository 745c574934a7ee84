import pytest
import torch
from torch import Tensor, nn

from regard.attention.cache import Cache, KeyValues, KVCache
from regard.attention.core import Full
from regard.attention.local import Local
from regard.attention.masks import Mask, Packed, Padded
from regard.attention.multi_head import Attention, use_qkv_hook
from regard.attention.positions import Rotary, Rotary2D
from regard.layers import AttentionUnit

B, T, S, W = 3, 6, 5, 16


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def attention(width: int = W, heads: int = 2, **settings: object) -> Attention:
    """An attention whose biases, too, are not zero."""
    module = Attention(width, heads, **settings).eval()  # type: ignore[arg-type]
    for i, p in enumerate(module.parameters()):
        p.data = 0.3 * vectors(*p.shape, seed=i)
    return module


def carry(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    """Copies the weights of torch's attention into ours."""
    with torch.no_grad():
        ours.qkv.weight.copy_(theirs.in_proj_weight)
        ours.out.weight.copy_(theirs.out_proj.weight)
        if theirs.in_proj_bias is not None:
            ours.qkv.bias.copy_(theirs.in_proj_bias)
            ours.out.bias.copy_(theirs.out_proj.bias)
        else:
            ours.out.bias.zero_()  # torch leaves out all biases or none


def twins(heads: int, bias: bool = True) -> tuple[nn.MultiheadAttention, Attention]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(W, heads, bias=bias, batch_first=True)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.3)
    ours = Attention(W, heads, qkv_bias=bias)
    carry(theirs, ours)
    return theirs, ours


# torch.nn.MultiheadAttention, weights carried over


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_self_attention_is_torchs(heads: int, bias: bool) -> None:
    theirs, ours = twins(heads, bias)
    x = vectors(B, T, W)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_cross_attention_is_torchs(heads: int, bias: bool) -> None:
    theirs, ours = twins(heads, bias)
    x, context = vectors(B, T, W), vectors(B, S, W, seed=1)
    torch.testing.assert_close(ours(x, context), theirs(x, context, context)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_attention_with_padded_keys_is_torchs(heads: int) -> None:
    theirs, ours = twins(heads)
    x, context, layout = vectors(B, T, W), vectors(B, S, W, seed=1), Padded.of([5, 1, 3])
    expected = theirs(x, context, context, key_padding_mask=~layout.real())[0]
    torch.testing.assert_close(ours(x, context, mask=Mask(keys=layout)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_causal_attention_is_torchs(heads: int) -> None:
    theirs, ours = twins(heads)
    x = vectors(B, T, W)
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=later, need_weights=False)[0]
    torch.testing.assert_close(ours(x, mask=Mask(causal=True)), expected, atol=1e-5, rtol=1e-5)


def test_the_weights_beside_the_context_are_torchs() -> None:
    theirs, ours = twins(2)
    x, seen = vectors(B, T, W), []
    ours.qkv_hook = lambda module, q, k, v, mask: seen.append(module.kind.weights(q, k, mask))
    ours(x, mask=Mask(causal=True))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    _, weights = theirs(x, x, x, attn_mask=later, average_attn_weights=False)
    torch.testing.assert_close(seen[0], weights, atol=1e-5, rtol=1e-5)


def test_the_gradients_are_torchs() -> None:
    theirs, ours = twins(2)
    x, layout = vectors(B, T, W), Padded.of([6, 1, 3])
    theirs(x, x, x, key_padding_mask=~layout.real())[0].square().sum().backward()
    ours(x, mask=Mask(keys=layout)).square().sum().backward()
    torch.testing.assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.out.weight.grad, theirs.out_proj.weight.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("context", [None, vectors(B, S, W)], ids=["self", "cross"])
def test_gradients_of_queries_keys_and_values_are_joined_in_one_go(context: Tensor | None) -> None:
    waiting, found = [attention()(vectors(B, T, W), context).grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [before for before, _ in node.next_functions]
    names = {node.name() for node in found}
    assert any(name.startswith("Split") for name in names)
    assert not any(name.startswith("Slice") for name in names), "each would be put among zeros, and these added up"


def test_the_attention_unit_is_torchs_module_form() -> None:
    torch.manual_seed(0)
    theirs, norm, linear = nn.MultiheadAttention(W, 2, batch_first=True), nn.LayerNorm(W), nn.Linear(W, W)
    for p in (*theirs.parameters(), *norm.parameters()):
        nn.init.normal_(p, std=0.3)
    unit = AttentionUnit(W, 2)
    carry(theirs, unit.attention)
    unit.norm.load_state_dict(norm.state_dict())
    unit.linear.load_state_dict(linear.state_dict())
    x, layout = vectors(B, T, W), Padded.of([6, 2, 4])
    torch.testing.assert_close(unit(x), linear(norm(x + theirs(x, x, x)[0])), atol=1e-5, rtol=1e-5)
    expected = linear(norm(x + theirs(x, x, x, key_padding_mask=~layout.real())[0]))
    torch.testing.assert_close(unit(x, Mask(keys=layout)), expected, atol=1e-5, rtol=1e-5)


# Settings


def test_qk_scale_replaces_the_scale_of_the_width() -> None:
    plain, scaled = attention(), attention(qk_scale=0.9)
    sharper = attention()
    with torch.no_grad():  # the same scores, from larger queries instead
        sharper.qkv.weight[:W] *= 0.9 * 8**0.5
        sharper.qkv.bias[:W] *= 0.9 * 8**0.5
    x = vectors(B, T, W)
    torch.testing.assert_close(scaled(x), sharper(x), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(scaled(x), plain(x), atol=1e-3)


def test_without_qkv_bias_only_the_output_has_one() -> None:
    module = Attention(W, 2, qkv_bias=False)
    assert module.qkv.bias is None
    assert module.out.bias is not None
    module.out.bias.data.zero_()
    assert (module(torch.zeros(1, 2, W)) == 0).all()
    assert (module(torch.zeros(1, 2, W), torch.zeros(1, 3, W)) == 0).all()


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_packed_row_may_have_no_tokens(cross: bool, dropout: float) -> None:
    layout, none = Packed.of([2, 1]), Packed.of([0, 0])
    module = attention(attention_dropout=dropout).train()
    x = vectors(1, 0, W).requires_grad_()
    y = module(x, vectors(1, 3, W), mask=Mask(none, layout)) if cross else module(x, mask=Mask(none, none))
    assert y.shape == (1, 0, W)
    y.sum().backward()
    assert module.qkv.weight.grad is not None
    assert not module.qkv.weight.grad.any()


@pytest.mark.parametrize("name", ["attention_dropout", "projection_dropout"])
def test_dropout_acts_in_training_only(name: str) -> None:
    torch.manual_seed(0)
    module, plain = attention(**{name: 0.5}), attention()
    x = vectors(B, T, W)
    assert torch.equal(module.eval()(x), plain(x))
    module.train()
    assert not torch.equal(module(x), module(x))
    many = torch.stack([module(x) for _ in range(3000)]).mean(0)
    torch.testing.assert_close(many, plain(x), atol=0.25, rtol=0)


def test_projection_dropout_zeroes_whole_outputs_at_its_rate() -> None:
    torch.manual_seed(0)
    y = attention(projection_dropout=0.25).train()(vectors(50, 20, W))
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)


def test_each_projection_starts_as_its_own_xavier_matrix() -> None:
    torch.manual_seed(0)
    module, bound = Attention(64, 4), (6 / 128) ** 0.5
    for projection in (*module.qkv.weight.chunk(3), module.out.weight):
        assert 0.97 * bound < projection.abs().max() <= bound
    assert (module.qkv.bias == 0).all()
    assert (module.out.bias == 0).all()


def test_the_kind_decides_how_scores_become_context() -> None:
    class Last(Full):
        def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
            return v[..., -1:, :].expand(q.shape)

    module = attention(kind=Last())
    y = module(vectors(B, T, W))
    torch.testing.assert_close(y, y[:, -1:].expand(y.shape))


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width 16 is not divisible by 3 heads"):
        Attention(16, 3)


def test_a_scale_beside_a_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="qk_scale"):
        Attention(16, 2, qk_scale=0.5, kind=Full())


def test_rotary_attention_without_positions_is_refused() -> None:
    module = Attention(16, 2, rotary=Rotary(8))
    x = torch.randn(1, 3, 16)
    with pytest.raises(ValueError, match="positions"):
        module(x)
    with pytest.raises(ValueError, match="positions"):
        module(x, torch.randn(1, 4, 16), positions=torch.arange(3)[None])


# Cache


@pytest.fixture(params=[False, True], ids=["plain", "rotary"])
def decoder(request: pytest.FixtureRequest) -> Attention:
    return attention(rotary=Rotary(8) if request.param else None)


def stepwise(module: Attention, x: Tensor, chunks: list[int], cache: Cache) -> Tensor:
    """Feeds x through the cache a few tokens at a time."""
    outputs = []
    for part in x.split(chunks, 1):
        positions = torch.arange(cache.length, cache.length + part.shape[1])[None]
        outputs.append(module(part, mask=Mask(causal=True), positions=positions, cache=cache))
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("chunks", [[1] * 9, [9], [1, 3, 2, 3], [4, 1, 1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("capacity", [1, 2, 9, 32])
@torch.no_grad()
def test_with_a_cache_each_step_is_as_without(decoder: Attention, chunks: list[int], capacity: int) -> None:
    x = vectors(B, 9, W)
    whole = decoder(x, mask=Mask(causal=True), positions=torch.arange(9)[None])
    cache = KVCache(decoder.kind, capacity)
    torch.testing.assert_close(stepwise(decoder, x, chunks, cache), whole, atol=1e-5, rtol=1e-5)
    assert cache.length == 9


@torch.no_grad()
def test_the_cache_grows_by_doubling() -> None:
    cache, capacities = KVCache(Full(), 2), set()
    for t in range(1, 20):
        keys, values = cache.append(torch.full((1, 1, 1, 2), float(t)), torch.full((1, 1, 1, 2), -float(t)))
        assert keys[0, 0, :, 0].tolist() == list(range(1, t + 1))
        assert values[0, 0, :, 1].tolist() == [-s for s in range(1, t + 1)]
        capacities.add(cache.capacity)
    assert capacities == {2, 4, 8, 16, 32}


@torch.no_grad()
def test_selected_rows_of_a_cache_go_on_as_if_they_had_always_stood_there(decoder: Attention) -> None:
    x, rows = vectors(B, 7, W), torch.tensor([2, 0, 2, 2])
    cache = KVCache(decoder.kind, 4)
    stepwise(decoder, x[:, :4], [1] * 4, cache)
    later = vectors(4, 3, W, seed=5)
    got = stepwise(decoder, later, [1, 2], cache.select(rows))
    whole = torch.cat([x[rows, :4], later], 1)
    expected = decoder(whole, mask=Mask(causal=True), positions=torch.arange(7)[None])[:, 4:]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_selecting_leaves_the_first_cache_untouched(decoder: Attention) -> None:
    x = vectors(B, 6, W)
    cache = KVCache(decoder.kind, 8)
    stepwise(decoder, x[:, :3], [3], cache)
    chosen = cache.select(torch.tensor([1]))
    stepwise(decoder, vectors(1, 2, W, seed=8), [1, 1], chosen)
    assert (cache.length, chosen.length) == (3, 5)
    expected = decoder(x, mask=Mask(causal=True), positions=torch.arange(6)[None])[:, 3:]
    torch.testing.assert_close(stepwise(decoder, x[:, 3:], [3], cache), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Local(4, 4), Local(2, 0, dilation=3), Local(0, 0)], ids=str)
@pytest.mark.parametrize("chunks", [[1] * 90, [40, *[1] * 50], [3] * 30], ids=["tokens", "text, then tokens", "threes"])
@torch.no_grad()
def test_a_window_keeps_what_it_can_see_and_no_more(kind: Local, chunks: list[int]) -> None:
    torch.manual_seed(0)
    module, x = Attention(W, 2, kind=kind), vectors(B, 90, W)
    cache = module.start_cache()
    assert isinstance(cache, KVCache)
    got = stepwise(module, x, chunks, cache)
    torch.testing.assert_close(got, module(x, mask=Mask(causal=True)), atol=1e-5, rtol=1e-5)
    assert cache.length == 90
    assert cache.capacity <= 40


@torch.no_grad()
def test_a_window_with_tokens_for_everyone_keeps_all() -> None:
    module, x = Attention(W, 2, kind=Local(2, 2, global_tokens=1)), vectors(B, 70, W)
    cache = module.start_cache()
    assert isinstance(cache, KVCache)
    got = stepwise(module, x, [1] * 70, cache)
    torch.testing.assert_close(got, module(x, mask=Mask(causal=True)), atol=1e-5, rtol=1e-5)
    assert cache.stored == 70


@torch.no_grad()
def test_whoever_observes_from_the_start_sees_every_key_and_nobody_sees_less() -> None:
    seen: list[int] = []
    module, x = Attention(W, 2, kind=Local(2, 2)), vectors(B, 70, W)
    with use_qkv_hook([module], lambda attention, q, k, v, mask: seen.append(k.shape[-2])):
        stepwise(module, x, [1] * 70, module.start_cache())  # type: ignore[arg-type]
    assert seen == list(range(1, 71))
    cache = module.start_cache()
    stepwise(module, x[:, :69], [1] * 69, cache)  # type: ignore[arg-type]
    with use_qkv_hook([module], lambda *_: None), pytest.raises(ValueError, match="set it before decoding"):
        module(x[:, -1:], mask=Mask(causal=True), cache=cache)


def test_an_empty_cache_can_be_selected_from() -> None:
    assert KVCache(Full()).select(torch.tensor([0, 0])).length == 0


# Projected contexts


def test_a_projected_context_is_the_context() -> None:
    module, x, context = attention(), vectors(B, T, W), vectors(B, S, W, seed=1)
    mask = Mask(keys=Padded.of([5, 2, 4]))
    assert torch.equal(module(x, module.project(context), mask=mask), module(x, context, mask=mask))


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("hypotheses", [1, 2, 3])
def test_several_hypotheses_of_a_source_are_as_if_it_were_repeated(hypotheses: int, tokens: int) -> None:
    module, context = attention(), vectors(B, S, W, seed=1)
    x, lengths = vectors(B * hypotheses, tokens, W), torch.tensor([5, 0, 3])
    got = module(x, module.project(context), mask=Mask(keys=Padded.of(lengths, S)))
    repeated = Mask(keys=Padded.of(lengths.repeat_interleave(hypotheses), S))
    expected = module(x, context.repeat_interleave(hypotheses, 0), mask=repeated)
    assert got.shape == x.shape
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_do_not_divide_among_the_sources_are_refused(rows: int) -> None:
    module = attention()
    with pytest.raises(ValueError, match=f"{rows} rows"):
        module(vectors(rows, 2, W), module.project(vectors(2, S, W)))


def test_selected_sources_are_the_contexts_rows() -> None:
    module, x, context = attention(), vectors(2, T, W), vectors(B, S, W, seed=1)
    chosen = module.project(context).select(torch.tensor([2, 0]))
    assert isinstance(chosen, KeyValues)
    torch.testing.assert_close(module(x, chosen), module(x, context[[2, 0]]), atol=1e-5, rtol=1e-5)


# Rotary


def test_rotary_attention_sees_only_how_far_tokens_stand_apart() -> None:
    module, x = attention(rotary=Rotary(8)), vectors(B, T, W)
    start, shifted = torch.arange(T)[None], torch.arange(100, 100 + T)[None]
    torch.testing.assert_close(module(x, positions=start), module(x, positions=shifted), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(module(x, positions=start), module(x, positions=2 * start), atol=1e-3)


def test_rotary_attention_without_rotation_is_plain_attention() -> None:
    x, still = vectors(B, T, W), torch.zeros(1, T, dtype=torch.long)
    torch.testing.assert_close(attention(rotary=Rotary(8))(x, positions=still), attention()(x))


def test_rotary_attention_takes_positions_of_packed_sequences() -> None:
    module, x, layout = attention(rotary=Rotary(8)), vectors(1, 7, W), Packed.of([3, 4])
    together = module(x, mask=Mask(queries=layout, keys=layout), positions=layout.positions())
    alone = [module(part, positions=torch.arange(part.shape[1])[None]) for part in x.split([3, 4], 1)]
    torch.testing.assert_close(together, torch.cat(alone, 1), atol=1e-5, rtol=1e-5)


def test_rotary_cross_attention_turns_each_side_by_its_own_positions() -> None:
    module = attention(rotary=Rotary2D(8))
    x, context = vectors(1, 4, W), vectors(1, 6, W, seed=1)
    here = torch.tensor([[[y, z] for y in range(2) for z in range(2)]])
    there = torch.tensor([[[y, z] for y in range(2) for z in range(3)]])
    got = module(x, context, positions=here, source_positions=there)
    far = torch.tensor([30, 40])
    moved = module(x, context, positions=here + far, source_positions=there + far)
    torch.testing.assert_close(got, moved, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(got, module(x, context, positions=here, source_positions=there + far), atol=1e-3)
    assert torch.equal(got, module(x, module.project(context, there), positions=here))
