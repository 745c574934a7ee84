"""Preprocessing: from encoded images to the input of a model.

Images are decoded to arrays of 8-bit pixels, resized to a square and normalised. Errors are ImageErrors, which name the
image.
"""

import io
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings, SideLength
from regard.errors import ErrorKind, UserError
from regard.files import check_regular, open_regular, supported_image_formats

Item = TypeVar("Item")
Result = TypeVar("Result")
Pixels = npt.NDArray[np.uint8]
"""(height, width, channels)"""
Mode = Literal["RGB", "L"]
"""Colour or grey."""
AnyImage = str | Path | Image.Image | npt.NDArray[np.uint8]
"""A path, a Pillow image, or an array of bytes, (height, width) or (height, width, channels)."""
VIEWS = "views"
"""Key of config.json with the height and width of the views of a CroCo model."""

_SUFFIX_LIST = "jpg jpeg jpe jfif png gif bmp webp tif tiff ppm pgm pbm pnm avif jp2"
IMAGE_SUFFIXES = frozenset(f".{name}" for name in _SUFFIX_LIST.split())
MAX_PIXELS = 80_000_000
MAX_IMAGE_BYTES = 8 * MAX_PIXELS + 2**20
"""Size of an image file: uncompressed pixels of four 16-bit channels."""
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


# Decoding


class ImageError(UserError):
    """An image that cannot be used, with its name and the reason."""

    kind: ErrorKind = "image"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


class ImageSizeError(ImageError):
    """An image with too many pixels."""

    kind: ErrorKind = "pixels"


@contextmanager
def report_unreadable_image(path: Path) -> Iterator[None]:
    """Convert the errors of `regard.files` into ImageErrors."""
    try:
        yield
    except UserError as error:
        reason = str(error).removeprefix(f"{path}: ").removeprefix("cannot be read ").strip("()")
        raise ImageError(str(path), f"cannot be read ({reason})") from None


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
    if isinstance(data, Path):
        with report_unreadable_image(data):
            check_regular(data)
    try:
        image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=supported_image_formats())
    except Image.DecompressionBombError:
        raise ImageSizeError(name, f"has more than the allowed {max_pixels:,} pixels; reduce its size") from None
    except UnidentifiedImageError:
        raise ImageError(name, _explain_unidentified(data)) from None
    except PermissionError as error:
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
    """Return why a file is not identified as an image."""
    if isinstance(data, Path):
        with open_regular(data) as file:
            data = file.read(512)
    start = data[:512]
    if not start:
        return "is empty"
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # the last character may be incomplete
            return (
                f"not an image in a supported format ({', '.join(supported_image_formats())}), or its header is damaged"
            )
    return "a text file, not an image"


def _describe(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


# Resizing and normalisation


@dataclass(frozen=True)
class Resize:
    """Resize an image to a square with bicubic interpolation."""

    size: int  # side length in pixels
    fit: Literal["crop", "squash"] = "crop"  # take the central square, or the complete image

    @property
    def min_side(self) -> int:
        """Shorter side to which a JPEG may be reduced while decoding without a visible difference."""
        return 2 * self.size

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return the resized image, or `pixels` itself if the size is already right."""
        height, width, channels = pixels.shape
        size = self.size
        if (height, width) == (size, size):
            return pixels
        side = min(height, width)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side) if self.fit == "crop" else (0, 0, width, height)
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        resized = image.resize((size, size), Image.Resampling.BICUBIC, box)
        return np.asarray(resized).reshape(size, size, channels)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, for pixel values from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Convert uint8 images (B, C, H, W) to normalised floats."""
        mean, std = (constant(values, images.device).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (images.float() / 255 - mean) / std


@lru_cache(maxsize=256)
def constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """Return a cached tensor of constants, which must not be modified."""
    with torch.inference_mode(False):  # the cached tensor may also be needed outside of inference mode
        return torch.tensor(values, device=device)


class ImagePreprocessing(Settings):
    """Preprocessing of a classifier's images, and the names of its classes."""

    classes: tuple[str, ...] = Field(description="names of the classes, in the order of the model's outputs")
    size: SideLength = Field(description="side of the square input in pixels")
    channels: Literal[1, 3] = Field(description="3 for colour, 1 for grey")
    fit: Literal["crop", "squash"] = Field("crop", description="how an image is made square")
    interpolation: Literal["bicubic"] = Field("bicubic", description="interpolation for resizing")
    mean: tuple[float, ...] = Field(description="mean of each channel in [0, 1], which is subtracted")
    std: tuple[float, ...] = Field(description="standard deviation of each channel, by which the result is divided")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"{self.channels} channels need as many values in mean and in std")
        if min(self.std) <= 0:
            raise ValueError("std: every value must be greater than 0")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: a name is repeated")
        return self

    @property
    def resize(self) -> Resize:
        """Resizing of images to the input size."""
        return Resize(self.size, self.fit)

    @property
    def mode(self) -> Mode:
        """Pillow's name of the colour mode."""
        return "L" if self.channels == 1 else "RGB"

    def open(self, image: AnyImage) -> Pixels:
        """Decode and resize an image to bytes, (size, size, channels)."""
        if isinstance(image, str | Path):
            pixels = decode_image(Path(image), self.mode, min_side=self.resize.min_side)
        elif isinstance(image, Image.Image):
            pixels = image_to_array(image, self.mode, str(getattr(image, "filename", "")) or "image")
        else:
            pixels = self._check_array(image)
        return self.resize(pixels if pixels.ndim == 3 else pixels[:, :, None])

    def normalise(self, images: Sequence[Pixels], device: torch.device | str = "cpu") -> Tensor:
        """Return a batch of opened images as the model's input, (B, channels, size, size)."""
        batch = torch.from_numpy(np.stack(images)).to(device).permute(0, 3, 1, 2)
        return Normalisation(self.mean, self.std)(batch)

    def _check_array(self, image: Any) -> Pixels:
        if not isinstance(image, np.ndarray):
            raise UserError(f"expected an image as a path, a Pillow image or an array, found {type(image).__name__}")
        channels = image.shape[2] if image.ndim == 3 else 1
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or channels not in (1, 3) or not image.size:
            shape = " × ".join(map(str, image.shape))
            raise UserError(
                f"an image array must be uint8 of height × width × 3 or height × width, found {shape} {image.dtype}"
            )
        if channels == self.channels:
            return image
        converted = Image.fromarray(image.reshape(image.shape[:2]) if channels == 1 else image)
        return np.asarray(converted.convert(self.mode))


# Views of CroCo models


def view_size(metadata: dict[str, Any], patch: int, where: str) -> tuple[int, int]:
    """Return the height and width of the views of a CroCo model from the content of config.json."""
    match metadata.get(VIEWS):
        case [int(height), int(width)] if height > 0 < width and not height % patch and not width % patch:
            return height, width
    raise UserError(
        f"{where}: {VIEWS} is {metadata.get(VIEWS)!r}, but must be a height and a width that are multiples of {patch}, "
        f"such as [{12 * patch}, {12 * patch}]"
    )


def open_view(path: Path, size: tuple[int, int]) -> Tensor:
    """Return the centre of an image, resized to (height, width), with pixels in [0, 1], (1, 3, H, W)."""
    height, width = size
    fitted = ImageOps.fit(Image.fromarray(decode_image(path)), (width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)[None].float() / 255


def prefetch(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Generator[Result, None, None]:
    """Apply a function to items in background threads and yield the results in order, at most `ahead` in advance."""
    with ThreadPoolExecutor(threads) as pool:
        futures: deque[Future[Result]] = deque()
        try:
            for item in items:
                futures.append(pool.submit(function, item))
                if len(futures) > ahead:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()
