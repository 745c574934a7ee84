"""Image decoding: from encoded images to arrays of 8-bit pixels. Errors are ImageErrors, which name the image."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from regard.errors import ErrorKind, UserError

Pixels = npt.NDArray[np.uint8]
"""(height, width, channels)"""
Mode = Literal["RGB", "L"]
"""Colour or grey."""

_SUFFIX_LIST = "jpg jpeg jpe jfif png gif bmp webp tif tiff ppm pgm pbm pnm avif jp2"
IMAGE_SUFFIXES = frozenset(f".{name}" for name in _SUFFIX_LIST.split())
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats of Pillow that only contain pixels. EPS, for example, would start another program."""
MAX_PIXELS = 80_000_000
EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Transposition that makes an image upright, by EXIF orientation."""


class ImageError(UserError):
    """An image that cannot be used, with its name and the reason."""

    kind: ErrorKind = "image"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


class ImageSizeError(ImageError):
    """An image with too many pixels."""

    kind: ErrorKind = "pixels"


def decode_image(
    data: bytes | Path,
    mode: Mode = "RGB",
    name: str = "image",
    *,
    max_pixels: int = MAX_PIXELS,
    min_side: int | None = None,
) -> Pixels:
    """Decode the first frame of an image: upright, with 8 bits per channel and a white background.

    Args:
        data: Encoded image, or path of a file.
        mode: Colour or grey.
        name: Name of the image in errors, if `data` is not a path.
        max_pixels: Maximum number of pixels, checked in the header before memory is allocated.
        min_side: If given, the image may be decoded at reduced size, but its shorter side is at least this long.

    Raises:
        ImageError: If the file is missing, not an image, truncated, damaged or too large.
    """
    name = str(data) if isinstance(data, Path) else name
    with open_image(data, name, max_pixels) as image:
        if min_side is not None:
            width, height = image.size
            scale = min_side / min(width, height)
            image.draft(None, (int(width * scale), int(height * scale)))  # JPEG only: 1/2, 1/4 or 1/8 of the size
        return image_to_array(image, mode, name)


def image_to_array(image: Image.Image, mode: Mode, name: str) -> Pixels:
    """Convert a Pillow image to pixels as `decode_image` does."""
    if not all(image.size):
        raise ImageError(name, f"is {image.width}×{image.height}, without a single pixel")
    try:
        image.load()
        transposition = _UPRIGHT.get(_orientation(image))
        converted = _to_mode(_on_white(_to_eight_bits(image, name)), mode)
        array = np.asarray(converted if transposition is None else converted.transpose(transposition))
    except ImageError:
        raise
    except Exception as error:  # Pillow raises many exception types for damaged files
        raise ImageError(name, f"truncated or damaged ({_describe(error)})") from None
    return array if array.ndim == 3 else array[:, :, None]


def open_image(data: bytes | Path, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read the header of an image."""
    try:
        image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=_formats())
    except Image.DecompressionBombError:
        raise ImageSizeError(name, f"has more than the allowed {max_pixels:,} pixels; reduce its size") from None
    except UnidentifiedImageError:
        raise ImageError(name, _explain_unidentified(data)) from None
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise ImageError(name, f"cannot be read ({error.strerror})") from None
    except Exception as error:  # Pillow raises many exception types for damaged files
        raise ImageError(name, f"damaged ({_describe(error)})") from None
    width, height = image.size
    if width * height > max_pixels:
        image.close()
        raise ImageSizeError(name, f"is {width:,}×{height:,}, more than the allowed {max_pixels:,} pixels; reduce it")
    return image


def is_grey(data: bytes | Path, name: str, max_pixels: int = MAX_PIXELS) -> bool:
    """Return whether an image is greyscale according to its header."""
    with open_image(data, name, max_pixels) as image:
        return image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that the installed version of Pillow supports."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(EXIF_ORIENTATION, 1))
    except Exception:  # the EXIF data may be damaged while the image is not
        return 1


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)


def _to_eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Scale a grey image of 16-bit integers (0 to 65535) or floats (0 to 1) to 8 bits; transparent values are white."""
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    low, high = values.min(), values.max()
    white = 1 if image.mode == "F" else 65535
    if not 0 <= low <= high <= white:
        raise ImageError(name, f"its values are between {low} and {high}, not 0 and {white}; save it with 8 bits")
    scaled = (values.astype(np.float64) * (255 / white)).round().astype(np.uint8)
    transparent = image.info.get("transparency")
    return Image.fromarray(scaled if transparent is None else np.where(values == transparent, np.uint8(255), scaled))


def _to_mode(image: Image.Image, mode: Mode) -> Image.Image:
    if image.mode in ("RGBA", "P", "CMYK", "YCbCr") and mode == "L":
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _explain_unidentified(data: bytes | Path) -> str:
    if isinstance(data, Path):
        with data.open("rb") as file:
            data = file.read(512)
    start = data[:512]
    if not start:
        return "is empty"
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # the last character may be incomplete
            return f"not an image in a supported format ({', '.join(_formats())}), or its header is damaged"
    return "a text file, not an image"


def _describe(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
