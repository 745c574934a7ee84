"""`regard export --to onnx`: programs for onnxruntime, with any size of batch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from regard.interop.graphs import Call, Program, Runtime, frozen
from regard.runtime import import_optional


def open_onnx(path: Path) -> Call:
    """A program at work in onnxruntime."""
    session = import_optional("onnxruntime", "export").InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def call(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, session.run(None, {name: t.numpy() for name, t in inputs.items()})))

    return call


def _write(program: Program, path: Path) -> None:
    import_optional("onnxscript", "export")
    with _quietly(), frozen(program.module):
        written = torch.onnx.export(
            program.module,
            args=tuple(program.inputs.values()),
            input_names=list(program.inputs),
            output_names=program.outputs,
            dynamic_shapes=tuple(program.dynamic[name] for name in program.inputs),
            dynamo=True,
            verbose=False,
        )
        assert written is not None
        written.save(str(path), external_data=False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks on packages that are not needed, and its optimiser's on what it leaves alone."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


ONNX = Runtime("onnx", _write, open_onnx, "in onnxruntime")
