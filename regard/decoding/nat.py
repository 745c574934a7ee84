"""Writing all tokens at once: one pass over a canvas of masks, or several that refine it (mask-predict).

`NATGenerator.generate` chooses between two ways to the same result: its own, which can do everything, and on a GPU
`CapturedNAT`, for what `obstacle_to_canvases` has nothing against.

Shapes: R rows (every length that is tried of every sentence), T places of the canvas, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice

import numpy as np
import torch
from torch import Tensor

from regard.attention.masks import Padded
from regard.decoding import ctc
from regard.decoding.config import DecodingSettings, NATSettings, check_settings_type
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph.conditions import obstacle_to_canvases
from regard.decoding.cuda_graph.nat import CapturedNAT
from regard.decoding.generator import BATCH_TOKENS
from regard.decoding.nat_fill import Guess, active_iterations, fill, guesses, likeliest_lengths, refine
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError
from regard.models.nat import NATransformer
from regard.ops.linear import PackedWeights

LENGTH_SHARE = 0.05
"""What a guessed length's log-probability adds to a score; chosen on Multi30k's validation set (docs/LOG.md)."""


@dataclass(frozen=True)
class NATIteration:
    """A canvas after one pass: the token at every place, its log-probability, and whether this pass wrote it."""

    tokens: list[int]
    token_log_probs: list[float]
    written: list[bool]


@dataclass(frozen=True)
class NATHypothesis(TokenHypothesis):
    """A hypothesis, and where it stood: the canvas that its last pass read, and the place of each of its tokens.

    Log-probabilities include END's only where END cut the canvas.
    """

    canvas: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    iterations: list[NATIteration] = field(default_factory=list)


@dataclass
class _Rows:
    """What stands on canvases."""

    tokens: Tensor  # (R, T)
    gains: Tensor  # (R, T): log-probabilities
    lengths: list[int]


@dataclass
class _Canvases(_Rows):
    """Rows that are filled together. A layout is None where all rows are equally long, which is faster."""

    layout: Padded | None
    memory: Tensor  # (R, S, W)
    memory_layout: Padded | None


class NATGenerator:
    """Writes with a `NATransformer`."""

    settings_class: type[DecodingSettings] = NATSettings
    has_attention = True

    def __init__(self, model: NATransformer, products: PackedWeights | None = None) -> None:
        self.model, self.config = model, model.config
        self._packed = PackedWeights() if products is None else products
        self._fixed = CapturedNAT(model)

    @property
    def device(self) -> torch.device:
        return self.model.target_embedding.weight.device

    def resolve_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        check_settings_type(settings, NATSettings)
        assert isinstance(settings, NATSettings)
        asked = {"prefix": request.prefix, "required phrases": request.required, "forbidden phrases": request.forbidden}
        for name in [name for name, given in (asked | {"trees": trees}).items() if given]:
            raise UserError(f"{name}: needs an autoregressive model; this model is non-autoregressive")
        return settings.resolve(self.config.length)

    def batch_tokens(self, settings: DecodingSettings) -> int:
        """Every place of every canvas has a row of logits, so batches are smaller than those of a search."""
        assert isinstance(settings, NATSettings)
        places = settings.lengths if self.config.length == "classifier" else self.config.upsample_ratio
        return max(1, int(BATCH_TOKENS / 2 / max(1.0, places)))

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        assert isinstance(settings, NATSettings)
        if not requests:
            return []
        if obstacle_to_canvases(self.model, settings, trace) is None:
            try:
                return self._write_fixed(requests, settings)
            except torch.OutOfMemoryError:
                self._fixed.forget()
        memory, layout, sizes = self._encode([request.source for request in requests])
        tried = self._guess_lengths(memory, layout, sizes, settings.lengths)
        owners = [i for i, of_one in enumerate(tried) for _ in of_one]
        canvases = self._blank_canvases(memory, sizes, owners, _counts(tried))
        if self.config.length == "ctc":
            return self._write_paths(canvases, settings, trace)
        read, passes = self._refine(canvases, settings.iterations or 1, trace)
        return self._collect(canvases, tried, read, passes, settings)

    def _write_fixed(self, requests: Sequence[DecodingRequest], settings: NATSettings) -> list[list[TokenHypothesis]]:
        """By programs that a GPU has recorded."""
        sources = [request.source for request in requests]
        tried, (tokens, gains, read) = self._fixed.fill(sources, settings.lengths, settings.iterations or 1)
        rows = _Rows(tokens, gains, _counts(tried))
        if self.config.length == "ctc":
            return [[one] for one in self._read_paths(rows)]
        return self._collect(rows, tried, read, [], settings)

    @torch.no_grad()
    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        """What one pass over a canvas of masks says; with "end" and "ctc" the source alone decides on its length."""
        memory, _, sizes = self._encode(sources)
        return self._fill(self._blank_canvases(memory, sizes, range(len(sources)), self._places_for(sizes, targets)))

    @torch.no_grad()
    def run_forward(self, sources: Sequence[Sequence[int]], found: Sequence[TokenHypothesis]) -> None:
        memory, _, sizes = self._encode(sources)
        canvases = self._blank_canvases(memory, sizes, range(len(sources)), [len(_canvas(one)) for one in found])
        for row, one in enumerate(found):
            canvas = _canvas(one)
            canvases.tokens[row, : len(canvas)] = torch.tensor(canvas, dtype=torch.long)
        self._fill(canvases)

    def attention_rows(self, found: TokenHypothesis) -> list[int]:
        assert isinstance(found, NATHypothesis)
        return found.places

    @torch.no_grad()
    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        """As one pass scores them; a target that does not fit on its canvas is impossible, -inf."""
        memory, layout, sizes = self._encode(sources)
        wanted = self._places_for(sizes, targets)
        canvases: list[int] = self.config.clip_lengths(np.asarray(wanted, np.int64)).tolist()
        logp = self._fill(self._blank_canvases(memory, sizes, range(len(sources)), canvases))
        if self.config.length == "ctc":
            return self._score_paths(logp, canvases, targets)
        lengths = self._length_gains(memory, layout, sizes, targets)
        found: list[TokenHypothesis] = []
        for row, target, places, length in zip(logp, targets, canvases, lengths, strict=True):
            said = ([*target, self.config.eos] if self.config.length == "end" else list(target))[:places]
            chosen = torch.tensor(said, dtype=torch.long, device=self.device)
            gains = row[: len(said)].gather(1, chosen[:, None])[:, 0].tolist()
            score = score_canvas(gains, length) if len(said) >= len(target) else -math.inf
            blank = [self.config.mask_token] * places
            found.append(NATHypothesis(list(target), score, gains, canvas=blank, places=list(range(len(said)))))
        return found

    def _encode(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Padded | None, list[int]]:
        """The encoder's vectors of sources given without END, and how many there are of each."""
        self._packed.refresh()
        sizes = [len(source) + 1 for source in sources]
        longest = max(sizes)
        rows = [[*source, self.config.eos, *[self.config.pad] * (longest - len(source) - 1)] for source in sources]
        layout = self._layout(sizes)
        with self._packed:
            return self.model.encode(torch.tensor(rows, device=self.device), layout), layout, sizes

    def _layout(self, lengths: Sequence[int]) -> Padded | None:
        longest = max(lengths)
        if min(lengths) == longest:
            return None
        return Padded(torch.tensor(lengths, device=self.device), longest)

    def _guess_lengths(
        self, memory: Tensor, layout: Padded | None, sizes: Sequence[int], wanted: int
    ) -> list[list[Guess]]:
        """The lengths that are tried for each sentence with their log-probabilities; a translation is not empty."""
        if self.config.length != "classifier":
            return [[(n, None)] for n in self._places(sizes)]
        return guesses(*likeliest_lengths(self.model, memory, layout, torch.tensor(sizes, device=self.device), wanted))

    def _length_gains(
        self, memory: Tensor, layout: Padded | None, sizes: Sequence[int], targets: Sequence[Sequence[int]]
    ) -> list[float | None]:
        """The log-probabilities of the lengths of given targets; what lies out of reach counts as the furthest."""
        if self.config.length != "classifier":
            return [None] * len(sizes)
        reach = self.config.length_reach
        logp = self.model.length_logits(memory, layout).float().log_softmax(-1)
        further = [len(target) - size + 1 for target, size in zip(targets, sizes, strict=True)]
        index = torch.tensor(further, device=self.device).clamp(-reach, reach) + reach
        gains: list[float | None] = logp.gather(1, index[:, None])[:, 0].tolist()
        return gains

    def _places(self, sizes: Sequence[int]) -> list[int]:
        lengths: list[int] = self.config.upsampled_lengths(np.asarray(sizes, np.int64)).tolist()
        return lengths

    def _places_for(self, sizes: Sequence[int], targets: Sequence[Sequence[int]]) -> list[int]:
        return [len(target) for target in targets] if self.config.length == "classifier" else self._places(sizes)

    def _blank_canvases(
        self, memory: Tensor, sizes: Sequence[int], owners: Sequence[int], lengths: Sequence[int]
    ) -> _Canvases:
        """A row of masks for every length; `owners` says of which sentence."""
        several = len(owners) > len(sizes)
        shape = (len(owners), max(lengths))
        return _Canvases(
            tokens=torch.full(shape, self.config.mask_token, device=self.device),
            gains=torch.zeros(shape, device=self.device),
            lengths=list(lengths),
            layout=self._layout(lengths),
            memory=memory[torch.tensor(owners, device=self.device)] if several else memory,
            memory_layout=self._layout([sizes[i] for i in owners]),
        )

    def _fill(self, canvases: _Canvases, tokens: Tensor | None = None) -> Tensor:
        """What may be written at every place, (R, T, V): log-probabilities by one pass, over other tokens if given."""
        c = canvases
        with self._packed:
            return fill(self.model, c.memory, c.layout, c.memory_layout, c.tokens if tokens is None else tokens)

    def _refine(self, canvases: _Canvases, iterations: int, traced: bool) -> tuple[Tensor, list[list[NATIteration]]]:
        """Fills the canvases in so many passes; returns what the last one read, and a snapshot of each if asked."""
        c = canvases
        passes: list[list[NATIteration]] = [[] for _ in c.lengths] if traced else []
        lengths = torch.tensor(c.lengths, device=self.device)
        states = refine(partial(self._fill, c), c.tokens, lengths, iterations)
        for number, state in enumerate(islice(states, active_iterations(max(c.lengths), iterations))):
            c.tokens, c.gains = state.tokens, state.gains
            if not traced:
                continue
            for row, length, snapshot in zip(passes, c.lengths, _snapshots(c, state.written), strict=True):
                if number < active_iterations(length, iterations):  # a longer neighbour may have more
                    row.append(snapshot)
        return state.read, passes

    def _collect(
        self,
        rows: _Rows,
        tried: list[list[Guess]],
        read: Tensor,
        passes: list[list[NATIteration]],
        settings: NATSettings,
    ) -> list[list[TokenHypothesis]]:
        """Rows as hypotheses of their sentences, best first; with "end", what follows the first END is dropped."""
        owners = [(i, gain) for i, of_one in enumerate(tried) for _, gain in of_one]
        said_by_row = zip(owners, rows.lengths, rows.tokens.tolist(), rows.gains.tolist(), read.tolist(), strict=True)
        found: list[tuple[int, TokenHypothesis]] = []
        for number, ((owner, length), places, tokens, gains, canvas) in enumerate(said_by_row):
            kept = tokens[:places]
            said = places
            if self.config.length == "end" and self.config.eos in kept:
                kept = kept[: kept.index(self.config.eos)]
                said = len(kept) + 1
            score = score_canvas(gains[:said], length)
            snapshots = passes[number] if passes else []
            found.append(
                (owner, NATHypothesis(kept, score, gains[:said], canvas[:places], list(range(said)), snapshots))
            )
        groups = ([one for _, one in group] for _, group in groupby(found, key=lambda pair: pair[0]))
        kept_of_each = settings.lengths if settings.rerank else settings.n_best
        return [sorted(group, key=lambda one: -one.score)[:kept_of_each] for group in groups]

    def _write_paths(self, canvases: _Canvases, settings: NATSettings, trace: bool) -> list[list[TokenHypothesis]]:
        """What canvases with blanks say: by each one's best path, or by a search over all of their paths."""
        c, blank = canvases, self.config.blank_token
        logp = self._fill(c)
        c.gains, c.tokens = logp.max(-1)
        if settings.beam == 1:
            found = [[one] for one in self._read_paths(c)]
        else:
            lengths = torch.tensor(c.lengths, device=self.device)
            searched = ctc.search_prefixes(logp, lengths, blank, settings.beam)
            kept = settings.beam if settings.rerank else settings.n_best
            found = self._align_found(logp, c, [sentence[:kept] for sentence in searched])
        if not trace:
            return [list(one) for one in found]
        passes = _snapshots(c, torch.ones_like(c.tokens, dtype=torch.bool))
        return [[replace(one, iterations=[seen]) for one in ones] for ones, seen in zip(found, passes, strict=True)]

    def _read_paths(self, canvases: _Rows) -> list[NATHypothesis]:
        """The likeliest path of every canvas; its score is that path's log-probability alone."""
        begins = ctc.token_starts(canvases.tokens, self.config.blank_token)
        rows = zip(canvases.lengths, canvases.tokens.tolist(), canvases.gains.tolist(), begins.tolist(), strict=True)
        found = []
        for places, path, gains, begin in rows:
            where = [place for place in range(places) if begin[place]]
            canvas = [self.config.mask_token] * places
            tokens, certain = [path[place] for place in where], [gains[place] for place in where]
            found.append(NATHypothesis(tokens, sum(gains[:places]), certain, canvas, where))
        return found

    def _align_found(
        self, logp: Tensor, canvases: _Canvases, found: list[list[tuple[list[int], float]]]
    ) -> list[list[NATHypothesis]]:
        """Targets found by prefix search, each with the places where its likeliest path has it."""
        owners = [i for i, sentence in enumerate(found) for _ in sentence]
        targets = [tokens for sentence in found for tokens, _ in sentence]
        aligned = iter(self._align(logp[owners], [canvases.lengths[i] for i in owners], targets))
        return [[replace(next(aligned), score=score) for _, score in sentence] for sentence in found]

    def _score_paths(self, logp: Tensor, lengths: list[int], targets: Sequence[Sequence[int]]) -> list[TokenHypothesis]:
        table, sizes = self._table(targets)
        scores = ctc.log_likelihood(
            logp, torch.tensor(lengths, device=self.device), table, sizes, self.config.blank_token
        ).tolist()
        aligned = self._align(logp, lengths, targets)
        return [replace(one, score=score) for one, score in zip(aligned, scores, strict=True)]

    def _align(self, logp: Tensor, lengths: list[int], targets: Sequence[Sequence[int]]) -> list[NATHypothesis]:
        """Given targets on the canvas: where each token begins in the likeliest path, and how likely it is there."""
        table, sizes = self._table(targets)
        places = torch.tensor(lengths, device=self.device)
        path = ctc.align(logp, places, table, sizes, self.config.blank_token)
        gains = logp.gather(2, path[..., None])[..., 0].tolist()
        begins = ctc.token_starts(path, self.config.blank_token).tolist()
        found = []
        for target, length, gain, begin in zip(targets, lengths, gains, begins, strict=True):
            where = [place for place in range(length) if begin[place]]
            canvas = [self.config.mask_token] * length
            found.append(NATHypothesis(list(target), 0.0, [gain[place] for place in where], canvas, where))
        return found

    def _table(self, targets: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Targets as one padded tensor, and their lengths."""
        sizes = [len(target) for target in targets]
        longest = max([1, *sizes])
        rows = [[*target, *[self.config.eos] * (longest - len(target))] for target in targets]
        return torch.tensor(rows, device=self.device), torch.tensor(sizes, device=self.device)


def _counts(tried: list[list[Guess]]) -> list[int]:
    """The lengths of all rows."""
    return [count for of_one in tried for count, _ in of_one]


def score_canvas(gains: list[float], length: float | None) -> float:
    """The mean log-probability of the tokens, and a share of the length's where that was guessed.

    The share is the same for every canvas, so that no length counts for less the longer it is.
    """
    return sum(gains) / max(1, len(gains)) + (0.0 if length is None else LENGTH_SHARE * length)


def _canvas(found: TokenHypothesis) -> list[int]:
    assert isinstance(found, NATHypothesis)
    return found.canvas


def _snapshots(canvases: _Rows, written: Tensor) -> list[NATIteration]:
    rows = zip(canvases.lengths, canvases.tokens.tolist(), canvases.gains.tolist(), written.tolist(), strict=True)
    return [NATIteration(tokens[:n], gains[:n], marks[:n]) for n, tokens, gains, marks in rows]
