"""The Swin Transformer: its sizes, its windows, and images of every size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.errors import UserError
from regard.inspection.probe import probe
from regard.models.swin import PatchMerging, Swin, SwinConfig, split_windows

PARAMETERS = {"tiny": 28_288_354, "small": 49_606_258, "base": 87_768_224}
CPU = torch.device("cpu")
SIZES = st.tuples(st.integers(1, 11), st.integers(1, 11))


def small(**changes: object) -> Swin:
    torch.manual_seed(0)
    sizes = {"classes": 5, "width": 16, "layers": (2, 2), "heads": (2, 4), "window": 4}
    model = Swin(SwinConfig.mini(**sizes | changes)).eval()
    for name, p in model.named_parameters():
        if name.endswith("table"):
            nn.init.normal_(p)  # otherwise too small to be missed
    return model


def images(batch: int = 2, height: int = 32, width: int = 32) -> torch.Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("preset", PARAMETERS)
def test_the_presets_have_the_published_numbers_of_parameters(preset: str) -> None:
    with torch.device("meta"):
        model = Swin(getattr(SwinConfig, preset)(classes=1000))
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[preset]


@given(SIZES, st.tuples(st.integers(1, 5), st.integers(1, 5)), st.booleans())
@settings(max_examples=60)
def test_windows_hold_every_token_once_and_see_only_their_neighbours(
    grid: tuple[int, int], window: tuple[int, int], shifted: bool
) -> None:
    # As a stage does it: a side that fits into one window is not shifted.
    by = tuple(size // 2 if shifted and places > size else 0 for places, size in zip(grid, window, strict=True))
    windows = split_windows(grid, window, (by[0], by[1]), CPU)
    tokens = torch.arange(grid[0] * grid[1])
    x = tokens[None, :, None].float()
    assert torch.equal(windows.join(windows.split(x)), x)
    may = windows.allowed
    if may is None:
        may = torch.ones(*windows.tokens.shape, windows.tokens.shape[1], dtype=torch.bool)
    seen = torch.zeros(len(tokens), len(tokens), dtype=torch.long)
    home = windows.cells // windows.tokens.shape[1]
    place = windows.cells % windows.tokens.shape[1]
    for token in tokens.tolist():
        row = may[home[token], place[token]]
        seen[token].index_add_(0, windows.tokens[home[token]][row], torch.ones(int(row.sum()), dtype=torch.long))
    assert seen.max() == 1, "nobody is seen twice"
    y, x = tokens // grid[1], tokens % grid[1]
    cells = [(part - start) // size for part, start, size in zip((y, x), by, window, strict=True)]
    together = (cells[0][:, None] == cells[0]) & (cells[1][:, None] == cells[1])
    assert torch.equal(seen.bool(), together)


def test_without_a_shift_and_with_whole_windows_there_is_no_mask() -> None:
    assert split_windows((8, 12), (4, 4), (0, 0), CPU).allowed is None
    assert split_windows((8, 12), (4, 4), (2, 2), CPU).allowed is not None
    assert split_windows((7, 12), (4, 4), (0, 0), CPU).allowed is not None


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (33, 50), (5, 7), (1, 1)])
def test_images_of_any_size_are_read(size: tuple[int, int]) -> None:
    model = small()
    x = images(2, *size)
    tokens = model.tokens(x)
    rows, columns = (-(-side // 4) for side in size)
    assert tokens.shape == (2, rows * columns, 32)
    assert tokens.isfinite().all()
    torch.testing.assert_close(model.embed(x), tokens.mean(1))
    torch.testing.assert_close(model(x), model.head(tokens.mean(1)))


def test_what_a_grid_lacks_is_never_attended_to() -> None:
    model = small()
    x = images(1, 28, 20)
    with probe(model) as seen:
        model(x)
    for name, windows in model.windows((28, 20)).items():
        assert windows.allowed is not None
        weights = seen[name].weights
        assert (weights.masked_select(~windows.allowed[:, None].expand_as(weights)) == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]) * windows.allowed.any(-1)[:, None])


def pixels_seen(layers: int, row: int, column: int) -> set[int]:
    """The rows and columns of pixels on which a token depends."""
    model = small(layers=(layers,), heads=(2,), classes=0)
    x = images(1).requires_grad_()
    (grad,) = torch.autograd.grad(model.tokens(x)[0, row * 16 + column].square().sum(), x)
    return set(grad[0].abs().sum(0).nonzero().flatten().tolist())


def test_windows_shut_their_neighbours_out_until_they_shift() -> None:
    window, next_window = set(range(8)), set(range(16))  # 4 patches of 2 pixels
    assert pixels_seen(1, 3, 3) == window
    assert pixels_seen(2, 3, 3) == next_window
    assert pixels_seen(2, 0, 0) == window  # a corner of the image, which shifted windows do not join to its opposite
    assert pixels_seen(3, 0, 0) == next_window


def test_merging_joins_four_neighbours_left_column_first() -> None:
    merge = PatchMerging(1, 1e-5)
    merge.norm = nn.Identity()  # type: ignore[assignment]
    nn.init.eye_(merge.linear.weight)
    assert merge(torch.arange(16.0).view(1, 16, 1), (4, 4))[0].tolist() == [[0, 4], [2, 6], [8, 12], [10, 14]]
    assert merge(torch.arange(1.0, 4).view(1, 3, 1), (3, 1))[0].tolist() == [[1, 2], [3, 0]]


def test_drop_path_rises_over_all_stages() -> None:
    model = small(layers=(2, 3), drop_path=0.4)
    rates = [block.drop_path.rate for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_windows_kept_from_inference_serve_training() -> None:
    model = small()
    with torch.inference_mode():
        model(images(1, 26, 26))
    model.train()(images(1, 26, 26)).sum().backward()


WRONG = {
    "stages": ({"heads": (2,)}, "heads has 1 entries, but layers has 2 stages"),
    "heads": ({"heads": (2, 3)}, "width 32 of stage 2 is not divisible by heads 3"),
    "window": ({"window": 0}, "window"),
    "attention": ({"attention": "linear"}, "unknown key attention"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str) -> None:
    changes, said = WRONG[case]
    with pytest.raises(UserError, match=said):
        small(**changes)
