"""The trace of a beam search: every candidate becomes a node in the tree of its sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from regard.decoding.constraints import Ints
from regard.decoding.search import BeamNode, Bools, TokenHypothesis

if TYPE_CHECKING:
    from regard.decoding.beam import BeamSearch, Candidates


class BeamTrace:
    """Builds the trees of B sentences with K hypotheses each."""

    def __init__(self, B: int, K: int) -> None:
        self.trees: list[list[BeamNode]] = [[] for _ in range(B)]
        self.nodes = [[-1] * K for _ in range(B)]  # node of each hypothesis in the beam
        self._next_nodes = [[-1] * K for _ in range(B)]

    def add_candidates(
        self, beam: BeamSearch[Any], candidates: Candidates, finishes: Bools, survivors: Ints, first: int, step: int
    ) -> None:
        """Add the candidates of one group.

        Args:
            beam: The search.
            candidates: All candidates of the group.
            finishes: Candidates that finish.
            survivors: Indices of the candidates that stay in the beam, (B, group size).
            first: Index of the first hypothesis of the group.
            step: Number of the step.
        """
        normaliser = beam.settings.length_normaliser(float(step + 1))
        replaced = "others scored higher" if beam.required is None else "others have more required tokens"
        for b, (tree, kept) in enumerate(zip(self.trees, survivors.tolist(), strict=True)):
            columns = zip(*(part[b].tolist() for part in (*candidates, finishes)), strict=True)
            for i, (log_prob, beam_index, token, token_log_prob, ended) in enumerate(columns):
                if log_prob == -math.inf:
                    continue
                outcome = "ended" if ended else "kept" if i in kept else f"dropped: {replaced}"
                if token == beam.stepper.eos and not ended:
                    outcome = "dropped: it ended outside the beam"
                if outcome == "kept":
                    self._next_nodes[b][first + kept.index(i)] = len(tree)
                parent, score = self.nodes[b][beam_index], log_prob / normaliser
                tree.append(BeamNode(len(tree), parent, step, token, token_log_prob, log_prob, score, outcome))
        K = beam.log_probs.shape[1]
        if first + K // beam.settings.groups == K:
            self.nodes = [list(row) for row in self._next_nodes]

    def add_forbidden(self, beam: BeamSearch[Any], log_probs: Tensor, allowed: Tensor, step: int) -> None:
        """Add the best continuations that constraints forbid, given log-probabilities before and after them."""
        _, K, V = log_probs.shape
        best = log_probs.topk(min(2 * K, V), dim=2).indices
        forbidden = (allowed.gather(2, best) == -math.inf).cpu().numpy() & (beam.log_probs > -math.inf)[:, :, None]
        normaliser = beam.settings.length_normaliser(float(step + 1))
        for b, k, i in np.argwhere(forbidden).tolist():
            token, tokens = int(best[b, k, i]), beam.tokens[b, k, :step].tolist()
            missing = beam.required is not None and bool(beam.required.missing[b, k])
            token_log_prob = float(log_probs[b, k, token])
            log_prob = float(beam.log_probs[b, k]) + token_log_prob
            outcome = f"forbidden: {beam.constraints.reason(b, tokens, token, missing)}"
            tree, parent, score = self.trees[b], self.nodes[b][k], log_prob / normaliser
            tree.append(BeamNode(len(tree), parent, step, token, token_log_prob, log_prob, score, outcome))

    def close(self, row: int, result: Sequence[TokenHypothesis], step: int, stopped_when_full: bool) -> list[BeamNode]:
        """Set the final outcomes of a decided sentence and return its tree.

        Nodes that were extended stay "kept" and the hypotheses of the result stay "ended".
        """
        tree = self.trees[row]
        extended = {node.parent for node in tree if node.outcome in ("kept", "ended")}
        returned = {tuple(hypothesis.tokens) for hypothesis in result}
        unfinished = "enough others had ended" if stopped_when_full else "it could no longer win"
        ended: set[tuple[int, ...]] = set()
        for node in list(tree):
            if node.outcome == "kept" and node.node not in extended:
                reason = unfinished if node.step == step - 1 else "its continuations were outbid"
                tree[node.node] = replace(node, outcome=f"dropped: {reason}")
            elif node.outcome == "ended":
                tokens = _tokens_before(tree, node)
                if tokens in ended:
                    tree[node.node] = replace(node, outcome="ended: duplicate of another group")
                elif tokens not in returned:
                    tree[node.node] = replace(node, outcome="ended: others were better")
                ended.add(tokens)
        return tree

    def select(self, sentences: Ints) -> None:
        rows = sentences.tolist()
        self.trees = [self.trees[i] for i in rows]
        self.nodes = [self.nodes[i] for i in rows]
        self._next_nodes = [self._next_nodes[i] for i in rows]


def _tokens_before(tree: Sequence[BeamNode], end: BeamNode) -> tuple[int, ...]:
    tokens, node = [], end.parent
    while node != -1:
        tokens.append(tree[node].token)
        node = tree[node].parent
    return tuple(reversed(tokens))
