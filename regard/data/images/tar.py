"""Tar archives of images: class folders, or WebDataset shards with KEY.jpg and KEY.cls or KEY.json.

Damaged archives and images without a label raise a UserError.
"""

import bz2
import gzip
import lzma
import posixpath
import tarfile
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from regard.data.images.folders import FileTree, is_hidden, label_by_folder
from regard.data.images.preprocessing import IMAGE_SUFFIXES, MAX_IMAGE_BYTES
from regard.data.images.sources import Listing, Location, PackedSource, TempStorage, split_of_file
from regard.errors import UserError
from regard.files import open_regular, parse_json

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
LABEL_KEYS = ("label", "cls", "class", "class_name", "target")
MAX_LABEL_BYTES = 2**20
_DECOMPRESSORS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": partial(lzma.open, format=lzma.FORMAT_XZ),
}
"""How compressed archives are opened, by their first bytes."""


@dataclass
class _Members:
    """Contents of all shards; the lists have one element per image."""

    tree: FileTree = field(default_factory=FileTree)
    shards: list[Path] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)
    labels: dict[tuple[Path, str], str] = field(default_factory=dict)
    """Labels of WebDataset shards by shard and key."""


def read_tars(path: Path, shards: list[Path]) -> Listing:
    """List the images of tar archives; the images of compressed archives are copied to a temporary file."""
    members, storage = _Members(), TempStorage()
    for shard in shards:
        try:
            _read_tar(shard, members, storage)
        except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise UserError(f"{shard}: truncated, damaged or not a tar file ({error})") from None
    images = members.tree.images
    if not images:
        raise UserError(f"{path}: contains no images; supported are {', '.join(sorted(IMAGE_SUFFIXES))}")
    if members.labels:
        rows = list(range(len(images)))
        labels = [_label(members, row) for row in rows]
        splits: list[str | None] = [None] * len(rows)
    else:
        rows, labels, splits = label_by_folder(members.tree, str(path))
    if not any(splits) and len(shards) > 1:
        splits = [split_of_file(members.shards[row]) for row in rows]
    names = [images[row] if len(shards) == 1 else f"{members.shards[row].name}/{images[row]}" for row in rows]
    source = PackedSource(path, names, [members.locations[row] for row in rows])
    return Listing(source, labels, splits, members.tree.others + len(images) - len(rows))


def _read_tar(shard: Path, members: _Members, storage: TempStorage) -> None:
    """Add the images, labels and folders of a shard to the members; compressed images are copied to `storage`."""
    with open_regular(shard) as file:
        start = file.read(8)
    # Not tarfile's own detection: its xz decoder reads any number of zeros as empty streams.
    decompress = next((open_ for magic, open_ in _DECOMPRESSORS.items() if start.startswith(magic)), None)
    compressed = decompress is not None
    folders = dict.fromkeys(members.tree.folders)
    with (decompress or Path.open)(shard, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in archive:
            name = posixpath.normpath(member.name).lstrip("/")
            parts = name.split("/")
            if any(is_hidden(part) for part in parts):
                continue
            if member.isdir() or "/".join(parts[:-1]) not in folders:
                depths = range(1, len(parts) + member.isdir())
                folders |= dict.fromkeys("/".join(parts[:depth]) for depth in depths)
            if not member.isreg() or member.sparse is not None:
                continue
            suffix = posixpath.splitext(name)[1].lower()
            content = archive.extractfile(member)
            assert content is not None
            if suffix in IMAGE_SUFFIXES:
                if member.size > MAX_IMAGE_BYTES:
                    raise UserError(f"{shard}: {name} has {member.size:,} bytes, more than an image may have")
                location = storage.append(content) if compressed else Location(shard, member.offset_data, member.size)
                members.tree.images.append(name)
                members.shards.append(shard)
                members.locations.append(location)
            elif suffix in (".cls", ".json") and member.size <= MAX_LABEL_BYTES:
                label = _parse_label(content.read(), suffix)
                if label is None:
                    members.tree.others += 1
                else:
                    members.labels[shard, _key(name)] = label
            else:
                members.tree.others += 1
    members.tree.folders = list(folders)


def _parse_label(content: bytes, suffix: str) -> str | None:
    """Return the label in a .cls or .json file, or None if there is none."""
    try:
        text = content.decode("utf-8").strip()
        if suffix == ".cls":
            return text or None
        values = parse_json(text)
    except ValueError:
        return None
    labels = [values[key] for key in LABEL_KEYS if key in values] if isinstance(values, dict) else []
    return str(labels[0]) if labels and isinstance(labels[0], (str, int)) else None


def _label(members: _Members, row: int) -> str:
    name, shard = members.tree.images[row], members.shards[row]
    try:
        return members.labels[shard, _key(name)]
    except KeyError:
        raise UserError(f"{shard}: {name} has no label; {_key(name)}.cls or .json must contain it") from None


def _key(name: str) -> str:
    """Return the part of a name that an image and its label have in common, up to the first dot of the file name."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.split(".")[0]
