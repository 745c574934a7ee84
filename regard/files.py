"""Read files of any origin: regular files only, of limited size, with JSON and YAML of limited depth.

A pipe blocks, a device such as /dev/zero never ends, deeply nested text exhausts the stack, and some image formats
start programs. Errors are UserErrors that name the file.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from regard.errors import UserError

MAX_BYTES = 2**28
"""Size of a file that is read as a whole. The largest are tokenizers of some ten megabytes."""
MAX_LINE_BYTES = 2**24
"""A longer line means that the file is not text with one sentence per line."""
MAX_DEPTH = 64
"""Nesting of JSON and YAML."""
MAX_YAML_BYTES, MAX_YAML_VALUES = 2**17, 2**14
"""Size of a recipe, and number of its values after aliases have been expanded."""
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


def parse_yaml(text: str) -> Any:
    """Parse YAML without dates, which are strings, and with 3e-4 as a number, which YAML 1.1 reads as a string.

    Raises:
        ValueError: It is invalid, or exceeds the limits of this module.
    """
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"longer than {MAX_YAML_BYTES:,} characters")
    try:
        return yaml.load(text, _YamlLoader)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = one_line(getattr(error, "problem", None) or error)
        raise ValueError(problem if mark is None else f"line {mark.line + 1}: {problem}") from None


class _YamlLoader(yaml.SafeLoader):
    """Safe loader that limits what aliases expand to, and reports invalid values with their line."""

    def get_single_node(self) -> Any:
        root = super().get_single_node()
        level, values = [root], 0
        for _ in range(MAX_DEPTH):
            values += sum(len(node.value) for node in level if isinstance(node, yaml.CollectionNode))
            if values > MAX_YAML_VALUES:
                raise yaml.MarkedYAMLError(problem=f"more than {MAX_YAML_VALUES:,} values, aliases included")
            level = [child for node in level for child in _children(node)]
            if not level:
                return root
        raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} levels deep")

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            problem = f"{str(node.value)[:40]!r} is not a valid value of type {kind}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


# The types of JSON: no dates, binary data or sets.
_YamlLoader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
}
_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Possessive quantifiers: without them, a long row of digits takes quadratic time.
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:(?:\d[\d_]*+(?:\.[\d_]*+)?|\.\d++)[eE][-+]?\d++|\d[\d_]*+\.[\d_]*+)\Z"),
    list("-+0123456789."),
)


def _children(node: Any) -> Sequence[Any]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def one_line(error: object) -> str:
    """Return the start of an error message without line breaks."""
    return " ".join(str(error).split())[:200]


@cache
def supported_image_formats() -> tuple[str, ...]:
    """Return the image formats that are safe to open and that the installed version of Pillow supports."""
    from PIL import Image

    Image.init()
    return tuple(name for name in IMAGE_FORMATS if name in Image.OPEN)
