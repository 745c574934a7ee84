"""Damaged and hostile packages of Argos Translate are rejected without writing outside of the output."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ctranslate2")
pytest.importorskip("sentencepiece")

from regard.errors import UserError
from regard.interop.argos_import import MAX_ENTRIES, unpack
from regard.interop.import_model import import_model

METADATA = json.dumps({"from_code": "en", "to_code": "de"}).encode()


def package(**files: bytes) -> bytes:
    """Return an archive; "__" in names stands for "/"."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return content.getvalue()


def encrypted() -> bytes:
    content = bytearray(package(p__metadata_dot_json=METADATA))
    content[6] |= 1
    central = content.index(b"PK\1\2")
    content[central + 8] |= 1
    return bytes(content)


def lying_about_its_size() -> bytes:
    """Return an archive whose directory states a small size of a file that expands to 8 MB."""
    content = bytearray(package(p__metadata_dot_json=METADATA, p__model__model_dot_bin=b"\0" * 8_000_000))
    second = content.index(b"PK\1\2", content.index(b"PK\1\2") + 4)
    content[second + 24 : second + 28] = struct.pack("<I", 100)
    return bytes(content)


def with_a_file_twice() -> bytes:
    return package(p__metadata_dot_json=METADATA, q__metadata_dot_json=METADATA)


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "not a zip": (lambda: b"model" * 99, "not a package of Argos Translate"),
    "cut": (lambda: package(p__metadata_dot_json=METADATA)[:-9], "not a package of Argos Translate"),
    "parent": (lambda: package(p__x__dotdot__y=b"").replace(b"dotdot", b"..\x2f..."), "leads out of the package"),
    "absolute": (lambda: package(__etc__passwd=b"x"), "leads out of the package"),
    "bomb": (lambda: package(p__model__model_dot_bin=b"\0" * 8_000_000), "compressed more than 50 times"),
    "false size": (lying_about_its_size, "damaged|compressed more"),
    "file twice": (with_a_file_twice, "contains metadata.json twice"),
    "encrypted": (encrypted, "encrypted"),
    "many": (lambda: package(**{f"p__{i}": b"" for i in range(MAX_ENTRIES + 1)}), "contains 10,001 files"),
    "no metadata": (lambda: package(p__model__model_dot_bin=b"x"), "contains no metadata.json"),
    "no model": (lambda: package(p__metadata_dot_json=METADATA), "contains no model/model.bin"),
    "no tokenizer": (
        lambda: package(p__metadata_dot_json=METADATA, p__model__model_dot_bin=b"x"),
        "contains no sentencepiece.model",
    ),
    "Moses": (
        lambda: package(p__metadata_dot_json=METADATA, p__model__model_dot_bin=b"x", p__bpe_dot_model=b"x"),
        "bpe.model, which needs Moses",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_packages_are_rejected(what: str, tmp_path: Path) -> None:
    build, message = HOSTILE[what]
    path = tmp_path / "x.argosmodel"
    path.write_bytes(build())
    with pytest.raises(UserError, match=message):
        import_model(path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [path]


def test_only_needed_files_are_unpacked(tmp_path: Path) -> None:
    (tmp_path / "x.argosmodel").write_bytes(package(p__stanza__x=b"x", p__metadata_dot_json=METADATA, q__model__x=b"x"))
    folder = tmp_path / "out"
    folder.mkdir()
    unpack(tmp_path / "x.argosmodel", folder)
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*")] == ["metadata.json"]


def test_several_packages_are_ambiguous(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.argosmodel").write_bytes(package(p__metadata_dot_json=METADATA))
    with pytest.raises(UserError, match=r"contains 2 packages; give one of them, such as a\.argosmodel"):
        import_model(tmp_path, tmp_path.with_name("out"))
