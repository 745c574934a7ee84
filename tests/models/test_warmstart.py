"""Initialising a model with other weights, and extending its vocabulary."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.warmstart import ENCODER, copy_tensors, grow_vocabulary

SIZE = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
SOURCE, TARGET = [[4, 5], [6]], [[4, 7, 8], [9, 9], [10]]


def build(vocab: int | tuple[int, int] = 12, seed: int = 0, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(TransformerConfig.base(vocab, **SIZE | changes)).eval()


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in unique_tensors(model).items()}


# Growing the vocabulary


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_grown_model_keeps_the_logits_of_old_tokens(tie: str, positions: str) -> None:
    model = build(12 if tie == "all" else (12, 14), tie=tie, positions=positions).double()
    before = tensors(model)
    grown = grow_vocabulary(model, SOURCE, TARGET)
    source, target = torch.randint(12, (3, 7)), torch.randint(12, (3, 5))
    old, new = (one.decode(target, one.encode(source)) for one in (model, grown))
    assert torch.equal(old, new)
    logits = grown.logits(new)
    old_size = model.config.target_vocab
    assert logits.shape[-1] == old_size + (len(SOURCE) if tie == "all" else len(TARGET))
    # A larger matmul may sum in another order.
    assert torch.allclose(logits[..., :old_size], model.logits(old), rtol=0, atol=1e-14)
    assert (grown.config.source_vocab, grown.config.target_vocab) == (14, 14 if tie == "all" else 17)
    assert all(torch.equal(tensor, before[name]) for name, tensor in unique_tensors(model).items())
    for name, tensor in unique_tensors(grown).items():
        assert torch.equal(tensor[: len(before[name])], before[name]), name


@pytest.mark.parametrize("tie", ["all", "target", "none"])
def test_new_embeddings_are_near_the_mean_of_their_parts(tie: str) -> None:
    model = build(12 if tie == "all" else (12, 14), tie=tie)
    grown = grow_vocabulary(model, SOURCE, TARGET)
    parts_by_table = {"source_embedding.weight": SOURCE, "target_embedding.weight": TARGET, "output": TARGET}
    old, new = unique_tensors(model), unique_tensors(grown)
    tables = [name for name in parts_by_table if name in old]
    assert len(tables) == {"all": 1, "target": 2, "none": 3}[tie]
    for name in tables:
        for row, parts in zip(new[name][len(old[name]) :], parts_by_table[name], strict=True):
            distance = (row - old[name][parts].mean(0)).norm()
            assert 0 < distance < 0.1 * old[name].norm(dim=1).mean()
    assert (grown.source_embedding.weight is grown.target_embedding.weight) == (tie == "all")


def test_new_embeddings_have_noise_of_one_percent() -> None:
    model = build()
    with torch.no_grad():
        model.source_embedding.weight.mul_(5)
    grown = grow_vocabulary(model, [[4, 5]] * 300, [])
    old = model.source_embedding.weight.detach()
    noise = (grown.source_embedding.weight[12:] - old[[4, 5]].mean(0)).detach()
    assert float(noise.std() / old.std()) == pytest.approx(0.01, rel=0.05)
    assert abs(float(noise.mean() / noise.std())) < 0.05


def test_new_embeddings_depend_on_the_seed_only() -> None:
    model = build()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = tensors(grow_vocabulary(model, SOURCE, SOURCE, seed=3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert all(
        torch.equal(tensor, one[name])
        for name, tensor in tensors(grow_vocabulary(model, SOURCE, SOURCE, seed=3)).items()
    )
    other = tensors(grow_vocabulary(model, SOURCE, SOURCE, seed=4))["source_embedding.weight"]
    assert not torch.equal(other[12:], one["source_embedding.weight"][12:])


def test_tokens_with_the_same_parts_have_different_embeddings() -> None:
    rows = grow_vocabulary(build(), [[4, 5], [5, 4]], []).source_embedding.weight[12:]
    assert not torch.equal(rows[0], rows[1])


# Copying


def test_all_tensors_are_copied_by_name() -> None:
    model, other = build(seed=1), build(seed=2)
    copy_tensors(model, tensors(other), "other")
    assert all(torch.equal(tensor, tensors(other)[name]) for name, tensor in unique_tensors(model).items())


def test_encoder_can_be_copied_alone() -> None:
    model, other = build(seed=1, decoder_layers=1, norm="pre"), build(seed=2, norm="pre", tie="none")
    before, given = tensors(model), tensors(other)
    copy_tensors(model, given, "other", ENCODER)
    for name, tensor in unique_tensors(model).items():
        assert torch.equal(tensor, (given if name.startswith(ENCODER) else before)[name]), name
    source = torch.randint(12, (2, 6))
    assert torch.equal(model.encode(source), other.encode(source))


def test_encoder_can_be_copied_into_another_class() -> None:
    class EncoderWithHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            model = build(seed=5)
            self.source_embedding, self.encoder, self.encoder_norm = (
                model.source_embedding,
                model.encoder,
                model.encoder_norm,
            )
            self.lengths = nn.Linear(16, 3)

    encoder, other = EncoderWithHead(), build(seed=6)
    copy_tensors(encoder, tensors(other), "other", ENCODER)
    for name, tensor in encoder.state_dict().items():
        if not name.startswith("lengths"):
            assert torch.equal(tensor, other.state_dict()[name]), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 8, "hidden": 24}, r"tensor encoder\.0\.\S+ has shape \[16\] in other, but \[8\] in this model"),
        ({"encoder_layers": 3}, r"other lacks tensor encoder\.2\.\S+ of this model"),
        ({"encoder_layers": 1}, r"other has a tensor encoder\.1\.\S+, which this model lacks"),
    ],
)
def test_tensors_that_do_not_fit_are_rejected_and_nothing_is_copied(changes: dict[str, int], message: str) -> None:
    model = build(seed=1, **changes)
    before = tensors(model)
    with pytest.raises(UserError, match=message):
        copy_tensors(model, tensors(build(seed=2)), "other", ENCODER)
    assert all(torch.equal(tensor, before[name]) for name, tensor in unique_tensors(model).items())
