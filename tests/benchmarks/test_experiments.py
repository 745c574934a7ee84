"""benchmarks/experiments.py: the measurements at a tiny size, and the statements of docs/experiments.md."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.claims import exposure_bias, gradients, neighbours, self_attention, sharpness
from benchmarks.reports.results import FOLDER
from regard import Translator


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return Translator.load(trained_run)


def load_result(name: str) -> Any:
    return json.loads((FOLDER / "experiments" / f"{name}.json").read_text("utf-8"))


def test_gradients_of_every_block_are_measured_with_and_without_residual_connections() -> None:
    result = gradients.measure([1], layers=2, steps=1, width=16)
    for variant in result["variants"].values():
        assert [len(variant[key][0]) for key in ("first", "last", "similarity")] == [4, 4, 2]
    gradients.draw(result)


def test_block_without_residual_connections_is_a_chain_of_its_sublayers() -> None:
    model, chain = (gradients.build("pre", residual, 1, 16, seed=1).eval() for residual in (True, False))
    x = torch.randn(1, 3, 16)
    first, second = chain.decoder[0](x, x, None, None, None), model.decoder[0]
    y = second.attention(second.norm1(x))
    expected = second.feed_forward(second.norm3(second.cross(second.norm2(y), x)))
    torch.testing.assert_close(first, expected)


def test_softmax_is_sharper_without_the_scale() -> None:
    scaled, plain = (sharpness.sharpness(64, scale, seed=1) for scale in (None, 1.0))
    assert scaled["entropy"] > plain["entropy"]
    assert scaled["largest"] < plain["largest"]


def test_gradient_through_the_softmax_is_the_norm_of_its_jacobian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharpness, "QUERIES", 1)
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(count, 4, generator=generator) for count in (1, sharpness.KEYS))
    scores = (q @ k.T)[0] / 2
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    assert sharpness.sharpness(4, None, seed=1)["gradient"] == pytest.approx(jacobian.norm().item(), rel=1e-5)


def test_sharpness_is_measured_for_each_head_width() -> None:
    result = sharpness.measure([1], widths=(2, 8), steps=1)
    assert {(row["scale"], row["head_width"]) for row in result["trained"]} == {
        (scale, width) for scale in sharpness.SCALES for width in (8, 32, 128)
    }
    sharpness.draw(result)


def test_attention_to_oneself_is_compared_with_uniform_attention(translator: Translator) -> None:
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.4, 0.4, 0.2]]])
    assert self_attention.mean_of([weights])["weight"] == pytest.approx([(0.75 + 0.2) / 2])
    assert self_attention.mean_of([weights])["highest"] == [0.5], "the first query has a single key"
    uniform = self_attention.uniform_weights(torch.zeros(1, 4), "decoder")
    assert self_attention.mean_of([uniform])["weight"] == pytest.approx([(1 / 2 + 1 / 3 + 1 / 4) / 3])
    result = self_attention.measure_models([translator], [1], sentences=3)
    assert result["trained"][0].keys() == result["untrained"][0].keys() == result["without_projections"][0].keys()
    self_attention.draw(result)


def test_quality_after_prefixes_is_measured_by_length(translator: Translator) -> None:
    result = exposure_bias.measure_models({"teacher forcing, 250 steps": [translator]}, [1], sentences=30)
    assert sum(result["sentences"].values()) == 30
    assert 0 < sum(result["prefixes"].values()) <= 30
    exposure_bias.draw(result)
    examples = exposure_bias.load_examples("test", 30)
    for one in exposure_bias.cut(translator, examples):
        assert one.right + one.rest == examples[one.sentence].pair.target
        assert one.wrong != one.right


def test_linear_probe_recovers_a_linear_map() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(200, 8), torch.randn(8, 2)
    predicted = neighbours.fit_linear(x[:150], x[:150] @ weights + 3, x[150:], penalty=1e-6)
    torch.testing.assert_close(predicted, x[150:] @ weights + 3, atol=1e-3, rtol=1e-3)


def test_neighbours_are_measured_for_embeddings_and_contextual_vectors(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "SENSES", {"play": neighbours.SENSES["play"]})
    result = neighbours.measure_models([translator], [1], sentences=500)
    (row,) = result["rows"]
    assert row["cosines"]["embedding"]["same word"] == pytest.approx(1, abs=0.02)
    assert row["cosines"]["contextual"]["same word"] < 0.999
    neighbours.draw(result)


# Statements of docs/experiments.md


def test_statements_about_gradients_hold() -> None:
    result = load_result("gradients")
    layers, guessing = result["layers"], result["loss_of_guessing"]
    for name, variant in result["variants"].items():
        if " with " in name:
            assert min(min(run) for run in variant["first"]) > 0.01
            assert max(variant["loss"]) < guessing - 0.2
            assert max(run[-1] for run in variant["similarity"]) < 0.9999
        else:
            assert min(run[0] for run in variant["first"]) > 0.1, "the encoder has gradients"
            assert max(run[layers] for run in variant["first"]) < 1e-12, "the decoder has none"
            assert min(run[-1] for run in variant["similarity"]) > 1 - 1e-6
            assert min(variant["loss"]) > guessing - 0.1


def test_statements_about_sharpness_hold() -> None:
    result = load_result("sharpness")
    scaled, plain = result["random"].values()
    assert max(map(max, scaled["entropy"])) - min(min(run[1:]) for run in scaled["entropy"]) < 0.5
    for run, other in zip(plain["gradient"], scaled["gradient"], strict=True):
        at = result["widths"].index
        assert run[at(8)] > other[at(8)]
        assert run[at(64)] < other[at(64)]
        assert run[at(512)] < 0.05 * other[at(512)]
    losses = {(row["scale"], row["head_width"]): row["loss"] for row in result["trained"]}
    with_scale, without = result["random"]
    assert all(min(losses[without, d]) > max(losses[with_scale, d]) for d in (8, 32, 128))


def test_statements_about_neighbours_hold() -> None:
    for row in load_result("neighbours")["rows"]:
        for kind in neighbours.KINDS:
            assert row["neighbours"][kind]["same_group"] > 3 * row["neighbours"][kind]["by_chance"]
        assert row["neighbours"]["contextual"]["same_group"] > row["neighbours"]["embedding"]["same_group"]
        assert row["nearest_is_same_word"] > 0.9
        assert row["length"]["contextual"] > row["length"]["embedding"] + 0.1
        for senses in row["senses"].values():
            assert senses["accuracy_contextual"] > senses["accuracy_embedding"]
            assert senses["within"] > senses["between"] > 0.7


def test_statements_about_attention_to_oneself_hold() -> None:
    result = load_result("self-attention")
    for run, raw, untrained in zip(
        *(result[key] for key in ("trained", "without_projections", "untrained")), strict=True
    ):
        for name, heads in run.items():
            uniform = result["uniform"][name.partition(".")[0]]["weight"][0]
            assert min(raw[name]["highest"]) > 0.95
            assert sum(untrained[name]["weight"]) / len(untrained[name]["weight"]) == pytest.approx(uniform, abs=0.05)
            assert sum(heads["weight"]) / len(heads["weight"]) > uniform
            if name.startswith("encoder"):
                assert max(heads["highest"]) < 0.5


def test_statements_about_scheduled_sampling_hold() -> None:
    result = load_result("exposure-bias")
    teacher, sampling, teacher_long, sampling_long = result["scores"].values()
    for one, other in zip(teacher, sampling, strict=True):
        assert one["wrong"]["all"]["exact"] < 0.5 * one["right"]["all"]["exact"]
        assert one["wrong"]["14+"]["exact"] < one["wrong"]["4–7"]["exact"]
        assert other["free"]["all"]["exact"] < one["free"]["all"]["exact"]
        kept = [run["wrong"]["all"]["exact"] / run["right"]["all"]["exact"] for run in (one, other)]
        assert kept[0] < kept[1]
        assert abs(one["wrong"]["all"]["exact"] - other["wrong"]["all"]["exact"]) < 5
    assert abs(sampling_long[0]["free"]["all"]["exact"] - teacher_long[0]["free"]["all"]["exact"]) < 2
    assert abs(sampling_long[0]["wrong"]["all"]["exact"] - teacher_long[0]["wrong"]["all"]["exact"]) < 2
