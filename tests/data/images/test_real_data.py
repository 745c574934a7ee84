"""The real sets; skipped where they are absent."""

import os
from pathlib import Path

import numpy as np
import pytest

from regard.data.images.image_sets import ImageSettings, open_splits

DATA = Path(os.environ.get("REGARD_DATA", "/nowhere"))


def needs(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"no {name} in the folder that REGARD_DATA names")
    return DATA / name


def test_mnist_is_opened_as_it_is_published() -> None:
    splits = open_splits(needs("mnist"), ImageSettings(hold_out=0))
    assert splits.test is not None
    assert (len(splits.train), len(splits.test)) == (60_000, 10_000)
    assert splits.train.classes == tuple("0123456789")
    assert splits.train.read(0).shape == (28, 28, 1)
    assert splits.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(splits.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_cifar10_is_opened_from_its_archive() -> None:
    splits = open_splits(needs("cifar10-jpg"), ImageSettings())
    assert splits.test is not None
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (45_000, 5_000, 10_000)
    assert np.bincount(splits.valid.labels).tolist() == [500] * 10
    assert splits.train.classes[0] == "airplane"
    assert splits.train.read(0).shape == (32, 32, 3)
