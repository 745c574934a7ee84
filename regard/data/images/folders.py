"""Image folders: images in class folders, optionally below split folders. Invalid folders raise a UserError."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from regard.data.images.preprocessing import IMAGE_SUFFIXES
from regard.data.images.sources import FileSource, Listing, natural_sort_key, parse_split
from regard.errors import UserError

SYSTEM_FOLDERS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN"})


@dataclass
class FileTree:
    """Names of the images and folders below a folder or in an archive, with "/" as separator."""

    images: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    others: int = 0
    """Number of files that are not images."""


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden or was created by an operating system."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def list_images(folder: Path) -> list[Path]:
    """Return all images below a folder in natural order."""
    images = scan_folder(folder).images
    if not images:
        raise UserError(f"{folder}: contains no images; supported are {', '.join(sorted(IMAGE_SUFFIXES))}")
    return [folder / name for name in images]


def scan_folder(folder: Path) -> FileTree:
    """List everything below a folder except hidden files; symbolic links are followed."""
    tree = FileTree()
    visited: set[tuple[int, int]] = set()

    def scan(path: Path, prefix: str) -> None:
        try:
            state = path.stat()
            entries = sorted(os.scandir(path), key=lambda entry: natural_sort_key(entry.name))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        if (state.st_dev, state.st_ino) in visited:  # a symbolic link to a parent folder
            return
        visited.add((state.st_dev, state.st_ino))
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if _is_folder(entry):
                tree.folders.append(prefix + entry.name)
                scan(path / entry.name, f"{prefix}{entry.name}/")
            elif PurePosixPath(entry.name).suffix.lower() in IMAGE_SUFFIXES:
                tree.images.append(prefix + entry.name)
            else:
                tree.others += 1

    scan(folder, "")
    return tree


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def read_folder(folder: Path) -> Listing:
    """List the images of a folder of classes."""
    tree = scan_folder(folder)
    rows, labels, splits = label_by_folder(tree, str(folder))
    ignored = tree.others + len(tree.images) - len(rows)
    return Listing(FileSource(folder, [tree.images[row] for row in rows]), labels, splits, ignored)


def label_by_folder(tree: FileTree, name_in_errors: str) -> tuple[list[int], list[str], list[str | None]]:
    """Derive classes and splits from folder names.

    The images are at one of these paths; if there are split folders, images outside of them are ignored::

        CLASS/x.jpg
        train/CLASS/x.jpg           (also valid and test)
        photos/CLASS/x.jpg          (an outer folder that contains everything; there may be several, one in the other)
        photos/train/CLASS/x.jpg

    Images in folders of a class folder belong to that class: `CLASS/a/b/x.jpg`.

    Args:
        tree: The images and folders.
        name_in_errors: The folder or archive, as error messages name it.

    Returns:
        Indices in `tree.images` of the images in class folders, their classes and their splits.
    """
    outer = _outer_folders(tree.folders)
    has_splits = any(parse_split(parts[0]) for parts in _parts_below(tree.folders, outer) if len(parts) == 2)
    rows: list[int] = []
    labels: list[str] = []
    splits: list[str | None] = []
    for row, parts in enumerate(_parts_below(tree.images, outer)):
        split, class_parts = _split_and_class(parts, has_splits)
        if len(class_parts) > 1:
            rows.append(row)
            labels.append(class_parts[0])
            splits.append(split)
    if not rows:
        raise UserError(
            f"{name_in_errors}: no images in class folders (CLASS/*.jpg, or train/CLASS/*.jpg and test/CLASS/*.jpg); "
            f"found {len(tree.images)} images and {tree.others} other files"
        )
    _check_no_empty_class(tree.folders, outer, has_splits, set(zip(splits, labels, strict=True)), name_in_errors)
    return rows, labels, splits


def _split_and_class(parts: list[str], has_splits: bool) -> tuple[str | None, list[str]]:
    """Return the split of a path below the outer folders, and the rest of the path, which begins with the class.

    If there are splits and the path is not in one of them, return None and [].
    """
    if not has_splits:
        return None, parts
    split = parse_split(parts[0]) if parts else None
    return (split, parts[1:]) if split else (None, [])


def _check_no_empty_class(
    folders: Sequence[str],
    outer: tuple[str, ...],
    has_splits: bool,
    found: Collection[tuple[str | None, str]],
    name_in_errors: str,
) -> None:
    """Raise a UserError if a class folder of the training data is not in `found`, the splits and classes of images."""
    for name, parts in zip(folders, _parts_below(folders, outer), strict=True):
        split, class_parts = _split_and_class(parts, has_splits)
        is_training_class = len(class_parts) == 1 and split in ("train", None)
        if is_training_class and (split, class_parts[0]) not in found:
            raise UserError(
                f"{name_in_errors}/{name}: this class folder contains no images; add some or remove the folder"
            )


def _outer_folders(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders that contain everything else and are neither classes nor splits, as in many archives."""
    children: dict[tuple[str, ...], set[str]] = {}
    for name in folders:
        *parents, last = name.split("/")
        children.setdefault(tuple(parents), set()).add(last)
    outer: tuple[str, ...] = ()
    while len(children.get(outer, ())) == 1:
        (child,) = children[outer]
        if parse_split(child) or (*outer, child) not in children:
            break
        outer = (*outer, child)
    return outer


def _parts_below(names: Iterable[str], outer: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the path components of each name below the outer folders, or [] if the name is not below them."""
    for name in names:
        parts = name.split("/")
        yield parts[len(outer) :] if tuple(parts[: len(outer)]) == outer else []
