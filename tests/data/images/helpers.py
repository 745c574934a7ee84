"""Helpers that create small image sets."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def random_pixels(seed: int = 0, width: int = 8, height: int = 6, channels: int = 3) -> np.ndarray:
    """Return random pixels that depend on the seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    return pixels if channels > 1 else pixels[..., 0]


def encoded(seed: int = 0, form: str = "PNG", **shape: int) -> bytes:
    """Return the same pixels as an encoded image."""
    file = io.BytesIO()
    Image.fromarray(random_pixels(seed, **shape)).save(file, form)
    return file.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def folder_of_classes(root: Path, counts: dict[str, int], form: str = "PNG") -> Path:
    """Create CLASS/0.png, CLASS/1.png, ... with different images."""
    seed = 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write(root / name / f"{number}.{form.lower()}", encoded(seed, form))
            seed += 1
    return root
