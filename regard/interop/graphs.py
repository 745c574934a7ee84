"""A Transformer as two programs with tensors in and out, for runtimes that know no Python: encoder, and decoder step.

Shapes: B rows, S source tokens, P target tokens so far, L layers, H heads, D head width, V vocabulary.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.cache import KeyValues, KVCache
from regard.attention.masks import Mask
from regard.decoding.config import SearchSettings
from regard.decoding.search import search
from regard.decoding.stepper import pad_batch
from regard.errors import UserError
from regard.interop.lengths import longest_input
from regard.interop.verification import Tokens, check, compare, compare_images
from regard.layers import DecoderBlock
from regard.models.transformer import DecoderState, Embedding, EncoderDecoderConfig, Transformer, TransformerConfig
from regard.pipelines.classifier import IMAGES, Classifier
from regard.pipelines.translator import Translator

POSITIONS = 2048
"""Rows of a sinusoidal table in a program, which has no limit in our model."""


def check_programs(config: EncoderDecoderConfig) -> None:
    """Does nothing where a model of this config can be written as two programs.

    Raises:
        UserError: it cannot; says why.
    """
    if not isinstance(config, TransformerConfig):
        raise UserError("a model that writes all tokens at once has no decoder step to export")
    if config.attention.kind == "local":
        raise UserError(
            "local attention cuts a text into blocks by its length, and programs take any length; they can be written "
            "of models with full attention"
        )
    if config.attention.kind == "routing":
        raise UserError(
            "routing attention sorts tokens by clusters whose sizes a program cannot know; programs can be written of "
            "models with full attention"
        )
    if config.attention.kind != "full":
        raise UserError(
            f"attention of kind {config.attention.kind} keeps no keys and values that a decoder step could be given"
        )


class EncoderProgram(nn.Module):
    """Source tokens to what every layer of the decoder looks at."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model, self.embed = model, _Placed(model.source_embedding)

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, S) with END, and how many of each row are real, (B,), to keys and values, (L, B, H, S, D)."""
        places = torch.arange(source.shape[1], device=source.device)
        mask = Mask(allowed=_real(places, lengths))
        x = self.embed(source, places[None], source.shape[1])
        for block in self.model.encoder:
            x = block(x, mask, places[None])
        memory = self.model.encoder_norm(x)
        pairs = [cast(DecoderBlock, block).cross.project(memory) for block in self.model.decoder]
        return torch.stack([pair.keys for pair in pairs]), torch.stack([pair.values for pair in pairs])


class StepProgram(nn.Module):
    """The next target token to the log-probabilities of the one behind it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = copy.copy(model)  # shares all weights; its embedding has a table of positions that does not grow
        self.model._modules = {**model._modules, "target_embedding": _Placed(model.target_embedding)}

    def forward(
        self,
        token: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
        memory_keys: Tensor,
        memory_values: Tensor,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Reads a token a row, (B, 1), behind P others, (L, B, H, P, D), with the encoder's results and `lengths`.

        Gives the log-probabilities of what comes next, (B, V), and the keys and values of now P + 1 tokens.
        """
        seen = torch.arange(memory_keys.shape[3], device=token.device)
        kinds = [cast(DecoderBlock, block).attention.kind for block in self.model.decoder]
        caches = [_Given(*given) for given in zip(kinds, past_keys.unbind(0), past_values.unbind(0), strict=True)]
        source = [KeyValues(*pair) for pair in zip(memory_keys.unbind(0), memory_values.unbind(0), strict=True)]
        state = _ExportState(list(self.model.decoder), source, Mask(allowed=_real(seen, lengths)), caches)
        logits = self.model.step(token, state)[:, 0]
        return (
            logits.log_softmax(-1),
            torch.stack([cache.keys for cache in caches]),
            torch.stack([cache.values for cache in caches]),
        )


class _ExportState(DecoderState):
    """A decoder state whose position is the symbolic length of its caches."""

    def begin_step(self, tokens_BK: Tensor) -> tuple[Tensor, Tensor, Mask]:
        cache = cast(_Given, self.caches[0])
        return tokens_BK, torch.full((1, 1), 1, device=tokens_BK.device) * cache.keys.shape[2], Mask()


class _Given(KVCache):
    """A cache that was handed in, and goes out again one token longer."""

    def __init__(self, kind: Callable[..., Tensor], keys: Tensor, values: Tensor) -> None:
        super().__init__(kind)
        self.keys, self.values = keys, values

    def append(self, keys: Tensor, values: Tensor) -> KeyValues:
        self.keys, self.values = torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2)
        return KeyValues(self.keys, self.values)


class _Placed(nn.Module):
    """An embedding with a table of positions that does not grow."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        table: Any = None
        if embedding.positions is not None:
            learned = getattr(embedding.positions, "weight", None)
            longest = POSITIONS if learned is None else len(learned)
            table = embedding.positions(torch.arange(longest), longest).detach()
        self.table: Tensor | None
        self.register_buffer("table", table)

    @property
    def weight(self) -> Tensor:
        return self.embedding.weight

    def forward(self, tokens: Tensor, places: Tensor, longest: int) -> Tensor:
        x = F.embedding(tokens, self.embedding.weight) * self.embedding.scale
        return x if self.table is None else x + self.table[places]


def _real(places: Tensor, lengths: Tensor) -> Tensor:
    """Which places of each row hold a token, as a mask over keys, (B, 1, 1, S)."""
    return (places < lengths[:, None])[:, None, None]


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
    preprocessing = {IMAGES: classifier.preprocessing.model_dump(mode="json")}
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

    def coverage_penalties(self) -> Tensor:
        raise UserError("exported programs do not show their attention (coverage)")


class ProgramStepper:
    """Drives the two programs one token at a time."""

    device = torch.device("cpu")

    def __init__(self, folder: Path, encode: Call, step: Call) -> None:
        about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
        self.bos, self.eos, self.pad = (int(about[key]) for key in ("bos", "eos", "pad"))
        self.max_length: int | None = about["longest"]
        self._shape = tuple(int(about[key]) for key in ("layers", "heads", "head_width"))
        self._encode, self._step = encode, step

    def start(self, sources: Sequence[Tokens], beam_width: int) -> ProgramState:
        rows, layout = pad_batch([[*source, self.eos] for source in sources], self.pad, self.device)
        lengths = layout.real().sum(1)
        keys, values = self._encode({"source": rows, "lengths": lengths})
        layers, heads, width = self._shape
        nothing = torch.zeros(layers, len(rows), heads, 0, width)
        inputs = {"past_keys": nothing, "past_values": nothing, "memory_keys": keys, "memory_values": values}
        each = torch.arange(len(rows)).repeat_interleave(beam_width)
        return ProgramState(inputs | {"lengths": lengths}).select(each)

    def step(self, tokens: Tensor, state: ProgramState) -> Tensor:
        log_probs, keys, values = self._step({"token": tokens[:, None]} | state.inputs)
        state.inputs |= {"past_keys": keys, "past_values": values}
        return log_probs


class ProgramPeer:
    """The programs as verification wants them."""

    def __init__(self, stepper: ProgramStepper) -> None:
        self.stepper, self.longest = stepper, stepper.max_length

    def write(self, sources: Sequence[Tokens], settings: SearchSettings) -> list[list[int]]:
        return [best[0].tokens for best in search(self.stepper, sources, settings)]

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        said = [[*target, self.stepper.eos] for target in targets]
        read, _ = pad_batch(said, self.stepper.pad, torch.device("cpu"))
        state, tokens = self.stepper.start(sources, 1), torch.full((len(targets),), self.stepper.bos)
        gains = []
        for place in range(read.shape[1]):
            logp = self.stepper.step(tokens, state)
            tokens = read[:, place]
            gains.append(logp.gather(1, tokens[:, None])[:, 0])
        table = torch.stack(gains, 1).tolist()
        return [row[: len(one)] for row, one in zip(table, said, strict=True)]


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
