"""Documents that are zip archives with XML files: the XML is translated, everything else is copied."""

import io
import lzma
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regard.data.documents.document import Segment, TextFile, Untranslated
from regard.data.documents.marked_text import Part
from regard.errors import UserError

MAX_MEMBERS = 10_000
MAX_EXPANDED = 500_000_000
"""Bytes of all files of an archive together, unless a smaller limit is given."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ExpandedSizeError(UserError):
    """An archive that is too large when it is expanded."""


class Archive:
    """A zip archive that is read with limits.

    Args:
        data: The archive.
        name: Its name, for errors.
        kind: What it should be, for errors: "a .docx file".
        expanded: Maximum number of bytes of all its files.
    """

    def __init__(self, data: bytes, name: str, kind: str, expanded: int | None = None) -> None:
        self.name, self.kind = name, kind
        limit = MAX_EXPANDED if expanded is None else expanded
        try:
            self._file = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, OSError, IndexError):
            raise self._damaged() from None
        self.members = self._file.infolist()
        if len(self.members) > MAX_MEMBERS or len({one.filename for one in self.members}) < len(self.members):
            raise UserError(f"{name}: has too many files, or one of them twice, so it is not {kind}")
        if any(one.flag_bits & 1 for one in self.members):
            raise UserError(f"{name}: is encrypted; save it without a password")
        if any(one.compress_type not in METHODS for one in self.members):
            raise UserError(f"{name}: is compressed by a method that is not used in {kind}")
        size = sum(one.file_size for one in self.members)  # zipfile reads at most as many bytes
        if size > limit:
            raise ExpandedSizeError(
                f"{name}: has {size:,} bytes when it is expanded, but at most {limit:,} are possible"
            )

    def read(self, member: zipfile.ZipInfo | str) -> bytes:
        """Return the content of a file."""
        try:
            return self._file.read(member)
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError, ValueError):
            raise self._damaged() from None

    def _damaged(self) -> UserError:
        return UserError(f"{self.name}: damaged or not {self.kind}")


@dataclass
class ZipDocument:
    """An archive and the parsed files in it."""

    archive: Archive
    parts: dict[str, TextFile] = field(default_factory=dict)

    @property
    def segments(self) -> list[Segment]:
        return [segment for part in self.parts.values() for segment in part.segments]

    @property
    def untranslated(self) -> list[Untranslated]:
        return [one for part in self.parts.values() for one in part.untranslated]

    def render(self, translations: Mapping[int, Sequence[Part]]) -> bytes:
        """Return the archive with the translations of segments, which are given by their numbers."""
        contents: dict[str, bytes] = {}
        first = 0
        for name, part in self.parts.items():
            own = {i - first: parts for i, parts in translations.items() if first <= i < first + len(part.segments)}
            contents[name] = part.render(own)
            first += len(part.segments)
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w") as file:
            for member in self.archive.members:  # in their order: the type of an .odt file is the first
                info = zipfile.ZipInfo(member.filename, member.date_time)
                info.compress_type, info.external_attr = member.compress_type, member.external_attr
                info.create_system, info.comment = member.create_system, member.comment
                new = contents.get(member.filename)
                file.writestr(info, self.archive.read(member) if new is None else new)
        return target.getvalue()
