import math

import pytest

from regard.training.recipe import OptimSettings
from regard.training.schedule import Schedule, build_schedule

STEPS, WARMUP, WIDTH, LR = 1000, 100, 64, 0.5


def schedule(name: str, **changes: object) -> Schedule:
    optim = OptimSettings.parse({"schedule": name, "lr": LR, "warmup": WARMUP} | changes, "optim")
    return build_schedule(optim, STEPS, WIDTH)


def test_noam_is_the_papers_formula() -> None:
    rate = schedule("noam")
    for step in (1, 7, 99, 100, 101, 1000):
        assert rate(step) == pytest.approx(LR * WIDTH**-0.5 * min(step**-0.5, step * WARMUP**-1.5))


def test_noam_peaks_at_the_end_of_the_warm_up() -> None:
    rates = [schedule("noam")(step) for step in range(1, STEPS + 1)]
    assert rates.index(max(rates)) + 1 == WARMUP
    assert max(rates) == pytest.approx(LR / math.sqrt(WIDTH * WARMUP))


@pytest.mark.parametrize("name", ["inverse-sqrt", "cosine", "constant"])
def test_the_warm_up_is_linear_and_ends_at_the_full_rate(name: str) -> None:
    rate = schedule(name)
    assert [rate(step) for step in (1, 25, 50, 100)] == pytest.approx([LR / 100, LR / 4, LR / 2, LR])
    assert max(map(rate, range(1, STEPS + 1))) == pytest.approx(LR)


def test_inverse_sqrt_falls_with_the_root_of_the_step() -> None:
    rate = schedule("inverse-sqrt")
    assert [rate(400), rate(900)] == pytest.approx([LR / 2, LR / 3])


def test_cosine_falls_to_zero_at_the_last_step_and_is_half_way_in_the_middle() -> None:
    rate = schedule("cosine")
    assert [rate(100), rate(550), rate(1000)] == pytest.approx([LR, LR / 2, 0], abs=1e-12)
    after = [rate(step) for step in range(100, 1001)]
    assert after == sorted(after, reverse=True)


def test_constant_stays() -> None:
    assert schedule("constant")(100) == schedule("constant")(1000) == LR


@pytest.mark.parametrize("name", ["noam", "inverse-sqrt", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 5000])
def test_every_rate_is_finite_and_positive_for_any_warm_up(name: str, warmup: int) -> None:
    rate = schedule(name, warmup=warmup)
    rates = [rate(step) for step in range(1, STEPS)]
    assert all(math.isfinite(r) and r > 0 for r in rates)
    assert warmup > 1 or rates[0] == max(rates)
