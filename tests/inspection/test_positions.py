import numpy as np
import pytest
import torch

from regard.attention.multi_head import Rotary, Rotary2D
from regard.errors import UserError
from regard.inspection.positions import encode_positions, find_positions, rotary_angles, similarity
from regard.layers import Diagonal, Learned, Sinusoidal, Sinusoidal2D
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig

GRID = [(y, x) for y in range(3) for x in range(4)]


@pytest.mark.parametrize("encoding", [Sinusoidal(16), Sinusoidal(16, "halves"), Learned(20, 16), Diagonal(16)])
def test_additive_encodings_are_returned_unchanged(encoding: torch.nn.Module) -> None:
    vectors = encode_positions(encoding, 12)
    np.testing.assert_allclose(vectors, encoding(torch.arange(12)[None], 12)[0].detach().numpy())
    cosines = similarity(encoding, 12)
    np.testing.assert_allclose(np.diag(cosines), 1)
    np.testing.assert_allclose(cosines, cosines.T)


def test_similarity_of_sinusoidal_positions_depends_on_their_distance_only() -> None:
    cosines = similarity(Sinusoidal(64), 300)
    for offset in (1, 5, 20):
        np.testing.assert_allclose(np.diag(cosines, offset), cosines[0, offset], atol=1e-5)
    assert cosines[0, 1] > cosines[0, 3] > cosines[0, 8]


def test_diagonal_positions_are_orthogonal() -> None:
    np.testing.assert_array_equal(similarity(Diagonal(8), 8), np.eye(8))


def test_similarity_of_rotary_positions_is_the_mean_cosine_of_their_angles() -> None:
    rotary = Rotary(16)
    angles = rotary_angles(rotary, 9)
    assert angles.shape == (9, 8)
    np.testing.assert_allclose(angles[1] * 5, angles[5], rtol=1e-6)
    np.testing.assert_allclose(similarity(rotary, 9)[0], np.cos(angles).mean(-1), atol=1e-6)


def test_2d_rotary_positions() -> None:
    rotary = Rotary2D(16)
    angles = rotary_angles(rotary, GRID)
    assert angles.shape == (12, 8)
    assert (angles[:4, :4] == 0).all()  # the first row
    assert (angles[::4, 4:] == 0).all()  # the first column
    np.testing.assert_allclose(similarity(rotary, GRID)[0], np.cos(angles).mean(-1), atol=1e-6)


def test_similarity_of_2d_sinusoidal_positions_depends_on_their_offset_only() -> None:
    cosines = similarity(Sinusoidal2D(32), GRID)
    at = {position: index for index, position in enumerate(GRID)}
    assert cosines[at[0, 0], at[1, 2]] == pytest.approx(cosines[at[1, 1], at[2, 3]], abs=1e-6)
    assert cosines[at[0, 0], at[0, 1]] > cosines[at[0, 0], at[2, 3]]


def test_positions_beyond_the_learned_table_are_rejected() -> None:
    with pytest.raises(UserError, match="learned positions"):
        similarity(Learned(4, 8), 5)


@pytest.mark.parametrize(
    ("positions", "tie", "names"),
    [
        ("sinusoidal", "all", ["source_embedding.positions, target_embedding.positions"]),
        ("learned", "target", ["source_embedding.positions", "target_embedding.positions"]),
        ("rotary", "all", ["encoder.0.attention.rotary"]),
    ],
)
def test_position_encodings_of_a_model_are_found(positions: str, tie: str, names: list[str]) -> None:
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2}
    model = Transformer(TransformerConfig.base(13, **size, positions=positions, tie=tie))
    assert list(find_positions(model)) == names


def test_identical_rotary_encodings_are_returned_once() -> None:
    model = ViT(ViTConfig.micro(classes=3, positions="rotary", layers=3))
    assert list(find_positions(model)) == ["encoder.0.attention.rotary"]
