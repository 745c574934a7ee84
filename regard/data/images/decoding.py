"""From the bytes of an image file to an array of pixels, the way a person would see it."""

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

IMAGE_SUFFIXES = frozenset(
    f".{name}"
    for names in ("jpg jpeg jpe jfif png gif bmp webp", "tif tiff ppm pgm pbm pnm avif jp2")
    for name in names.split()
)
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Those that are only pictures: EPS, for one, would start another program."""
MAX_PIXELS = 80_000_000
ORIENTATION = 0x0112
"""The EXIF tag that says how the camera was held."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(UserError):
    """An image that cannot be used; names the file and what is wrong with it."""

    kind: ErrorKind = "image"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


class ImageSizeError(ImageError):
    """An image of more pixels than are allowed."""

    kind: ErrorKind = "pixels"


def decode_image(
    data: bytes | Path,
    mode: Mode = "RGB",
    name: str = "image",
    *,
    max_pixels: int = MAX_PIXELS,
    min_side: int | None = None,
) -> Pixels:
    """Decodes an image: upright, on white where it is transparent, the first frame of several, 8 bits a channel.

    Args:
        data: The content of a file, or the path of one.
        mode: Colour, or grey.
        name: What to call the image in an error; a path names itself.
        max_pixels: The most that an image may have; checked from its header, before memory is taken.
        min_side: The shorter side may be decoded smaller than it is, but no smaller than this.

    Raises:
        ImageError: the file is missing, no image, truncated, damaged or too large.
    """
    name = str(data) if isinstance(data, Path) else name
    with open_image(data, name, max_pixels) as image:
        if min_side is not None:
            width, height = image.size
            scale = min_side / min(width, height)
            image.draft(None, (int(width * scale), int(height * scale)))  # JPEG decodes 1/2, 1/4 or 1/8 at once
        return image_to_array(image, mode, name)


def image_to_array(image: Image.Image, mode: Mode, name: str) -> Pixels:
    """The pixels of an image of Pillow, as `decode` gives them.

    Raises:
        ImageError: it is truncated or damaged, has no pixels, or such as say nothing about how bright they are.
    """
    if not all(image.size):
        raise ImageError(name, f"is {image.width}×{image.height}, without a single pixel")
    try:
        image.load()
        upright = UPRIGHT.get(_orientation(image))
        plain = _to_mode(_on_white(_to_eight_bits(image, name)), mode)
        array = np.asarray(plain if upright is None else plain.transpose(upright))
    except ImageError:
        raise
    except Exception as error:  # damaged files make Pillow raise nearly anything
        raise ImageError(name, f"truncated or damaged ({_sentence(error)})") from None
    return array if array.ndim == 3 else array[:, :, None]


def open_image(data: bytes | Path, name: str, pixels: int = MAX_PIXELS) -> Image.Image:
    """An image of which only the header has been read.

    Raises:
        ImageError: the file is missing, no image, or too large.
    """
    try:
        image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=_formats())
    except Image.DecompressionBombError:
        raise ImageSizeError(name, f"has more than the {pixels:,} pixels that are allowed; make it smaller") from None
    except UnidentifiedImageError:
        raise ImageError(name, _explain_unidentified(data)) from None
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise ImageError(name, f"cannot be read ({error.strerror})") from None
    except Exception as error:  # damaged files make Pillow raise nearly anything
        raise ImageError(name, f"damaged ({_sentence(error)})") from None
    width, height = image.size
    if width * height > pixels:
        image.close()
        raise ImageSizeError(name, f"is {width:,}×{height:,}, more than the {pixels:,} pixels allowed; make it smaller")
    return image


def is_grey(data: bytes | Path, name: str, pixels: int = MAX_PIXELS) -> bool:
    """Whether an image's header says that it has no colours.

    Raises:
        ImageError: the file is missing, no image, or too large.
    """
    with open_image(data, name, pixels) as image:
        return image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")


@cache
def _formats() -> tuple[str, ...]:
    """The formats that the installed Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # what a camera wrote about an image may be damaged while the image is not
        return 1


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    seen = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)


def _to_eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Grey of 8 bits where there were more; a number that the file calls transparent is white.

    Raises:
        ImageError: its numbers say nothing about how bright they are.
    """
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    numbers = np.asarray(image)
    low, high = (numbers.min(), numbers.max())
    whole = 1 if image.mode == "F" else 65535
    if not 0 <= low <= high <= whole:
        raise ImageError(name, f"its pixels go from {low} to {high}, not from 0 to {whole}; save it with 8 bits")
    scaled = (numbers * 255 if image.mode == "F" else numbers // 257).round().astype(np.uint8)
    clear = image.info.get("transparency")
    return Image.fromarray(scaled if clear is None else np.where(numbers == clear, np.uint8(255), scaled))


def _to_mode(image: Image.Image, mode: Mode) -> Image.Image:
    """Colour or grey, whatever the file had."""
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
        if error.start < len(start) - 3:  # a character may be cut at the end of what was read
            return f"not an image in a format that is known ({', '.join(_formats())}), or damaged at its beginning"
    return "a text file, not an image"


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
