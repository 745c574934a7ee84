"""Export to ONNX with dynamic batch size and sequence lengths, verified in onnxruntime."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import import_optional
from regard.interop.graphs import GraphCall, GraphFormat, GraphSpec, without_gradients


def load_onnx(path: Path) -> GraphCall:
    """Load a graph in onnxruntime."""
    session = import_optional("onnxruntime", "export").InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def call(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, session.run(None, {name: t.numpy() for name, t in inputs.items()})))

    return call


def _save_onnx(spec: GraphSpec, path: Path) -> None:
    import_optional("onnxscript", "export")
    with _hide_warnings(), without_gradients(spec.module):
        program = torch.onnx.export(
            spec.module,
            args=tuple(spec.inputs.values()),
            input_names=list(spec.inputs),
            output_names=spec.outputs,
            dynamic_shapes=tuple(spec.dynamic[name] for name in spec.inputs),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(str(path), external_data=False)


@contextmanager
def _hide_warnings() -> Iterator[None]:
    """Hide the exporter's messages about optional packages and skipped optimisations."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


ONNX = GraphFormat("onnx", _save_onnx, load_onnx, "in onnxruntime")
