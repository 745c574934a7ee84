"""`regard export --to torch`: archives of torch.export, which PyTorch alone loads and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.decoding.translator import Translator
from regard.errors import UserError
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
from regard.recognition.classifier import Classifier

ENCODER, STEP, IMAGES = "encoder.pt2", "decoder_step.pt2", "model.pt2"
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


def archive_peer(folder: Path) -> ProgramPeer:
    """What `write_torch` has written, as verification wants it."""
    return ProgramPeer(ProgramStepper(folder, open_archive(folder / ENCODER), open_archive(folder / STEP)))


def write_torch(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
    """Writes encoder and decoder step, and says how far they agree with our model when loaded again.

    Raises:
        UserError: the model cannot be written so, or what was written does not agree with it.
    """
    encoder, step = translation_programs(translator)
    _write(encoder, folder / ENCODER)
    _write(step, folder / STEP)
    describe_translation(translator, folder)
    agreement = compare(translator, archive_peer(folder), sources)
    check(agreement, "the archive of torch.export")
    return [f"as an archive of torch.export, {agreement}"]


def write_torch_images(classifier: Classifier, folder: Path) -> list[str]:
    """Writes one program, images to logits, and says how far it agrees with our model when loaded again.

    Raises:
        UserError: it does not agree.
    """
    _write(image_program(classifier), folder / IMAGES)
    describe_images(classifier, folder)
    call = open_archive(folder / IMAGES)
    theirs = lambda images: call({"images": images})[0]  # noqa: E731
    return [compare_images(classifier.model, theirs, "as an archive of torch.export")]


def _write(program: Program, path: Path) -> None:
    sizes = {name: dict.fromkeys(places, torch.export.Dim.DYNAMIC) for name, places in program.dynamic.items()}
    with frozen(program.module):
        written = torch.export.export(program.module, (), kwargs=program.inputs, dynamic_shapes=sizes)
    torch.export.save(written, path)
