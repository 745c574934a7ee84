"""Open packages of Argos Translate: a zip with metadata, a model of CTranslate2 and its tokenizer.

Only these files are read; sentence splitters and others are ignored. Files are written to a temporary folder under
names that are known beforehand, at most as many bytes as the archive permits.
"""

import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from regard.errors import UserError, one_line
from regard.files import check_regular
from regard.interop.argos import METADATA, MODEL, SENTENCEPIECE, SUFFIX
from regard.interop.files import read_json_object

WEIGHTS, BPE = "model.bin", "bpe.model"
MAX_RATIO = 50
"""Maximum ratio of a file in an archive to its compressed size. Weights and vocabularies are at about 1 to 5."""
MAX_ENTRIES = 10_000
CHUNK = 2**20
_NEEDED = re.compile(
    rf"{METADATA}|{SENTENCEPIECE}|{BPE}|{MODEL}/(model\.bin|config\.json|\w+_vocabulary\.(json|txt)|vmap\.txt)"
)
_CODE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")


class Package(NamedTuple):
    """What `import_engine` needs of a package; of a folder of CTranslate2, only the folder."""

    model: Path
    tokenizer: Path | None
    languages: tuple[str, str] | None


def is_engine(path: Path) -> bool:
    """Return whether a path is a folder of CTranslate2, or a package of Argos Translate, zipped or unpacked."""
    if path.is_dir():
        return (path / WEIGHTS).exists() or (path / MODEL / WEIGHTS).exists() or bool(list(path.glob(f"*{SUFFIX}")))
    return path.suffix == SUFFIX


@contextmanager
def open_package(path: Path) -> Iterator[Package]:
    """Yield the model, the tokenizer and the languages, unpacked in a temporary folder if necessary.

    Raises:
        UserError: The archive is damaged or hostile, a file is missing, or the tokenizer is not supported.
    """
    archives = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if path.is_dir() and (path / WEIGHTS).exists():
        yield Package(path, None, None)
    elif path.is_dir() and (path / MODEL / WEIGHTS).exists():
        yield _read_package(path, path)
    elif len(archives) > 1:
        raise UserError(f"{path}: contains {len(archives)} packages; give one of them, such as {archives[0].name}")
    else:
        with tempfile.TemporaryDirectory() as folder:
            unpack(archives[0], Path(folder))
            yield _read_package(Path(folder), archives[0])


def unpack(archive: Path, folder: Path) -> None:
    """Write the files that a package needs into a folder."""
    check_regular(archive)
    try:
        with zipfile.ZipFile(archive) as package:
            entries = package.infolist()
            if len(entries) > MAX_ENTRIES:
                raise UserError(
                    f"{archive}: contains {len(entries):,} files, but a package has at most {MAX_ENTRIES:,}"
                )
            for entry in entries:
                name = _name_in_package(entry.filename, archive)
                if not _NEEDED.fullmatch(name):
                    continue
                if (folder / name).exists():
                    raise UserError(f"{archive}: contains {name} twice")
                (folder / name).parent.mkdir(exist_ok=True)
                with package.open(entry) as source, (folder / name).open("wb") as target:
                    _copy(source, target, MAX_RATIO * entry.compress_size + CHUNK, f"{archive}: {name}")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise UserError(f"{archive}: damaged or not a package of Argos Translate ({one_line(error)})") from None


def _name_in_package(name: str, archive: Path) -> str:
    """Return the name of an entry within the folder that a package consists of."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name:
        raise UserError(f"{archive}: contains the path {name[:80]!r}, which leads out of the package")
    return "/".join(parts[1:])


def _copy(source: IO[bytes], target: IO[bytes], limit: int, where: str) -> None:
    written = 0
    while chunk := source.read(CHUNK):
        written += len(chunk)
        if written > limit:
            raise UserError(f"{where} is compressed more than {MAX_RATIO} times, which no model is")
        target.write(chunk)


def _read_package(folder: Path, where: Path) -> Package:
    if not (folder / METADATA).is_file() or not (folder / MODEL / WEIGHTS).is_file():
        missing = METADATA if not (folder / METADATA).is_file() else f"{MODEL}/{WEIGHTS}"
        raise UserError(f"{where}: contains no {missing}, so it is not a translation package of Argos Translate")
    tokenizer = folder / SENTENCEPIECE
    if not tokenizer.is_file():
        if (folder / BPE).is_file():
            raise UserError(
                f"{where}: its tokenizer is {BPE}, which needs Moses; regard imports packages with {SENTENCEPIECE}"
            )
        raise UserError(f"{where}: contains no {SENTENCEPIECE}, so its texts cannot be tokenised")
    values = read_json_object(folder / METADATA)
    codes = [values.get(key) for key in ("from_code", "to_code")]
    source, target = (code if isinstance(code, str) and _CODE.fullmatch(code) else None for code in codes)
    return Package(folder / MODEL, tokenizer, (source, target) if source and target else None)
