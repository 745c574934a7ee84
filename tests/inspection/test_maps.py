"""Maps of attention: rollout, patches, windows put back."""

import numpy as np
import pytest
import torch

from regard.inspection.maps import layer_weights, patch_map, rollout
from regard.inspection.patches import attention_from, attention_received, reachable_region, windows_to_grid
from regard.inspection.probe import probe
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig


def random_weights(*shape: int) -> np.ndarray:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).softmax(-1).numpy()


def test_a_rollout_of_one_layer_is_half_the_token_itself() -> None:
    weights = random_weights(2, 3, 4, 4)
    np.testing.assert_allclose(rollout([weights]), 0.5 * np.eye(4) + 0.5 * weights.mean(1), rtol=1e-6)


def test_a_rollout_multiplies_later_layers_from_the_left_and_keeps_shares() -> None:
    layers = [random_weights(1, 2, 4, 4), random_weights(1, 2, 4, 4)[:, :, ::-1]]
    first, second = (0.5 * np.eye(4) + 0.5 * layer[0].mean(0) for layer in layers)
    got = rollout(layers)
    np.testing.assert_allclose(got[0], second @ first, rtol=1e-6)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)


def test_strongest_heads_count_alone_and_their_shares_are_made_whole() -> None:
    weights = random_weights(1, 3, 4, 4)
    strongest = weights.max(1) / weights.max(1).sum(-1, keepdims=True)
    np.testing.assert_allclose(rollout([weights], heads="max", residual=0), strongest, rtol=1e-6)


def test_a_token_that_saw_nothing_owes_all_to_itself() -> None:
    weights = random_weights(1, 2, 3, 3)
    weights[:, :, 1] = 0
    np.testing.assert_allclose(rollout([weights])[0, 1], [0, 1, 0])


def test_a_rollout_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(ValueError, match="3 queries and 4 keys"):
        rollout([random_weights(1, 2, 3, 4)])
    with pytest.raises(ValueError, match="at least one layer"):
        rollout([])


def test_layers_come_in_the_order_of_their_numbers() -> None:
    model = ViT(ViTConfig.micro(2, image=8, layers=11, width=8, heads=2, hidden=8)).eval()
    with probe(model) as seen, torch.no_grad():
        model(torch.randn(1, 3, 8, 8))
    layers = layer_weights(dict(sorted(seen.items())))  # 10 before 2, as strings go
    for number, weights in enumerate(layers):
        np.testing.assert_array_equal(weights, seen[f"encoder.{number}.attention"].weights.numpy())
    with pytest.raises(KeyError, match="no attention of 'decoder' was recorded"):
        layer_weights(seen, "decoder")


def test_a_rollout_of_a_text_encoder() -> None:
    model = Transformer(TransformerConfig.tiny(20)).eval()
    with probe(model) as seen, torch.no_grad():
        model.encode(torch.tensor([[3, 4, 5, 6]]))
    rolled_out = rollout(layer_weights(seen))
    assert rolled_out.shape == (1, 4, 4)
    np.testing.assert_allclose(rolled_out.sum(-1), 1, rtol=1e-5)


def test_a_map_of_patches_leaves_out_what_is_no_patch() -> None:
    weights = random_weights(3, 8, 8)  # two leading tokens, then 2 × 3 patches
    np.testing.assert_array_equal(patch_map(weights, (2, 3), head=1), weights[1, 0, 2:].reshape(2, 3))
    np.testing.assert_array_equal(patch_map(weights, (2, 3), (1, 2)), weights.mean(0)[7, 2:].reshape(2, 3))
    np.testing.assert_array_equal(patch_map(weights[0], (2, 3), 5), weights[0, 5, 2:].reshape(2, 3))
    with pytest.raises(ValueError, match="fewer than the 3 × 3 patches"):
        patch_map(weights, (3, 3))
    with pytest.raises(ValueError, match="outside the grid of 2 × 3"):
        patch_map(weights, (2, 3), (2, 0))


@pytest.mark.parametrize("size", [(32, 32), (30, 22)])
def test_windows_are_put_back_where_they_were(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = Swin(SwinConfig.mini(2, width=8, layers=(2, 2), heads=(2, 4))).eval()
    x = torch.randn(2, 3, *size)
    with probe(model) as seen, torch.no_grad():
        model(x)
    cuts = model.windows(size)
    assert cuts.keys() == seen.keys()
    rows, columns = size[0] // 2, size[1] // 2
    for shift, name in enumerate(("stages.0.blocks.0.attention", "stages.0.blocks.1.attention")):
        whole = windows_to_grid(seen[name].weights.numpy(), cuts[name])
        assert whole.shape == (2, 2, rows * columns, rows * columns)
        np.testing.assert_allclose(whole.sum(-1), 1, rtol=1e-5)
        seen_by = patch_map(whole[1], (rows, columns), (5, 6)) > 0
        # A window of 4 × 4 that holds row 5 and column 6: it begins at 4, 4, or shifted by 2, at 2, 6.
        top, left = ((4, 4), (2, 6))[shift]
        expected = np.zeros((rows, columns), bool)
        expected[top : top + 4, left : left + 4] = True
        np.testing.assert_array_equal(seen_by, expected)
        # The same without the whole square: one row of it, its frame, and the sums of its columns.
        windows = seen[name].weights.numpy()[len(cuts[name].tokens) :]
        token = 5 * columns + 6
        np.testing.assert_array_equal(attention_from(token, windows, cuts[name]), whole[1, :, token])
        assert reachable_region(token, cuts[name], columns) == (top, left, top + 3, min(left + 3, columns - 1))
        np.testing.assert_allclose(attention_received(windows, cuts[name]), whole[1].sum(1), rtol=1e-5)


def test_windows_of_another_image_are_refused() -> None:
    cut = Swin(SwinConfig.mini(2)).windows((32, 32))["stages.0.blocks.0.attention"]
    with pytest.raises(ValueError, match="15 windows are not a multiple of the 16 windows"):
        windows_to_grid(random_weights(15, 2, 16, 16), cut)
