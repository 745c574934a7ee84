"""CUDA graphs without a GPU: the operations of a captured function are recorded, and `replay` repeats them.

As with a CUDA graph, a replay runs no Python code of the function and writes to the tensors of the capture.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph(TorchDispatchMode):
    """Takes the place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default, "a captured function reads a tensor"
        result = function(*arguments, **(options or {}))
        self.calls.append((function, arguments, options or {}, result))
        return result

    def replay(self) -> None:
        for function, arguments, options, recorded in self.calls:
            result = function(*arguments, **options)
            for old, new in zip(tree_leaves(recorded), tree_leaves(result), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():  # no view, no operation in place
                    old.copy_(new)


def patch_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `torch.cuda` record graphs of functions that run on the CPU."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    handles, pools = count(), dict[Any, WeakSet[RecordedGraph]]()

    @contextmanager
    def record(graph: RecordedGraph, pool: Any = None, **options: Any) -> Iterator[None]:
        assert pool is None or pool not in pools or pools[pool], "PyTorch has freed the pool with its last graph"
        pools.setdefault(pool, WeakSet()).add(graph)
        with graph:
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(handles)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda *device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
