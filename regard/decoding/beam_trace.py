"""The tree of a beam search: every candidate of every step, and why it was kept, dropped or forbidden.

Shapes: B undecided sentences, K hypotheses per sentence, V vocabulary, N candidates per sentence, L tokens so far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from regard.decoding.constraints import Ints
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import BeamNode, Bools, Doubles, TokenHypothesis

Array = npt.NDArray[Any]


class BeamTrace:
    """Builds the trees of B sentences with K hypotheses each."""

    def __init__(self, B: int, K: int, settings: SearchSettings, eos: int) -> None:
        self.settings, self.eos = settings, eos
        self.trees: list[list[BeamNode]] = [[] for _ in range(B)]
        self.nodes = [[-1] * K for _ in range(B)]  # node of each hypothesis in the beam
        self._next_nodes = [[-1] * K for _ in range(B)]

    def add_candidates(
        self, candidates: Sequence[Array], survivors: Ints, first: int, step: int, in_banks: bool
    ) -> None:
        """Add the candidates of a group; the survivors, which are columns of them, stay in the beam.

        Args:
            candidates: Cumulative log-probabilities, indices of the continued hypotheses, tokens, and their
                log-probabilities, (B, N) each.
            survivors: Columns of the candidates that stay in the beam, (B, hypotheses of the group).
            first: Index of the first hypothesis of the group.
            step: Number of tokens before the candidates.
            in_banks: Whether candidates with more required tokens have taken the place of better ones.
        """
        normaliser = self.settings.length_normaliser(float(step + 1))
        replaced = "others have more required tokens" if in_banks else "others scored higher"
        for b, (tree, kept) in enumerate(zip(self.trees, survivors.tolist(), strict=True)):
            columns = zip(*(part[b].tolist() for part in candidates), strict=True)
            for i, (log_prob, beam_index, token, token_log_prob) in enumerate(columns):
                if log_prob == -math.inf:
                    continue
                outcome = "kept" if i in kept else f"dropped: {replaced}"
                if token == self.eos:
                    outcome = "ended" if i < len(kept) else "dropped: it ended outside the beam"
                if outcome == "kept":
                    self._next_nodes[b][first + kept.index(i)] = len(tree)
                parent, score = self.nodes[b][beam_index], log_prob / normaliser
                tree.append(BeamNode(len(tree), parent, step, token, token_log_prob, log_prob, score, outcome))
        is_last_group = first + survivors.shape[1] == len(self._next_nodes[0])
        if is_last_group:
            self.nodes = [list(row) for row in self._next_nodes]

    def add_forbidden(
        self,
        log_probs: Tensor,
        allowed: Tensor,
        cumulative: Doubles,
        tokens: Ints,
        find_reason: Callable[[int, Sequence[int], int, bool], str],
        missing: Bools | None,
    ) -> None:
        """Add the best continuations that constraints forbid.

        Args:
            log_probs: Log-probabilities of the next tokens before the constraints, (B, K, V).
            allowed: Log-probabilities after the constraints.
            cumulative: Cumulative log-probabilities of the hypotheses, (B, K).
            tokens: Tokens of the hypotheses so far, (B, K, L).
            find_reason: `TokenConstraints.reason`.
            missing: Which hypotheses lack a required phrase, (B, K); None if there are none.
        """
        (_, K, V), step = log_probs.shape, tokens.shape[2]
        best = log_probs.topk(min(2 * K, V), dim=2).indices
        forbidden = (allowed.gather(2, best) == -math.inf).cpu().numpy() & (cumulative > -math.inf)[:, :, None]
        normaliser = self.settings.length_normaliser(float(step + 1))
        for b, k, i in np.argwhere(forbidden).tolist():
            token = int(best[b, k, i])
            token_log_prob = float(log_probs[b, k, token])
            log_prob = float(cumulative[b, k]) + token_log_prob
            reason = find_reason(b, tokens[b, k].tolist(), token, missing is not None and bool(missing[b, k]))
            tree, parent, score = self.trees[b], self.nodes[b][k], log_prob / normaliser
            outcome = f"forbidden: {reason}"
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
        """Keep the trees of these sentences only, in this order."""
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
