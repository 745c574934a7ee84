import numpy as np
import pytest
import torch

from regard.attention.positions import Diagonal, Learned, Rotary, Rotary2D, Sinusoidal, Sinusoidal2D
from regard.errors import UserError
from regard.inspection.positions import encode_positions, find_positions, rotary_angles, similarity
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig

GRID = [(y, x) for y in range(3) for x in range(4)]


@pytest.mark.parametrize("encoding", [Sinusoidal(16), Sinusoidal(16, "halves"), Learned(20, 16), Diagonal(16)])
def test_added_encodings_are_shown_as_they_are_added(encoding: torch.nn.Module) -> None:
    shown = encode_positions(encoding, 12)
    np.testing.assert_allclose(shown, encoding(torch.arange(12)[None], 12)[0].detach().numpy())
    alike = similarity(encoding, 12)
    np.testing.assert_allclose(np.diag(alike), 1)
    np.testing.assert_allclose(alike, alike.T)


def test_sinusoidal_positions_are_alike_by_their_distance_alone() -> None:
    alike = similarity(Sinusoidal(64), 300)
    for apart in (1, 5, 20):
        np.testing.assert_allclose(np.diag(alike, apart), alike[0, apart], atol=1e-5)
    assert alike[0, 1] > alike[0, 3] > alike[0, 8]


def test_diagonal_positions_say_nothing_of_distance() -> None:
    np.testing.assert_array_equal(similarity(Diagonal(8), 8), np.eye(8))


def test_rotary_positions_are_alike_by_the_mean_cosine_of_their_angles() -> None:
    rotary = Rotary(16)
    angles = rotary_angles(rotary, 9)
    assert angles.shape == (9, 8)
    np.testing.assert_allclose(angles[1] * 5, angles[5], rtol=1e-6)
    np.testing.assert_allclose(similarity(rotary, 9)[0], np.cos(angles).mean(-1), atol=1e-6)


def test_rotary_positions_on_a_grid() -> None:
    rotary = Rotary2D(16)
    angles = rotary_angles(rotary, GRID)
    assert angles.shape == (12, 8)
    assert (angles[:4, :4] == 0).all()  # the first row
    assert (angles[::4, 4:] == 0).all()  # the first column
    np.testing.assert_allclose(similarity(rotary, GRID)[0], np.cos(angles).mean(-1), atol=1e-6)


def test_sinusoidal_positions_on_a_grid_are_alike_by_their_offsets_alone() -> None:
    alike = similarity(Sinusoidal2D(32), GRID)
    at = {place: index for index, place in enumerate(GRID)}
    assert alike[at[0, 0], at[1, 2]] == pytest.approx(alike[at[1, 1], at[2, 3]], abs=1e-6)
    assert alike[at[0, 0], at[0, 1]] > alike[at[0, 0], at[2, 3]]


def test_positions_beyond_the_last_learned_one_are_refused() -> None:
    with pytest.raises(UserError, match="learned positions"):
        similarity(Learned(4, 8), 5)


@pytest.mark.parametrize(
    ("positions", "tie", "names"),
    [
        ("sinusoidal", "all", ["source_embedding.positions"]),
        ("learned", "target", ["source_embedding.positions", "target_embedding.positions"]),
        ("rotary", "all", ["encoder.0.attention.rotary"]),
    ],
)
def test_the_encodings_of_a_model_are_found(positions: str, tie: str, names: list[str]) -> None:
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2}
    model = Transformer(TransformerConfig.base(13, **size, positions=positions, tie=tie))
    assert list(find_positions(model)) == names


def test_an_encoding_on_a_grid_is_one_however_many_layers_have_it() -> None:
    model = ViT(ViTConfig.micro(classes=3, positions="rotary", layers=3))
    assert list(find_positions(model)) == ["encoder.0.attention.rotary"]
