"""Attention peaks between two views, and drawings of matches."""

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.inspection.probe import probe
from regard.inspection.two_view import (
    SCALE,
    AttentionPeaks,
    cross_attention_names,
    draw_matches,
    find_peaks,
)
from regard.models.croco import CroCo, CroCoConfig


@pytest.fixture
def model() -> CroCo:
    torch.manual_seed(0)
    sizes = {"patch": 4, "width": 16, "heads": 2, "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 2}
    return CroCo(CroCoConfig.micro(**sizes)).eval()


def view(seed: int, height: int = 12, width: int = 16) -> Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(seed))


def test_peak_is_the_maximum_of_the_mean_over_heads(model: CroCo) -> None:
    view1, view2 = view(1), view(2, 8, 20)
    seen = torch.tensor([[0, 3], [1, 7]])
    with probe(model) as records, torch.no_grad():
        model.decode_views(view1, view2, seen)
    peaks_by_name = find_peaks(model, view1, view2, seen)
    assert list(peaks_by_name) == cross_attention_names(model) == ["decoder.0.cross", "decoder.1.cross"]
    for name, peaks in peaks_by_name.items():
        mean = records[name].weights.mean(1)
        index = peaks.patch[..., 0] * 5 + peaks.patch[..., 1]
        assert peaks.patch.shape == (2, 12, 2)
        assert torch.equal(index, mean.argmax(-1))
        assert torch.allclose(peaks.weight, mean.amax(-1))
    assert list(find_peaks(model, view1, view2, names=["decoder.1.cross"])) == ["decoder.1.cross"]


def test_unknown_attention_module_is_rejected(model: CroCo) -> None:
    with pytest.raises(UserError, match=r"decoder\.7\.cross"):
        find_peaks(model, view(1), view(2), names=["decoder.7.cross"])


def test_line_connects_a_patch_with_its_match() -> None:
    grey = torch.full((1, 3, 12, 16), 0.5)
    weight = torch.zeros(1, 12)
    weight[0, 5] = 1.0  # row 1, column 1
    patches = torch.zeros(1, 12, 2, dtype=torch.long)
    patches[0, 5] = torch.tensor([2, 3])
    picture = np.asarray(draw_matches(grey, grey, AttentionPeaks(patches, weight), 4, most=1)).astype(int)
    assert picture.shape == (12 * SCALE, 2 * 16 * SCALE + 2 * SCALE, 3)
    drawn = (np.abs(picture - 128).max(-1) > 60) & (picture.min(-1) < 200)
    ends = [(6 * SCALE, 6 * SCALE), (10 * SCALE, 16 * SCALE + 2 * SCALE + 14 * SCALE)]
    for row, column in ends:
        assert drawn[row - 1 : row + 2, column - 1 : column + 2].all()
    rows, columns = drawn.nonzero()
    assert columns.min() >= ends[0][1] - 5 and columns.max() <= ends[1][1] + 5
    assert rows.min() >= ends[0][0] - 5 and rows.max() <= ends[1][0] + 5
