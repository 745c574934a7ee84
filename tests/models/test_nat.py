"""The model that writes all tokens at once: its canvas, its three ways to know a length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.masks import Packed, Padded
from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.models.nat import NATransformer, NATransformerConfig, hash_rows, sum_tokens, upsample
from regard.models.transformer import Transformer, TransformerConfig

VOCAB = 13
SIZE = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def model(**changes: object) -> NATransformer:
    torch.manual_seed(0)
    built = NATransformer(NATransformerConfig.base(VOCAB, **SIZE | changes)).eval()
    if built.config.length == "classifier":
        torch.nn.init.normal_(built.length.weight)
    return built


def test_it_has_the_transformers_own_layers_and_presets() -> None:
    for preset in ("tiny", "small", "base", "big"):
        mine = getattr(NATransformerConfig, preset)(VOCAB, length="ctc").model_dump()
        theirs = getattr(TransformerConfig, preset)(VOCAB).model_dump()
        assert {key: mine[key] for key in theirs if key != "kind"} == {k: v for k, v in theirs.items() if k != "kind"}
    ours, usual = model(length="ctc"), Transformer(TransformerConfig.base(VOCAB, **SIZE))
    assert list(ours.state_dict()) == list(usual.state_dict())
    assert ours.load_state_dict(usual.state_dict())


def test_only_a_classifier_has_weights_of_its_own() -> None:
    assert not [name for name, _ in model(length="end").named_parameters() if name.startswith("length")]
    assert dict(model(max_length_offset=3).named_parameters())["length.weight"].shape == (7, 16)


@torch.no_grad()
def test_every_place_sees_every_other() -> None:
    parallel = model()
    source, canvas = torch.tensor([[4, 5, 6]]), torch.tensor([[1, 7, 1, 8, 1]])
    before = parallel(source, canvas)
    for place in range(5):
        changed = canvas.clone()
        changed[0, place] = 9
        assert ((parallel(source, changed) - before).abs().amax(-1) > 1e-6).all()


@torch.no_grad()
def test_a_mask_says_where_it_stands_in_the_source_and_a_known_token_does_not() -> None:
    parallel = model()
    for module in parallel.modules():  # without attention, only the place itself is left
        if isinstance(module, Attention):
            module.out.weight.zero_()
    one, other = torch.tensor([[4, 5, 6]]), torch.tensor([[4, 5, 9]])
    canvas = torch.tensor([[1, 1, 1, 7, 1, 1]])  # two places a source token; the fourth is known
    moved = (parallel(one, canvas) - parallel(other, canvas)).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [False, False, False, False, True, True]


@pytest.mark.parametrize(("S", "T"), [(3, 6), (3, 5), (5, 3), (1, 4), (4, 1), (0, 3), (2, 0)])
def test_the_source_is_stretched_evenly_whatever_the_layout(S: int, T: int) -> None:
    memory, canvas = torch.arange(2.0 * S).view(1, S, 2) + 1, torch.zeros(1, T, 2)
    expected = torch.stack([memory[0, t * S // T] for t in range(T)]) if S and T else torch.zeros(T, 2)
    assert torch.equal(upsample(memory, None, canvas, None)[0], expected)
    # In company of a longer and a shorter one.
    rows = torch.full((3, 7, 2), -9.0)
    rows[1, :S], lengths, places = memory, [7, S, 2], [2, T, 8]
    found = upsample(rows, Padded.of(lengths), torch.zeros(3, 8, 2), Padded.of(places))
    assert torch.equal(found[1, :T], expected)
    packed = torch.cat([rows[0], memory[0], rows[2, :2]])[None]
    found = upsample(packed, Packed.of(lengths), torch.zeros(1, 10 + T, 2), Packed.of(places))
    assert torch.equal(found[0, 2 : 2 + T], expected)


def test_vectors_add_up_within_their_sentence() -> None:
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([x[0].sum(0), x[1, :2].sum(0)])
    torch.testing.assert_close(sum_tokens(x, Padded.of([4, 2])), expected)
    torch.testing.assert_close(sum_tokens(torch.cat([x[0], x[1, :2]])[None], Packed.of([4, 2])), expected)
    torch.testing.assert_close(sum_tokens(x, None), x.sum(1))


@torch.no_grad()
def test_a_guessed_length_does_not_depend_on_company_or_layout() -> None:
    parallel = model()
    rows = [torch.tensor([4, 5, 6, 2]), torch.tensor([7, 2])]
    alone = torch.cat([parallel.length_logits(parallel.encode(row[None])) for row in rows])
    padded, layout = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), Padded.of([4, 2])
    torch.testing.assert_close(parallel.length_logits(parallel.encode(padded, layout), layout), alone, **CLOSE)
    packed, offsets = torch.cat(rows)[None], Packed.of([4, 2])
    torch.testing.assert_close(parallel.length_logits(parallel.encode(packed, offsets), offsets), alone, **CLOSE)
    assert not torch.allclose(alone[0], alone[1], atol=1e-2)


def test_a_new_classifier_prefers_no_length() -> None:
    fresh = NATransformer(NATransformerConfig.base(VOCAB, **SIZE))
    logits: Tensor = fresh.length_logits(fresh.encode(torch.tensor([[4, 5, 2]])))
    assert (logits == 0).all()


def test_lengths_that_no_pair_had_are_those_that_learn_alike() -> None:
    """By real steps of the optimiser: what no pair asks for is pushed away like all the others."""
    learner = NATransformer(NATransformerConfig.base(VOCAB, **SIZE, max_length_offset=30))
    assert learner.untrained_lengths().all()
    optimiser = torch.optim.AdamW(learner.length.parameters(), lr=1e-2, weight_decay=0.1)
    asked = torch.tensor([-3, 0, 0, 7, 30]) + 30
    for _ in range(20):
        memory = torch.randn(5, 4, SIZE["width"])
        torch.nn.functional.cross_entropy(learner.length_logits(memory), asked).backward()
        optimiser.step()
        optimiser.zero_grad()
    assert [place - 30 for place, unseen in enumerate(learner.untrained_lengths().tolist()) if not unseen] == [
        -3,
        0,
        7,
        30,
    ]


def test_the_canvas_follows_from_the_source_and_ends_with_the_positions() -> None:
    config = NATransformerConfig.base(VOCAB, length="ctc", upsample_ratio=3, upsample_extra=2)
    assert config.upsampled_lengths(np.array([0, 1, 5])).tolist() == [2, 5, 17]
    learned = config.changed(positions="learned", max_length=10)
    assert learned.upsampled_lengths(np.array([0, 1, 5])).tolist() == [2, 5, 10]


def test_what_must_not_be_said_depends_on_how_the_length_is_known() -> None:
    forbidden_tokens = {
        length: NATransformerConfig.base(VOCAB, length=length).forbidden_tokens
        for length in ("classifier", "end", "ctc")
    }
    assert forbidden_tokens == {"classifier": [0, 1, 2], "end": [0, 1], "ctc": [1, 2]}


def test_a_wrong_setting_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="length: input should be 'classifier', 'end' or 'ctc'"):
        NATransformerConfig.base(VOCAB, length="guess")
    with pytest.raises(UserError, match="upsample_ratio"):
        NATransformerConfig.base(VOCAB, upsample_ratio=0)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32, torch.float64])
def test_fingerprints_are_equal_where_rows_are_and_hardly_elsewhere(precision: torch.dtype) -> None:
    rows = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)).to(precision)
    rows = torch.cat((rows, rows[:10]))
    assert torch.equal(hash_rows(rows)[:10], hash_rows(rows)[-10:])
    assert len({*hash_rows(rows).tolist()}) == len({*map(tuple, rows.tolist())})
