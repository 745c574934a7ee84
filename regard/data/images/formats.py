"""Image formats that are read. This module does not import torch."""

from functools import cache

from PIL import Image

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats of Pillow that only contain pixels. EPS, for example, would start another program."""


@cache
def supported_formats() -> tuple[str, ...]:
    """Return the formats that the installed version of Pillow supports."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)
