"""`regard export --to torch`: archives of torch.export, which PyTorch alone loads and runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.export_graphs import Call, Program, frozen
from regard.interop.runtimes import Runtime

PYTORCH = ("aten", "prims", "higher_order")
"""Where PyTorch's own operators are."""


def open_archive(path: Path) -> Call:
    """A program at work in PyTorch, of which nothing is ours: its graph knows only operators of PyTorch.

    Raises:
        UserError: an operator in it is not one of PyTorch's.
    """
    program = torch.export.load(path)
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "namespace", "aten") not in PYTORCH:
            raise UserError(f"{path.name}: operator {node.target} is none of PyTorch's, so that it alone cannot run it")
    module: Any = program.module()

    @torch.no_grad()
    def call(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        said = module(**inputs)
        return said if isinstance(said, tuple) else (said,)

    return call


def _write(program: Program, path: Path) -> None:
    sizes = {name: dict.fromkeys(places, torch.export.Dim.DYNAMIC) for name, places in program.dynamic.items()}
    with frozen(program.module):
        written = torch.export.export(program.module, (), kwargs=program.inputs, dynamic_shapes=sizes)
    archive = io.BytesIO()
    torch.export.save(written, archive)
    path.write_bytes(archive.getbuffer())  # PyTorch's own writer ends the process where a disk is full


TORCH = Runtime("pt2", _write, open_archive, "as an archive of torch.export")
