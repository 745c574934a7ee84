"""RandAugment's kernel, against the formula that the other tests hold to Pillow."""

import pytest
import torch

from regard.data.images.randaugment import MAPS, OPERATIONS, operate, operate_by_kernel
from regard.ops.dispatch import TRITON_INSTALLED
from tests.data.images.test_randaugment import smooth

pytestmark = pytest.mark.skipif(not TRITON_INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def images(count: int, channels: int, height: int, width: int) -> torch.Tensor:
    rows = [torch.from_numpy(smooth(seed, channels).copy()).view(24, 24, -1) for seed in range(count)]
    return torch.stack(rows).permute(0, 3, 1, 2)[:, :, :height, :width].to(DEVICE)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 16, 16), (3, 20, 24), (1, 24, 12), (3, 2, 3)])
def test_every_operation_is_that_of_the_formula(channels: int, height: int, width: int, sign: float) -> None:
    given = images(len(OPERATIONS), channels, height, width)
    given[0], given[OPERATIONS.index("autocontrast")] = 7, 9  # a plain one has nothing to be stretched
    choice = torch.arange(len(OPERATIONS), device=DEVICE)
    amount, signs = torch.full((len(given),), 0.9, device=DEVICE), torch.full((len(given),), sign, device=DEVICE)
    before = given.clone()
    made = operate_by_kernel(given, choice, amount, signs)
    expected = operate(given, choice, amount, signs, whole=True)
    assert torch.equal(given, before)
    assert made.dtype == torch.uint8
    for name, mine, theirs in zip(OPERATIONS, made.int(), expected.int(), strict=True):
        if name in MAPS:  # between two pixels, where a rounding more or less can tip the scales
            assert (mine - theirs).abs().max() <= 1, name
            assert (mine != theirs).float().mean() < 0.02, name
        else:
            torch.testing.assert_close(mine, theirs, atol=0, rtol=0, msg=name)


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "contrast"])
def test_images_of_few_values(name: str) -> None:
    given = torch.randint(3, (6, 3, 16, 16), generator=torch.Generator().manual_seed(0)).mul(100).byte().to(DEVICE)
    given[1] = 0
    given[2, :, :1] = 255
    choice = torch.full((6,), OPERATIONS.index(name), device=DEVICE)
    amount, signs = torch.full((6,), 0.5, device=DEVICE), torch.ones(6, device=DEVICE)
    made = operate_by_kernel(given, choice, amount, signs)
    torch.testing.assert_close(made, operate(given, choice, amount, signs, whole=True), atol=0, rtol=0)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
def test_a_gpu_takes_the_kernel_for_small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(
        "regard.data.images.randaugment.operate_by_kernel", lambda images, *rest: called.append(1) or images
    )
    ones = torch.ones(2, device=DEVICE)
    operate(images(2, 3, 16, 16), ones.long(), ones, ones)
    operate(torch.zeros(2, 3, 224, 224, dtype=torch.uint8, device=DEVICE), ones.long(), ones, ones)
    assert called == [1]
