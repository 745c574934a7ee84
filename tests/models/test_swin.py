"""The Swin Transformer: parameter counts, windows, and images of any size."""

import copy
from collections import defaultdict
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.errors import UserError
from regard.inspection.probe import probe
from regard.models.swin import Grid, PatchMerging, Swin, SwinConfig, WindowPadding, split_windows

PARAMETERS = {"tiny": 28_288_354, "small": 49_606_258, "base": 87_768_224}
CPU = torch.device("cpu")
SIZES = st.tuples(st.integers(1, 11), st.integers(1, 11))


def build(**changes: object) -> Swin:
    torch.manual_seed(0)
    sizes = {"classes": 5, "width": 16, "layers": (2, 2), "heads": (2, 4), "window": 4}
    model = Swin(SwinConfig.mini(**sizes | changes)).eval()
    for name, p in model.named_parameters():
        if name.endswith("table"):
            nn.init.normal_(p)  # the initial values are too small to matter
    return model


def images(batch: int = 2, height: int = 32, width: int = 32) -> torch.Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("preset", PARAMETERS)
def test_presets_have_the_published_numbers_of_parameters(preset: str) -> None:
    with torch.device("meta"):
        model = Swin(getattr(SwinConfig, preset)(classes=1000))
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[preset]


def windows_by_definition(grid: Grid, window: Grid, shift: Grid, padding: str) -> list[list[int]]:
    """Return what each token attends to, by shifting and padding the grid; padding has the index N."""
    cells = torch.arange(grid[0] * grid[1]).view(grid)
    bottom, right = (-size % part for size, part in zip(grid, window, strict=True))
    for step in ("shift", "pad") if padding == "timm" else ("pad", "shift"):
        if step == "pad":
            cells = F.pad(cells, (0, right, 0, bottom), value=grid[0] * grid[1])
        else:
            cells = cells.roll((-shift[0], -shift[1]), (0, 1))
    attended: list[list[int]] = [[] for _ in range(grid[0] * grid[1])]
    groups: dict[tuple[int, int, bool, bool], list[int]] = defaultdict(list)
    for (row, column), token in np.ndenumerate(cells.numpy()):
        after_seam = (row >= cells.shape[0] - shift[0], column >= cells.shape[1] - shift[1])
        groups[row // window[0], column // window[1], *after_seam].append(token)
    for group in groups.values():
        for token in group:
            if token < len(attended):
                attended[token] = sorted(group)
    return attended


@given(SIZES, st.tuples(st.integers(1, 5), st.integers(1, 5)), st.booleans(), st.sampled_from(get_args(WindowPadding)))
@settings(max_examples=100)
def test_every_token_attends_to_its_window(grid: Grid, window: Grid, shifted: bool, padding: WindowPadding) -> None:
    # A dimension that fits into one window is not shifted.
    shift = tuple(size // 2 if shifted and cells > size else 0 for cells, size in zip(grid, window, strict=True))
    windows = split_windows(grid, window, (shift[0], shift[1]), padding, CPU)
    x = torch.arange(1.0, grid[0] * grid[1] + 1)[None, :, None]
    assert torch.equal(windows.join(windows.split(x)), x)
    T = windows.tokens.shape[1]
    allowed = torch.ones(len(windows.tokens), T, T, dtype=torch.bool) if windows.allowed is None else windows.allowed
    found = [sorted(windows.tokens[cell // T][allowed[cell // T, cell % T]].tolist()) for cell in windows.cells]
    assert found == windows_by_definition(grid, window, (shift[0], shift[1]), padding)


@pytest.mark.parametrize("padding", get_args(WindowPadding))
def test_padding_is_zero(padding: WindowPadding) -> None:
    windows = split_windows((7, 6), (4, 4), (2, 2), padding, CPU)
    cells = windows.split(torch.ones(2, 42, 3))
    assert cells.shape == (2 * 4, 16, 3)
    assert (cells.sum((1, 2)) < 48).any()
    assert cells.sum() == 2 * 42 * 3


def test_windows_without_shift_need_no_mask() -> None:
    assert split_windows((8, 12), (4, 4), (0, 0), "timm", CPU).allowed is None
    assert split_windows((7, 12), (4, 4), (0, 0), "timm", CPU).allowed is None
    assert split_windows((8, 12), (4, 4), (2, 2), "timm", CPU).allowed is not None


# Grid of a stage, and the shift of its second block, for windows of 4 × 4.
SHIFTS = [
    ((8, 8), {"transformers": (2, 2), "timm": (2, 2)}),
    ((5, 5), {"transformers": (2, 2), "timm": (2, 2)}),
    ((4, 4), {"transformers": (0, 0), "timm": (0, 0)}),
    ((4, 8), {"transformers": (0, 0), "timm": (0, 2)}),
    ((8, 3), {"transformers": (0, 0), "timm": (2, 0)}),
]


@pytest.mark.parametrize("padding", get_args(WindowPadding))
@pytest.mark.parametrize(("grid", "shifts"), SHIFTS)
def test_grids_that_fit_into_one_window_are_not_shifted(grid: Grid, shifts: dict[str, Grid], padding: str) -> None:
    stage = build(window_padding=padding).stages[0]
    for layer, shift in enumerate([(0, 0), shifts[padding]]):
        found, expected = stage.windows(grid, layer), split_windows(grid, (4, 4), shift, padding, CPU)
        assert torch.equal(found.cells, expected.cells)
        assert (found.allowed is None) is (shift == (0, 0))


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (33, 50), (5, 7), (1, 1)])
def test_images_of_any_size_are_accepted(size: tuple[int, int]) -> None:
    model = build()
    x = images(2, *size)
    tokens = model.tokens(x)
    rows, columns = (-(-side // 4) for side in size)
    assert tokens.shape == (2, rows * columns, 32)
    assert tokens.isfinite().all()
    torch.testing.assert_close(model.embed(x), tokens.mean(1))
    torch.testing.assert_close(model(x), model.head(tokens.mean(1)))


def test_tokens_attend_to_padding() -> None:
    model = build()
    with probe(model) as seen:
        model(images(1, 28, 20))
    for name, windows in model.windows((28, 20)).items():
        weights, tokens = seen[name].weights, int(windows.tokens.max())
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        is_padding = windows.tokens == tokens
        assert is_padding.any()
        assert (weights.mean((1, 2))[is_padding] > 0).all()


def test_resized_model_has_the_same_weights_and_another_image_size() -> None:
    model = build()
    resized = model.resized((28, 20))
    assert (resized.config.image, model.config.image) == ((28, 20), (32, 32))
    x = images(1, 28, 20)
    torch.testing.assert_close(resized(x), model(x))
    nn.init.zeros_(resized.head.weight)
    assert model.head.weight.any()


def receptive_field(layers: int, row: int, column: int) -> set[int]:
    """Return the rows and columns of pixels on which a token depends."""
    model = build(layers=(layers,), heads=(2,), classes=0)
    x = images(1).requires_grad_()
    (grad,) = torch.autograd.grad(model.tokens(x)[0, row * 16 + column].square().sum(), x)
    return set(grad[0].abs().sum(0).nonzero().flatten().tolist())


def test_shifted_windows_connect_neighbouring_windows() -> None:
    window, next_window = set(range(8)), set(range(16))  # 4 patches of 2 pixels
    assert receptive_field(1, 3, 3) == window
    assert receptive_field(2, 3, 3) == next_window
    assert receptive_field(2, 0, 0) == window  # the mask separates opposite edges of the image
    assert receptive_field(3, 0, 0) == next_window


def test_patch_merging_concatenates_the_left_column_first() -> None:
    merge = PatchMerging(1, 1e-5)
    merge.norm = nn.Identity()  # type: ignore[assignment]
    nn.init.eye_(merge.linear.weight)
    assert merge(torch.arange(16.0).view(1, 16, 1), (4, 4))[0].tolist() == [[0, 4], [2, 6], [8, 12], [10, 14]]
    assert merge(torch.arange(1.0, 4).view(1, 3, 1), (3, 1))[0].tolist() == [[1, 2], [3, 0]]


def test_stochastic_depth_increases_over_all_stages() -> None:
    model = build(layers=(2, 3), drop_path=0.4)
    rates = [block.drop_path.rate for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_windows_cached_in_inference_mode_can_be_used_in_training() -> None:
    model = build().train()
    fresh = copy.deepcopy(model)
    with torch.inference_mode():
        model(images(1, 26, 26))
    for one in (model, fresh):
        one(images(1, 26, 26)).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, fresh.get_parameter(name).grad)


INVALID = {
    "stages": ({"heads": (2,)}, "heads has 1 entries, but layers has 2 stages"),
    "heads": ({"heads": (2, 3)}, "width 32 of stage 2 is not divisible by heads 3"),
    "window": ({"window": 0}, "window"),
    "attention": ({"attention": "linear"}, "unknown key attention"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_settings_are_rejected(case: str) -> None:
    changes, message = INVALID[case]
    with pytest.raises(UserError, match=message):
        build(**changes)
