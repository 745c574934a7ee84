"""Contracts 1 to 4 of the design, over every model, every kind of attention and every path."""

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.core import Full
from regard.attention.kind import Kind
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.masks import Mask, Packed, Padded
from regard.attention.multi_head import Attention
from regard.attention.routing import Routing
from regard.models.transformer import EncoderDecoder, Transformer, TransformerConfig

VOCAB = 13
CLOSE = {"atol": 1e-5, "rtol": 1e-5}

SOURCES = [5, 2, 7, 1]
TARGETS = [3, 6, 1, 4]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sentences(lengths: list[int], seed: int = 0) -> list[Tensor]:
    source = seeded(seed)
    return [torch.randint(3, VOCAB, (n,), generator=source) for n in lengths]


def pad(rows: list[Tensor], size: int | None = None, filler: int = 0) -> tuple[Tensor, Padded]:
    layout = Padded.of([len(row) for row in rows], size)
    return torch.stack([F.pad(row, (0, layout.size - len(row)), value=filler) for row in rows]), layout


def pack(rows: list[Tensor]) -> tuple[Tensor, Packed]:
    return torch.cat(rows)[None], Packed.of([len(row) for row in rows])


def padded_logits(
    model: EncoderDecoder,
    sources: list[Tensor],
    targets: list[Tensor],
    sizes: tuple[int | None, int | None] = (None, None),
    filler: int = 0,
) -> list[Tensor]:
    """Each sentence's logits, from one padded batch."""
    (source, reading), (target, writing) = pad(sources, sizes[0], filler), pad(targets, sizes[1], filler)
    logits = model(source, target, reading, writing)
    return [row[: len(t)] for row, t in zip(logits, targets, strict=True)]


def packed_logits(model: EncoderDecoder, sources: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
    """Each sentence's logits, from one packed batch."""
    (source, reading), (target, writing) = pack(sources), pack(targets)
    return list(model(source, target, reading, writing)[0].split([len(t) for t in targets]))


def alone_logits(model: EncoderDecoder, sources: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
    """Each sentence's logits, from a batch of its own without any layout."""
    return [model(s[None], t[None])[0] for s, t in zip(sources, targets, strict=True)]


RUNS = {"padded": padded_logits, "packed": packed_logits, "alone": alone_logits}


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


# 1. Masks: True may attend; a row that may attend to nothing gives zeros and zero gradients, never NaN


def qkv(T: int, S: int, batch: int = 2, seed: int = 0) -> list[Tensor]:
    source = seeded(seed)
    return [torch.randn(batch, 2, n, 8, generator=source, requires_grad=True) for n in (T, S, S)]


def assert_blind(kind: Kind, mask: Mask, inputs: list[Tensor], blind: Tensor) -> None:
    """The queries at `blind`, (B, T), get zeros and pass no gradient on, not to themselves nor to any key."""
    q, k, v = inputs
    context = kind(q, k, v, mask)
    assert context.isfinite().all()
    at = blind[:, None].expand(context.shape[:3])
    assert (context[at] == 0).all()
    assert (context[~at] != 0).any()
    for grad in torch.autograd.grad(context[at].sum(), inputs, retain_graph=True):
        assert (grad == 0).all()
    for grad in torch.autograd.grad(context.sum(), inputs):
        assert grad.isfinite().all()
    weights = kind.weights(q, k, mask)
    assert (weights[at] == 0).all()


def test_a_query_over_padding_alone_gives_zeros_and_zero_gradients(kind: Kind) -> None:
    assert_blind(kind, Mask(keys=Padded.of([4, 0])), qkv(3, 4), torch.tensor([[False] * 3, [True] * 3]))


def test_a_query_before_all_keys_gives_zeros_and_zero_gradients(kind: Kind) -> None:
    assert_blind(kind, Mask(causal=True), qkv(5, 3), torch.tensor([[True, True, False, False, False]] * 2))


def test_a_query_that_a_dense_mask_shuts_out_gives_zeros_and_zero_gradients(kind: Kind) -> None:
    allowed = torch.tensor([[True, False, True], [False, False, False]])
    assert_blind(kind, Mask(allowed=allowed), qkv(2, 3), torch.tensor([[False, True]] * 2))


def test_a_packed_query_without_keys_gives_zeros_and_zero_gradients(packed_kind: Kind) -> None:
    mask = Mask(queries=Packed.of([2, 1, 2]), keys=Packed.of([3, 0, 1]))
    assert_blind(packed_kind, mask, qkv(5, 4, batch=1), torch.tensor([[False, False, True, False, False]]))


def test_a_packed_query_before_all_keys_gives_zeros_and_zero_gradients(packed_kind: Kind) -> None:
    mask = Mask(queries=Packed.of([3, 2]), keys=Packed.of([1, 3]), causal=True)
    assert_blind(packed_kind, mask, qkv(5, 4, batch=1), torch.tensor([[True, True, False, False, False]]))


def test_what_a_mask_excludes_has_no_weight_and_what_it_allows_has_some(wide_kind: Kind) -> None:
    allowed = torch.rand(2, 2, 4, 5, generator=seeded()) < 0.5
    q, k, _ = qkv(4, 5)
    assert torch.equal(wide_kind.weights(q, k, Mask(allowed=allowed)) != 0, allowed)


def test_a_narrow_kind_gives_weight_to_some_of_what_a_mask_allows_and_to_nothing_else(narrow_kind: Kind) -> None:
    allowed = torch.rand(2, 2, 4, 5, generator=seeded()) < 0.5
    q, k, _ = qkv(4, 5)
    given = narrow_kind.weights(q, k, Mask(allowed=allowed)) != 0
    assert not (given & ~allowed).any()
    assert given.any()
    assert not torch.equal(given, allowed)


def test_the_weights_are_what_the_values_are_mixed_by(kind: Kind) -> None:
    q, k, v = qkv(5, 5)
    for mask in (Mask(), Mask(causal=True), Mask(keys=Padded.of([5, 2]))):
        torch.testing.assert_close(kind(q, k, v, mask), kind.weights(q, k, mask) @ v, **CLOSE)


def test_an_excluded_key_has_no_say(kind: Kind) -> None:
    allowed = torch.rand(4, 5, generator=seeded()) < 0.6
    q, k, v = qkv(4, 5)
    mask = Mask(allowed=allowed)
    context = kind(q, k, v, mask)
    for s in range(5):
        keys, values = k.detach().clone(), v.detach().clone()
        keys[:, :, s], values[:, :, s] = 9.0, -9.0
        changed = (kind(q, keys, values, mask) != context).any(-1).any(0).any(0)
        assert not (changed & ~allowed[:, s]).any()


def test_an_allowed_key_has_a_say(wide_kind: Kind) -> None:
    q, k, v = qkv(4, 5)
    context = wide_kind(q, k, v, Mask())
    for s in range(5):
        values = v.detach().clone()
        values[:, :, s] = -9.0
        assert (wide_kind(q, k, values, Mask()) != context).any(-1).all()


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_sentence_with_an_empty_source_is_finite_and_does_not_touch_it(
    translator: EncoderDecoder, layout: str
) -> None:
    sources, targets = sentences([4, 0, 2]), sentences([3, 2, 4], seed=1)
    logits = RUNS[layout](translator, sources, targets)
    assert all(row.isfinite().all() for row in logits)
    logits[1].sum().backward()
    grads = {name: p.grad for name, p in translator.named_parameters() if p.grad is not None}
    assert grads
    assert all(grad.isfinite().all() for grad in grads.values())
    assert all((grad == 0).all() for name, grad in grads.items() if name.startswith("encoder"))


# 2. One meaning: padded, packed, reference, cached and compiled agree


def test_a_packed_batch_means_the_same_as_a_padded_one(translator: EncoderDecoder) -> None:
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    assert_same(packed_logits(translator, sources, targets), padded_logits(translator, sources, targets))


def test_packed_encodings_are_the_padded_ones(translator: EncoderDecoder) -> None:
    rows = sentences(SOURCES)
    (padded, layout), (packed, offsets) = pad(rows), pack(rows)
    expected = translator.encode(padded, layout)[layout.real()]
    torch.testing.assert_close(translator.encode(packed, offsets)[0], expected, **CLOSE)


def test_a_packed_batch_has_the_gradients_of_a_padded_one(translator: EncoderDecoder) -> None:
    translator.double()
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    gradients = []
    for logits in (padded_logits, packed_logits):
        translator.zero_grad()
        torch.cat(logits(translator, sources, targets)).sin().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in translator.named_parameters() if p.grad is not None})
    padded, packed = gradients
    said = {name for name, _ in translator.named_parameters() if not name.startswith("length.")}  # that says no token
    assert padded.keys() == packed.keys() == said
    for name in padded:
        torch.testing.assert_close(packed[name], padded[name], atol=1e-9, rtol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def take_reference_path(attention: Attention) -> None:
    kind = attention.kind
    if isinstance(kind, Full | Local):
        attention.kind = replace(kind, path="reference")
    elif isinstance(kind, Linear):
        kind.path = "quadratic"
    else:
        assert isinstance(kind, Routing)
        kind.path = "reference"


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_reference_path_means_the_same_as_the_fastest(translator: EncoderDecoder, layout: str) -> None:
    logits = RUNS[layout]
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    fastest = logits(translator, sources, targets)
    for module in translator.modules():
        if isinstance(module, Attention):
            take_reference_path(module)
    assert_same(logits(translator, sources, targets), fastest)


@torch.no_grad()
def test_cached_steps_agree_with_a_forward_pass(stepwise: Transformer) -> None:
    (source, layout), (target, _) = pad(sentences(SOURCES)), pad(sentences([6] * 4, seed=1))
    encoder_output = stepwise.encode(source, layout)
    state = stepwise.start(encoder_output, layout)
    steps = torch.cat([stepwise.step(token, state) for token in target.split(1, 1)], 1)
    expected = stepwise.logits(stepwise.decode(target, encoder_output, None, layout))
    torch.testing.assert_close(steps, expected, **CLOSE)


@torch.no_grad()
def test_reordered_hypotheses_agree_with_forward_passes(stepwise: Transformer) -> None:
    (source, layout), K = pad(sentences(SOURCES)), 3
    encoder_output = stepwise.encode(source, layout)
    state = stepwise.start(encoder_output, layout, K)
    draw = torch.Generator().manual_seed(1)
    kept = torch.arange(len(source))  # sentences that are still decoded
    targets = torch.full((len(kept) * K, 1), 5)
    for step in range(6):
        logits = stepwise.step(targets[:, -1].view(-1, K), state).flatten(0, 1)
        sentence = kept.repeat_interleave(K)
        source_layout = Padded(layout.lengths[sentence], layout.size)
        decoded = stepwise.decode(targets, encoder_output[sentence], None, source_layout)
        torch.testing.assert_close(logits, stepwise.logits(decoded[:, -1]), **CLOSE)
        parents = torch.randint(K, (len(kept), K), generator=draw) + K * torch.arange(len(kept))[:, None]
        if step == 3:
            kept, parents = kept[1:], parents[1:]
        rows = parents.flatten()
        state = state.select(rows)
        targets = torch.cat((targets[rows], torch.randint(3, 12, (len(rows), 1), generator=draw)), 1)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@torch.no_grad()
def test_half_precision_means_the_same_within_its_rounding(translator: EncoderDecoder, layout: str) -> None:
    if translator.config.attention.kind == "routing":
        pytest.skip("rounding may move a token that stands between two clusters into the other one")
    logits = RUNS[layout]
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    exact = torch.cat(logits(translator.double(), sources, targets))
    rough = torch.cat(logits(translator.bfloat16(), sources, targets)).double()
    assert ((rough - exact).norm() / exact.norm()).item() < 0.03


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("attention", ["full", "local", "linear", "routing"])
def test_a_compiled_model_means_the_same(attention: str) -> None:
    torch.manual_seed(0)
    small = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 1}
    model = Transformer(TransformerConfig.base(VOCAB, **small, attention=attention)).eval()
    sources, targets = sentences([5, 2, 4]), sentences([3, 6, 1], seed=1)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        assert_same(padded_logits(compiled, sources, targets), padded_logits(model, sources, targets))


# 3. Causality: changing token t + 1 changes no output at or before t


def changed_after(targets: list[Tensor], t: int) -> list[Tensor]:
    return [torch.where(torch.arange(len(row)) > t, (row - 3 + 1) % (VOCAB - 3) + 3, row) for row in targets]


@pytest.mark.parametrize("path", ["padded", "packed", "alone"])
@torch.no_grad()
def test_a_later_token_changes_no_earlier_output(stepwise: Transformer, path: str) -> None:
    run = RUNS[path]
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    before = run(stepwise, sources, targets)
    for t in range(max(TARGETS) - 1):
        after = run(stepwise, sources, changed_after(targets, t))
        for mine, theirs in zip(after, before, strict=True):
            assert torch.equal(mine[: t + 1], theirs[: t + 1])
            assert not (mine[t + 1 :] == theirs[t + 1 :]).all(-1).any()


@pytest.mark.parametrize("path", ["padded", "packed"])
def test_no_gradient_flows_from_an_output_to_a_later_token(stepwise: Transformer, path: str) -> None:
    rows = sentences(TARGETS, seed=1)
    (target, layout), (source, reading) = (pad(rows), pad(sentences(SOURCES)))
    if path == "packed":
        (target, layout), (source, reading) = (pack(rows), pack(sentences(SOURCES)))  # type: ignore[assignment]
    memory = stepwise.encode(source, reading).detach()
    seen: list[Tensor] = []
    hook = stepwise.target_embedding.register_forward_hook(lambda module, args, output: seen.append(output))
    decoded = stepwise.decode(target, memory, layout, reading)
    hook.remove()
    segment = torch.arange(len(rows))[:, None].expand(target.shape) if path == "padded" else layout.segments()[None]
    place = layout.positions().expand(target.shape)
    for b, t in [(b, t) for b, row in enumerate(rows) for t in range(len(row))]:
        here = (segment == b) & (place == t)
        (grad,) = torch.autograd.grad(decoded[here].sin().sum(), seen[0], retain_graph=True)
        reached, may = (grad != 0).any(-1), (segment == b) & (place <= t)
        assert not (reached & ~may).any()
        if stepwise.config.attention.kind in ("full", "linear"):
            assert torch.equal(reached, may)


@pytest.mark.parametrize("lengths", [(6, 6), (2, 6), (1, 6)], ids=str)
def test_no_query_hears_a_later_key(kind: Kind, lengths: tuple[int, int]) -> None:
    q, k, v = qkv(*lengths)
    context = kind(q, k, v, Mask(causal=True))
    for t in range(lengths[0]):
        end = t + 1 + lengths[1] - lengths[0]
        for grad in torch.autograd.grad(context[:, :, t].sin().sum(), (k, v), retain_graph=True):
            assert (grad[:, :, end:] == 0).all()


@pytest.mark.parametrize("lengths", [(6, 6), (2, 6), (1, 6)], ids=str)
def test_every_query_hears_all_keys_up_to_its_own(wide_kind: Kind, lengths: tuple[int, int]) -> None:
    q, k, v = qkv(*lengths)
    context = wide_kind(q, k, v, Mask(causal=True))
    for t in range(lengths[0]):
        end = t + 1 + lengths[1] - lengths[0]
        for grad in torch.autograd.grad(context[:, :, t].sin().sum(), (k, v), retain_graph=True):
            assert (grad[:, :, :end] != 0).any(-1).all() or end == 1  # over a single key no weight can change


# 4. Company: a sentence's result does not depend on its batch, its padding or its order


@pytest.mark.parametrize("path", ["padded", "packed"])
@torch.no_grad()
def test_a_sentence_means_the_same_alone_and_in_company(translator: EncoderDecoder, path: str) -> None:
    run = RUNS[path]
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    alone = alone_logits(translator, sources, targets)
    assert_same(run(translator, sources, targets), alone)
    assert_same(run(translator, sources[:1], targets[:1]), alone[:1])


@pytest.mark.parametrize("path", ["padded", "packed"])
@torch.no_grad()
def test_the_order_of_a_batch_changes_no_output(translator: EncoderDecoder, path: str) -> None:
    run = RUNS[path]
    sources, targets, order = sentences(SOURCES), sentences(TARGETS, seed=1), [2, 0, 3, 1]
    straight = run(translator, sources, targets)
    shuffled = run(translator, [sources[i] for i in order], [targets[i] for i in order])
    assert_same(shuffled, [straight[i] for i in order])


@pytest.mark.parametrize("path", ["padded", "packed"])
@torch.no_grad()
def test_a_neighbour_changes_no_output(translator: EncoderDecoder, path: str) -> None:
    run = RUNS[path]
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    others = sentences(SOURCES, seed=7), sentences(TARGETS, seed=8)
    before = run(translator, sources, targets)
    after = run(translator, [*others[0][:2], *sources[2:]], [*others[1][:2], *targets[2:]])
    assert_same(after[2:], before[2:])
    assert not torch.allclose(after[1], before[1], atol=1e-2)


@torch.no_grad()
def test_padding_never_changes_an_output(translator: EncoderDecoder) -> None:
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    tight = padded_logits(translator, sources, targets)
    assert_same(padded_logits(translator, sources, targets, sizes=(12, 11)), tight)
    assert_same(padded_logits(translator, sources, targets, sizes=(12, 11), filler=5), tight)


def test_padding_gets_no_gradient(translator: EncoderDecoder) -> None:
    sources, targets = sentences(SOURCES), sentences(TARGETS, seed=1)
    translator.zero_grad()
    torch.cat(padded_logits(translator, sources, targets, sizes=(12, 11), filler=0)).square().sum().backward()
    table = translator.source_embedding.weight.grad
    assert table is not None
    if translator.config.tie != "all":  # there the words to be predicted are rows of this table, too
        assert (table[:3] == 0).all()
    assert (table[3:] != 0).any()


@torch.no_grad()
def test_decoding_one_row_means_the_same_alone_and_in_company(stepwise: Transformer) -> None:
    sources, targets = sentences(SOURCES), sentences([4] * 4, seed=1)
    (source, reading), (target, _) = pad(sources), pad(targets)
    state = stepwise.start(stepwise.encode(source, reading), reading)
    together = torch.cat([stepwise.step(part, state) for part in target.split(1, 1)], 1)
    for b, (s, t) in enumerate(zip(sources, targets, strict=True)):
        state = stepwise.start(stepwise.encode(s[None]))
        alone = torch.cat([stepwise.step(part, state) for part in t[None].split(1, 1)], 1)
        torch.testing.assert_close(together[b : b + 1], alone, **CLOSE)
