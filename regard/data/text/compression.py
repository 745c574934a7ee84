"""Plain and compressed files (.gz, .xz, .zst), and one sentence about those that are missing or damaged."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from regard.errors import UserError, import_optional, prefix_errors
from regard.files import check_regular


@contextmanager
def report_damaged(path: Path) -> Iterator[None]:
    """Raise a UserError if a file, which may be compressed, is missing or damaged."""
    try:
        if path.exists() and not path.is_dir() and path.parts[:2] != ("/", "dev"):  # shells pass pipes as /dev/fd/N
            check_regular(path)
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; give the path of an existing file.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory; give the path of a file in it.") from error
    except EOFError as error:
        raise UserError(f"{path} is truncated: its compressed data are incomplete; download it again.") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"{path} is damaged or not compressed as its suffix indicates ({error}); download or rename it."
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} cannot be read ({reason}); check the file and its permissions.") from error


def open_decompressed(path: Path) -> BinaryIO:
    """Open a file, decompressed according to its suffix."""
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        case ".xz":
            return cast(BinaryIO, lzma.open(path, "rb", format=lzma.FORMAT_XZ))
        case ".zst":
            return _open_zstandard(path)
        case _:
            return path.open("rb")


def _open_zstandard(path: Path) -> BinaryIO:
    with prefix_errors(path):
        pyarrow = import_optional("pyarrow", "data")
    # Path.open raises the same errors as for other files; BufferedReader adds readline to the stream of pyarrow.
    return io.BufferedReader(pyarrow.input_stream(path.open("rb"), compression="zstd"))
