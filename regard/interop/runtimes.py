"""`Runtime`: whoever runs our programs. How they are written and verified is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.interop.export_graphs import (
    Call,
    Program,
    ProgramPeer,
    ProgramStepper,
    describe_images,
    describe_translation,
    image_program,
    translation_programs,
)
from regard.interop.export_images import compare_images
from regard.interop.verification import Tokens, check, compare
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator


@dataclass(frozen=True)
class Runtime:
    """How programs are written for somebody, and set to work there.

    Attributes:
        suffix: of its files.
        save: writes a program.
        open: a written one at work.
        where: the place in words, such as "in onnxruntime".
    """

    suffix: str
    save: Callable[[Program, Path], None]
    open: Callable[[Path], Call]
    where: str

    def write(self, translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
        """Writes encoder and decoder step, and says how far they agree there with our model.

        Raises:
            UserError: the model cannot be written so, or what was written does not agree with it.
        """
        for name, program in zip(("encoder", "decoder_step"), translation_programs(translator), strict=True):
            self.save(program, self._file(folder, name))
        describe_translation(translator, folder)
        agreement = compare(translator, self.peer(folder), sources)
        check(agreement, f"the model {self.where}")
        return [f"{self.where}, {agreement}"]

    def write_images(self, classifier: Classifier, folder: Path) -> list[str]:
        """Writes one program, images to logits, and says how far it agrees there with our model.

        Raises:
            UserError: it does not agree.
        """
        path = self._file(folder, "model")
        self.save(image_program(classifier), path)
        describe_images(classifier, folder)
        call = self.open(path)
        return [compare_images(classifier.model, lambda images: call({"images": images})[0], self.where)]

    def peer(self, folder: Path) -> ProgramPeer:
        """What `write` has written, as verification wants it."""
        encode, step = (self.open(self._file(folder, name)) for name in ("encoder", "decoder_step"))
        return ProgramPeer(ProgramStepper(folder, encode, step))

    def _file(self, folder: Path, name: str) -> Path:
        return folder / f"{name}.{self.suffix}"
