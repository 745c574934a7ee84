"""Products of a few rows by kernel against the library's, and when they are made that way."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.launching import INSTALLED
from regard.products import FewRows, PackedWeights, linear, linear_relu, ways
from regard.rows import MOST_ROWS, WIDEST, multiply, usable

by_kernel = pytest.mark.skipif(not INSTALLED, reason="there is no Triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
CLOSE = {"atol": 2e-5, "rtol": 1e-5}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@by_kernel
@pytest.mark.parametrize(("N", "D", "W"), [(1, 1, 1), (1, 64, 48), (16, 130, 17), (17, 128, 33), (96, 300, 40)])
@pytest.mark.parametrize("biased", [True, False])
def test_it_makes_what_the_library_makes(N: int, D: int, W: int, biased: bool) -> None:
    x, weight, bias = drawn(N, D), drawn(W, D, seed=1), drawn(W, seed=2) if biased else None
    torch.testing.assert_close(multiply(x, weight, bias), F.linear(x, weight, bias), **CLOSE)
    torch.testing.assert_close(multiply(x, weight, bias, relu=True), F.linear(x, weight, bias).relu(), **CLOSE)


@by_kernel
def test_rows_and_weights_may_be_parts_of_larger_ones() -> None:
    x, weight, bias = drawn(4, 10, 6, 40)[:, 3, :, :32], drawn(90, 70, seed=1)[20:65, 8:40], drawn(90, seed=2)[20:65]
    found = multiply(x, weight, bias)
    assert found.shape == (4, 6, 45)
    torch.testing.assert_close(found, F.linear(x, weight, bias), **CLOSE)
    torch.testing.assert_close(multiply(x.mT, drawn(5, 6)), F.linear(x.mT, drawn(5, 6)), **CLOSE)


@by_kernel
def test_what_is_no_number_stays_none() -> None:
    x, weight = drawn(3, 20), drawn(9, 20, seed=1)
    x[1, 4] = torch.nan
    found = multiply(x, weight, relu=True)
    assert found[1].isnan().all()
    assert not found[[0, 2]].isnan().any()


@by_kernel
def test_while_entered_products_are_made_that_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = drawn(2, 3, 32), drawn(20, 32, seed=1), drawn(20, seed=2)
    made = list[bool]()

    def counted(*given: Tensor, relu: bool = False) -> Tensor:
        made.append(relu)
        return multiply(*given, relu=relu)

    monkeypatch.setattr(ways, "multiply", counted)
    monkeypatch.setattr(ways, "usable", lambda x, *others: len(x) < 3)
    with torch.no_grad(), PackedWeights(), FewRows():
        torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias), **CLOSE)
        torch.testing.assert_close(linear_relu(x, weight, bias), F.linear(x, weight, bias).relu(), **CLOSE)
        more = drawn(3, 3, 32)
        assert torch.equal(linear(more, weight, bias), F.linear(more, weight, bias))
        assert torch.equal(linear_relu(more, weight, bias), F.linear(more, weight, bias).relu())
    linear(x, weight, bias)
    assert made == [False, True]


def test_not_where_there_is_no_gpu_or_something_learns() -> None:
    x, weight = drawn(2, 32), drawn(20, 32)
    assert not usable(x.cpu(), weight.cpu(), None)
    with torch.enable_grad():
        assert not usable(x, weight, None)


@on_gpu
def test_on_a_gpu_a_recording_makes_few_rows_by_one_kernel() -> None:
    weight, bias = drawn(768, 256, seed=1), drawn(768, seed=2)
    with torch.no_grad():
        for rows in (1, 8, 32, 96, MOST_ROWS):
            x = drawn(rows, 256)
            assert usable(x, weight, bias)
            with FewRows(), torch.profiler.profile() as profile:
                found = linear_relu(x, weight, bias)
                torch.cuda.synchronize()
            launched = [event.key for event in profile.key_averages() if event.self_device_time_total > 0]
            assert launched == ["multiply"]
            right = F.linear(x.double(), weight.double(), bias.double()).relu()
            torch.testing.assert_close(found.double(), right, atol=1e-4, rtol=1e-5)
        assert not usable(drawn(MOST_ROWS + 1, 256), weight, bias)
        assert not usable(drawn(1, 256), drawn(WIDEST + 1, 256), None)
        assert not usable(drawn(1, 256).bfloat16(), weight.bfloat16(), None)
