"""A translation model as two programs, encoder and decoder step, under our own search: whoever runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.decoding.config import SearchSettings
from regard.decoding.search import search
from regard.decoding.stepper import pad_batch
from regard.errors import UserError
from regard.interop.graphs import POSITIONS, EncoderProgram, StepProgram, check_programs
from regard.interop.lengths import longest_input
from regard.interop.verification import Tokens
from regard.pipelines.classifier import ABOUT, Classifier
from regard.pipelines.translator import Translator

ABOUT_FILE = "regard.json"
_PAST, _MEMORY = {1: "batch", 3: "past"}, {1: "batch", 3: "source"}

Call = Callable[[dict[str, Tensor]], tuple[Tensor, ...]]
"""A program at work: inputs by name to outputs in order."""


class Program(NamedTuple):
    """What is written down: a module, an example of its inputs, and which of their sizes may be any.

    Attributes:
        inputs: by name, in the order of the module's arguments.
        dynamic: for each input, dimensions that may have any size, and a name for that size.
        outputs: their names.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    dynamic: dict[str, dict[int, str]]
    outputs: list[str]


def translation_programs(translator: Translator) -> tuple[Program, Program]:
    """Encoder and decoder step.

    Raises:
        UserError: the model cannot be written so.
    """
    if len(translator.models) > 1:
        raise UserError("models that vote cannot be written as one program; give one")
    config = translator.model.config
    check_programs(config)
    model: Any = translator.model
    head, lengths = config.width // config.heads, torch.tensor([3, 5, 4])
    keys = torch.zeros(config.decoder_layers, 3, config.heads, 5, head)
    past = torch.zeros(config.decoder_layers, 3, config.heads, 4, head)
    encoder = Program(
        EncoderProgram(model),
        {"source": torch.full((3, 5), config.eos), "lengths": lengths},
        {"source": {0: "batch", 1: "source"}, "lengths": {0: "batch"}},
        ["memory_keys", "memory_values"],
    )
    step = Program(
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
            "past_keys": _PAST,
            "past_values": _PAST,
            "memory_keys": _MEMORY,
            "memory_values": _MEMORY,
            "lengths": {0: "batch"},
        },
        ["log_probabilities", "keys", "values"],
    )
    return encoder, step


def image_program(classifier: Classifier) -> Program:
    """Images to logits."""
    config = classifier.model.config
    images = torch.zeros(2, config.channels, *config.image)
    return Program(classifier.model, {"images": images}, {"images": {0: "batch"}}, ["logits"])


def describe_translation(translator: Translator, folder: Path) -> None:
    """Writes beside the programs what drives them: the tokenizer, and regard.json with ids and limits."""
    config = translator.model.config
    translator.vocabularies.save(folder)
    about: dict[str, int | None] = {"pad": config.pad, "bos": config.bos, "eos": config.eos}
    about |= {"layers": config.decoder_layers, "heads": config.heads, "head_width": config.width // config.heads}
    about |= {"longest": longest_input(config, POSITIONS)}
    (folder / ABOUT_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def describe_images(classifier: Classifier, folder: Path) -> None:
    """Writes beside the program how images are shown to it, and the names of its classes."""
    preprocessing = {ABOUT: classifier.preprocessing.model_dump(mode="json")}
    (folder / ABOUT_FILE).write_text(json.dumps(preprocessing, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def frozen(program: nn.Module) -> Iterator[None]:
    """No parameter learns while the block runs: what is recorded would otherwise be the training's arithmetic."""
    learning = [parameter for parameter in program.parameters() if parameter.requires_grad]
    program.eval()
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        with torch.no_grad():
            yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


@dataclass
class ProgramState:
    """What a decoder step is given besides its token; rows of a sentence stand side by side."""

    inputs: dict[str, Tensor]

    def select(self, rows: Tensor) -> ProgramState:
        return ProgramState({name: t[rows] if name == "lengths" else t[:, rows] for name, t in self.inputs.items()})

    def uncovered(self) -> Tensor:
        raise UserError("exported programs do not show their attention (coverage)")


class ProgramStepper:
    """Drives the two programs one token at a time."""

    device = torch.device("cpu")

    def __init__(self, folder: Path, encode: Call, step: Call) -> None:
        about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
        self.bos, self.eos, self.pad = (int(about[key]) for key in ("bos", "eos", "pad"))
        self.longest: int | None = about["longest"]
        self._shape = tuple(int(about[key]) for key in ("layers", "heads", "head_width"))
        self._encode, self._step = encode, step

    def start(self, sources: Sequence[Tokens], copies: int) -> ProgramState:
        rows, layout = pad_batch([[*source, self.eos] for source in sources], self.pad, self.device)
        lengths = layout.real().sum(1)
        keys, values = self._encode({"source": rows, "lengths": lengths})
        layers, heads, width = self._shape
        nothing = torch.zeros(layers, len(rows), heads, 0, width)
        inputs = {"past_keys": nothing, "past_values": nothing, "memory_keys": keys, "memory_values": values}
        each = torch.arange(len(rows)).repeat_interleave(copies)
        return ProgramState(inputs | {"lengths": lengths}).select(each)

    def step(self, tokens: Tensor, state: ProgramState) -> tuple[Tensor, ProgramState]:
        said, keys, values = self._step({"token": tokens[:, None]} | state.inputs)
        return said, ProgramState(state.inputs | {"past_keys": keys, "past_values": values})


class ProgramPeer:
    """The programs as verification wants them."""

    def __init__(self, stepper: ProgramStepper) -> None:
        self.stepper, self.longest = stepper, stepper.longest

    def write(self, sources: Sequence[Tokens], settings: SearchSettings) -> list[list[int]]:
        return [best[0].tokens for best in search(self.stepper, sources, settings)]

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        said = [[*target, self.stepper.eos] for target in targets]
        read, _ = pad_batch(said, self.stepper.pad, torch.device("cpu"))
        state, tokens = self.stepper.start(sources, 1), torch.full((len(targets),), self.stepper.bos)
        gains = []
        for place in range(read.shape[1]):
            logp, state = self.stepper.step(tokens, state)
            tokens = read[:, place]
            gains.append(logp.gather(1, tokens[:, None])[:, 0])
        table = torch.stack(gains, 1).tolist()
        return [row[: len(one)] for row, one in zip(table, said, strict=True)]
