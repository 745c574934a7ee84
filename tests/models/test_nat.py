"""The non-autoregressive Transformer: NAT targets and the three ways to determine a length."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.masks import Mask, Packed, Padded
from regard.models.nat import (
    NATransformer,
    NATransformerConfig,
    hash_rows,
    starts_source_token,
    sum_tokens,
    upsample,
)
from regard.models.transformer import Transformer, TransformerConfig

VOCAB = 13
SIZE = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def build(**changes: object) -> NATransformer:
    torch.manual_seed(0)
    model = NATransformer(NATransformerConfig.base(VOCAB, **SIZE | changes)).eval()
    if model.config.length == "classifier":
        torch.nn.init.normal_(model.length.weight)
    return model


def test_layers_and_presets_equal_those_of_the_transformer() -> None:
    for preset in ("tiny", "small", "base", "big"):
        ours = getattr(NATransformerConfig, preset)(VOCAB, length="ctc").model_dump()
        theirs = getattr(TransformerConfig, preset)(VOCAB).model_dump()
        assert {key: ours[key] for key in theirs if key != "kind"} == {k: v for k, v in theirs.items() if k != "kind"}
    nat, transformer = build(length="ctc"), Transformer(TransformerConfig.base(VOCAB, **SIZE))
    assert list(nat.state_dict()) == list(transformer.state_dict())
    assert nat.load_state_dict(transformer.state_dict())


def test_only_the_length_classifier_adds_parameters() -> None:
    assert not [name for name, _ in build(length="end").named_parameters() if name.startswith("length")]
    assert dict(build(max_length_offset=3).named_parameters())["length.weight"].shape == (7, 16)


@torch.no_grad()
def test_every_position_attends_to_every_other() -> None:
    model = build()
    source, target = torch.tensor([[4, 5, 6]]), torch.tensor([[1, 7, 1, 8, 1]])
    before = model(source, target)
    for position in range(5):
        changed = target.clone()
        changed[0, position] = 9
        assert ((model(source, changed) - before).abs().amax(-1) > 1e-6).all()


@torch.no_grad()
@pytest.mark.parametrize("mode", ["copy", "mask"])
def test_only_masked_positions_receive_the_encoder_output(mode: str) -> None:
    model = build(upsample_mode=mode)
    for module in model.modules():  # without attention, a position depends on itself only
        if isinstance(module, Attention):
            module.out.weight.zero_()
    one, other = torch.tensor([[4, 5, 6]]), torch.tensor([[4, 5, 9]])
    target = torch.tensor([[1, 1, 1, 7, 1, 1]])  # two positions per source token; the fourth is known
    changed = (model(one, target) - model(other, target)).abs().amax(-1)[0] > 1e-6
    assert changed.tolist() == [False, False, False, False, True, mode == "copy"]


@pytest.mark.parametrize(("S", "T"), [(3, 6), (3, 5), (5, 3), (1, 4), (4, 1), (0, 3), (2, 0)])
def test_upsampling_is_even_for_every_layout(S: int, T: int) -> None:
    memory, target = torch.arange(2.0 * S).view(1, S, 2) + 1, torch.zeros(1, T, 2)
    expected = torch.stack([memory[0, t * S // T] for t in range(T)]) if S and T else torch.zeros(T, 2)
    starts = [bool(S) and t * S // T not in [s * S // T for s in range(t)] for t in range(T)]
    assert torch.equal(upsample(memory, None, target, None)[0], expected)
    assert starts_source_token(memory, None, target, None)[0].tolist() == starts
    # In a batch with a longer and a shorter sentence.
    rows = torch.full((3, 7, 2), -9.0)
    rows[1, :S], lengths, target_lengths = memory, [7, S, 2], [2, T, 8]
    padded = rows, Padded.of(lengths), torch.zeros(3, 8, 2), Padded.of(target_lengths)
    assert torch.equal(upsample(*padded)[1, :T], expected)
    assert starts_source_token(*padded)[1, :T].tolist() == starts
    sentences = torch.cat([rows[0], memory[0], rows[2, :2]])[None]
    packed = sentences, Packed.of(lengths), torch.zeros(1, 10 + T, 2), Packed.of(target_lengths)
    assert torch.equal(upsample(*packed)[0, 2 : 2 + T], expected)
    assert starts_source_token(*packed)[0, 2 : 2 + T].tolist() == starts


@torch.no_grad()
def test_layers_receive_the_predictions_of_the_previous_layer_or_the_references() -> None:
    plain, model = build(decoder_layers=3), build(decoder_layers=3, layer_predictions=True)
    model.load_state_dict(plain.state_dict(), strict=False)
    source, target = torch.tensor([[4, 5, 2]]), torch.tensor([[1, 7, 1, 1]])
    encoder_output = plain.encode(source)
    assert torch.equal(model.decode(target, encoder_output), plain.decode(target, encoder_output))  # at first
    for merge in model.merge:
        torch.nn.init.normal_(merge.linear.weight)
    references = [torch.tensor([[8, -1, 9, -1]]), torch.tensor([[-1, -1, 3, 3]])]

    def embed(tokens: Tensor) -> Tensor:
        return model.target_embedding(tokens, torch.arange(4)[None], 4)

    for given in (), references:
        outputs = model.decode_layers(target, encoder_output, references=given)
        x = embed(target) + upsample(encoder_output, None, embed(target), None) * (target == 1)[..., None]
        for i, block in enumerate(model.decoder):
            if i:
                tokens = model.logits(x).argmax(-1)
                for position, token in enumerate(given[i - 1][0].tolist() if given else ()):
                    tokens[0, position] = token if token >= 0 else tokens[0, position]
                x = x + model.merge[i - 1].linear(torch.cat((x, embed(tokens)), -1))
            x = block(x, encoder_output, Mask(), Mask(), torch.arange(4)[None])
            torch.testing.assert_close(outputs[i], x, **CLOSE)
    assert torch.equal(model.decode(target, encoder_output), model.decode_layers(target, encoder_output)[-1])


def test_tokens_are_summed_within_their_sentence() -> None:
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([x[0].sum(0), x[1, :2].sum(0)])
    torch.testing.assert_close(sum_tokens(x, Padded.of([4, 2])), expected)
    torch.testing.assert_close(sum_tokens(torch.cat([x[0], x[1, :2]])[None], Packed.of([4, 2])), expected)
    torch.testing.assert_close(sum_tokens(x, None), x.sum(1))


@torch.no_grad()
def test_predicted_length_does_not_depend_on_the_batch_or_the_layout() -> None:
    model = build()
    rows = [torch.tensor([4, 5, 6, 2]), torch.tensor([7, 2])]
    alone = torch.cat([model.length_logits(model.encode(row[None])) for row in rows])
    padded, layout = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), Padded.of([4, 2])
    torch.testing.assert_close(model.length_logits(model.encode(padded, layout), layout), alone, **CLOSE)
    packed, offsets = torch.cat(rows)[None], Packed.of([4, 2])
    torch.testing.assert_close(model.length_logits(model.encode(packed, offsets), offsets), alone, **CLOSE)
    assert not torch.allclose(alone[0], alone[1], atol=1e-2)


def test_untrained_length_classifier_is_uniform() -> None:
    model = NATransformer(NATransformerConfig.base(VOCAB, **SIZE))
    logits: Tensor = model.length_logits(model.encode(torch.tensor([[4, 5, 2]])))
    assert (logits == 0).all()


def test_lengths_without_training_pairs_are_found() -> None:
    model = NATransformer(NATransformerConfig.base(VOCAB, **SIZE, max_length_offset=30))
    assert model.untrained_lengths().all()
    optimizer = torch.optim.AdamW(model.length.parameters(), lr=1e-2, weight_decay=0.1)
    labels = torch.tensor([-3, 0, 0, 7, 30]) + 30
    for _ in range(20):
        memory = torch.randn(5, 4, SIZE["width"])
        torch.nn.functional.cross_entropy(model.length_logits(memory), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = (~model.untrained_lengths()).nonzero().flatten() - 30
    assert trained.tolist() == [-3, 0, 7, 30]
    with torch.no_grad():
        model.length.weight[5] *= 1 + 4e-7  # rounding of gradients
    assert torch.equal((~model.untrained_lengths()).nonzero().flatten() - 30, trained)
    with torch.no_grad():
        model.length.weight.normal_()
    assert not model.untrained_lengths().any()


def test_upsampled_lengths_are_limited_by_learned_positions() -> None:
    config = NATransformerConfig.base(VOCAB, length="ctc", upsample_ratio=3, upsample_extra=2)
    assert config.upsampled_lengths(np.array([0, 1, 5])).tolist() == [2, 5, 17]
    learned = config.changed(positions="learned", max_length=10)
    assert learned.upsampled_lengths(np.array([0, 1, 5])).tolist() == [2, 5, 10]


def test_forbidden_tokens_depend_on_the_length_mode() -> None:
    forbidden = {
        length: NATransformerConfig.base(VOCAB, length=length).forbidden_tokens
        for length in ("classifier", "end", "ctc", "dag")
    }
    assert forbidden == {"classifier": [0, 1, 2], "end": [0, 1], "ctc": [1, 2], "dag": [0, 1, 2]}


def test_invalid_settings_are_rejected_by_name() -> None:
    with pytest.raises(UserError, match="length: input should be 'classifier', 'end', 'ctc' or 'dag'"):
        NATransformerConfig.base(VOCAB, length="guess")
    with pytest.raises(UserError, match="upsample_ratio"):
        NATransformerConfig.base(VOCAB, upsample_ratio=0)
    with pytest.raises(UserError, match="layer_predictions is for length 'classifier', 'end' or 'ctc', not 'dag'"):
        NATransformerConfig.base(VOCAB, length="dag", layer_predictions=True)
    with pytest.raises(UserError, match="layer_predictions needs at least 2 decoder layers, not 1"):
        NATransformerConfig.base(VOCAB, length="ctc", layer_predictions=True, decoder_layers=1)
    for changes, message in (
        ({"source_end": False}, "non-autoregressive models need END after the source; omit source_end=false"),
        (
            {"length": "dag", "width": 15, "heads": 3, "positions": "learned"},
            "length 'dag' needs an even width, not 15",
        ),
        ({"length": "dag", "upsample_extra": 1}, "length 'dag' needs upsample_extra of at least 2"),
    ):
        with pytest.raises(UserError, match=message):
            NATransformerConfig.base(VOCAB, **changes)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32, torch.float64])
def test_only_equal_rows_have_equal_hashes(precision: torch.dtype) -> None:
    rows = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)).to(precision)
    rows = torch.cat((rows, rows[:10]))
    assert torch.equal(hash_rows(rows)[:10], hash_rows(rows)[-10:])
    assert len({*hash_rows(rows).tolist()}) == len({*map(tuple, rows.tolist())})
