"""Files of vectors: what the encoder makes of every line, as arrays for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from regard.errors import UserError
from regard.pipelines.embedder import Embedder
from regard.pipelines.translator import WINDOW, Translator

Pool = Literal["mean", "none"]
Arrays = dict[str, NDArray[Any]]


def check_embedding_file(path: Path, pool: str) -> Pool:
    """Refuses before the work what could not be written after it; the way of pooling comes back as its type.

    Raises:
        UserError: there is no such way of pooling, the file's name says neither .npy nor .safetensors, .npy is to hold
            two arrays, or no file can be written there.
    """
    if pool not in ("mean", "none"):
        raise UserError(f"--pool must be mean (a vector a line) or none (a vector a token), not {pool!r}")
    if path.suffix not in (".npy", ".safetensors"):
        raise UserError(f"{path}: the name must end in .npy or .safetensors")
    if pool == "none" and path.suffix == ".npy":
        raise UserError(f"{path}: vectors of tokens need two arrays, and .npy holds one; use .safetensors")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path}: no file can be written there; --out needs a file name in an existing folder")
    return cast(Pool, pool)


def embed_lines(
    source: Translator | Embedder,
    lines: Iterable[str],
    pool: Pool = "mean",
    watch: Callable[[int], object] | None = None,
) -> Arrays:
    """The vectors of every line, in order, float32.

    With "mean" they are `embeddings`, (lines, width). With "none" they are `vectors`, (tokens, width), and `offsets`,
    (lines + 1,): those of line i, counted from 0, stand from offsets[i] up to offsets[i + 1]. An empty line has one
    vector, that of END; in an encoder those of its special tokens. `watch` is told how many lines have come, window
    by window.

    Raises:
        UserError: a line cannot be encoded.
    """
    lines = iter(lines)
    parts = [np.empty((0, source.model.config.width), np.float32)]
    lengths: list[int] = []
    while window := list(islice(lines, WINDOW)):
        vectors = source.embed(window, pool, first=len(lengths) + 1)
        joined = torch.stack(vectors) if pool == "mean" else torch.cat(vectors)
        parts.append(joined.float().cpu().numpy())
        lengths += [1 if pool == "mean" else len(one) for one in vectors]
        if watch is not None:
            watch(len(window))
    together = np.concatenate(parts)
    if pool == "mean":
        return {"embeddings": together}
    return {"vectors": together, "offsets": np.cumsum([0, *lengths], dtype=np.int64)}


def save_arrays(arrays: Arrays, path: Path) -> None:
    """Writes a .npy file of the only array, or a .safetensors file, whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("xb") as file:
            if path.suffix == ".npy":
                (array,) = arrays.values()
                np.save(file, array)
        mode = fresh.stat().st_mode
        if path.suffix == ".safetensors":
            safetensors.numpy.save_file(arrays, fresh)
            fresh.chmod(mode)  # safetensors lets nobody but the owner read
        fresh.replace(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be written ({reason})") from None
    finally:
        fresh.unlink(missing_ok=True)
