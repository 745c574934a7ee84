"""Feed-forward layers, stochastic depth, layer scale and patches of images."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.layers import (
    Activation,
    DecoderBlock,
    DropPath,
    EncoderBlock,
    FeedForward,
    Norm,
    PatchEmbedding,
    ResidualBlock,
    drop_path_rates,
    patchify,
    unpatchify,
)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
def test_feed_forward_equals_formula(activation: Activation) -> None:
    layer, x = FeedForward(4, 6, activation), torch.randn(2, 3, 4)
    hidden = layer.inner(x)
    gate, value = hidden[..., :6], hidden[..., 6:]
    activated = F.silu(gate) * value if activation == "swiglu" else getattr(F, activation)(hidden)
    torch.testing.assert_close(layer(x), layer.outer(activated))


def test_drop_path_drops_complete_rows_and_preserves_the_mean() -> None:
    torch.manual_seed(0)
    rows = DropPath(0.25)(torch.ones(4000, 2, 3)).flatten(1)
    assert (rows == rows[:, :1]).all()
    assert rows[:, 0].unique().tolist() == pytest.approx([0, 4 / 3])
    assert rows.mean().item() == pytest.approx(1, abs=0.03)


def test_drop_path_is_the_identity_in_evaluation_and_at_rate_zero() -> None:
    x = torch.randn(5, 2, 3)
    assert DropPath(0.9).eval()(x) is x
    assert DropPath(0.0)(x) is x


def test_drop_path_rates_increase_linearly() -> None:
    assert drop_path_rates(0.3, 4) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert drop_path_rates(0.3, 1) == [0]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_row_whose_sublayers_are_dropped_passes_unchanged(norm: Norm) -> None:
    torch.manual_seed(0)
    block = EncoderBlock(Attention(4, 1), FeedForward(4, 8), norm, drop_path=0.5)
    x = torch.randn(64, 3, 4)
    y = block(x)
    unchanged = x if norm == "pre" else block.norm2(block.norm1(x))
    dropped = (y == unchanged).flatten(1).all(1)
    assert 6 < int(dropped.sum()) < 30  # a quarter of the rows


def test_branch_applies_layer_scale_and_dropout() -> None:
    block, y = ResidualBlock("pre", dropout=0.5, drop_path=0.0), torch.ones(20, 30, 4)
    scale = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    dropped = block.branch(y, scale)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(dropped[dropped != 0], (2 * y * scale)[dropped != 0])
    torch.testing.assert_close(block.eval().branch(y, scale), y * scale)
    assert block.branch(y, None) is y


def sublayers(block: DecoderBlock, source: Tensor) -> list:  # type: ignore[type-arg]
    return [block.attention, lambda x: block.cross(x, source), block.feed_forward]


@pytest.mark.parametrize("layer_scale", [None, 0.5])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_block_equals_formula(norm: Norm, layer_scale: float | None) -> None:
    torch.manual_seed(0)
    attention, cross = Attention(8, 2), Attention(8, 2)
    block = DecoderBlock(attention, cross, FeedForward(8, 16), norm, layer_scale=layer_scale)
    x, source = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    y = block(x, source)
    for sublayer, layer_norm in zip(sublayers(block, source), (block.norm1, block.norm2, block.norm3), strict=True):
        factor = 1.0 if layer_scale is None else layer_scale
        x = x + factor * sublayer(layer_norm(x)) if norm == "pre" else layer_norm(x + factor * sublayer(x))
    torch.testing.assert_close(y, x)


def test_blocks_have_no_layer_scale_by_default() -> None:
    block = EncoderBlock(Attention(8, 2), FeedForward(8, 16))
    assert not [name for name in block.state_dict() if "scale" in name]


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(1, 3),
)
def test_patch_embedding_equals_a_strided_convolution(
    grid: tuple[int, int], patch: tuple[int, int], channels: int
) -> None:
    torch.manual_seed(0)
    embedding = PatchEmbedding(channels, patch, 6)
    nn.init.normal_(embedding.bias)
    images = torch.randn(2, channels, grid[0] * patch[0], grid[1] * patch[1])
    expected = F.conv2d(images, embedding.weight, embedding.bias, stride=patch).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embedding(images), expected)
    assert embedding.grid(images) == grid
    assert torch.equal(patchify(images, patch)[0, 0], images[0, :, : patch[0], : patch[1]].flatten())
    assert torch.equal(unpatchify(patchify(images, patch), grid, patch), images)


def test_images_of_invalid_size_are_rejected_with_a_suggestion() -> None:
    embedding = PatchEmbedding(3, (16, 8), 4)
    with pytest.raises(UserError, match=r"30×24 .* patches of 16×8; 16×24 or 32×24 would fit"):
        embedding(torch.zeros(1, 3, 30, 24))
    with pytest.raises(UserError, match=r"1×1 .*; 16×8 would fit"):
        embedding(torch.zeros(1, 3, 1, 1))
    with pytest.raises(UserError, match="images have 1 channels, but the model expects 3"):
        embedding(torch.zeros(1, 1, 16, 8))
