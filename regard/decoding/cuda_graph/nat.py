"""Non-autoregressive decoding with captured CUDA graphs.

If target lengths follow from source lengths, one graph encodes and decodes. If they are predicted, one graph encodes
and predicts lengths, the host reads them to choose the shape of the decoder input, and a second graph decodes. Each
graph takes one copy from the host and returns one.

Shapes: B sentences, S source tokens, K candidate lengths per sentence, R rows, T target positions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.decoding.cuda_graph.capture import (
    MAX_CAPTURED_TOKENS,
    Pool,
    capture,
    grow_position_tables,
    padded_batch_size,
    padded_length,
    weight_addresses,
)
from regard.decoding.length import LengthCandidate, list_candidates, predict_lengths
from regard.decoding.mask_predict import NATOutput, mask_predict, token_log_probs
from regard.models.nat import NATransformer
from regard.ops.dispatch import on_device

MAX_GRAPHS = 128
"""Maximum number of graphs that are kept; they share a memory pool."""


class OnePassShape(NamedTuple):
    """Shape of a `OnePassGraph`."""

    sentences: int
    source: int
    target: int


class EncoderShape(NamedTuple):
    """Shape of an `EncoderGraph`."""

    sentences: int
    source: int
    candidates: int


class DecoderShape(NamedTuple):
    """Shape of a `DecoderGraph`."""

    sentences: int
    source: int
    rows: int
    target: int
    iterations: int


Shape = OnePassShape | EncoderShape | DecoderShape


class _Graph:
    """A function on static tensors, captured and replayed, or simply called if `pool` is None.

    Subclasses copy their inputs to static tensors, call `_run` and read the static output.
    """

    def __init__(self, function: Callable[[], None], pool: Pool) -> None:
        self._run = function if pool is None else capture(function, pool).replay


class OnePassGraph(_Graph):
    """Encodes sources and decodes targets of given lengths in one pass."""

    def __init__(self, model: NATransformer, shape: OnePassShape, pool: Pool) -> None:
        self.model, self.shape = model, shape
        B, S, T = shape
        device = model.target_embedding.weight.device
        self._input = torch.ones(B, S + 2, dtype=torch.long, device=device)  # tokens, source length, target length
        self._output = torch.zeros(2, B, T, dtype=torch.int32, device=device)
        super().__init__(self._decode, pool)

    def decode(self, sources: Sequence[Sequence[int]], lengths: Sequence[int]) -> NATOutput:
        table = _source_table(sources, self._input.shape, 2, self.model.config.eos)
        table[: len(lengths), -1] = lengths
        self._input.copy_(torch.from_numpy(table))
        self._run()
        tokens, log_probs = self._output.cpu()[:, : len(sources)]
        masked = torch.full_like(tokens, self.model.config.mask_token)
        return NATOutput(tokens, log_probs.view(torch.float32), masked)

    def _decode(self) -> None:
        B, S, T = self.shape
        tokens, (source_lengths, lengths) = self._input[:, :S], self._input[:, S:].unbind(1)
        layout, source_layout = Padded(lengths, T), Padded(source_lengths, S)
        encoder_output = self.model.encode(tokens, source_layout)
        masked = torch.full((B, T), self.model.config.mask_token, device=tokens.device)
        best = token_log_probs(self.model, encoder_output, layout, source_layout, masked).max(-1)
        self._output.copy_(torch.stack((best.indices.int(), best.values.view(torch.int32))))


class EncoderGraph(_Graph):
    """Encodes sources and predicts target lengths."""

    def __init__(self, model: NATransformer, shape: EncoderShape, pool: Pool) -> None:
        self.model, self.shape = model, shape
        B, S, K = shape
        weight = model.target_embedding.weight
        self._input = torch.ones(B, S + 1, dtype=torch.long, device=weight.device)  # tokens, source length
        self.encoder_output = weight.new_zeros(B, S, model.config.width)
        self._output = torch.zeros(2, B, K, dtype=torch.int32, device=weight.device)
        super().__init__(self._encode, pool)

    @property
    def source_lengths(self) -> Tensor:
        return self._input[:, -1]

    def encode(self, sources: Sequence[Sequence[int]]) -> list[list[LengthCandidate]]:
        """Encode sources, which are given without END, and return their candidate lengths."""
        self._input.copy_(torch.from_numpy(_source_table(sources, self._input.shape, 1, self.model.config.eos)))
        self._run()
        lengths, log_probs = self._output.cpu()[:, : len(sources)]
        return list_candidates(lengths, log_probs.view(torch.float32))

    def _encode(self) -> None:
        layout = Padded(self.source_lengths, self.shape.source)
        encoder_output = self.model.encode(self._input[:, :-1], layout)
        self.encoder_output.copy_(encoder_output)
        lengths, log_probs = predict_lengths(
            self.model, encoder_output, layout, self.source_lengths, self.shape.candidates
        )
        self._output.copy_(torch.stack((lengths.int(), log_probs.view(torch.int32))))


class DecoderGraph(_Graph):
    """Decodes targets by mask-predict."""

    def __init__(self, model: NATransformer, shape: DecoderShape, pool: Pool) -> None:
        self.model, self.shape = model, shape
        B, S, R, T, _ = shape
        weight = model.target_embedding.weight
        self._encoder_output = weight.new_zeros(B, S, model.config.width)
        self._source_lengths = torch.ones(B, dtype=torch.long, device=weight.device)
        self._rows = torch.tensor([[0, 1]] * R, device=weight.device)  # sentence and target length of each row
        self._output = torch.zeros(3, R, T, dtype=torch.int32, device=weight.device)
        super().__init__(self._decode, pool)

    def decode(self, encoder: EncoderGraph, sentences: Sequence[int], lengths: Sequence[int]) -> NATOutput:
        """Decode rows of the given lengths, each for the sentence with the given index."""
        rows = np.tile([0, 1], (self.shape.rows, 1))
        rows[: len(sentences)] = np.stack((sentences, lengths), 1)
        self._rows.copy_(torch.from_numpy(rows))
        self._source_lengths.copy_(encoder.source_lengths)
        self._encoder_output.copy_(encoder.encoder_output)
        self._run()
        tokens, log_probs, decoder_input = self._output.cpu()[:, : len(sentences)]
        return NATOutput(tokens, log_probs.view(torch.float32), decoder_input)

    def _decode(self) -> None:
        _, S, R, T, iterations = self.shape
        sentences, lengths = self._rows.unbind(1)
        encoder_output = self._encoder_output[sentences]
        layout, source_layout = Padded(lengths, T), Padded(self._source_lengths[sentences], S)
        masked = torch.full((R, T), self.model.config.mask_token, device=lengths.device)
        predict = partial(token_log_probs, self.model, encoder_output, layout, source_layout)
        *_, (last, _) = mask_predict(predict, masked, lengths, iterations)
        self._output.copy_(torch.stack((last.tokens.int(), last.log_probs.view(torch.int32), last.decoder_input.int())))


Graph = TypeVar("Graph", OnePassGraph, EncoderGraph, DecoderGraph)


class CapturedNAT:
    """Decodes with one model and keeps captured graphs of a few shapes; one batch at a time.

    Args:
        model: A non-autoregressive model.
        capture: Whether to capture and replay graphs; by default if the model is on a GPU. Otherwise the same functions
            are called directly.
    """

    def __init__(self, model: NATransformer, capture: bool | None = None) -> None:
        self.model = model
        self.capture = model.target_embedding.weight.is_cuda if capture is None else capture
        self._graphs: dict[Shape, OnePassGraph | EncoderGraph | DecoderGraph] = {}  # least recently used first
        self._addresses: tuple[int, ...] = ()
        self._pool: Pool = None
        self._lock = threading.Lock()

    @torch.inference_mode()
    def decode(
        self, sources: Sequence[Sequence[int]], candidates: int, iterations: int
    ) -> tuple[list[list[LengthCandidate]], NATOutput]:
        """Return the candidate lengths of each sentence and the decoded rows of all candidates, on the CPU.

        Raises:
            UserError: A source is longer than the model's learned positions.
        """
        with self._lock, on_device(self.model.target_embedding.weight):
            self._check_weights()
            if self.model.config.length == "classifier":
                return self._predict_lengths_and_decode(sources, candidates, iterations)
            return self._decode_in_one_pass(sources)

    def _predict_lengths_and_decode(
        self, sources: Sequence[Sequence[int]], candidates: int, iterations: int
    ) -> tuple[list[list[LengthCandidate]], NATOutput]:
        size = len(sources), max(len(source) for source in sources) + 1
        padded = self._padded(*size)
        (B, S), K = padded or size, min(candidates, 2 * self.model.config.length_reach + 1)
        encoder = self._graph(EncoderGraph, EncoderShape(B, S, K), S if padded else None)
        found = encoder.encode(sources)
        sentences = [i for i, row in enumerate(found) for _ in row]
        lengths = [candidate.length for row in found for candidate in row]
        target_size = len(sentences), max(lengths)
        target_padded = self._padded(*target_size)
        R, T = target_padded or target_size
        longest = max(S, T) if padded and target_padded else None
        decoder = self._graph(DecoderGraph, DecoderShape(B, S, R, T, iterations), longest)
        return found, decoder.decode(encoder, sentences, lengths)

    def _decode_in_one_pass(self, sources: Sequence[Sequence[int]]) -> tuple[list[list[LengthCandidate]], NATOutput]:
        source_lengths = np.asarray([len(source) + 1 for source in sources], np.int64)
        lengths: list[int] = self.model.config.upsampled_lengths(source_lengths).tolist()
        size, target_size = (len(sources), int(source_lengths.max())), (len(sources), max(lengths))
        padded, target_padded = self._padded(*size), self._padded(*target_size)
        fits = padded is not None and target_padded is not None
        (B, S), (_, T) = (padded, target_padded) if padded and target_padded else (size, target_size)
        graph = self._graph(OnePassGraph, OnePassShape(B, S, T), max(S, T) if fits else None)
        return [[LengthCandidate(length, None)] for length in lengths], graph.decode(sources, lengths)

    def _graph(self, kind: type[Graph], shape: Shape, longest: int | None) -> Graph:
        """Return the graph of this shape, or a new one.

        Args:
            kind: Class of the graph.
            shape: Its shape.
            longest: Length of its longest rows; None if the batch is too large to be captured and kept.
        """
        if longest is None:
            return kind(self.model, shape, None)  # type: ignore[arg-type]  # the shape matches the class
        graph = self._graphs.pop(shape, None)
        if graph is None:
            grow_position_tables(self.model, longest)
            self._check_weights()
            while len(self._graphs) >= MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            if self.capture and self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = kind(self.model, shape, self._pool)  # type: ignore[arg-type]
        self._graphs[shape] = graph
        return cast(Graph, graph)

    def _check_weights(self) -> None:
        """Discard all graphs if a weight has moved in memory."""
        if (addresses := weight_addresses(self.model)) != self._addresses:
            self._graphs.clear()
            self._addresses = addresses

    def _padded(self, rows: int, tokens: int) -> tuple[int, int] | None:
        """Return the padded size of a batch, or None if it is too large to be captured."""
        config = self.model.config
        max_length = config.max_length if config.positions == "learned" else None
        padded = padded_batch_size(rows), padded_length(tokens, max_length)
        return padded if padded[0] * padded[1] <= MAX_CAPTURED_TOKENS else None


def _source_table(
    sources: Sequence[Sequence[int]], shape: Sequence[int], extra: int, eos: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return a row for each source: its tokens, END, and in the last `extra` columns its length and ones.

    The remaining rows are empty sources.
    """
    table = np.full(tuple(shape), eos, np.int64)
    table[:, -extra:] = 1
    for row, source in zip(table, sources, strict=False):
        row[: len(source)] = source
        row[-extra] = len(source) + 1
    return table
