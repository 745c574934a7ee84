"""Non-autoregressive decoding with captured CUDA graphs.

If target lengths follow from source lengths, one graph encodes and decodes. If they are predicted, one graph encodes
and predicts lengths, the host reads them to choose the shape of the decoder input, and a second graph decodes. Results
are packed into one integer tensor, so that they are copied to the host at once.

Shapes: B sentences, S source tokens, K candidate lengths per sentence, R rows, T target positions.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.decoding.cuda_graph.capture import (
    MAX_CAPTURED_TOKENS,
    Pool,
    StaticGraph,
    grow_position_tables,
    padded_batch_size,
    padded_length,
    weight_addresses,
)
from regard.decoding.dag import Paths, find_paths
from regard.decoding.mask_predict import (
    LengthCandidate,
    NATOutput,
    list_candidates,
    log_probs_of,
    mask_predict,
    predict_lengths,
    token_log_probs,
)
from regard.decoding.settings import NATSettings
from regard.masks import Padded
from regard.models.nat import NATransformer
from regard.ops.dispatch import on_device

MAX_GRAPHS = 128
"""Maximum number of graphs that are kept; they share a memory pool."""
Sources = Sequence[Sequence[int]]
Size = tuple[int, int]


class CapturedNAT:
    """Decodes with one model and keeps captured graphs of a few shapes; one batch at a time.

    By default, graphs are captured if the model is on a GPU; otherwise the same functions are called directly.
    """

    def __init__(self, model: NATransformer, capture: bool | None = None) -> None:
        self.model = model
        self.capture = self.device.type == "cuda" if capture is None else capture
        self._graphs: dict[tuple[object, ...], StaticGraph] = {}  # least recently used first
        self._addresses: tuple[int, ...] = ()
        self._pool: Pool = None
        self._lock = threading.Lock()

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    @torch.inference_mode()
    def decode(self, sources: Sources, settings: NATSettings) -> tuple[list[list[LengthCandidate]], NATOutput | Paths]:
        """Return the candidate lengths of each sentence and the decoded rows of all candidates, on the CPU."""
        with self._lock, on_device(self.model.target_embedding.weight):
            self._check_weights()
            if self.model.config.length == "classifier":
                return self._predict_lengths_and_decode(sources, settings.lengths, settings.iterations or 1)
            return self._decode_in_one_pass(sources, settings.path == "lookahead")

    def _predict_lengths_and_decode(
        self, sources: Sources, count: int, iterations: int
    ) -> tuple[list[list[LengthCandidate]], NATOutput]:
        """Decode with a length classifier by two graphs, because the lengths determine the shape of the second one."""
        config = self.model.config
        (B, S), fits = self._padded(len(sources), max(map(len, sources)) + 1)
        K = min(count, 2 * config.max_length_offset + 1)
        table = _source_table(sources, (B, S + 1), 1, config.eos)
        encode = partial(_encode, self.model, K)
        *encoded, packed = self._run(("encode", B, S, K), encode, [table], S if fits else None)
        lengths, log_probs = packed.cpu()[:, : len(sources)]
        candidates = list_candidates(lengths, log_probs.view(torch.float32))

        rows = [(i, candidate.length) for i, row in enumerate(candidates) for candidate in row]
        (R, T), fits_too = self._padded(len(rows), max(length for _, length in rows))
        longest = max(S, T) if fits and fits_too else None
        row_table = torch.tensor(rows + [(0, 1)] * (R - len(rows)))
        decode = partial(_decode, self.model, T, iterations)
        (packed,) = self._run(("decode", B, S, R, T, iterations), decode, [*encoded, row_table], longest)
        tokens, log_probs, decoder_input = packed.cpu()[:, : len(rows)]
        return candidates, NATOutput(tokens, log_probs.view(torch.float32), decoder_input)

    def _decode_in_one_pass(
        self, sources: Sources, lookahead: bool
    ) -> tuple[list[list[LengthCandidate]], NATOutput | Paths]:
        """Encode and decode by one graph: without a classifier, the lengths follow from the sources."""
        config = self.model.config
        source_lengths = np.asarray([len(source) + 1 for source in sources], np.int64)  # with END
        lengths: list[int] = config.upsampled_lengths(source_lengths).tolist()
        longest_source, longest_target = int(source_lengths.max()), max(lengths)
        (B, S), source_fits = self._padded(len(sources), longest_source)
        (_, T), target_fits = self._padded(len(sources), longest_target)
        captured = source_fits and target_fits
        if not captured:  # no padding, even on the side that would fit
            B, S, T = len(sources), longest_source, longest_target
        table = _source_table(sources, (B, S + 2), 2, config.eos)  # columns: tokens, source length, target length
        table[: len(lengths), -1] = torch.tensor(lengths)
        decode = partial(_encode_and_decode, self.model, T, lookahead)
        (packed,) = self._run(("one pass", B, S, T, lookahead), decode, [table], max(S, T) if captured else None)
        tokens, log_probs, *graph = packed.cpu()[:, : len(sources)]
        candidates = [[LengthCandidate(length, None)] for length in lengths]
        if graph:
            following, next_log_probs = graph
            return candidates, Paths(
                tokens, log_probs.view(torch.float32), following, next_log_probs.view(torch.float32)
            )
        decoder_input = torch.full_like(tokens, config.mask_token)
        return candidates, NATOutput(tokens, log_probs.view(torch.float32), decoder_input)

    def _run(
        self,
        key: tuple[object, ...],
        function: Callable[..., tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        longest: int | None,
    ) -> tuple[Tensor, ...]:
        """Return the outputs of the graph with this key, its name and shape; it is captured if it does not exist.

        `longest` is the length of its longest rows, or None if the batch is too large to be captured and kept.
        """
        if longest is None:
            return function(*(x.to(self.device) for x in inputs))
        graph = self._graphs.pop(key, None)
        if graph is None:
            grow_position_tables(self.model, longest)
            self._check_weights()
            while len(self._graphs) >= MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            if self.capture and not self._graphs:  # a pool must not be used again after its last graph is gone
                self._pool = torch.cuda.graph_pool_handle()
            graph = StaticGraph(function, [x.to(self.device, copy=True) for x in inputs], self._pool)
        self._graphs[key] = graph
        return graph(*inputs)

    def _check_weights(self) -> None:
        """Discard all graphs if a weight has moved in memory."""
        if (addresses := weight_addresses(self.model)) != self._addresses:
            self._graphs.clear()
            self._addresses = addresses

    def _padded(self, rows: int, tokens: int) -> tuple[Size, bool]:
        """Return the padded size of a batch and True, or its own size and False if it is too large to be captured."""
        padded = padded_batch_size(rows), padded_length(tokens, self.model.config.max_positions)
        return (padded, True) if padded[0] * padded[1] <= MAX_CAPTURED_TOKENS else ((rows, tokens), False)


# Functions that are captured. Source tables have the source length in a column after the tokens.


def _encode(model: NATransformer, K: int, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the encoder output, the source lengths, and K candidate lengths with log-probabilities, (2, B, K)."""
    tokens, source_lengths = table[:, :-1], table[:, -1]
    layout = Padded(source_lengths, tokens.shape[1])
    encoder_output = model.encode(tokens, layout)
    lengths, log_probs = predict_lengths(model, encoder_output, layout, source_lengths, K)
    return encoder_output, source_lengths, torch.stack((lengths.int(), log_probs.view(torch.int32)))


def _decode(
    model: NATransformer, T: int, iterations: int, encoder_output: Tensor, source_lengths: Tensor, rows: Tensor
) -> tuple[Tensor]:
    """Decode rows, which are pairs of a sentence and a target length, (R, 2), to a packed `NATOutput`, (3, R, T)."""
    sentences, lengths = rows.unbind(1)
    layout, source_layout = Padded(lengths, T), Padded(source_lengths[sentences], encoder_output.shape[1])
    masked = torch.full((len(rows), T), model.config.mask_token, device=rows.device)
    predict = partial(token_log_probs, model, encoder_output[sentences], layout, source_layout)
    *_, (last, _) = mask_predict(predict, masked, lengths, iterations)
    return (torch.stack((last.tokens.int(), last.log_probs.view(torch.int32), last.decoder_input.int())),)


def _encode_and_decode(model: NATransformer, T: int, lookahead: bool, table: Tensor) -> tuple[Tensor]:
    """Decode sources in one pass; the last column is the target length.

    Return tokens and log-probabilities, (2, B, T), or `Paths`, (4, B, T).
    """
    tokens, (source_lengths, lengths) = table[:, :-2], table[:, -2:].unbind(1)
    layout, source_layout = Padded(lengths, T), Padded(source_lengths, tokens.shape[1])
    encoder_output = model.encode(tokens, source_layout)
    masked = torch.full((len(table), T), model.config.mask_token, device=table.device)
    x = model.decode(masked, encoder_output, layout, source_layout)
    if model.config.length == "dag":
        best: tuple[Tensor, ...] = find_paths(log_probs_of(model, x), model.transitions(x, lengths), lengths, lookahead)
    else:
        values, indices = log_probs_of(model, x).max(-1)
        best = indices, values
    return (torch.stack([part.view(torch.int32) if part.is_floating_point() else part.int() for part in best]),)


def _source_table(sources: Sources, shape: Size, extra: int, eos: int) -> Tensor:
    """Return a row for each source: its tokens, END, and in the last `extra` columns its length and ones.

    The remaining rows are empty sources.
    """
    table: npt.NDArray[np.int64] = np.full(shape, eos, np.int64)
    table[:, -extra:] = 1
    for row, source in zip(table, sources, strict=False):
        row[: len(source)] = source
        row[-extra] = len(source) + 1
    return torch.from_numpy(table)
