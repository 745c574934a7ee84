"""Where the images of a set lie: files of their own, or stretches of larger files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from regard.vision.decoding import MOST_PIXELS, ImageError, Pixels, decode, is_grey


class Source(Protocol):
    """Images in an order of their own, with names by which a person finds them."""

    @property
    def names(self) -> Sequence[str]:
        """Relative to where the set lies, so that a set may move."""
        ...

    def size(self, row: int) -> int:
        """Bytes."""
        ...

    def content(self, row: int) -> bytes:
        """The bytes as they are stored.

        Raises:
            ImageError: they cannot be read.
        """
        ...

    def grey(self, row: int) -> bool:
        """Whether an image has no colours.

        Raises:
            ImageError: it cannot be read.
        """
        ...

    def read(self, row: int, channels: int, pixels: int = MOST_PIXELS, detail: int | None = None) -> Pixels:
        """One image; `detail` as in `decode`.

        Raises:
            ImageError: it cannot be read or decoded.
        """
        ...


@dataclass(frozen=True)
class Files:
    """Each image a file."""

    folder: Path
    names: Sequence[str]

    def size(self, row: int) -> int:
        try:
            return (self.folder / self.names[row]).stat().st_size
        except OSError:
            return -1  # the reason is said when it is read

    def content(self, row: int) -> bytes:
        path = self.folder / self.names[row]
        try:
            return path.read_bytes()
        except OSError as error:
            raise ImageError(str(path), f"cannot be read ({error.strerror})") from None

    def grey(self, row: int) -> bool:
        path = self.folder / self.names[row]
        return is_grey(path, str(path))

    def read(self, row: int, channels: int, pixels: int = MOST_PIXELS, detail: int | None = None) -> Pixels:
        return decode(self.folder / self.names[row], "L" if channels == 1 else "RGB", pixels=pixels, detail=detail)
