"""Tensors of which each process holds a part, on disk: torch.distributed.checkpoint, in safetensors files.

Each file says in its header which part of each tensor it holds, so that any number of processes can read them all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import safetensors
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor


def save_shards(folder: Path, tensors: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Writes each process's parts into a file of its own; tensors that all processes hold alike are written once.

    Raises:
        OSError: some process could not write; in all of them.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        if isinstance(cause, OSError | safetensors.SafetensorError):
            raise cause from None
        raise RuntimeError(f"process {rank} could not save its part") from cause


def load_shards(folder: Path, like: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
    """All tensors of a folder by name: this process's part of those for which `like` gives a divided tensor."""
    reader = HuggingFaceStorageReader(str(folder))
    tensors = {
        name: _empty(tuple(found.size), found.properties.dtype, like(name))
        for name, found in reader.read_metadata().state_dict_metadata.items()
        if isinstance(found, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each reads its own parts, without a word
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _empty(size: tuple[int, ...], dtype: torch.dtype, like: Tensor | None) -> Tensor:
    if isinstance(like, DTensor) and like.shape == size:
        return torch.empty_like(like, dtype=dtype)
    return torch.empty(size, dtype=dtype)
