"""`regard export --to onnx`: programs for onnxruntime, with any size of batch."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.decoding.search import search
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import pad_rows
from regard.decoding.translator import Translator
from regard.errors import UserError
from regard.exchange.images import compare_images
from regard.exchange.verification import Tokens, check, compare
from regard.interop.needing import need
from regard.interop.programs import EncoderProgram, StepProgram, check_programs
from regard.recognition.classifier import ABOUT, Classifier

ENCODER, STEP, IMAGES, ABOUT_FILE = "encoder.onnx", "decoder_step.onnx", "model.onnx", "regard.json"
PAST = {1: "batch", 3: "past"}
MEMORY = {1: "batch", 3: "source"}


@dataclass
class OnnxState:
    """What a decoder step is given besides its token; rows of a sentence stand side by side."""

    arrays: dict[str, NDArray[Any]]

    def select(self, rows: Tensor) -> OnnxState:
        kept = rows.numpy()
        return OnnxState({name: a[kept] if name == "lengths" else a[:, kept] for name, a in self.arrays.items()})

    def uncovered(self) -> Tensor:
        raise UserError("the programs of onnx do not show their attention (coverage)")


class OnnxStepper:
    """Drives the two programs one token at a time: our search over onnxruntime."""

    device = torch.device("cpu")
    longest: int | None = None

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
        self.bos, self.eos, self.pad = (int(about[key]) for key in ("bos", "eos", "pad"))
        self.layers, self.heads, self.width = (int(about[key]) for key in ("layers", "heads", "head_width"))
        runtime = need("onnxruntime", "export")
        self._encoder = runtime.InferenceSession(str(folder / ENCODER), providers=["CPUExecutionProvider"])
        self._step = runtime.InferenceSession(str(folder / STEP), providers=["CPUExecutionProvider"])

    def start(self, sources: Sequence[Tokens], copies: int) -> OnnxState:
        rows, layout = pad_rows([[*source, self.eos] for source in sources], self.pad, self.device)
        lengths = layout.real().sum(1).numpy()
        keys, values = self._encoder.run(None, {"source": rows.numpy(), "lengths": lengths})
        nothing = np.zeros((self.layers, len(rows), self.heads, 0, self.width), np.float32)
        arrays = {"past_keys": nothing, "past_values": nothing, "memory_keys": keys, "memory_values": values}
        each = torch.arange(len(rows)).repeat_interleave(copies)
        return OnnxState(arrays | {"lengths": lengths}).select(each)

    def step(self, tokens: Tensor, state: OnnxState) -> tuple[Tensor, OnnxState]:
        said, keys, values = self._step.run(None, {"token": tokens[:, None].numpy()} | state.arrays)
        return torch.from_numpy(said), OnnxState(state.arrays | {"past_keys": keys, "past_values": values})


class OnnxPeer:
    """The programs as verification wants them."""

    def __init__(self, folder: Path) -> None:
        self.stepper = OnnxStepper(folder)

    def write(self, sources: Sequence[Tokens], settings: SearchSettings) -> list[list[int]]:
        return [best[0].tokens for best in search(self.stepper, sources, settings)]

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        said = [[*target, self.stepper.eos] for target in targets]
        read, _ = pad_rows(said, self.stepper.pad, torch.device("cpu"))
        state, tokens = self.stepper.start(sources, 1), torch.full((len(targets),), self.stepper.bos)
        gains = []
        for place in range(read.shape[1]):
            logp, state = self.stepper.step(tokens, state)
            tokens = read[:, place]
            gains.append(logp.gather(1, tokens[:, None])[:, 0])
        table = torch.stack(gains, 1).tolist()
        return [row[: len(one)] for row, one in zip(table, said, strict=True)]


def write_onnx(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
    """Writes encoder and decoder step, and says how far onnxruntime agrees with our model.

    Raises:
        UserError: the model cannot be written so, or onnxruntime does not agree with it.
    """
    if len(translator.models) > 1:
        raise UserError("models that vote cannot be written as one program; give one")
    config = translator.model.config
    check_programs(config)
    model: Any = translator.model
    head = config.width // config.heads
    lengths = torch.tensor([3, 5, 4])
    keys = torch.zeros(config.decoder_layers, 3, config.heads, 5, head)
    past = torch.zeros(config.decoder_layers, 3, config.heads, 4, head)
    _write(
        EncoderProgram(model),
        {"source": torch.full((3, 5), config.eos), "lengths": lengths},
        {"source": {0: "batch", 1: "source"}, "lengths": {0: "batch"}},
        ["memory_keys", "memory_values"],
        folder / ENCODER,
    )
    _write(
        StepProgram(model),
        {
            "token": torch.full((3, 1), config.bos),
            "past_keys": past,
            "past_values": past.clone(),  # one tensor given twice would be taken for one input
            "memory_keys": keys,
            "memory_values": keys.clone(),
            "lengths": lengths,
        },
        {
            "token": {0: "batch"},
            "past_keys": PAST,
            "past_values": PAST,
            "memory_keys": MEMORY,
            "memory_values": MEMORY,
            "lengths": {0: "batch"},
        },
        ["log_probabilities", "keys", "values"],
        folder / STEP,
    )
    translator.vocabularies.save(folder)
    about = {"pad": config.pad, "bos": config.bos, "eos": config.eos}
    about |= {"layers": config.decoder_layers, "heads": config.heads, "head_width": head}
    (folder / ABOUT_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    agreement = compare(translator, OnnxPeer(folder), sources)
    check(agreement, "the model in onnxruntime")
    return [f"in onnxruntime, {agreement}"]


def write_onnx_images(classifier: Classifier, folder: Path) -> list[str]:
    """Writes one program, images to logits, and says how far onnxruntime agrees with our model.

    Raises:
        UserError: onnxruntime does not agree with it.
    """
    model, path = classifier.model, folder / IMAGES
    images = torch.zeros(2, model.config.channels, *model.config.image)
    _write(model, {"images": images}, {"images": {0: "batch"}}, ["logits"], path)
    reading = {ABOUT: classifier.reading.model_dump(mode="json")}
    (folder / ABOUT_FILE).write_text(json.dumps(reading, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    session = need("onnxruntime", "export").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    theirs = lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])  # noqa: E731
    return [compare_images(model, theirs, "in onnxruntime")]


def _write(
    program: nn.Module, inputs: dict[str, Tensor], dynamic: dict[str, dict[int, str]], outputs: list[str], path: Path
) -> None:
    need("onnxscript", "export")
    with _quietly(), _frozen(program), torch.no_grad():
        written = torch.onnx.export(
            program,
            args=tuple(inputs.values()),
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=tuple(dynamic[name] for name in inputs),
            dynamo=True,
            verbose=False,
        )
        assert written is not None
        written.save(str(path), external_data=False)


@contextmanager
def _frozen(program: nn.Module) -> Iterator[None]:
    """No parameter learns while the block runs: what is recorded would otherwise be the training's arithmetic."""
    learning = [parameter for parameter in program.parameters() if parameter.requires_grad]
    program.eval()
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


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
