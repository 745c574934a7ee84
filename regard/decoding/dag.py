"""Translations as paths through the graph of tokens that a model with `length: dag` predicts.

- greedy: the most probable transition from each vertex;
- lookahead: the transition whose probability times that of the best token of its vertex is highest;
- viterbi: the path with the highest probability, divided by its length as in beam search;
- beam search sums over all paths of the same tokens: `TokenGraphStepper` turns a graph into a model that is decoded
  token by token, so that it has the length penalty of autoregressive models.

Shapes: R rows, L vertices, V vocabulary, K hypotheses per row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.autoregressive import search_tokens
from regard.decoding.beam import raise_if_nan
from regard.decoding.settings import NATSettings
from regard.decoding.stepper import NATHypothesis, TokenHypothesis, snapshots
from regard.models.nat import NATransformerConfig
from regard.ops import dag

Tokens = Sequence[int]
TRACED_BEAM = 4
"""Beam width of the beam search of a trace, if the settings state none."""
TRACED_TRANSITIONS, LEAST_TRACED = 4, 0.01
"""Largest number of traced transitions of a vertex, and the least probability that a path uses them."""


@dataclass(frozen=True)
class TokenGraphs:
    """The predicted graphs of several sources, one per row."""

    log_probs: Tensor  # of all tokens at each vertex, (R, L, V)
    transitions: Tensor  # log-probabilities from each vertex (dim 1) to each vertex (dim 2), (R, L, L)
    lengths: Sequence[int]  # number of vertices of each graph

    def lengths_tensor(self) -> Tensor:
        """Return the number of vertices, (R,)."""
        return torch.tensor(self.lengths, device=self.log_probs.device)

    def select(self, rows: Sequence[int]) -> "TokenGraphs":
        """Return the graphs of the given rows."""
        index = torch.tensor(rows, device=self.log_probs.device)
        return TokenGraphs(self.log_probs[index], self.transitions[index], [self.lengths[row] for row in rows])


class Paths(NamedTuple):
    """The best token of each vertex and the next vertex after it, with log-probabilities; (R, L) each."""

    tokens: Tensor
    token_log_probs: Tensor
    next: Tensor
    next_log_probs: Tensor


def find_paths(log_probs: Tensor, transitions: Tensor, lengths: Tensor, lookahead: bool) -> Paths:
    """Choose the best token and the best transition at every vertex, without synchronising with the device.

    Args:
        log_probs: Of all tokens at each vertex, (R, L, V).
        transitions: Log-probabilities from each vertex (dim 1) to each vertex (dim 2), (R, L, L).
        lengths: Number of vertices of each graph, (R,).
        lookahead: Add the log-probability of the best token of the next vertex to that of each transition.
    """
    token_log_probs, tokens = log_probs.max(-1)
    scores = transitions
    if lookahead:
        # The last vertex ends the path and predicts no token.
        is_last = torch.arange(transitions.shape[1], device=lengths.device) == lengths[:, None] - 1
        scores = transitions + token_log_probs.masked_fill(is_last, 0)[:, None]
    next_vertices = scores.argmax(-1)
    next_log_probs = transitions.gather(2, next_vertices[..., None])[..., 0]
    return Paths(tokens, token_log_probs, next_vertices, next_log_probs)


@dataclass(frozen=True)
class GraphTrace:
    """One predicted graph and its translations.

    Attributes:
        tokens: Best token of each vertex.
        token_log_probs: Log-probability of this token.
        visits: Probability that a path visits each vertex.
        transitions: Vertex, next vertex and probability of frequent transitions, those of each vertex by probability.
        paths: Best hypothesis of each kind of search, and the log-probability of each of its transitions, END included.
    """

    tokens: list[int]
    token_log_probs: list[float]
    visits: list[float]
    transitions: list[tuple[int, int, float]]
    paths: dict[str, tuple[NATHypothesis, list[float]]]


class TokenGraphDecoder:
    """Finds and scores the translations of graphs."""

    def __init__(self, config: NATransformerConfig) -> None:
        self.config = config

    def decode(self, graphs: TokenGraphs, settings: NATSettings, trace: bool) -> list[list[TokenHypothesis]]:
        """Return the hypothesis of each graph: that of the best path."""
        paths = find_paths(graphs.log_probs, graphs.transitions, graphs.lengths_tensor(), settings.path == "lookahead")
        if settings.path == "viterbi":
            found = self._viterbi(graphs, paths, settings.alpha)
        else:
            found = self.follow(paths, graphs.lengths, settings.alpha)
        return self._add_snapshots([[one] for one in found], graphs) if trace else [[one] for one in found]

    def follow(self, paths: Paths, lengths: Sequence[int], alpha: float) -> list[NATHypothesis]:
        """Return the hypothesis of the path that starts at the first vertex of each row."""
        rows = zip(lengths, *(part.tolist() for part in paths), strict=True)
        hypotheses = []
        for length, tokens, token_log_probs, next_vertices, next_log_probs in rows:
            vertices, log_probs, vertex = list[int](), list[float](), 0
            while vertex < length - 1:
                raise_if_nan(next_vertices[vertex] <= vertex)  # otherwise every transition leads to a later vertex
                log_prob, vertex = next_log_probs[vertex], next_vertices[vertex]
                vertices.append(vertex)
                log_probs.append(log_prob if vertex == length - 1 else log_prob + token_log_probs[vertex])
            predicted = [tokens[vertex] for vertex in vertices[:-1]]
            hypotheses.append(self._hypothesis(predicted, log_probs, vertices, length, alpha))
        return hypotheses

    def _hypothesis(
        self, tokens: Tokens, log_probs: Sequence[float], vertices: Sequence[int], length: int, alpha: float
    ) -> NATHypothesis:
        """Return a hypothesis with the log-probabilities of its tokens and of END at the last vertex."""
        score = sum(log_probs) / len(log_probs) ** alpha
        masks = [self.config.mask_token] * length
        return NATHypothesis(list(tokens), score, list(log_probs), masks, list(vertices))

    def _viterbi(self, graphs: TokenGraphs, paths: Paths, alpha: float) -> list[NATHypothesis]:
        """Return the path of each graph with the highest log-probability divided by its length to the power alpha."""
        lengths, most = graphs.lengths_tensor(), max(graphs.lengths) - 2
        emissions = paths.token_log_probs[..., None].expand(-1, -1, most)
        ends, origins = dag.best_paths(emissions, graphs.transitions, lengths)
        raise_if_nan(bool(ends.isnan().any()))
        sizes = torch.arange(1, most + 2, device=ends.device)  # END included
        counts = (ends.max(2).values / sizes[:, None] ** alpha).argmax(0)
        assigned = dag.trace_back(ends, origins, counts)
        vertices = [[v for v, u in enumerate(row) if u >= 0] for row in assigned.tolist()]
        tokens = [[row[v] for v in visited] for row, visited in zip(paths.tokens.tolist(), vertices, strict=True)]
        return self._along(graphs, tokens, vertices, alpha)

    def _along(
        self, graphs: TokenGraphs, tokens: Sequence[Tokens], vertices: Sequence[Sequence[int]], alpha: float
    ) -> list[NATHypothesis]:
        """Return hypotheses whose tokens are at given vertices."""
        hypotheses = []
        for row, (predicted, visited, length) in enumerate(zip(tokens, vertices, graphs.lengths, strict=True)):
            path = [0, *visited, length - 1]
            log_probs = graphs.transitions[row, path[:-1], path[1:]]
            log_probs[: len(visited)] += graphs.log_probs[row, list(visited), list(predicted)]
            hypotheses.append(self._hypothesis(predicted, log_probs.tolist(), path[1:], length, alpha))
        return hypotheses

    def score(self, graphs: TokenGraphs, targets: Sequence[Tokens], alpha: float) -> list[NATHypothesis]:
        """Score translations by the sum over all of their paths; the tokens are at the vertices of the best one."""
        padded, counts = self._pad(targets, graphs.log_probs.device)
        emissions = graphs.log_probs.gather(2, padded[:, None].expand(-1, graphs.log_probs.shape[1], -1))
        arguments = emissions, graphs.transitions, graphs.lengths_tensor(), counts
        totals = dag.log_likelihood(*arguments).tolist()
        aligned = dag.align(*arguments).tolist()
        vertices = [[v for v, u in enumerate(row) if u >= 0] for row in aligned]
        fitting = [row if total > -math.inf else () for row, total in zip(targets, totals, strict=True)]
        found = self._along(graphs, fitting, vertices, alpha)
        return [
            replace(one, tokens=list(target), score=total / (len(target) + 1) ** alpha)
            for one, target, total in zip(found, targets, totals, strict=True)
        ]

    def search(
        self, graphs: TokenGraphs, sources: Sequence[Tokens], settings: NATSettings, trace: bool
    ) -> list[list[TokenHypothesis]]:
        """Return the translations of beam search, best first; their tokens are at the vertices of the best path."""
        count = settings.beam if settings.rerank else settings.n_best
        found = search_tokens(TokenGraphStepper(graphs, self.config), sources, settings.graph_search(count))
        rows = [row for row, best in enumerate(found) for _ in best]
        aligned = iter(self.score(graphs.select(rows), [one.tokens for best in found for one in best], settings.alpha))
        hypotheses = [[replace(next(aligned), score=one.score) for one in best] for best in found]
        return self._add_snapshots(hypotheses, graphs) if trace else [[*best] for best in hypotheses]

    def trace(self, graphs: TokenGraphs, source: Tokens, settings: NATSettings) -> GraphTrace:
        """Describe the graph of one source, with the path of every kind of search; that of `settings` comes first."""
        one = settings.changed(n_best=1, rerank=None, path="lookahead", beam=1)
        searches = {path: one.changed(path=path) for path in ("greedy", "lookahead", "viterbi")}
        searches["beam"] = one.changed(beam=settings.beam if settings.beam > 1 else TRACED_BEAM)
        first = settings.path if settings.beam == 1 else "beam"
        paths = {}
        for name in sorted(searches, key=lambda name: name != first):
            search = searches[name]
            found = (
                self.search(graphs, [source], search, False) if name == "beam" else self.decode(graphs, search, False)
            )
            ((hypothesis,),) = found
            assert isinstance(hypothesis, NATHypothesis)
            vertices = [0, *hypothesis.positions]
            paths[name] = hypothesis, graphs.transitions[0, vertices[:-1], vertices[1:]].tolist()
        length = graphs.lengths[0]
        log_probs, tokens = graphs.log_probs[0, :length].max(-1)
        transitions = graphs.transitions[0].exp()
        visits = dag.visit_probabilities(graphs.transitions, graphs.lengths_tensor())[0, :length]
        frequent = []
        for vertex in range(length - 1):
            best, nexts = transitions[vertex].topk(min(TRACED_TRANSITIONS, length))
            for prob, following in zip(best.tolist(), nexts.tolist(), strict=True):
                if prob * float(visits[vertex]) >= LEAST_TRACED:
                    frequent.append((vertex, following, prob))
        return GraphTrace(tokens.tolist(), log_probs.tolist(), visits.tolist(), frequent, paths)

    def _add_snapshots(
        self, hypotheses: Sequence[Sequence[NATHypothesis]], graphs: TokenGraphs
    ) -> list[list[TokenHypothesis]]:
        """Return the hypotheses of each graph with the best token of every vertex as their only iteration."""
        log_probs, tokens = graphs.log_probs.max(-1)
        iterations = snapshots(tokens, log_probs, torch.ones_like(tokens, dtype=torch.bool), graphs.lengths)
        return [
            [replace(one, iterations=[snapshot]) for one in best]
            for best, snapshot in zip(hypotheses, iterations, strict=True)
        ]

    def _pad(self, targets: Sequence[Tokens], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return targets as a padded tensor and their lengths."""
        longest = max(map(len, targets))
        rows = [[*target, *[self.config.eos] * (longest - len(target))] for target in targets]
        counts = [len(target) for target in targets]
        return torch.tensor(rows, device=device, dtype=torch.long), torch.tensor(counts, device=device)


@dataclass
class TokenGraphState:
    """State of beam search on graphs, with probabilities, R rows of K hypotheses each."""

    probs: Tensor  # of all tokens at each inner vertex, zeros elsewhere, (R, L, V)
    transitions: Tensor  # (R, L, L)
    last: Tensor  # last vertex of each graph, (R,)
    next: Tensor | None  # probability of each vertex to be the next one of a hypothesis, (R, K, L); None at the start
    beam_width: int

    def select(self, rows: Tensor) -> "TokenGraphState":
        """Return the state of the given hypotheses; a row keeps all of its K hypotheses or none."""
        assert self.next is not None
        K, L = self.next.shape[1:]
        following = self.next.view(-1, L)[rows].view(-1, K, L)
        if len(following) == len(self.next):
            return replace(self, next=following)
        kept = rows[::K] // K
        return TokenGraphState(self.probs[kept], self.transitions[kept], self.last[kept], following, K)

    def coverage_penalties(self) -> Tensor:
        return self.probs.new_zeros(len(self.probs) * self.beam_width)


class TokenGraphStepper:
    """Decodes predicted graphs token by token; the probability of a token is a sum over all paths of the hypothesis."""

    def __init__(self, graphs: TokenGraphs, config: NATransformerConfig) -> None:
        self.graphs = graphs
        self.bos, self.eos = config.bos, config.eos
        self.max_length: int | None = None

    @property
    def device(self) -> torch.device:
        return self.graphs.log_probs.device

    def start(self, sources: Sequence[Tokens], beam_width: int) -> TokenGraphState:
        """Return the state of the graphs, which were predicted for these sources."""
        lengths, vertices = self.graphs.lengths_tensor(), torch.arange(self.graphs.transitions.shape[1])
        vertices = vertices.to(self.device)
        inner = (vertices > 0) & (vertices < lengths[:, None] - 1)
        probs = self.graphs.log_probs.exp() * inner[..., None]
        return TokenGraphState(probs, self.graphs.transitions.exp(), lengths - 1, None, beam_width)

    def step(self, tokens: Tensor, state: TokenGraphState) -> Tensor:
        """Append a token to each hypothesis, (R · K,); return the log-probabilities of the next, (R · K, V)."""
        K = state.beam_width
        if state.next is None:  # at the first vertex
            R, _, L = state.transitions.shape
            mass = F.one_hot(state.last.new_zeros(R, K), L).to(state.probs.dtype)
        else:
            index = tokens.view(-1, 1, K).expand(-1, state.probs.shape[1], -1)
            mass = state.next * state.probs.gather(2, index).transpose(1, 2)
            mass = mass / mass.sum(2, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)
        state.next = mass @ state.transitions
        probs = state.next @ state.probs
        probs[..., self.eos] = state.next.gather(2, state.last[:, None, None].expand(-1, K, 1))[..., 0]
        return probs.log().flatten(0, 1)
