"""Image preprocessing: formats, orientation, transparency, bit depths, limits and damaged files."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from regard.data.images.preprocessing import ImageError, ImagePreprocessing, decode_image


def save(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def quarters(width: int = 40, height: int = 24) -> Image.Image:
    """Return an image with four colours, which looks different in every orientation."""
    image = Image.new("RGB", (width, height), "red")
    image.paste("lime", (width // 2, 0, width, height // 2))
    image.paste("blue", (0, height // 2, width // 2, height))
    image.paste("yellow", (width // 2, height // 2, width, height))
    return image


def decompression_bomb(width: int, height: int) -> bytes:
    """Return a PNG whose header announces far more pixels than the file contains."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "GIF"])
def test_lossless_formats_are_decoded_exactly(form: str) -> None:
    assert np.array_equal(decode_image(save(quarters(), form)), np.asarray(quarters()))


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "AVIF", "JPEG2000"])
def test_lossy_formats_are_decoded_approximately(form: str) -> None:
    error = decode_image(save(quarters(), form, quality=95)).astype(int) - np.asarray(quarters())
    assert np.abs(error).mean() < 8


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = save(quarters(), form, exif=exif)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(decode_image(data), expected)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_data_are_ignored() -> None:
    data = save(quarters(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert decode_image(data).shape == (24, 40, 3)


def test_palettes_are_converted_to_colours() -> None:
    data = save(quarters().quantize(4), "PNG")
    assert np.array_equal(decode_image(data), np.asarray(quarters()))


def test_transparent_pixels_are_white() -> None:
    image = quarters().convert("RGBA")
    image.putalpha(Image.new("L", image.size, 0))
    assert (decode_image(save(image, "PNG")) == 255).all()
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    assert np.abs(decode_image(save(half, "PNG")).astype(int) - 127).max() <= 1


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    image = quarters().quantize(4)
    pixels = decode_image(save(image, "PNG", transparency=image.getpixel((0, 0))))
    assert (pixels[:12, :20] == 255).all()
    assert np.array_equal(pixels[12:], np.asarray(quarters())[12:])


def test_grey_with_alpha_is_white_where_transparent() -> None:
    data = save(Image.new("LA", (3, 3), (7, 0)), "PNG")
    assert (decode_image(data, "L") == 255).all()


def test_sixteen_bits_are_scaled_to_eight_with_rounding() -> None:
    values = np.array([[0, 128, 129, 257, 32896, 33023, 33025, 65406, 65407, 65535]], np.uint16)
    expected = [0, 0, 1, 1, 128, 128, 129, 254, 255, 255]
    assert decode_image(save(Image.fromarray(values), "PNG"), "L")[0, :, 0].tolist() == expected
    assert decode_image(save(Image.fromarray(values), "PNG"))[0, :, 2].tolist() == expected
    assert decode_image(save(Image.fromarray(values), "TIFF"), "L")[0, :, 0].tolist() == expected


def test_all_eight_bit_values_survive_scaling_to_sixteen_bits() -> None:
    values = np.arange(256, dtype=np.uint16)[None] * 257
    assert decode_image(save(Image.fromarray(values), "PNG"), "L")[0, :, 0].tolist() == list(range(256))


def test_a_sixteen_bit_value_may_be_transparent() -> None:
    values = Image.fromarray(np.array([[1000, 20000, 40000]], np.uint16))
    data = save(values, "PNG", transparency=1000)
    assert decode_image(data, "L")[0, :, 0].tolist() == [255, 78, 156]
    assert decode_image(data)[0, :, 1].tolist() == [255, 78, 156]


def test_values_of_unknown_scale_are_rejected() -> None:
    out_of_range = Image.fromarray(np.array([[0.0, 900.0]], np.float32))
    with pytest.raises(ImageError, match=r"depth.tif: its values are between 0.0 and 900.0, not 0 and 1"):
        decode_image(save(out_of_range, "TIFF"), name="depth.tif")
    in_range = Image.fromarray(np.array([[0.0, 1.0]], np.float32))
    assert decode_image(save(in_range, "TIFF"), "L")[0, :, 0].tolist() == [0, 255]


def test_grey_and_colour_are_converted() -> None:
    grey = Image.new("L", (4, 3), 77)
    assert (decode_image(save(grey, "PNG")) == 77).all()
    assert decode_image(save(quarters(), "PNG"), "L").shape == (24, 40, 1)
    assert np.array_equal(decode_image(save(quarters(), "PNG"), "L")[..., 0], np.asarray(quarters().convert("L")))


def test_black_and_white_is_grey() -> None:
    assert decode_image(save(Image.new("1", (2, 2), 1), "PNG"), "L").max() == 255


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_cmyk_is_converted(mode: str) -> None:
    data = save(quarters().convert("CMYK"), "JPEG", quality=98)
    error = decode_image(data, mode).astype(int) - decode_image(save(quarters(), "PNG"), mode)
    assert np.abs(error).mean() < 8


def test_the_first_frame_of_an_animation_is_decoded() -> None:
    frames = [Image.new("RGB", (5, 5), colour) for colour in ("red", "blue")]
    data = save(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (decode_image(data) == [255, 0, 0]).all()


def test_an_image_may_have_one_pixel() -> None:
    assert decode_image(save(Image.new("RGB", (1, 1), "lime"), "PNG")).tolist() == [[[0, 255, 0]]]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(20_000, 20_000), (10_000, 9_000), (2**31 - 1, 2**31 - 1)])
def test_too_many_pixels_are_rejected_before_decoding(size: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(decompression_bomb(*size))
    with pytest.raises(ImageError, match=r"bomb\.png: .*80,000,000 pixels"):
        decode_image(path)


def test_the_maximum_number_of_pixels_can_be_set() -> None:
    data = save(quarters(), "PNG")
    assert decode_image(data, max_pixels=960).shape == (24, 40, 3)
    with pytest.raises(ImageError, match=r"x.png: is 40×24, more than the allowed 959 pixels"):
        decode_image(data, name="x.png", max_pixels=959)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM"])
def test_a_truncated_file_is_rejected(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    content = save(Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)), form)
    path = tmp_path / "cut"
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(ImageError, match=r"cut: (truncated or )?damaged"):
        decode_image(path)


def test_files_that_are_not_images_are_described(tmp_path: Path) -> None:
    for content, reason in ((b"hello\n", "a text file"), (b"", "is empty"), (bytes(range(256)), "not an image")):
        path = tmp_path / "notes.png"
        path.write_bytes(content)
        with pytest.raises(ImageError, match=rf"notes\.png: {reason}"):
            decode_image(path)
        with pytest.raises(ImageError, match=rf"row 7: {reason}"):
            decode_image(content, name="row 7")
    with pytest.raises(ImageError, match="cannot be read"):
        decode_image(tmp_path / "gone.png")


def test_files_that_would_start_another_program_are_not_opened() -> None:
    with pytest.raises(ImageError):
        decode_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")


def test_a_jpeg_is_decoded_at_reduced_size() -> None:
    data = save(quarters(1600, 800), "JPEG")
    assert decode_image(data, min_side=100).shape == (100, 200, 3)
    assert min(decode_image(data, min_side=101).shape[:2]) >= 101
    assert decode_image(data, min_side=5000).shape == (800, 1600, 3)
    assert decode_image(save(quarters(1600, 800), "PNG"), min_side=100).shape == (800, 1600, 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 1), (4, 4, 3)], ids=str)
def test_arrays_are_converted_to_the_colours_of_the_model(channels: int, shape: tuple[int, ...]) -> None:
    preprocessing = ImagePreprocessing(
        classes=("a", "b"), size=4, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels
    )
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    pixels = preprocessing.open(array)
    expected = Image.fromarray(array.squeeze()).convert("L" if channels == 1 else "RGB")
    assert np.array_equal(pixels, np.asarray(expected).reshape(4, 4, channels))
