"""The Transformer: equality with torch.nn.Transformer, settings, positions, decoding and initialisation."""

import copy
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.layers import FeedForward
from regard.masks import Packed, Padded
from regard.models.transformer import Transformer, TransformerConfig

VOCAB, W = 11, 16


def config(**changes: Any) -> TransformerConfig:
    small = {"width": W, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    return TransformerConfig.base(VOCAB, **small | changes)


def build(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config(**changes)).eval()


def tokens(rows: int, size: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randint(vocab, (rows, size), generator=torch.Generator().manual_seed(seed))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# Equality with torch.nn.Transformer


def torch_transformer(width: int, heads: int, layers: int, hidden: int, **settings: Any) -> nn.Transformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about nested tensors
        return nn.Transformer(width, heads, layers, layers, hidden, dropout=0.0, batch_first=True, **settings)


SUBLAYERS = {"attention": "self_attn", "cross": "multihead_attn"}


def convert(theirs: nn.Transformer) -> dict[str, Tensor]:
    """Return the weights of torch's Transformer with our names."""
    weights = {f"{stack}_norm.{k}": v for stack in ("encoder", "decoder") for k, v in norm(theirs, stack).items()}
    for stack, sublayers in (("encoder", ["attention"]), ("decoder", ["attention", "cross"])):
        for i, layer in enumerate(getattr(theirs, stack).layers):
            prefix = f"{stack}.{i}."
            for name in sublayers:
                attention = getattr(layer, SUBLAYERS[name])
                weights[f"{prefix}{name}.qkv.weight"] = attention.in_proj_weight
                weights[f"{prefix}{name}.qkv.bias"] = attention.in_proj_bias
                weights[f"{prefix}{name}.out.weight"] = attention.out_proj.weight
                weights[f"{prefix}{name}.out.bias"] = attention.out_proj.bias
            for ours, linear in (("inner", layer.linear1), ("outer", layer.linear2)):
                weights[f"{prefix}feed_forward.{ours}.weight"] = linear.weight
                weights[f"{prefix}feed_forward.{ours}.bias"] = linear.bias
            for n in range(1, len(sublayers) + 2):
                weights[f"{prefix}norm{n}.weight"] = getattr(layer, f"norm{n}").weight
                weights[f"{prefix}norm{n}.bias"] = getattr(layer, f"norm{n}").bias
    return weights


def norm(theirs: nn.Transformer, stack: str) -> dict[str, Tensor]:
    return dict(getattr(theirs, stack).norm.named_parameters())


def build_both(norm: str, activation: str = "relu", heads: int = 2) -> tuple[nn.Transformer, Transformer]:
    """Return torch's Transformer and ours with the same random weights."""
    torch.manual_seed(0)
    theirs = torch_transformer(W, heads, 2, 24, norm_first=norm == "pre", activation=activation)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.3)
    ours = build(norm=norm, final_norm=True, activation=activation, heads=heads)
    missing, unexpected = ours.load_state_dict(convert(theirs), strict=False)
    assert not unexpected
    assert set(missing) == {"source_embedding.weight", "target_embedding.weight"}
    return theirs, ours


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_outputs_equal_those_of_torch(norm: str, activation: str, heads: int) -> None:
    theirs, ours = build_both(norm, activation, heads)
    source, target = tokens(3, 7), tokens(3, 5, seed=1)
    source_layout, target_layout = Padded.of([7, 2, 4]), Padded.of([3, 5, 1])
    x, y = (ours.source_embedding(t, torch.arange(t.shape[1])[None], t.shape[1]) for t in (source, target))
    padding, future = ~source_layout.real(), torch.ones(5, 5, dtype=torch.bool).triu(1)
    memory = theirs.encoder(x, src_key_padding_mask=padding)
    expected = theirs(
        x,
        y,
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
        tgt_key_padding_mask=~target_layout.real(),
        tgt_mask=future,
        tgt_is_causal=True,
    )
    encoded = ours.encode(source, source_layout)
    decoded = ours.decode(target, encoded, target_layout, source_layout)
    torch.testing.assert_close(encoded[source_layout.real()], memory[source_layout.real()], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(decoded[target_layout.real()], expected[target_layout.real()], atol=1e-5, rtol=1e-5)


def test_gradients_equal_those_of_torch() -> None:
    theirs, ours = build_both("post")
    source, target = tokens(3, 7), tokens(3, 5, seed=1)
    x, y = (ours.source_embedding(t, torch.arange(t.shape[1])[None], t.shape[1]) for t in (source, target))
    theirs(x, y, tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1)).sin().sum().backward()
    expected = {name: p.grad for name, p in convert(theirs).items()}
    ours.zero_grad()  # x and y have accumulated gradients of the embeddings
    ours.decode(target, ours.encode(source)).sin().sum().backward()
    for name, grad in expected.items():
        torch.testing.assert_close(
            ours.get_parameter(name).grad, grad, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_embedding_equals_formula() -> None:
    model, source = build(), tokens(2, 5)
    got = model.source_embedding(source, torch.arange(5)[None], 5)
    position = [[f(p / 10000 ** (2 * i / W)) for i in range(W // 2) for f in (math.sin, math.cos)] for p in range(5)]
    expected = model.source_embedding.weight[source] * math.sqrt(W) + torch.tensor(position)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("preset", ["base", "big"])
def test_base_and_big_have_the_sizes_of_the_paper(preset: str) -> None:
    vocab = 37_000
    with torch.device("meta"):
        ours = Transformer(getattr(TransformerConfig, preset)(vocab=vocab, final_norm=True))
        paper = Transformer(getattr(TransformerConfig, preset)(vocab=vocab))
        width, theirs = (
            (512, torch_transformer(512, 8, 6, 2048))
            if preset == "base"
            else (1024, torch_transformer(1024, 16, 6, 4096))
        )
    assert parameters(ours) == parameters(theirs) + vocab * width
    assert parameters(paper) == parameters(ours) - 4 * width  # the paper has no norm after each stack
    assert round(parameters(paper) / 1e6) == {"base": 63, "big": 214}[preset]


# Presets and settings


def test_defaults_are_the_base_model_of_the_paper() -> None:
    c = TransformerConfig.base(vocab=32_000)
    assert (c.width, c.heads, c.hidden, c.encoder_layers, c.decoder_layers) == (512, 8, 2048, 6, 6)
    assert (c.activation, c.norm, c.positions, c.tie, c.dropout) == ("relu", "post", "sinusoidal", "all", 0.1)
    assert (c.pad, c.bos, c.eos) == (0, 1, 2)
    assert c.source_vocab == c.target_vocab == 32_000


def test_presets_accept_one_or_two_vocabularies() -> None:
    for preset in (TransformerConfig.tiny, TransformerConfig.small, TransformerConfig.base, TransformerConfig.big):
        assert preset(100).tie == "all"
        two = preset((100, 120))
        assert (two.source_vocab, two.target_vocab, two.tie) == (100, 120, "target")
        assert preset(100, heads=1).heads == 1


def test_presets_are_ordered_by_size() -> None:
    with torch.device("meta"):
        sizes = [
            parameters(Transformer(getattr(TransformerConfig, name)(1000))) for name in ("tiny", "small", "base", "big")
        ]
    assert sizes == sorted(sizes)


def test_feed_forward_sizes_of_the_base_model() -> None:
    with torch.device("meta"):
        model = Transformer(TransformerConfig.base(100))
    blocks = [*model.encoder, *model.decoder]
    assert len(blocks) == 12
    for block in blocks:
        assert block.feed_forward.inner.weight.shape == (2048, 512)
        assert block.feed_forward.outer.weight.shape == (512, 2048)


def test_layers_share_no_weights() -> None:
    model = build()
    model.logits(model.decode(tokens(1, 3), model.encode(tokens(1, 3)))).sum().backward()
    for stack in (model.encoder, model.decoder):
        first, second = (dict(block.named_parameters()) for block in stack)
        assert all(first[name].data_ptr() != second[name].data_ptr() for name in first)


@pytest.mark.parametrize(
    ("norm", "final_norm", "has"),
    [
        ("post", None, False),
        ("pre", None, True),
        ("post", True, True),
        ("pre", False, False),
    ],
)
def test_final_norm_depends_on_the_norm_by_default(norm: str, final_norm: bool | None, has: bool) -> None:
    model = build(norm=norm, final_norm=final_norm)
    assert isinstance(model.encoder_norm, nn.LayerNorm) == isinstance(model.decoder_norm, nn.LayerNorm) == has


def test_post_norm_output_is_normalised_and_pre_norm_is_residual() -> None:
    source = tokens(2, 5)
    post = build(norm="post").encode(source)
    torch.testing.assert_close(post, F.layer_norm(post, (W,)), atol=1e-3, rtol=1e-3)
    pre = build(norm="pre", final_norm=False)
    for block in pre.encoder:
        for p in (*block.attention.out.parameters(), *block.feed_forward.outer.parameters()):
            p.data.zero_()
    # A pre-norm stack whose sublayers return zero is the identity.
    assert torch.equal(pre.encode(source), pre.source_embedding(source, torch.arange(5)[None], 5))


def test_encoder_output_depends_on_the_context() -> None:
    model = build()
    source = torch.tensor([[3, 4, 5], [6, 4, 7]])
    memory = model.encode(source)
    assert memory.shape == (2, 3, W)
    assert not torch.allclose(memory[0, 1], memory[1, 1], atol=1e-3)  # the same token in two contexts


def test_shape_of_the_logits() -> None:
    model = build(source_vocab=VOCAB, target_vocab=13, tie="target")
    assert model(tokens(2, 5), tokens(2, 4)).shape == (2, 4, 13)
    packed = Packed.of([2, 3]), Packed.of([3, 1])
    assert model(tokens(1, 5), tokens(1, 4), *packed).shape == (1, 4, 13)


# Shared embeddings


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_tie_all_shares_one_embedding(positions: str) -> None:
    model = build(tie="all", positions=positions)
    source, target = (dict(e.named_parameters()) for e in (model.source_embedding, model.target_embedding))
    assert source.keys() == target.keys()
    assert all(target[name] is source[name] for name in source)
    for copied in (copy.deepcopy(model), model.double()):
        assert copied.target_embedding.weight is copied.source_embedding.weight
    model.float()
    x = torch.randn(2, W, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.logits(x), x @ model.source_embedding.weight.T)


def test_tie_target_has_one_embedding_per_language() -> None:
    model = build(tie="target", target_vocab=13)
    assert model.source_embedding.weight.shape == (VOCAB, W)
    assert model.target_embedding.weight.shape == (13, W)
    x = torch.randn(2, W, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.logits(x), x @ model.target_embedding.weight.T)


def test_tie_none_has_three_embeddings() -> None:
    tied, untied = build(tie="all"), build(tie="none")
    assert parameters(untied) == parameters(tied) + 2 * VOCAB * W
    x = torch.randn(2, W, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(untied.logits(x), x @ untied.output.T)


# Feed-forward and dropout


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_feed_forward_equals_formula(activation: Any) -> None:
    torch.manual_seed(0)
    layer = FeedForward(6, 10, activation)
    nn.init.normal_(layer.inner.bias)
    nn.init.normal_(layer.outer.bias)
    x = torch.randn(3, 6)
    hidden = x @ layer.inner.weight.T + layer.inner.bias
    match activation:
        case "relu":
            hidden = hidden.clamp(min=0)
        case "gelu":
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        case "swiglu":
            gate, value = hidden[:, :10], hidden[:, 10:]
            hidden = gate * torch.sigmoid(gate) * value
    torch.testing.assert_close(layer(x), hidden @ layer.outer.weight.T + layer.outer.bias)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_activation_applies_to_every_block(activation: str) -> None:
    model = build(activation=activation)
    rows = 48 if activation == "swiglu" else 24
    assert all(block.feed_forward.inner.weight.shape == (rows, W) for block in (*model.encoder, *model.decoder))
    assert model(tokens(2, 5), tokens(2, 4)).isfinite().all()


def test_settings_apply_to_every_layer() -> None:
    model = build(qkv_bias=False, qk_scale=0.7, attention_dropout=0.2, hidden_dropout=0.3, dropout=0.4, norm_eps=1e-3)
    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    assert len(attentions) == 6
    assert all(a.qkv.bias is None and a.kind.scale == 0.7 and a.attention_dropout == 0.2 for a in attentions)
    assert {m.dropout.p for m in model.modules() if isinstance(m, FeedForward)} == {0.3}
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-3}
    assert model.source_embedding.dropout.p == 0.4
    assert {block.dropout.p for block in (*model.encoder, *model.decoder)} == {0.4}


@pytest.mark.parametrize("kind", ["dropout", "embedding_dropout", "attention_dropout", "hidden_dropout"])
def test_kinds_of_dropout_are_independent(kind: str) -> None:
    off = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0, "hidden_dropout": 0.0}
    model, source, target = build(**off | {kind: 0.3}).train(), tokens(2, 5), tokens(2, 4)
    assert not torch.allclose(model(source, target), model(source, target))
    embedded = model.source_embedding(source, torch.arange(5)[None], 5)
    assert (embedded == 0).any() == (kind == "embedding_dropout")


def test_embedding_dropout_equals_dropout_by_default() -> None:
    assert build(dropout=0.2).target_embedding.dropout.p == 0.2
    assert build(dropout=0.2, embedding_dropout=0.0).target_embedding.dropout.p == 0.0


def test_dropout_acts_in_training_only() -> None:
    model, source, target = build(dropout=0.3), tokens(2, 5), tokens(2, 4)
    assert torch.equal(model(source, target), build()(source, target))
    model.train()
    assert not torch.allclose(model(source, target), model(source, target))


# Positions


def test_sequences_longer_than_learned_positions_are_rejected() -> None:
    model = build(positions="learned", max_length=6)
    assert model(tokens(1, 6), tokens(1, 6)).isfinite().all()
    with pytest.raises(UserError, match=r"7 tokens .* 6 learned positions"):
        model.encode(tokens(1, 7))
    with pytest.raises(UserError, match=r"7 tokens .* 6 learned positions"):
        model.decode(tokens(1, 7), model.encode(tokens(1, 6)))


@pytest.mark.parametrize(("positions", "factor"), [("diagonal", 1.0), ("diagonal-scaled", 5.0)])
def test_diagonal_positions_add_to_one_feature(positions: str, factor: float) -> None:
    embedding = build(positions=positions).source_embedding
    token = torch.tensor([[3, 3]])
    at_0_and_5 = embedding(token, torch.tensor([[0, 5]]), 6)[0]
    expected = factor * torch.eye(W)[5] - (torch.eye(W)[0] if positions == "diagonal" else 0)
    assert torch.allclose(at_0_and_5[1] - at_0_and_5[0], expected, atol=1e-6)


def test_decoding_beyond_learned_positions_is_rejected() -> None:
    model = build(positions="learned", max_length=2)
    state = model.start(model.encode(tokens(1, 2)))
    for _ in range(2):
        model.step(tokens(1, 1), state)
    with pytest.raises(UserError, match="3 tokens"):
        model.step(tokens(1, 1), state)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_packed_row_may_be_longer_than_the_positions(positions: str) -> None:
    model = build(positions=positions, max_length=200)
    layout = Packed.of([200, 200])
    assert model.encode(tokens(1, 400), layout).isfinite().all()


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_other_positions_are_unlimited(positions: str) -> None:
    model = build(positions=positions, max_length=6)
    assert model.encode(tokens(1, 700)).isfinite().all()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_output_depends_on_the_order_of_tokens(positions: str) -> None:
    model = build(positions=positions)
    if positions == "learned":
        nn.init.normal_(model.source_embedding.positions.weight)  # type: ignore[union-attr, arg-type]
    source = tokens(1, 6)
    forward, backward = model.encode(source), model.encode(source.flip(1)).flip(1)
    assert not torch.allclose(forward, backward, atol=1e-2)


def test_cross_attention_is_not_rotary() -> None:
    model = build(positions="rotary")
    assert model.source_embedding.positions is None
    for block in model.decoder:
        assert block.attention.rotary is not None
        assert block.cross.rotary is None


# Invalid settings


def test_unknown_keys_are_rejected_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"unknown key widht; did you mean width\?"):
        config(widht=32)
    with pytest.raises(UserError, match=r"unknown key head; did you mean heads\?"):
        config().changed(head=4)


def test_width_must_be_divisible_by_heads() -> None:
    with pytest.raises(UserError, match="width 16 is not divisible by heads 3"):
        config(heads=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 7, "heads": 1}, "sinusoidal positions need an even width, not 7"),
        ({"width": 6, "heads": 2, "positions": "rotary"}, "rotary positions need an even head width, not 3"),
        ({"pad": 5}, "pad 5 is not in the vocabulary"),
        ({"eos": -1}, "eos -1 is not in the vocabulary"),
    ],
)
def test_sizes_that_do_not_fit_together_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TransformerConfig.base(5, **changes)


def test_two_vocabularies_cannot_share_one_embedding() -> None:
    with pytest.raises(UserError, match="tie 'all' needs one vocabulary for both sides, not 5 and 6"):
        TransformerConfig.base((5, 6), tie="all")


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"heads": 0},
        {"encoder_layers": -1},
        {"activation": "tanh"},
        {"norm": "sandwich"},
        {"positions": "absolute"},
        {"tie": "source"},
        {"max_length": 0},
        {"source_vocab": 0},
    ],
    ids=str,
)
def test_invalid_values_are_rejected_by_key(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(changes))):
        config(**changes)


def test_config_is_restored_from_json() -> None:
    c = config(norm="pre", positions="rotary", qk_scale=0.5)
    assert TransformerConfig.parse(c.model_dump(mode="json"), "config.json") == c


# Decoding step by step


def test_a_state_counts_its_tokens() -> None:
    model = build()
    state = model.start(model.encode(tokens(2, 5)), beam_width=3)
    assert state.position == 0
    for _ in range(2):
        assert model.step(tokens(2, 3), state).shape == (2, 3, model.config.target_vocab)
    assert state.position == 2
    assert state.caches[0].length == 1 + 3  # the first token is stored once
    with pytest.raises(ValueError, match="3 hypotheses per sentence, but there are 2 tokens"):
        model.step(tokens(2, 2), state)


def test_training_is_possible_after_decoding_in_inference_mode() -> None:
    model, source, target = build(), tokens(2, 5), tokens(2, 5)

    def decode() -> Tensor:
        state = model.start(model.encode(source))
        return torch.cat([model.step(token, state) for token in target.split(1, 1)], 1)

    with torch.inference_mode():
        decode()
        model.encode(tokens(1, 600))  # enlarges the table of positions
    assert decode().requires_grad
    model(tokens(1, 600), target[:1]).sum().backward()


# Initialisation


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_untrained_model_is_nearly_uniform(tie: str) -> None:
    torch.manual_seed(0)
    for norm in ("post", "pre"):
        c = TransformerConfig.base(2000, width=128, heads=4, hidden=256, norm=norm, tie=tie)
        model = Transformer(c).eval()
        logits = model(tokens(4, 20, 2000), tokens(4, 20, 2000, seed=1))
        assert logits.std().item() == pytest.approx(1.0, abs=0.25)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens(4, 20, 2000, seed=2).flatten())
        assert math.log(2000) < loss.item() < math.log(2000) + 1.5


def test_scaled_embeddings_have_unit_variance() -> None:
    torch.manual_seed(0)
    model = Transformer(config(width=64, tie="none", source_vocab=500, target_vocab=500))
    for table in (model.source_embedding.weight, model.target_embedding.weight, model.output):
        assert (table.std() * 8).item() == pytest.approx(1.0, abs=0.03)


def test_linear_layers_have_xavier_initialisation() -> None:
    model = build()
    for block in (*model.encoder, *model.decoder):
        for linear in (block.feed_forward.inner, block.feed_forward.outer):
            bound = (6 / (W + 24)) ** 0.5
            assert 0.9 * bound < linear.weight.abs().max() <= bound
            assert (linear.bias == 0).all()


def test_initialisation_depends_on_the_seed_only() -> None:
    one, other = build().state_dict(), build().state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
