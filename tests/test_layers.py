"""Stochastic depth, LayerScale, and images cut into patches."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.layers import DropPath, EncoderBlock, FeedForward, PatchEmbedding, Residual, patchify, unpatchify


def test_drop_path_leaves_out_whole_rows_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    rows = DropPath(0.25)(torch.ones(4000, 2, 3))
    values = rows.flatten(1)
    assert (values == values[:, :1]).all()
    assert values[:, 0].unique().tolist() == pytest.approx([0, 4 / 3])
    assert values.mean().item() == pytest.approx(1, abs=0.03)


def test_drop_path_does_nothing_outside_training() -> None:
    x = torch.randn(5, 2, 3)
    assert DropPath(0.9).eval()(x) is x


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_row_whose_sublayer_is_dropped_passes_unchanged(norm: str) -> None:
    torch.manual_seed(0)
    residual = Residual(4, norm, drop_path=0.5)  # type: ignore[arg-type]
    x = torch.randn(64, 3, 4)
    y = residual(x, lambda z: z + 100)
    unchanged = x if norm == "pre" else residual.norm(x)
    dropped = (y == unchanged).flatten(1).all(1)
    assert 16 < int(dropped.sum()) < 48


def test_layer_scale_multiplies_what_is_added() -> None:
    residual = Residual(4, "pre", layer_scale=0.1)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(residual(x, torch.exp), x + 0.1 * residual.norm(x).exp())


def test_options_that_are_off_leave_no_trace() -> None:
    block = EncoderBlock(Attention(8, 2), FeedForward(8, 16), drop_path=0.0, layer_scale=None)
    assert not [name for name in block.state_dict() if "scale" in name]
    assert not [module for module in block.modules() if isinstance(module, DropPath)]


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(1, 3),
)
def test_patches_are_the_convolution_with_a_stride_of_its_size(
    grid: tuple[int, int], patch: tuple[int, int], channels: int
) -> None:
    torch.manual_seed(0)
    embedding = PatchEmbedding(channels, patch, 6)
    torch.nn.init.normal_(embedding.bias)
    images = torch.randn(2, channels, grid[0] * patch[0], grid[1] * patch[1])
    expected = F.conv2d(images, embedding.weight, embedding.bias, stride=patch).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embedding(images), expected)
    assert embedding.grid(images) == grid
    assert torch.equal(patchify(images, patch)[0, 0], images[0, :, : patch[0], : patch[1]].flatten())
    assert torch.equal(unpatchify(patchify(images, patch), grid, patch), images)


def test_an_image_that_does_not_fit_is_told_what_would() -> None:
    embedding = PatchEmbedding(3, (16, 8), 4)
    with pytest.raises(UserError, match=r"30×24 .* patches of 16×8; 16×24 or 32×24 would fit"):
        embedding(torch.zeros(1, 3, 30, 24))
    with pytest.raises(UserError, match=r"1×1 .*; 16×8 would fit"):
        embedding(torch.zeros(1, 3, 1, 1))
    with pytest.raises(UserError, match="1 channels for a model that reads 3"):
        embedding(torch.zeros(1, 1, 16, 8))
