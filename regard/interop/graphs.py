"""Export a model as computation graphs that run without Python: an encoder and a decoder step, or an image model.

`GraphFormat` is implemented by onnx.py and torch.py.

Shapes: B rows, S source tokens, P previous target tokens, L layers, H heads, D head width, V vocabulary.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.kinds import KeyValues, KVCache
from regard.decoding.autoregressive import search_tokens
from regard.decoding.constraints import DecodingRequest
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from regard.errors import UserError
from regard.interop.files import read_json_object, write_json
from regard.interop.verification import Tokens, check_agreement, compare, compare_images, longest_input
from regard.layers import DecoderBlock
from regard.masks import Mask, Padded, pad_batch
from regard.models.transformer import (
    DecoderState,
    Embedding,
    EncoderDecoder,
    EncoderDecoderConfig,
    Transformer,
)
from regard.pipelines.classifier import IMAGES, Classifier
from regard.pipelines.translator import Translator

POSITIONS = 2048
"""Positions of an exported sinusoidal table, which is unlimited in regard."""
ENCODER, DECODER_STEP, IMAGE_MODEL = "encoder", "decoder_step", "model"
METADATA_FILE = "regard.json"

AnyEncoderDecoder = TypeVar("AnyEncoderDecoder", bound=EncoderDecoder)
GraphCall = Callable[[dict[str, Tensor]], tuple[Tensor, ...]]
"""A loaded graph: takes inputs by name and returns the outputs in order."""


class GraphSpec(NamedTuple):
    """A module to be exported.

    Attributes:
        inputs: Example inputs by name, in the order of the module's arguments.
        dynamic: For each input, its dimensions of variable size, with a name for the size.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    dynamic: dict[str, dict[int, str]]
    outputs: list[str]


@dataclass(frozen=True)
class GraphFormat:
    """A file format for graphs.

    Attributes:
        description: Description of the format for messages, such as "in onnxruntime".
    """

    suffix: str
    save: Callable[[GraphSpec, Path], None]
    load: Callable[[Path], GraphCall]
    description: str

    def export_translator(self, translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
        """Write and verify the encoder and the decoder step, with the tokenizer and regard.json."""
        for name, spec in translation_graphs(translator).items():
            self.save(spec, self._path(folder, name))
        _save_metadata(translator, folder)
        agreement = compare(translator, self.load_model(folder), sources)
        check_agreement(agreement, f"the model {self.description}")
        return [f"{self.description}, {agreement}"]

    def export_classifier(self, classifier: Classifier, folder: Path) -> list[str]:
        """Write and verify a graph from images to logits, with the preprocessing and class names in regard.json."""
        path = self._path(folder, IMAGE_MODEL)
        self.save(image_graph(classifier), path)
        write_json(folder / METADATA_FILE, {IMAGES: classifier.preprocessing.model_dump(mode="json")})
        graph = self.load(path)
        return [compare_images(classifier.model, lambda images: graph({"images": images})[0], self.description)]

    def load_model(self, folder: Path) -> "GraphModel":
        """Load an exported translation model."""
        encode, step = (self.load(self._path(folder, name)) for name in (ENCODER, DECODER_STEP))
        return GraphModel(folder, encode, step)

    def _path(self, folder: Path, name: str) -> Path:
        return folder / f"{name}.{self.suffix}"


def translation_graphs(translator: Translator) -> dict[str, GraphSpec]:
    """Return the encoder and the decoder step of a translator, by file name."""
    if len(translator.models) > 1:
        raise UserError("an ensemble cannot be exported as one model; give a single model")
    config = translator.model.config
    _check_exportable(config)
    model: Any = translator.model
    head_width, lengths = config.width // config.heads, torch.tensor([3, 5, 4])
    source = torch.zeros(config.decoder_layers, 3, config.heads, 5, head_width)
    past = torch.zeros(config.decoder_layers, 3, config.heads, 4, head_width)
    encoder = GraphSpec(
        EncoderGraph(model),
        {"source": torch.full((3, 5), config.eos), "lengths": lengths},
        {"source": {0: "batch", 1: "source"}, "lengths": {0: "batch"}},
        ["source_keys", "source_values"],
    )
    # Clones, because the exporter would merge two inputs that are the same tensor.
    token, cache = torch.full((3, 1), config.bos), {"past_keys": past, "past_values": past.clone()}
    encoded = {"source_keys": source, "source_values": source.clone()}
    dynamic = {"token": {0: "batch"}, "lengths": {0: "batch"}}
    dynamic |= {name: {1: "batch", 3: "past"} for name in cache} | {name: {1: "batch", 3: "source"} for name in encoded}
    step = GraphSpec(
        DecoderStepGraph(model),
        {"token": token, **cache, **encoded, "lengths": lengths},
        dynamic,
        ["log_probs", "keys", "values"],
    )
    return {ENCODER: encoder, DECODER_STEP: step}


def image_graph(classifier: Classifier) -> GraphSpec:
    """Return the graph of a classifier, from images to logits."""
    config = classifier.model.config
    images = torch.zeros(2, config.channels, *config.image)
    return GraphSpec(classifier.model, {"images": images}, {"images": {0: "batch"}}, ["logits"])


class EncoderGraph(nn.Module):
    """The encoder and the projections of its output for the cross-attention of every decoder layer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = with_fixed_positions(model)

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map tokens with END, (B, S), and their lengths, (B,), to keys and values, (L, B, H, S, D)."""
        encoded = self.model.encode(source, Padded(lengths, source.shape[1]))
        projected = [cast(DecoderBlock, block).cross.project(encoded) for block in self.model.decoder]
        return torch.stack([layer.keys for layer in projected]), torch.stack([layer.values for layer in projected])


class DecoderStepGraph(nn.Module):
    """One decoding step with the cache as input and output."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = with_fixed_positions(model)

    def forward(
        self,
        token: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
        source_keys: Tensor,
        source_values: Tensor,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Predict the next token.

        Args:
            token: Last token of each row, (B, 1).
            past_keys: Keys of the previous tokens, (L, B, H, P, D).
            past_values: Values of the previous tokens, likewise.
            source_keys: Output of the encoder graph, (L, B, H, S, D).
            source_values: Output of the encoder graph, likewise.
            lengths: Source lengths, (B,).

        Returns:
            Log-probabilities of the next token, (B, V), and the keys and values of P + 1 tokens.
        """
        source_mask = Mask(keys=Padded(lengths, source_keys.shape[3]))
        kinds = [cast(DecoderBlock, block).attention.kind for block in self.model.decoder]
        caches = [_InputCache(*layer) for layer in zip(kinds, past_keys.unbind(0), past_values.unbind(0), strict=True)]
        source = [KeyValues(*layer) for layer in zip(source_keys.unbind(0), source_values.unbind(0), strict=True)]
        state = _SymbolicState(list(self.model.decoder), source, source_mask, caches)
        logits = self.model.step(token, state)[:, 0]
        return (
            logits.log_softmax(-1),
            torch.stack([cache.keys for cache in caches]),
            torch.stack([cache.values for cache in caches]),
        )


class _SymbolicState(DecoderState):
    """A decoder state whose position is the symbolic length of its caches."""

    def begin_step(self, tokens_BK: Tensor) -> tuple[Tensor, Tensor, Mask]:
        length = cast(_InputCache, self.caches[0]).keys.shape[2]
        return tokens_BK, torch.full((1, 1), 1, device=tokens_BK.device) * length, Mask()


class _InputCache(KVCache):
    """A cache that starts with given keys and values and grows by concatenation."""

    def __init__(self, kind: Callable[..., Tensor], keys: Tensor, values: Tensor) -> None:
        super().__init__(kind)
        self.keys, self.values = keys, values

    def append(self, keys: Tensor, values: Tensor) -> KeyValues:
        self.keys, self.values = torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2)
        return KeyValues(self.keys, self.values)


class _FixedEmbedding(nn.Module):
    """An embedding with a position table of fixed size."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        table: Any = None
        if embedding.positions is not None:
            size = embedding.max_positions or POSITIONS
            table = embedding.positions(torch.arange(size), size).detach()
        self.table: Tensor | None
        self.register_buffer("table", table)

    @property
    def weight(self) -> Tensor:
        return self.embedding.weight

    def forward(self, tokens: Tensor, positions: Tensor, longest: int, dtype: torch.dtype | None = None) -> Tensor:
        x = F.embedding(tokens, self.embedding.weight) * self.embedding.scale
        return x if self.table is None else x + self.table[positions]


def with_fixed_positions(model: AnyEncoderDecoder) -> AnyEncoderDecoder:
    """Return a copy of the model that shares its weights, but has position tables of fixed size."""
    shared = copy.copy(model)
    embeddings = {name: _FixedEmbedding(getattr(model, name)) for name in ("source_embedding", "target_embedding")}
    shared._modules = model._modules | embeddings
    return shared


@dataclass
class GraphState:
    """Inputs of the decoder step besides the token."""

    inputs: dict[str, Tensor]

    def select(self, rows: Tensor) -> "GraphState":
        return GraphState({name: t[rows] if name == "lengths" else t[:, rows] for name, t in self.inputs.items()})

    def coverage_penalties(self) -> Tensor:
        raise UserError("coverage needs attention weights, which exported graphs do not return")


class GraphModel:
    """The exported encoder and decoder step: a `Stepper` for regard's search, and an `ExternalModel`."""

    device = torch.device("cpu")

    def __init__(self, folder: Path, encode: GraphCall, step: GraphCall) -> None:
        metadata = read_json_object(folder / METADATA_FILE)
        self.bos, self.eos, self.pad = (int(metadata[key]) for key in ("bos", "eos", "pad"))
        self.longest = self.max_length = cast(int | None, metadata["longest"])
        self._cache_sizes = tuple(int(metadata[key]) for key in ("layers", "heads", "head_width"))
        self._encode, self._step = encode, step

    def start(self, sources: Sequence[Tokens], beam_width: int) -> GraphState:
        rows, layout = pad_batch([[*source, self.eos] for source in sources], self.pad, self.device)
        lengths = layout.real().sum(1)
        keys, values = self._encode({"source": rows, "lengths": lengths})
        layers, heads, head_width = self._cache_sizes
        empty = torch.zeros(layers, len(rows), heads, 0, head_width)
        inputs = {"past_keys": empty, "past_values": empty, "source_keys": keys, "source_values": values}
        repeated = torch.arange(len(rows)).repeat_interleave(beam_width)
        return GraphState(inputs | {"lengths": lengths}).select(repeated)

    def step(self, tokens: Tensor, state: GraphState) -> Tensor:
        log_probs, keys, values = self._step({"token": tokens[:, None]} | state.inputs)
        state.inputs |= {"past_keys": keys, "past_values": values}
        return log_probs

    def generate(self, requests: Sequence[DecodingRequest], settings: SearchSettings) -> list[list[TokenHypothesis]]:
        return search_tokens(self, requests, settings)

    def score(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: SearchSettings
    ) -> list[TokenHypothesis]:
        """Return the targets with the log-probabilities of their tokens, one decoder step per token.

        The score of a target is the sum of its log-probabilities.
        """
        padded, _ = pad_batch([[*target, self.eos] for target in targets], self.pad, self.device)
        state = self.start(sources, 1)
        tokens = torch.full((len(targets),), self.bos)
        columns = []
        for next_tokens in padded.unbind(1):
            log_probs = self.step(tokens, state)
            columns.append(log_probs.gather(1, next_tokens[:, None])[:, 0])
            tokens = next_tokens
        hypotheses = []
        for target, row in zip(targets, torch.stack(columns, 1).tolist(), strict=True):
            token_log_probs = row[: len(target) + 1]  # with END, without padding
            hypotheses.append(TokenHypothesis(list(target), sum(token_log_probs), token_log_probs))
        return hypotheses


@contextmanager
def without_gradients(module: nn.Module) -> Iterator[None]:
    """Disables gradients of all parameters, so that the exporter traces the inference path."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module.eval()
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        with torch.no_grad():
            yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def _check_exportable(config: EncoderDecoderConfig) -> None:
    if not config.source_end:
        raise UserError("this model receives sources without END, which this format adds; export it to ctranslate2")
    if config.attention.kind == "full":
        return
    reasons = {
        "local": "local attention splits texts into blocks depending on their length, which a graph cannot express",
        "routing": "routing attention sorts tokens into clusters of variable size, which a graph cannot express",
    }
    other = f"{config.attention.kind} attention has no cache of keys and values"
    raise UserError(f"{reasons.get(config.attention.kind, other)}; only full attention can be exported")


def _save_metadata(translator: Translator, folder: Path) -> None:
    """Write the tokenizer, and the token ids and sizes that are needed to run the graphs."""
    config = translator.model.config
    translator.vocabularies.save(folder)
    metadata = {
        "pad": config.pad,
        "bos": config.bos,
        "eos": config.eos,
        "layers": config.decoder_layers,
        "heads": config.heads,
        "head_width": config.width // config.heads,
        "longest": longest_input(config, POSITIONS),
    }
    write_json(folder / METADATA_FILE, metadata)
