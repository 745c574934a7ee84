"""Read files of any origin, and write files that appear when they are complete.

A pipe blocks, a device such as /dev/zero never ends, and deeply nested text exhausts the stack, so files are checked
before they are read. Errors are UserErrors that name the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from regard.errors import UserError, one_line

MAX_BYTES = 2**28
"""Size of a file that is read as a whole. The largest are tokenizers of some ten megabytes."""
MAX_LINE_BYTES = 2**24
"""A longer line means that the file is not text with one sentence per line."""
MAX_DEPTH = 64
"""Nesting of JSON and YAML."""
IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
"""Formats of Pillow that only contain pixels. EPS, for example, would start another program."""
_KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


class MissingFileError(UserError):
    """A file that does not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no such file")
        self.path = path


@contextmanager
def report_unreadable(path: Path) -> Iterator[None]:
    """Convert errors of the operating system into UserErrors."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(path) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def check_regular(path: Path) -> None:
    """Check that a path is a regular file or a link to one, before a library opens it."""
    if "\0" in str(path):
        raise UserError(f"{str(path)!r}: a file name cannot contain a null character")
    with report_unreadable(path):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        raise UserError(f"{path}: is {kind}, but must be a regular file")


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading."""
    check_regular(path)
    with report_unreadable(path), path.open("rb") as file:
        yield file


def sha256_of(path: Path) -> str:
    """Return the SHA-256 checksum of a regular file in hexadecimal."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size and checksum of a regular file, for `is_unchanged`."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def is_unchanged(path: Path, described: Any) -> bool:
    """Compare a file with the result of `describe_file`: first the size, because a checksum of a large file is slow."""
    check_regular(path)
    same_size = isinstance(described, dict) and path.stat().st_size == described.get("bytes")
    return same_size and sha256_of(path) == described.get("sha256")


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UserError(f"{path}: has {size:,} bytes, but such a file has at most {limit:,}")
        return file.read(size)


def read_text(path: Path, limit: int = MAX_BYTES, errors: str = "strict") -> str:
    r"""Read a regular UTF-8 file of at most `limit` bytes; every line ends with "\n"."""
    try:
        text = read_bytes(path, limit).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: damaged or not UTF-8 text (byte {error.start + 1})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_raw_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the lines of a stream with their line breaks, at most `MAX_LINE_BYTES` long; errors contain `name`."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise UserError(
                f"{name}, line {number}: longer than {MAX_LINE_BYTES // 2**20} MiB; "
                f"the file must be text with one sentence per line."
            )
        yield line


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        text = read_text(path)
        value = parse_json(text)
        if re.search(r"\\u[dD][89a-fA-F]", text):  # a lone surrogate could not be written again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except ValueError as error:
        raise UserError(f"{path}: damaged or not JSON ({one_line(error)})") from None


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: It is invalid, or nested more than `MAX_DEPTH` levels deep.
    """
    try:
        level = [value := json.loads(text)]
    except RecursionError:
        raise ValueError("nested too deeply") from None
    for _ in range(MAX_DEPTH):
        containers = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [inner for container in containers for inner in container]
        if not level:
            return value
    raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


@cache
def supported_image_formats() -> tuple[str, ...]:
    """Return the image formats that are safe to open and that the installed version of Pillow supports."""
    from PIL import Image

    Image.init()
    return tuple(name for name in IMAGE_FORMATS if name in Image.OPEN)


@contextmanager
def report_unwritable(path: Path) -> Iterator[None]:
    """Convert errors of the operating system, such as a full disk, into UserErrors while a file is written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to `path` when the block succeeds."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        with report_unwritable(path):
            yield temporary
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_text_file(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file that appears at `path` when the block succeeds."""
    with (
        replace_file(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file
