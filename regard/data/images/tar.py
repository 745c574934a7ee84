"""Tar files of images: class folders packed up, or KEY.jpg beside KEY.cls or KEY.json, as WebDataset has it."""

from __future__ import annotations

import io
import json
import lzma
import posixpath
import tarfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from regard.data.images.decoding import IMAGE_SUFFIXES
from regard.data.images.folders import Tree, is_hidden, label_by_folder
from regard.data.images.sources import Listing, Packed, Spool, split_of_shard
from regard.errors import UserError

TARS = tuple(f".{name}" for name in ("tar", "tar.gz", "tgz", "tar.xz", "txz", "tar.bz2"))
LABEL_KEYS = ("label", "cls", "class", "class_name", "target")
LONGEST_NOTE = 2**20
"""Bytes of a file that says what an image shows."""


@dataclass
class _Members:
    """What lies in the shards."""

    tree: Tree = field(default_factory=Tree)
    shard: list[int] = field(default_factory=list)
    which: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    notes: dict[tuple[int, str], str] = field(default_factory=dict)
    """Labels by shard and key."""


def read_tars(path: Path, shards: list[Path]) -> Listing:
    """The images of tar files; compressed ones are unpacked into a temporary file first.

    Raises:
        UserError: a file is damaged, images have no label, or there are none.
    """
    members, spool = _Members(), Spool()
    for number, shard in enumerate(shards):
        try:
            _read_tar(shard, number, members, spool)
        except (tarfile.TarError, OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise UserError(f"{shard}: truncated, damaged or not a tar file ({error})") from None
    spool.finish()
    images = members.tree.images
    if not images:
        raise UserError(f"{path}: not a single image in it; known are {', '.join(sorted(IMAGE_SUFFIXES))}")
    if members.notes:
        kept = list(range(len(images)))
        labels = [_label(members, row, shards) for row in kept]
        splits = [split_of_shard(shards[members.shard[row]]) if len(shards) > 1 else None for row in kept]
    else:
        kept, labels, splits = label_by_folder(members.tree, str(path))
        if not any(splits) and len(shards) > 1:
            splits = [split_of_shard(shards[members.shard[row]]) for row in kept]
    names = [images[row] if len(shards) == 1 else f"{shards[members.shard[row]].name}/{images[row]}" for row in kept]
    which, offsets, sizes = ([each[row] for row in kept] for each in (members.which, members.offsets, members.sizes))
    source = Packed(path, names, [*shards, spool], which, offsets, sizes)
    return Listing(source, labels, splits, members.tree.others + len(images) - len(kept))


def _read_tar(shard: Path, number: int, members: _Members, spool: Spool) -> None:
    plain = shard.suffix.lower() == ".tar"
    folders = dict.fromkeys(members.tree.folders)
    with tarfile.open(shard) as archive:
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
                start, size = (member.offset_data, member.size) if plain else spool.append(content)
                members.tree.images.append(name)
                members.shard.append(number)
                members.which.append(number if plain else -1)  # the last file is the temporary one
                members.offsets.append(start)
                members.sizes.append(size)
            elif suffix in (".cls", ".json") and member.size <= LONGEST_NOTE:
                note = _read_note(content.read(), suffix)
                if note is None:
                    members.tree.others += 1
                else:
                    members.notes[number, _key(name)] = note
            else:
                members.tree.others += 1
    members.tree.folders = list(folders)


def _read_note(content: bytes, suffix: str) -> str | None:
    """The label that a file beside an image states, if it does."""
    try:
        text = content.decode("utf-8").strip()
        if suffix == ".cls":
            return text or None
        note = json.load(io.StringIO(text))
    except ValueError:
        return None
    found = [note[key] for key in LABEL_KEYS if key in note] if isinstance(note, dict) else []
    return str(found[0]) if found and isinstance(found[0], (str, int)) else None


def _label(members: _Members, row: int, shards: list[Path]) -> str:
    name, shard = members.tree.images[row], members.shard[row]
    try:
        return members.notes[shard, _key(name)]
    except KeyError:
        raise UserError(f"{shards[shard]}: {name} has no label; {_key(name)}.cls or .json must say it") from None


def _key(name: str) -> str:
    """The part of a name that an image and its label share: all before the first dot of the last part."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.split(".")[0]
