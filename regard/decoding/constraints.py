"""What a hypothesis may say next: lengths, prefixes, repetitions and forbidden phrases, as masks on log-probabilities.

Shapes: B sentences, K hypotheses a sentence, V vocabulary, L tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.decoding.config import SearchSettings
from regard.errors import UserError

Phrase = tuple[int, ...]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DecodingRequest:
    """A sentence to translate, as tokens, and what its translation must and must not say."""

    source: Sequence[int]
    prefix: Phrase = ()
    required: tuple[Phrase, ...] = ()
    forbidden: tuple[Phrase, ...] = ()


@dataclass
class TokenConstraints:
    """The rules of all sentences of a batch. Where none is active, `apply` gives back what it was given."""

    settings: SearchSettings
    eos: int
    limits: Tensor  # (B,), END included
    prefixes: Tensor  # (B, longest prefix), -1 behind a prefix
    forbidden: dict[Phrase, Tensor] = field(default_factory=dict)  # for which sentences, (B,)

    def __post_init__(self) -> None:
        self.soonest = int(self.limits.min()) if len(self.limits) else 0  # before this no sentence is at its limit

    @classmethod
    def of(
        cls,
        requests: Sequence[DecodingRequest],
        settings: SearchSettings,
        eos: int,
        device: torch.device,
        longest_of_all: int | None = None,
    ) -> TokenConstraints:
        longest = max(len(request.prefix) for request in requests)
        prefixes = [[*request.prefix, *[-1] * (longest - len(request.prefix))] for request in requests]
        limits = [max(settings.max_target_length(len(request.source)), len(request.prefix) + 1) for request in requests]
        if longest_of_all is not None:
            if max(longest, settings.min_length) + 1 > longest_of_all:
                raise UserError(
                    f"a prefix of {longest} tokens or min_length {settings.min_length} does not fit: this model's "
                    f"learned positions end at {longest_of_all}"
                )
            limits = [min(limit, longest_of_all) for limit in limits]
        phrases = {phrase for request in requests for phrase in request.forbidden}
        forbidden = {
            phrase: torch.tensor([phrase in request.forbidden for request in requests], device=device)
            for phrase in sorted(phrases)
        }
        table = torch.tensor(prefixes, device=device, dtype=torch.long).view(len(requests), longest)
        return cls(settings, eos, torch.tensor(limits, device=device), table, forbidden)

    def select(self, sentences: Tensor) -> TokenConstraints:
        """The rules of these sentences."""
        forbidden = {phrase: mask[sentences] for phrase, mask in self.forbidden.items()}
        return TokenConstraints(self.settings, self.eos, self.limits[sentences], self.prefixes[sentences], forbidden)

    def apply(self, logp: Tensor, so_far: Ints, unmet: Tensor | None = None) -> Tensor:
        """Log-probabilities (B, K, V) with -inf for what may not follow the tokens said so far, (B, K, L).

        Args:
            logp: of every next token.
            so_far: the hypotheses.
            unmet: which hypotheses still owe a required phrase and so may not end, (B, K).
        """
        step = so_far.shape[2]
        allowed = logp
        if step < self.settings.min_length or unmet is not None:
            allowed = allowed.clone()
            too_short = torch.full(logp.shape[:2], step < self.settings.min_length, device=logp.device)
            allowed[..., self.eos].masked_fill_(too_short if unmet is None else too_short | unmet, -math.inf)
        if self.forbidden or self.settings.no_repeat:
            said = torch.from_numpy(so_far).to(logp.device)
            if self.settings.no_repeat and step >= self.settings.no_repeat:
                allowed = self._forbid_repetition(allowed, said)
            for phrase, sentences in self.forbidden.items():
                allowed = self._forbid_phrase(allowed, said, phrase, sentences)
            # Where everything is forbidden, ending is what is left.
            stuck = (allowed == -math.inf).all(-1, keepdim=True)
            allowed = torch.where(stuck, self._only(logp, self.eos), allowed)
        if step < self.prefixes.shape[1]:
            forced = self.prefixes[:, step]
            allowed = torch.where((forced >= 0)[:, None, None], self._only(logp, forced.clamp(min=0)), allowed)
        if step + 1 >= self.soonest:
            at_limit = self.limits == step + 1
            allowed = torch.where(at_limit[:, None, None], self._only(logp, self.eos), allowed)
        return allowed

    def why_not(self, sentence: int, said: Sequence[int], token: int, owes: bool) -> str:
        """Which rule keeps a token from following what was said: a word for the reader of a tree."""
        step = len(said)
        if int(self.limits[sentence]) == step + 1:
            return "only END may stand at the length limit"
        if step < self.prefixes.shape[1] and int(self.prefixes[sentence, step]) >= 0:
            return "the prefix goes on otherwise"
        if token == self.eos:
            return "a required phrase is still owed" if owes else "it would end before min_length"
        for phrase, sentences in self.forbidden.items():
            if bool(sentences[sentence]) and tuple([*said, token][-len(phrase) :]) == tuple(phrase):
                return "it would complete a forbidden phrase"
        return "it would repeat an n-gram"

    def _only(self, logp: Tensor, token: int | Tensor) -> Tensor:
        """-inf everywhere but at one token: the same for all sentences, or one for each, (B,)."""
        index = torch.as_tensor(token, device=logp.device).expand(len(logp))[:, None, None].expand(-1, logp.shape[1], 1)
        return torch.full_like(logp, -math.inf).scatter(2, index, logp.gather(2, index))

    def _forbid_repetition(self, logp: Tensor, said: Tensor) -> Tensor:
        n = self.settings.no_repeat
        spans = said.unfold(2, n, 1)  # (B, K, L - n + 1, n)
        tail = said[:, :, None, said.shape[2] - n + 1 :]
        again = (spans[..., :-1] == tail).all(-1)
        banned = torch.zeros_like(logp, dtype=torch.int8)
        banned.scatter_reduce_(2, spans[..., -1], again.to(torch.int8), "amax")
        return logp.masked_fill(banned.bool(), -math.inf)

    @staticmethod
    def _forbid_phrase(logp: Tensor, said: Tensor, phrase: Phrase, sentences: Tensor) -> Tensor:
        start, step = len(phrase) - 1, said.shape[2]
        if step < start:
            return logp
        begun = (said[:, :, step - start :] == torch.tensor(phrase[:-1], device=said.device)).all(-1)
        logp = logp.clone()
        logp[..., phrase[-1]].masked_fill_(begun & sentences[:, None], -math.inf)
        return logp


class RequiredPhrases:
    """How much of each required phrase each hypothesis has said: an automaton a phrase, all advanced at once.

    Shapes: C phrases a sentence at the most, P tokens a phrase at the most.
    """

    def __init__(self, phrases: Ints, lengths: Ints, fallbacks: Ints, progress: Ints) -> None:
        self.phrases, self.lengths, self.fallbacks, self.progress = phrases, lengths, fallbacks, progress

    @classmethod
    def of(cls, requests: Sequence[DecodingRequest], copies: int) -> RequiredPhrases | None:
        """None where nothing is required."""
        C = max(len(request.required) for request in requests)
        if not C:
            return None
        P = max(len(phrase) for request in requests for phrase in request.required)
        phrases = np.full((len(requests), C, P + 1), -1)
        fallbacks = np.zeros((len(requests), C, P + 1), np.int64)
        lengths = np.zeros((len(requests), C), np.int64)
        for b, request in enumerate(requests):
            for c, phrase in enumerate(request.required):
                phrases[b, c, : len(phrase)] = phrase
                fallbacks[b, c, : len(phrase)] = _fallbacks(phrase)
                lengths[b, c] = len(phrase)
        return cls(phrases, lengths, fallbacks, np.zeros((len(requests), copies, C), np.int64))

    @property
    def unmet(self) -> npt.NDArray[np.bool_]:
        """Which hypotheses still owe a phrase, (B, K)."""
        return self.owed > 0

    @property
    def owed(self) -> Ints:
        """How many phrases each hypothesis still owes, (B, K)."""
        owed: Ints = (self.progress < self.lengths[:, None]).sum(-1)
        return owed

    @property
    def next_tokens(self) -> Ints:
        """The token that continues each phrase, (B, K, C); -1 where a phrase is complete."""
        return _at(self.phrases, self.progress)

    def follow(self, parent: Ints, token: Ints) -> RequiredPhrases:
        """The phrases after these tokens, (B, K), said by these parents."""
        progress = self.progress[np.arange(len(parent))[:, None], parent]
        done = progress == self.lengths[:, None]
        for _ in range(self.phrases.shape[2]):
            match = _at(self.phrases, progress) == token[:, :, None]
            fall = ~match & (progress > 0) & ~done
            if not fall.any():
                break
            progress = np.where(fall, _at(self.fallbacks, progress), progress)
        match = _at(self.phrases, progress) == token[:, :, None]
        progress = np.where(match & ~done, progress + 1, progress)
        return RequiredPhrases(self.phrases, self.lengths, self.fallbacks, progress)

    def said(self) -> Ints:
        """How many required tokens each hypothesis has said, (B, K)."""
        said: Ints = self.progress.sum(-1)
        return said

    def select(self, sentences: Ints) -> RequiredPhrases:
        parts = (self.phrases, self.lengths, self.fallbacks, self.progress)
        return RequiredPhrases(*(part[sentences] for part in parts))


def _at(table: Ints, progress: Ints) -> Ints:
    """What tables of phrases, (B, C, P + 1), hold at these places, (B, K, C)."""
    B, _, C = progress.shape
    found: Ints = table[np.arange(B)[:, None, None], np.arange(C), progress]
    return found


def _fallbacks(phrase: Phrase) -> list[int]:
    """For each number of tokens said: how many still count when the next one does not fit (Knuth, Morris and Pratt)."""
    table = [0] * len(phrase)
    length = 0
    for place in range(1, len(phrase)):
        table[place] = length
        while length and phrase[place] != phrase[length]:
            length = table[length]
        length += phrase[place] == phrase[length]
    return table
