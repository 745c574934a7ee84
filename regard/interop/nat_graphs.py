"""Export a non-autoregressive model as one computation graph, which maps sources to the tokens of one pass.

Models with a length classifier are not supported: a graph cannot choose its own sizes.

Shapes: B rows, S source tokens, T target positions.
"""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.decoding.constraints import DecodingRequest
from regard.decoding.dag import Paths, find_paths
from regard.decoding.mask_predict import LengthCandidate, NATOutput, log_probs_of
from regard.decoding.nat import NATGenerator
from regard.decoding.settings import NATSettings
from regard.errors import UserError
from regard.interop.files import write_json
from regard.interop.graphs import METADATA_FILE, POSITIONS, GraphCall, GraphFormat, GraphSpec, with_fixed_positions
from regard.interop.verification import Agreement, Tokens, check_agreement
from regard.layers import Sinusoidal
from regard.masks import Padded, pad_batch
from regard.models.nat import NATransformer, NATransformerConfig
from regard.pipelines.translator import Translator

NAT_MODEL = "model"


def export_nat(graph_format: GraphFormat, translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
    """Write and verify the graph of a non-autoregressive translator, with the tokenizer and regard.json."""
    model = translator.model
    assert isinstance(model, NATransformer)
    _check_exportable(model.config)
    path = folder / f"{NAT_MODEL}.{graph_format.suffix}"
    graph_format.save(one_pass_graph(model), path)
    translator.vocabularies.save(folder)
    metadata = {
        "pad": model.config.pad,
        "eos": model.config.eos,
        "length": model.config.length,
        "upsample_ratio": model.config.upsampling,
        "upsample_extra": model.config.upsample_extra,
        "longest": longest_source(model.config),
    }
    write_json(folder / METADATA_FILE, metadata)
    agreement = compare_one_pass(model, graph_format.load(path), sources)
    check_agreement(agreement, f"the model {graph_format.description}")
    return [f"{graph_format.description}, {agreement}"]


def longest_source(config: NATransformerConfig) -> int | None:
    """Return the maximum number of source tokens, END included, whose targets have positions in the graph."""
    if config.positions == "rotary" and config.length != "dag":
        return None
    return ((config.max_positions or POSITIONS) - config.upsample_extra) // config.upsampling


def one_pass_graph(model: NATransformer) -> GraphSpec:
    """Return the graph of a model whose target lengths follow from the source lengths."""
    outputs = ["tokens", "log_probs", *(["next", "next_log_probs"] if model.config.length == "dag" else [])]
    inputs = {"source": torch.full((3, 5), model.config.eos), "lengths": torch.tensor([3, 5, 4])}
    return GraphSpec(OnePass(model), inputs, {"source": {0: "batch", 1: "source"}, "lengths": {0: "batch"}}, outputs)


class OnePass(nn.Module):
    """Encoder and decoder in one pass over mask tokens."""

    def __init__(self, model: NATransformer) -> None:
        super().__init__()
        self.model = with_fixed_positions(model)
        if model.config.length == "dag":
            transitions = copy.copy(model.transitions)
            transitions._modules = model.transitions._modules | {"positions": _FixedTable(model.transitions.positions)}
            self.model._modules["transitions"] = transitions

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """Return the best token at every position and its log-probability, (B, T); for a graph of tokens `Paths`.

        Args:
            source: Tokens with END, (B, S).
            lengths: Source lengths, (B,).
        """
        config, (B, S) = self.model.config, source.shape
        layout = Padded(lengths, S)
        targets = Padded(
            config.upsampling * lengths + config.upsample_extra, config.upsampling * S + config.upsample_extra
        )
        masked = torch.full((B, targets.size), config.mask_token)
        x = self.model.decode(masked, self.model.encode(source, layout), targets, layout)
        log_probs = log_probs_of(self.model, x)
        if config.length == "dag":
            return tuple(
                find_paths(log_probs, self.model.transitions(x, targets.lengths), targets.lengths, lookahead=True)
            )
        best = log_probs.max(-1)
        return best.indices, best.values


class _FixedTable(nn.Module):
    """Sinusoidal positions with a table of fixed size."""

    def __init__(self, positions: Sinusoidal) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", positions.up_to(POSITIONS)[:POSITIONS].clone())

    def up_to(self, longest: int) -> Tensor:
        """Return the whole table."""
        return self.table


class ExportedNAT:
    """A loaded graph in the place of captured CUDA graphs: `decode` as in `regard.decoding.cuda_graph.nat`."""

    def __init__(self, config: NATransformerConfig, call: GraphCall) -> None:
        self.config, self.call = config, call

    def decode(
        self, sources: Sequence[Tokens], settings: NATSettings
    ) -> tuple[list[list[LengthCandidate]], NATOutput | Paths]:
        rows, layout = pad_batch(
            [[*source, self.config.eos] for source in sources], self.config.pad, torch.device("cpu")
        )
        lengths = layout.lengths.long()
        targets = self.config.upsampling * lengths + self.config.upsample_extra
        candidates = [[LengthCandidate(length, None)] for length in targets.tolist()]
        tokens, log_probs, *graph = self.call({"source": rows, "lengths": lengths})
        if graph:
            return candidates, Paths(tokens, log_probs, *graph)
        return candidates, NATOutput(tokens, log_probs, torch.full_like(tokens, self.config.mask_token))


def compare_one_pass(model: NATransformer, call: GraphCall, sources: Sequence[Tokens]) -> Agreement:
    """Compare the translations and token log-probabilities of a model and its graph."""
    longest = longest_source(model.config)
    requests = [DecodingRequest(source) for source in sources if longest is None or len(source) < longest]
    own, exported = NATGenerator(model), NATGenerator(model, ExportedNAT(model.config, call))
    settings = NATSettings(iterations=1)
    pairs = [
        (expected, actual)
        for (expected,), (actual,) in zip(
            own.generate(requests, settings), exported.generate(requests, settings), strict=True
        )
    ]
    same = [(expected, actual) for expected, actual in pairs if expected.tokens == actual.tokens]
    differences = torch.tensor(
        [
            abs(a - b)
            for expected, actual in same
            for a, b in zip(expected.token_log_probs, actual.token_log_probs, strict=True)
        ]
        or [0.0]
    )
    identical = {"one pass": (len(same), len(pairs))}
    return Agreement(len(pairs), float(differences.max()), float(differences.mean()), identical, {"one pass": 0})


def _check_exportable(config: NATransformerConfig) -> None:
    if config.length == "classifier":
        raise UserError(
            "the target length of this model is predicted, which a graph cannot express; models with length end, ctc "
            "or dag can be exported"
        )
    if config.attention.kind != "full":
        raise UserError(f"{config.attention.kind} attention cannot be exported, only full attention")
