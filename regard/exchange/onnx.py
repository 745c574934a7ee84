"""`regard export --to onnx`: programs for onnxruntime, with any size of batch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from regard.decoding.translator import Translator
from regard.exchange.images import compare_images
from regard.exchange.programs import (
    Call,
    Program,
    ProgramPeer,
    ProgramStepper,
    describe_images,
    describe_translation,
    frozen,
    image_program,
    translation_programs,
)
from regard.exchange.verification import Tokens, check, compare
from regard.interop.needing import need
from regard.recognition.classifier import Classifier

ENCODER, STEP, IMAGES = "encoder.onnx", "decoder_step.onnx", "model.onnx"


def open_onnx(path: Path) -> Call:
    """A program at work in onnxruntime."""
    session = need("onnxruntime", "export").InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def call(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, session.run(None, {name: t.numpy() for name, t in inputs.items()})))

    return call


def onnx_peer(folder: Path) -> ProgramPeer:
    """What `write_onnx` has written, as verification wants it."""
    return ProgramPeer(ProgramStepper(folder, open_onnx(folder / ENCODER), open_onnx(folder / STEP)))


def write_onnx(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
    """Writes encoder and decoder step, and says how far onnxruntime agrees with our model.

    Raises:
        UserError: the model cannot be written so, or onnxruntime does not agree with it.
    """
    encoder, step = translation_programs(translator)
    _write(encoder, folder / ENCODER)
    _write(step, folder / STEP)
    describe_translation(translator, folder)
    agreement = compare(translator, onnx_peer(folder), sources)
    check(agreement, "the model in onnxruntime")
    return [f"in onnxruntime, {agreement}"]


def write_onnx_images(classifier: Classifier, folder: Path) -> list[str]:
    """Writes one program, images to logits, and says how far onnxruntime agrees with our model.

    Raises:
        UserError: onnxruntime does not agree with it.
    """
    _write(image_program(classifier), folder / IMAGES)
    describe_images(classifier, folder)
    call = open_onnx(folder / IMAGES)
    return [compare_images(classifier.model, lambda images: call({"images": images})[0], "in onnxruntime")]


def _write(program: Program, path: Path) -> None:
    need("onnxscript", "export")
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
    """Without the exporter's remarks on packages that are not needed."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
