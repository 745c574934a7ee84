"""CTC: hypotheses from the log-probabilities of tokens and blanks at every position of a NAT target.

Shapes: R rows, T target positions, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.decoding.settings import NATSettings
from regard.decoding.stepper import NATHypothesis, TokenHypothesis, snapshots
from regard.models.nat import NATransformerConfig
from regard.ops import ctc

Tokens = Sequence[int]


class CTCDecoder:
    """Finds and scores the translations of a model with `length: ctc`, given log-probabilities, (R, T, V)."""

    def __init__(self, config: NATransformerConfig) -> None:
        self.config, self.blank = config, config.blank_token

    def decode(
        self, log_probs: Tensor, lengths: Sequence[int], settings: NATSettings, trace: bool
    ) -> list[list[TokenHypothesis]]:
        """Return the best path of each row, or the result of prefix search, best first."""
        best = log_probs.max(-1)
        if settings.beam == 1:
            found = [[path] for path in self.best_paths(best.indices, best.values, lengths)]
        else:
            positions = torch.tensor(lengths, device=log_probs.device)
            prefixes = ctc.search_prefixes(log_probs, positions, self.blank, settings.beam)
            count = settings.beam if settings.rerank else settings.n_best
            found = self._align_prefixes(log_probs, lengths, [row[:count] for row in prefixes])
        if not trace:
            return [list(row) for row in found]
        everywhere = torch.ones_like(best.indices, dtype=torch.bool)
        iterations = snapshots(best.indices, best.values, everywhere, lengths)
        return [
            [replace(hypothesis, iterations=[snapshot]) for hypothesis in row]
            for row, snapshot in zip(found, iterations, strict=True)
        ]

    def best_paths(self, paths: Tensor, log_probs: Tensor, lengths: Sequence[int]) -> list[NATHypothesis]:
        """Collapse the most probable path of each row (R, T); the score is the log-probability of that path alone."""
        starts = ctc.token_starts(paths, self.blank).tolist()
        hypotheses = []
        for length, path, path_log_probs, start in zip(
            lengths, paths.tolist(), log_probs.tolist(), starts, strict=True
        ):
            positions = [position for position in range(length) if start[position]]
            tokens, token_log_probs = ([row[i] for i in positions] for row in (path, path_log_probs))
            masks = [self.config.mask_token] * length
            hypotheses.append(NATHypothesis(tokens, sum(path_log_probs[:length]), token_log_probs, masks, positions))
        return hypotheses

    def _align_prefixes(
        self, log_probs: Tensor, lengths: Sequence[int], prefixes: Sequence[Sequence[tuple[list[int], float]]]
    ) -> list[list[NATHypothesis]]:
        """Return the results of prefix search as hypotheses with the positions of their tokens."""
        rows = [i for i, sentence in enumerate(prefixes) for _ in sentence]
        tokens = [tokens for sentence in prefixes for tokens, _ in sentence]
        aligned = iter(self._align(log_probs[rows], [lengths[i] for i in rows], tokens))
        return [[replace(next(aligned), score=score) for _, score in sentence] for sentence in prefixes]

    def score(self, log_probs: Tensor, lengths: Sequence[int], targets: Sequence[Tokens]) -> list[TokenHypothesis]:
        padded, target_lengths = self._pad_targets(targets, log_probs.device)
        positions = torch.tensor(lengths, device=log_probs.device)
        scores = ctc.log_likelihood(log_probs, positions, padded, target_lengths, self.blank).tolist()
        aligned = self._align(log_probs, lengths, targets)
        return [replace(hypothesis, score=score) for hypothesis, score in zip(aligned, scores, strict=True)]

    def _align(self, log_probs: Tensor, lengths: Sequence[int], targets: Sequence[Tokens]) -> list[NATHypothesis]:
        """Return each target with the positions and log-probabilities of its tokens in the best alignment."""
        padded, target_lengths = self._pad_targets(targets, log_probs.device)
        positions = torch.tensor(lengths, device=log_probs.device)
        paths = ctc.align(log_probs, positions, padded, target_lengths, self.blank)
        aligned = self.best_paths(paths, log_probs.gather(2, paths[..., None])[..., 0], lengths)
        return [replace(path, tokens=list(target)) for path, target in zip(aligned, targets, strict=True)]

    def _pad_targets(self, targets: Sequence[Tokens], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return targets as a padded tensor and their lengths."""
        lengths = [len(target) for target in targets]
        longest = max([1, *lengths])
        rows = [[*target, *[self.config.eos] * (longest - len(target))] for target in targets]
        return torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
