"""The Swin Transformer: parameter counts, windows, and images of any size."""

import copy

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


@given(SIZES, st.tuples(st.integers(1, 5), st.integers(1, 5)), st.booleans())
@settings(max_examples=60)
def test_every_token_attends_to_the_tokens_of_its_window(
    grid: tuple[int, int], window: tuple[int, int], shifted: bool
) -> None:
    # A dimension that fits into one window is not shifted.
    shift = tuple(size // 2 if shifted and cells > size else 0 for cells, size in zip(grid, window, strict=True))
    windows = split_windows(grid, window, (shift[0], shift[1]), CPU)
    tokens = torch.arange(grid[0] * grid[1])
    x = tokens[None, :, None].float()
    assert torch.equal(windows.join(windows.split(x)), x)
    allowed = windows.allowed
    if allowed is None:
        allowed = torch.ones(*windows.tokens.shape, windows.tokens.shape[1], dtype=torch.bool)
    attended = torch.zeros(len(tokens), len(tokens), dtype=torch.long)
    window_of, cell_of = windows.cells // windows.tokens.shape[1], windows.cells % windows.tokens.shape[1]
    for token in tokens.tolist():
        row = allowed[window_of[token], cell_of[token]]
        attended[token].index_add_(
            0, windows.tokens[window_of[token]][row], torch.ones(int(row.sum()), dtype=torch.long)
        )
    assert attended.max() == 1, "a token is attended to twice"
    y, x = tokens // grid[1], tokens % grid[1]
    indices = [(axis - start) // size for axis, start, size in zip((y, x), shift, window, strict=True)]
    same_window = (indices[0][:, None] == indices[0]) & (indices[1][:, None] == indices[1])
    assert torch.equal(attended.bool(), same_window)


def test_complete_windows_without_shift_need_no_mask() -> None:
    assert split_windows((8, 12), (4, 4), (0, 0), CPU).allowed is None
    assert split_windows((8, 12), (4, 4), (2, 2), CPU).allowed is not None
    assert split_windows((7, 12), (4, 4), (0, 0), CPU).allowed is not None


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


def test_cells_without_a_token_are_never_attended_to() -> None:
    model = build()
    x = images(1, 28, 20)
    with probe(model) as seen:
        model(x)
    for name, windows in model.windows((28, 20)).items():
        assert windows.allowed is not None
        weights = seen[name].weights
        assert (weights.masked_select(~windows.allowed[:, None].expand_as(weights)) == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]) * windows.allowed.any(-1)[:, None])


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
