"""Attention maps: entropy, distance, rollout, patches and windows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.inspection.image_attention import attention_from, attention_received, reachable_region, windows_to_grid
from regard.inspection.maps import distance, entropy, layer_weights, patch_map, rollout
from regard.inspection.probe import probe
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig


def random_weights(*shape: int) -> np.ndarray:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).softmax(-1).numpy()


def test_entropy_is_zero_for_one_key_and_maximal_for_uniform_weights() -> None:
    weights = np.stack([np.eye(4), np.full((4, 4), 0.25)])
    assert entropy(weights) == pytest.approx([0, 2])


def test_fully_masked_queries_are_excluded() -> None:
    weights = np.array([[0.5, 0.5], [0.0, 0.0]])
    assert entropy(weights) == pytest.approx(1)
    assert distance(weights) == pytest.approx(0.5)
    assert entropy(np.zeros((3, 2, 2))) == pytest.approx([0, 0, 0])


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6))
def test_entropy_is_bounded_and_independent_of_scale(seed: int, T: int, S: int) -> None:
    raw = np.random.default_rng(seed).random((2, T, S)) + 1e-3
    bits = entropy(raw)
    assert (bits >= -1e-12).all()
    assert (bits <= np.log2(S) + 1e-9).all()
    assert bits == pytest.approx(entropy(raw * 3))


def test_distance_uses_the_given_positions() -> None:
    previous = np.eye(5, k=-1)
    assert distance(previous) == pytest.approx(1)
    assert distance(previous, np.arange(5) * 2, np.arange(5) * 2) == pytest.approx(2)
    grid = [(0, 0), (0, 3), (4, 0), (4, 3)]
    assert distance(np.eye(4)[::-1], grid, grid) == pytest.approx(5)


def test_distance_of_a_single_decoding_step() -> None:
    assert distance([[0.0, 0.0, 1.0]], queries=[2]) == 0


def test_negative_weights_and_wrong_positions_are_rejected() -> None:
    with pytest.raises(ValueError, match="negative"):
        entropy([[-0.1, 1.1]])
    with pytest.raises(ValueError, match="do not fit"):
        distance(np.eye(3), queries=[1, 2])


def test_rollout_of_one_layer_is_half_the_identity() -> None:
    weights = random_weights(2, 3, 4, 4)
    np.testing.assert_allclose(rollout([weights]), 0.5 * np.eye(4) + 0.5 * weights.mean(1), rtol=1e-6)


def test_rollout_multiplies_later_layers_from_the_left() -> None:
    layers = [random_weights(1, 2, 4, 4), random_weights(1, 2, 4, 4)[:, :, ::-1]]
    first, second = (0.5 * np.eye(4) + 0.5 * layer[0].mean(0) for layer in layers)
    got = rollout(layers)
    np.testing.assert_allclose(got[0], second @ first, rtol=1e-6)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)


def test_rollout_of_the_maximum_over_heads_is_normalised() -> None:
    weights = random_weights(1, 3, 4, 4)
    strongest = weights.max(1) / weights.max(1).sum(-1, keepdims=True)
    np.testing.assert_allclose(rollout([weights], heads="max", residual=0), strongest, rtol=1e-6)


def test_fully_masked_token_keeps_its_own_input() -> None:
    weights = random_weights(1, 2, 3, 3)
    weights[:, :, 1] = 0
    np.testing.assert_allclose(rollout([weights])[0, 1], [0, 1, 0])


def test_rollout_rejects_cross_attention_and_no_layers() -> None:
    with pytest.raises(ValueError, match="3 queries and 4 keys"):
        rollout([random_weights(1, 2, 3, 4)])
    with pytest.raises(ValueError, match="at least one layer"):
        rollout([])


def test_layers_are_sorted_numerically() -> None:
    model = ViT(ViTConfig.micro(2, image=8, layers=11, width=8, heads=2, hidden=8)).eval()
    with probe(model) as records, torch.no_grad():
        model(torch.randn(1, 3, 8, 8))
    layers = layer_weights(dict(sorted(records.items())))  # as strings, 10 comes before 2
    for number, weights in enumerate(layers):
        np.testing.assert_array_equal(weights, records[f"encoder.{number}.attention"].weights.numpy())
    with pytest.raises(KeyError, match="no attention of 'decoder' was recorded"):
        layer_weights(records, "decoder")


def test_rollout_of_a_text_encoder() -> None:
    model = Transformer(TransformerConfig.tiny(20)).eval()
    with probe(model) as records, torch.no_grad():
        model.encode(torch.tensor([[3, 4, 5, 6]]))
    shares = rollout(layer_weights(records))
    assert shares.shape == (1, 4, 4)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)


def test_patch_map_ignores_tokens_before_the_patches() -> None:
    weights = random_weights(3, 8, 8)  # two leading tokens, then 2 × 3 patches
    np.testing.assert_array_equal(patch_map(weights, (2, 3), head=1), weights[1, 0, 2:].reshape(2, 3))
    np.testing.assert_array_equal(patch_map(weights, (2, 3), (1, 2)), weights.mean(0)[7, 2:].reshape(2, 3))
    np.testing.assert_array_equal(patch_map(weights[0], (2, 3), 5), weights[0, 5, 2:].reshape(2, 3))
    with pytest.raises(ValueError, match="fewer than the 3 × 3 patches"):
        patch_map(weights, (3, 3))
    with pytest.raises(ValueError, match="outside the grid of 2 × 3"):
        patch_map(weights, (2, 3), (2, 0))


@pytest.mark.parametrize("size", [(32, 32), (30, 22)])
def test_windows_are_scattered_back_to_the_grid(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = Swin(SwinConfig.mini(2, width=8, layers=(2, 2), heads=(2, 4))).eval()
    x = torch.randn(2, 3, *size)
    with probe(model) as records, torch.no_grad():
        model(x)
    windows_by_name = model.windows(size)
    assert windows_by_name.keys() == records.keys()
    rows, columns = size[0] // 2, size[1] // 2
    for shift, name in enumerate(("stages.0.blocks.0.attention", "stages.0.blocks.1.attention")):
        full = windows_to_grid(records[name].weights.numpy(), windows_by_name[name])
        assert full.shape == (2, 2, rows * columns, rows * columns)
        # The weights of padding are not part of the grid.
        assert full.sum(-1).max() <= 1 + 1e-5
        assert np.allclose(full.sum(-1), 1) is (size == (32, 32))
        attended = patch_map(full[1], (rows, columns), (5, 6)) > 0
        # The 4 × 4 window that contains row 5 and column 6 begins at 4, 4, or at 2, 6 if shifted by 2.
        top, left = ((4, 4), (2, 6))[shift]
        expected = np.zeros((rows, columns), bool)
        expected[top : top + 4, left : left + 4] = True
        np.testing.assert_array_equal(attended, expected)
        # One row, its bounding box and the column sums, computed without the full matrix.
        weights = records[name].weights.numpy()[len(windows_by_name[name].tokens) :]
        token = 5 * columns + 6
        np.testing.assert_array_equal(attention_from(token, weights, windows_by_name[name]), full[1, :, token])
        assert reachable_region(token, windows_by_name[name], columns) == (
            top,
            left,
            top + 3,
            min(left + 3, columns - 1),
        )
        np.testing.assert_allclose(attention_received(weights, windows_by_name[name]), full[1].sum(1), rtol=1e-5)


def test_wrong_number_of_windows_is_rejected() -> None:
    windows = Swin(SwinConfig.mini(2)).windows((32, 32))["stages.0.blocks.0.attention"]
    with pytest.raises(ValueError, match="15 windows are not a multiple of the 16 windows"):
        windows_to_grid(random_weights(15, 2, 16, 16), windows)


def test_weights_need_queries_and_keys() -> None:
    with pytest.raises(ValueError, match=r"weights must have shape \(…, queries, keys\), not \(3,\)"):
        entropy(np.ones(3))
