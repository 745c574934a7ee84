"""Stereo photographs: units of disparities, occlusion, resizing and errors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.stereo import read_scenes
from regard.errors import UserError

HEIGHT, WIDTH, SHIFT = 8, 24, 4


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Create two scenes, one of each layout, with a disparity of 4 pixels everywhere."""
    wide = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH + SHIFT, 3), dtype=np.uint8)
    for name, left, right, one, other, units in (
        ("New", "view1", "view5", "disp1", "disp5", 3),
        ("Old", "im2", "im6", "disp2", "disp6", 4),
    ):
        save(tmp_path / name / f"{left}.png", wide[:, :WIDTH])
        save(tmp_path / name / f"{right}.png", wide[:, SHIFT:])
        disparity = np.full((HEIGHT, WIDTH), SHIFT * units, np.uint8)
        save(tmp_path / name / f"{other}.png", disparity)
        disparity = disparity.copy()
        disparity[:2] = 0
        save(tmp_path / name / f"{one}.png", disparity)
    (tmp_path / "notes.txt").write_text("not a scene")
    return tmp_path


def test_disparities_are_converted_to_pixels(scenes: Path) -> None:
    found = read_scenes(scenes)
    assert [scene.name for scene in found] == ["New", "Old"]
    for scene in found:
        assert scene.left.shape == scene.right.shape == (3, HEIGHT, WIDTH)
        assert torch.equal(scene.known, torch.arange(HEIGHT)[:, None].expand(-1, WIDTH) >= 2)
        assert (scene.disparity[scene.known] == SHIFT).all()
        assert torch.equal(scene.covisible, scene.known & (torch.arange(WIDTH) >= SHIFT))
        assert torch.equal(scene.left[:, :, SHIFT:], scene.right[:, :, :-SHIFT])


def test_pixels_are_not_covisible_where_the_disparity_maps_disagree(scenes: Path) -> None:
    disparity = np.full((HEIGHT, WIDTH), SHIFT * 3, np.uint8)
    disparity[:, 10] = 10 * 3  # the right view shows a closer surface at column 10
    save(scenes / "New" / "disp5.png", disparity)
    new = read_scenes(scenes)[0]
    assert not new.covisible[4, 10 + SHIFT]
    assert new.covisible[4, 11 + SHIFT]


def test_resizing_scales_the_disparities(scenes: Path) -> None:
    half = read_scenes(scenes)[0].resized(HEIGHT // 2)
    assert half.left.shape == (3, HEIGHT // 2, WIDTH // 2)
    assert set(half.disparity.unique().tolist()) == {0.0, SHIFT / 2}
    assert half.known.dtype == half.covisible.dtype == torch.bool
    assert 0 < half.covisible.sum() < half.known.sum()


def test_invalid_folders_are_rejected(scenes: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: no such folder"):
        read_scenes(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: contains no scene, a folder with view1\.png or im2\.png"):
        read_scenes(tmp_path / "empty")
    (scenes / "New" / "disp5.png").unlink()
    with pytest.raises(UserError, match=r"disp5\.png: cannot be read"):
        read_scenes(scenes)
