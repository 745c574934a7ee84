import pytest
import torch
from torch import Tensor, nn

from regard.attention.kinds import Full, KeyValues
from regard.attention.multi_head import Attention, Rotary, Rotary2D
from regard.layers import AttentionUnit
from regard.masks import Mask, Packed, Padded

B, T, S, W = 3, 6, 5, 16


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def attention(width: int = W, heads: int = 2, **settings: object) -> Attention:
    """Build an attention with random weights and biases."""
    module = Attention(width, heads, **settings).eval()  # type: ignore[arg-type]
    for i, p in enumerate(module.parameters()):
        p.data = 0.3 * vectors(*p.shape, seed=i)
    return module


def copy_weights(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    """Copy the weights of PyTorch's attention to ours."""
    with torch.no_grad():
        ours.qkv.weight.copy_(theirs.in_proj_weight)
        ours.out.weight.copy_(theirs.out_proj.weight)
        if theirs.in_proj_bias is not None:
            ours.qkv.bias.copy_(theirs.in_proj_bias)
            ours.out.bias.copy_(theirs.out_proj.bias)
        else:
            ours.out.bias.zero_()  # PyTorch has either all biases or none


def build_both(heads: int, bias: bool = True) -> tuple[nn.MultiheadAttention, Attention]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(W, heads, bias=bias, batch_first=True)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.3)
    ours = Attention(W, heads, qkv_bias=bias)
    copy_weights(theirs, ours)
    return theirs, ours


# Agreement with torch.nn.MultiheadAttention


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_self_attention_agrees_with_torch(heads: int, bias: bool) -> None:
    theirs, ours = build_both(heads, bias)
    x = vectors(B, T, W)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_cross_attention_agrees_with_torch(heads: int, bias: bool) -> None:
    theirs, ours = build_both(heads, bias)
    x, source = vectors(B, T, W), vectors(B, S, W, seed=1)
    torch.testing.assert_close(ours(x, source), theirs(x, source, source)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_attention_with_padding_agrees_with_torch(heads: int) -> None:
    theirs, ours = build_both(heads)
    x, source, layout = vectors(B, T, W), vectors(B, S, W, seed=1), Padded.of([5, 1, 3])
    expected = theirs(x, source, source, key_padding_mask=~layout.real())[0]
    torch.testing.assert_close(ours(x, source, mask=Mask(keys=layout)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_causal_attention_agrees_with_torch(heads: int) -> None:
    theirs, ours = build_both(heads)
    x = vectors(B, T, W)
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=later, need_weights=False)[0]
    torch.testing.assert_close(ours(x, mask=Mask(causal=True)), expected, atol=1e-5, rtol=1e-5)


def test_attention_weights_agree_with_torch() -> None:
    theirs, ours = build_both(2)
    x, recorded = vectors(B, T, W), []
    ours.qkv_hook = lambda module, q, k, v, mask: recorded.append(module.kind.weights(q, k, mask))
    ours(x, mask=Mask(causal=True))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    _, weights = theirs(x, x, x, attn_mask=later, average_attn_weights=False)
    torch.testing.assert_close(recorded[0], weights, atol=1e-5, rtol=1e-5)


def test_gradients_agree_with_torch() -> None:
    theirs, ours = build_both(2)
    x, layout = vectors(B, T, W), Padded.of([6, 1, 3])
    theirs(x, x, x, key_padding_mask=~layout.real())[0].square().sum().backward()
    ours(x, mask=Mask(keys=layout)).square().sum().backward()
    torch.testing.assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.out.weight.grad, theirs.out_proj.weight.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("source", [None, vectors(B, S, W)], ids=["self", "cross"])
def test_gradients_of_q_k_and_v_are_joined_in_one_operation(source: Tensor | None) -> None:
    pending, found = [attention()(vectors(B, T, W), source).grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found.add(node)
            pending += [parent for parent, _ in node.next_functions]
    names = {node.name() for node in found}
    assert any(name.startswith("Split") for name in names)
    assert not any(name.startswith("Slice") for name in names), "each would be padded and summed"


def test_attention_unit_agrees_with_torch() -> None:
    torch.manual_seed(0)
    theirs, norm, linear = nn.MultiheadAttention(W, 2, batch_first=True), nn.LayerNorm(W), nn.Linear(W, W)
    for p in (*theirs.parameters(), *norm.parameters()):
        nn.init.normal_(p, std=0.3)
    unit = AttentionUnit(W, 2)
    copy_weights(theirs, unit.attention)
    unit.norm.load_state_dict(norm.state_dict())
    unit.linear.load_state_dict(linear.state_dict())
    x, layout = vectors(B, T, W), Padded.of([6, 2, 4])
    torch.testing.assert_close(unit(x), linear(norm(x + theirs(x, x, x)[0])), atol=1e-5, rtol=1e-5)
    expected = linear(norm(x + theirs(x, x, x, key_padding_mask=~layout.real())[0]))
    torch.testing.assert_close(unit(x, Mask(keys=layout)), expected, atol=1e-5, rtol=1e-5)


# Settings


def test_qk_scale_replaces_the_default_scale() -> None:
    plain, scaled = attention(), attention(qk_scale=0.9)
    sharper = attention()
    with torch.no_grad():  # the same scores by scaling the queries
        sharper.qkv.weight[:W] *= 0.9 * 8**0.5
        sharper.qkv.bias[:W] *= 0.9 * 8**0.5
    x = vectors(B, T, W)
    torch.testing.assert_close(scaled(x), sharper(x), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(scaled(x), plain(x), atol=1e-3)


def test_qkv_bias_does_not_affect_the_output_bias() -> None:
    module = Attention(W, 2, qkv_bias=False)
    assert module.qkv.bias is None
    assert module.out.bias is not None
    module.out.bias.data.zero_()
    assert (module(torch.zeros(1, 2, W)) == 0).all()
    assert (module(torch.zeros(1, 2, W), torch.zeros(1, 3, W)) == 0).all()


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_packed_row_may_be_empty(cross: bool, dropout: float) -> None:
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


def test_projection_dropout_zeroes_outputs_at_its_rate() -> None:
    torch.manual_seed(0)
    y = attention(projection_dropout=0.25).train()(vectors(50, 20, W))
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)


def test_each_projection_has_xavier_initialisation() -> None:
    torch.manual_seed(0)
    module, bound = Attention(64, 4), (6 / 128) ** 0.5
    for projection in (*module.qkv.weight.chunk(3), module.out.weight):
        assert 0.97 * bound < projection.abs().max() <= bound
    assert (module.qkv.bias == 0).all()
    assert (module.out.bias == 0).all()


def test_context_is_computed_by_the_kind() -> None:
    class Last(Full):
        def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
            return v[..., -1:, :].expand(q.shape)

    module = attention(kind=Last())
    y = module(vectors(B, T, W))
    torch.testing.assert_close(y, y[:, -1:].expand(y.shape))


def test_width_not_divisible_by_heads_is_rejected() -> None:
    with pytest.raises(ValueError, match="width 16 is not divisible by 3 heads"):
        Attention(16, 3)


def test_qk_scale_together_with_a_kind_is_rejected() -> None:
    with pytest.raises(ValueError, match="qk_scale"):
        Attention(16, 2, qk_scale=0.5, kind=Full())


def test_rotary_attention_without_positions_is_rejected() -> None:
    module = Attention(16, 2, rotary=Rotary(8))
    x = torch.randn(1, 3, 16)
    with pytest.raises(ValueError, match="positions"):
        module(x)
    with pytest.raises(ValueError, match="positions"):
        module(x, torch.randn(1, 4, 16), positions=torch.arange(3)[None])


# Projected sources


def test_projected_source_gives_the_same_result() -> None:
    module, x, source = attention(), vectors(B, T, W), vectors(B, S, W, seed=1)
    mask = Mask(keys=Padded.of([5, 2, 4]))
    assert torch.equal(module(x, module.project(source), mask=mask), module(x, source, mask=mask))


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("hypotheses", [1, 2, 3])
def test_hypotheses_share_a_projected_source(hypotheses: int, tokens: int) -> None:
    module, source = attention(), vectors(B, S, W, seed=1)
    x, lengths = vectors(B * hypotheses, tokens, W), torch.tensor([5, 0, 3])
    got = module(x, module.project(source), mask=Mask(keys=Padded.of(lengths, S)))
    repeated = Mask(keys=Padded.of(lengths.repeat_interleave(hypotheses), S))
    expected = module(x, source.repeat_interleave(hypotheses, 0), mask=repeated)
    assert got.shape == x.shape
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_not_divisible_by_the_number_of_sources_are_rejected(rows: int) -> None:
    module = attention()
    with pytest.raises(ValueError, match=f"{rows} rows"):
        module(vectors(rows, 2, W), module.project(vectors(2, S, W)))


def test_projected_sources_can_be_selected() -> None:
    module, x, source = attention(), vectors(2, T, W), vectors(B, S, W, seed=1)
    chosen = module.project(source).select(torch.tensor([2, 0]))
    assert isinstance(chosen, KeyValues)
    torch.testing.assert_close(module(x, chosen), module(x, source[[2, 0]]), atol=1e-5, rtol=1e-5)


# Rotary


def test_rotary_attention_depends_only_on_distances() -> None:
    module, x = attention(rotary=Rotary(8)), vectors(B, T, W)
    start, shifted = torch.arange(T)[None], torch.arange(100, 100 + T)[None]
    torch.testing.assert_close(module(x, positions=start), module(x, positions=shifted), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(module(x, positions=start), module(x, positions=2 * start), atol=1e-3)


def test_rotary_attention_at_position_zero_is_plain_attention() -> None:
    x, zeros = vectors(B, T, W), torch.zeros(1, T, dtype=torch.long)
    torch.testing.assert_close(attention(rotary=Rotary(8))(x, positions=zeros), attention()(x))


def test_rotary_attention_supports_packed_sequences() -> None:
    module, x, layout = attention(rotary=Rotary(8)), vectors(1, 7, W), Packed.of([3, 4])
    together = module(x, mask=Mask(queries=layout, keys=layout), positions=layout.positions())
    alone = [module(part, positions=torch.arange(part.shape[1])[None]) for part in x.split([3, 4], 1)]
    torch.testing.assert_close(together, torch.cat(alone, 1), atol=1e-5, rtol=1e-5)


def test_rotary_cross_attention_uses_positions_of_both_sides() -> None:
    module = attention(rotary=Rotary2D(8))
    x, source = vectors(1, 4, W), vectors(1, 6, W, seed=1)
    here = torch.tensor([[[y, z] for y in range(2) for z in range(2)]])
    there = torch.tensor([[[y, z] for y in range(2) for z in range(3)]])
    got = module(x, source, positions=here, source_positions=there)
    far = torch.tensor([30, 40])
    moved = module(x, source, positions=here + far, source_positions=there + far)
    torch.testing.assert_close(got, moved, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(got, module(x, source, positions=here, source_positions=there + far), atol=1e-3)
    assert torch.equal(got, module(x, module.project(source, there), positions=here))


def test_cross_attention_has_no_cache() -> None:
    module = attention()
    with pytest.raises(ValueError, match="a cache is for self-attention"):
        module(vectors(B, 1, W), vectors(B, S, W), cache=module.start_cache())
