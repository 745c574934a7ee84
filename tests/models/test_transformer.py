import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.masks import Packed, Padded
from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.layers import FeedForward
from regard.models.transformer import Transformer, TransformerConfig

VOCAB, W = 11, 16


def config(**changes: Any) -> TransformerConfig:
    small = {"width": W, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    return TransformerConfig.base(VOCAB, **small | changes)


def built(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config(**changes)).eval()


def tokens(rows: int, size: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randint(vocab, (rows, size), generator=torch.Generator().manual_seed(seed))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# torch.nn.Transformer, weights carried over


def torchs(width: int, heads: int, layers: int, hidden: int, **settings: Any) -> nn.Transformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on nested tensors, which it then does not use
        return nn.Transformer(width, heads, layers, layers, hidden, dropout=0.0, batch_first=True, **settings)


SUBLAYERS = {"attention": "self_attn", "cross": "multihead_attn"}


def carried(theirs: nn.Transformer) -> dict[str, Tensor]:
    """The weights of torch's Transformer under the names of ours."""
    weights = {f"{stack}_norm.{k}": v for stack in ("encoder", "decoder") for k, v in norm(theirs, stack).items()}
    for stack, sublayers in (("encoder", ["attention"]), ("decoder", ["attention", "cross"])):
        for i, layer in enumerate(getattr(theirs, stack).layers):
            at = f"{stack}.{i}."
            for name in sublayers:
                attention = getattr(layer, SUBLAYERS[name])
                weights[f"{at}{name}.qkv.weight"] = attention.in_proj_weight
                weights[f"{at}{name}.qkv.bias"] = attention.in_proj_bias
                weights[f"{at}{name}.out.weight"] = attention.out_proj.weight
                weights[f"{at}{name}.out.bias"] = attention.out_proj.bias
            for ours, linear in (("inner", layer.linear1), ("outer", layer.linear2)):
                weights[f"{at}feed_forward.{ours}.weight"] = linear.weight
                weights[f"{at}feed_forward.{ours}.bias"] = linear.bias
            for n in range(1, len(sublayers) + 2):
                weights[f"{at}norm{n}.weight"] = getattr(layer, f"norm{n}").weight
                weights[f"{at}norm{n}.bias"] = getattr(layer, f"norm{n}").bias
    return weights


def norm(theirs: nn.Transformer, stack: str) -> dict[str, Tensor]:
    return dict(getattr(theirs, stack).norm.named_parameters())


def twins(norm: str, activation: str = "relu", heads: int = 2) -> tuple[nn.Transformer, Transformer]:
    """torch's Transformer and ours with the same weights in the stacks, none of them zero or one."""
    torch.manual_seed(0)
    theirs = torchs(W, heads, 2, 24, norm_first=norm == "pre", activation=activation)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.3)
    ours = built(norm=norm, final_norm=True, activation=activation, heads=heads)
    missing, unexpected = ours.load_state_dict(carried(theirs), strict=False)
    assert not unexpected
    assert set(missing) == {"source_embedding.weight", "target_embedding.weight"}
    return theirs, ours


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_transformer_is_torchs(norm: str, activation: str, heads: int) -> None:
    theirs, ours = twins(norm, activation, heads)
    source, target = tokens(3, 7), tokens(3, 5, seed=1)
    reading, writing = Padded.of([7, 2, 4]), Padded.of([3, 5, 1])
    x, y = (ours.source_embedding(t, torch.arange(t.shape[1])[None], t.shape[1]) for t in (source, target))
    absent, later = ~reading.real(), torch.ones(5, 5, dtype=torch.bool).triu(1)
    memory = theirs.encoder(x, src_key_padding_mask=absent)
    expected = theirs(
        x,
        y,
        src_key_padding_mask=absent,
        memory_key_padding_mask=absent,
        tgt_key_padding_mask=~writing.real(),
        tgt_mask=later,
        tgt_is_causal=True,
    )
    encoded = ours.encode(source, reading)
    decoded = ours.decode(target, encoded, writing, reading)
    torch.testing.assert_close(encoded[reading.real()], memory[reading.real()], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(decoded[writing.real()], expected[writing.real()], atol=1e-5, rtol=1e-5)


def test_torchs_gradients_are_ours() -> None:
    theirs, ours = twins("post")
    source, target = tokens(3, 7), tokens(3, 5, seed=1)
    x, y = (ours.source_embedding(t, torch.arange(t.shape[1])[None], t.shape[1]) for t in (source, target))
    theirs(x, y, tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1)).sin().sum().backward()
    expected = {name: p.grad for name, p in carried(theirs).items()}
    ours.zero_grad()  # the embeddings of x and y are ours
    ours.decode(target, ours.encode(source)).sin().sum().backward()
    for name, grad in expected.items():
        torch.testing.assert_close(
            ours.get_parameter(name).grad, grad, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_an_embedding_is_its_row_scaled_plus_its_position() -> None:
    model, source = built(), tokens(2, 5)
    got = model.source_embedding(source, torch.arange(5)[None], 5)
    position = [[f(p / 10000 ** (2 * i / W)) for i in range(W // 2) for f in (math.sin, math.cos)] for p in range(5)]
    expected = model.source_embedding.weight[source] * math.sqrt(W) + torch.tensor(position)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("preset", ["base", "big"])
def test_base_and_big_have_the_papers_size(preset: str) -> None:
    vocab = 37_000
    with torch.device("meta"):
        ours = Transformer(getattr(TransformerConfig, preset)(vocab=vocab, final_norm=True))
        paper = Transformer(getattr(TransformerConfig, preset)(vocab=vocab))
        width, theirs = (512, torchs(512, 8, 6, 2048)) if preset == "base" else (1024, torchs(1024, 16, 6, 4096))
    assert parameters(ours) == parameters(theirs) + vocab * width
    assert parameters(paper) == parameters(ours) - 4 * width  # the paper ends each stack without another norm
    assert round(parameters(paper) / 1e6) == {"base": 63, "big": 214}[preset]


# Presets and settings


def test_the_defaults_are_the_papers_base_model() -> None:
    c = TransformerConfig.base(vocab=32_000)
    assert (c.width, c.heads, c.hidden, c.encoder_layers, c.decoder_layers) == (512, 8, 2048, 6, 6)
    assert (c.activation, c.norm, c.positions, c.tie, c.dropout) == ("relu", "post", "sinusoidal", "all", 0.1)
    assert (c.pad, c.bos, c.eos) == (0, 1, 2)
    assert c.source_vocab == c.target_vocab == 32_000


def test_every_preset_takes_one_vocabulary_or_two() -> None:
    for preset in (TransformerConfig.tiny, TransformerConfig.small, TransformerConfig.base, TransformerConfig.big):
        assert preset(100).tie == "all"
        two = preset((100, 120))
        assert (two.source_vocab, two.target_vocab, two.tie) == (100, 120, "target")
        assert preset(100, heads=1).heads == 1


def test_presets_grow() -> None:
    with torch.device("meta"):
        sizes = [
            parameters(Transformer(getattr(TransformerConfig, name)(1000))) for name in ("tiny", "small", "base", "big")
        ]
    assert sizes == sorted(sizes)


def test_the_feed_forward_of_the_base_model_is_512_to_2048_to_512() -> None:
    with torch.device("meta"):
        model = Transformer(TransformerConfig.base(100))
    blocks = [*model.encoder, *model.decoder]
    assert len(blocks) == 12
    for block in blocks:
        assert block.feed_forward.inner.weight.shape == (2048, 512)
        assert block.feed_forward.outer.weight.shape == (512, 2048)


def test_layers_share_no_weights() -> None:
    model = built()
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
def test_a_final_norm_follows_the_norm_unless_asked_for(norm: str, final_norm: bool | None, has: bool) -> None:
    model = built(norm=norm, final_norm=final_norm)
    assert isinstance(model.encoder_norm, nn.LayerNorm) == isinstance(model.decoder_norm, nn.LayerNorm) == has


def test_post_norm_ends_in_a_norm_and_pre_norm_starts_with_one() -> None:
    source = tokens(2, 5)
    post = built(norm="post").encode(source)
    torch.testing.assert_close(post, F.layer_norm(post, (W,)), atol=1e-3, rtol=1e-3)
    pre = built(norm="pre", final_norm=False)
    for block in pre.encoder:
        for p in (*block.attention.out.parameters(), *block.feed_forward.outer.parameters()):
            p.data.zero_()
    # with silent sublayers a pre-norm stack is the identity
    assert torch.equal(pre.encode(source), pre.source_embedding(source, torch.arange(5)[None], 5))


def test_the_encoder_gives_one_vector_for_every_token_in_its_context() -> None:
    model = built()
    source = torch.tensor([[3, 4, 5], [6, 4, 7]])
    memory = model.encode(source)
    assert memory.shape == (2, 3, W)
    assert not torch.allclose(memory[0, 1], memory[1, 1], atol=1e-3)  # one token, two contexts


def test_the_logits_are_one_score_for_every_word_of_the_target() -> None:
    model = built(source_vocab=VOCAB, target_vocab=13, tie="target")
    assert model(tokens(2, 5), tokens(2, 4)).shape == (2, 4, 13)
    packed = Packed.of([2, 3]), Packed.of([3, 1])
    assert model(tokens(1, 5), tokens(1, 4), *packed).shape == (1, 4, 13)


# Ties


def test_tied_all_has_one_embedding() -> None:
    model = built(tie="all")
    assert model.target_embedding is model.source_embedding
    x = torch.randn(2, W, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.logits(x), x @ model.source_embedding.weight.T)


def test_tied_target_has_an_embedding_for_each_side() -> None:
    model = built(tie="target", target_vocab=13)
    assert model.source_embedding.weight.shape == (VOCAB, W)
    assert model.target_embedding.weight.shape == (13, W)
    x = torch.randn(2, W, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.logits(x), x @ model.target_embedding.weight.T)


def test_untied_has_three_tables() -> None:
    tied, untied = built(tie="all"), built(tie="none")
    assert parameters(untied) == parameters(tied) + 2 * VOCAB * W
    x = torch.randn(2, W, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(untied.logits(x), x @ untied.output.T)


# Feed-forward


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_the_feed_forward_is_its_formula(activation: Any) -> None:
    torch.manual_seed(0)
    feed = FeedForward(6, 10, activation)
    nn.init.normal_(feed.inner.bias)
    nn.init.normal_(feed.outer.bias)
    x = torch.randn(3, 6)
    hidden = x @ feed.inner.weight.T + feed.inner.bias
    match activation:
        case "relu":
            hidden = hidden.clamp(min=0)
        case "gelu":
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        case "swiglu":
            gate, value = hidden[:, :10], hidden[:, 10:]
            hidden = gate * torch.sigmoid(gate) * value
    torch.testing.assert_close(feed(x), hidden @ feed.outer.weight.T + feed.outer.bias)


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_every_activation_reaches_every_block(activation: str) -> None:
    model = built(activation=activation)
    rows = 48 if activation == "swiglu" else 24
    assert all(block.feed_forward.inner.weight.shape == (rows, W) for block in (*model.encoder, *model.decoder))
    assert model(tokens(2, 5), tokens(2, 4)).isfinite().all()


def test_attention_settings_reach_every_attention() -> None:
    model = built(qkv_bias=False, qk_scale=0.7, attention_dropout=0.2, hidden_dropout=0.3, dropout=0.4, norm_eps=1e-3)
    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    assert len(attentions) == 6
    assert all(a.qkv.bias is None and a.kind.scale == 0.7 and a.attention_dropout == 0.2 for a in attentions)
    assert {m.dropout.p for m in model.modules() if isinstance(m, FeedForward)} == {0.3}
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-3}
    assert model.source_embedding.dropout.p == 0.4
    assert {block.dropout.p for block in (*model.encoder, *model.decoder)} == {0.4}


@pytest.mark.parametrize("kind", ["dropout", "embedding_dropout", "attention_dropout", "hidden_dropout"])
def test_each_kind_of_dropout_acts_by_itself(kind: str) -> None:
    off = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0, "hidden_dropout": 0.0}
    model, source, target = built(**off | {kind: 0.3}).train(), tokens(2, 5), tokens(2, 4)
    assert not torch.allclose(model(source, target), model(source, target))
    embedded = model.source_embedding(source, torch.arange(5)[None], 5)
    assert (embedded == 0).any() == (kind == "embedding_dropout")


def test_the_embeddings_are_dropped_like_the_rest_unless_told_otherwise() -> None:
    assert built(dropout=0.2).target_embedding.dropout.p == 0.2
    assert built(dropout=0.2, embedding_dropout=0.0).target_embedding.dropout.p == 0.0


def test_dropout_acts_in_training_only() -> None:
    model, source, target = built(dropout=0.3), tokens(2, 5), tokens(2, 4)
    assert torch.equal(model(source, target), built()(source, target))
    model.train()
    assert not torch.allclose(model(source, target), model(source, target))


# Positions


def test_learned_positions_refuse_a_longer_sequence() -> None:
    model = built(positions="learned", max_length=6)
    assert model(tokens(1, 6), tokens(1, 6)).isfinite().all()
    with pytest.raises(UserError, match=r"7 tokens .* 6 learned positions"):
        model.encode(tokens(1, 7))
    with pytest.raises(UserError, match=r"7 tokens .* 6 learned positions"):
        model.decode(tokens(1, 7), model.encode(tokens(1, 6)))


def test_learned_positions_refuse_the_step_beyond_them() -> None:
    model = built(positions="learned", max_length=2)
    state = model.start(model.encode(tokens(1, 2)))
    for _ in range(2):
        model.step(tokens(1, 1), state)
    with pytest.raises(UserError, match="3 tokens"):
        model.step(tokens(1, 1), state)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_packed_sequences_may_together_be_longer_than_the_positions(positions: str) -> None:
    model = built(positions=positions, max_length=200)
    layout = Packed.of([200, 200])
    assert model.encode(tokens(1, 400), layout).isfinite().all()


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_other_positions_take_any_length(positions: str) -> None:
    model = built(positions=positions, max_length=6)
    assert model.encode(tokens(1, 700)).isfinite().all()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_every_kind_of_position_tells_an_order(positions: str) -> None:
    model = built(positions=positions)
    if positions == "learned":
        nn.init.normal_(model.source_embedding.positions.weight)  # type: ignore[union-attr, arg-type]
    source = tokens(1, 6)
    there, back = model.encode(source), model.encode(source.flip(1)).flip(1)
    assert not torch.allclose(there, back, atol=1e-2)


def test_only_attention_within_a_sequence_is_rotary() -> None:
    model = built(positions="rotary")
    assert model.source_embedding.positions is None
    for block in model.decoder:
        assert block.attention.rotary is not None
        assert block.cross.rotary is None


# Refusals


def test_an_unknown_key_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"unknown key widht; did you mean width\?"):
        config(widht=32)
    with pytest.raises(UserError, match=r"unknown key head; did you mean heads\?"):
        config().changed(head=4)


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="width 16 is not divisible by heads 3"):
        config(heads=3)


def test_one_embedding_for_two_vocabularies_is_refused() -> None:
    with pytest.raises(UserError, match="tie 'all' needs one vocabulary for both sides, not 5 and 6"):
        TransformerConfig.base((5, 6), tie="all")


@pytest.mark.parametrize(
    "wrong",
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
def test_a_value_out_of_range_is_refused_by_its_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        config(**wrong)


def test_a_config_survives_its_own_json() -> None:
    c = config(norm="pre", positions="rotary", qk_scale=0.5)
    assert TransformerConfig.parse(c.model_dump(mode="json"), "config.json") == c


# Decoding step by step


def test_a_state_counts_its_tokens() -> None:
    model = built()
    state = model.start(model.encode(tokens(2, 5)), beam_width=3)
    assert state.position == 0
    for _ in range(2):
        assert model.step(tokens(2, 3), state).shape == (2, 3, model.config.target_vocab)
    assert state.position == 2
    assert state.caches[0].length == 1 + 3  # the first token is stored once
    with pytest.raises(ValueError, match="3 hypotheses per sentence, but there are 2 tokens"):
        model.step(tokens(2, 2), state)


def test_decoding_in_inference_mode_leaves_nothing_behind_that_breaks_training() -> None:
    model, source, target = built(), tokens(2, 5), tokens(2, 5)

    def decode() -> Tensor:
        state = model.start(model.encode(source))
        return torch.cat([model.step(token, state) for token in target.split(1, 1)], 1)

    with torch.inference_mode():
        decode()
        model.encode(tokens(1, 600))  # the table of positions has grown there, too
    assert decode().requires_grad
    model(tokens(1, 600), target[:1]).sum().backward()


# Initialisation


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_a_fresh_model_guesses_evenly(tie: str) -> None:
    torch.manual_seed(0)
    for norm in ("post", "pre"):
        c = TransformerConfig.base(2000, width=128, heads=4, hidden=256, norm=norm, tie=tie)
        model = Transformer(c).eval()
        logits = model(tokens(4, 20, 2000), tokens(4, 20, 2000, seed=1))
        assert logits.std().item() == pytest.approx(1.0, abs=0.25)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens(4, 20, 2000, seed=2).flatten())
        assert math.log(2000) < loss.item() < math.log(2000) + 1.5


def test_embeddings_start_with_unit_variance_once_scaled() -> None:
    torch.manual_seed(0)
    model = Transformer(config(width=64, tie="none", source_vocab=500, target_vocab=500))
    for table in (model.source_embedding.weight, model.target_embedding.weight, model.output):
        assert (table.std() * 8).item() == pytest.approx(1.0, abs=0.03)


def test_linear_maps_start_as_xavier_with_no_bias() -> None:
    model = built()
    for block in (*model.encoder, *model.decoder):
        for linear in (block.feed_forward.inner, block.feed_forward.outer):
            bound = (6 / (W + 24)) ** 0.5
            assert 0.9 * bound < linear.weight.abs().max() <= bound
            assert (linear.bias == 0).all()


def test_the_same_seed_builds_the_same_model() -> None:
    one, other = built().state_dict(), built().state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
