"""Whether a model in another format says what ours says: on sentences, token by token and beam by beam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import Generator
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError
from regard.pipelines.external import ExternalGenerator
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator

TOLERANCE = 1e-4
"""How far log-probabilities and logits of the same numbers may lie apart."""
SENTENCES, LONGEST = 48, 16
"""How many sentences are made up where none are given, and of how many tokens at the most."""
BEAM = 4
SEARCHES = {
    "greedy": SearchSettings(beam=1, stop="first"),
    f"beam {BEAM}": SearchSettings(beam=BEAM, stop="first", n_best=BEAM),
}

Tokens = Sequence[int]


class Peer(Protocol):
    """A model in another format, at work in another program. Sources and targets come without END.

    Attributes:
        longest: the most tokens, END counted, that it can read or write; None: no limit.
    """

    longest: int | None

    def write(self, sources: Sequence[Tokens], settings: SearchSettings) -> list[list[int]]:
        """The best translation of each."""

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        """The log-probability of each token of given translations, and of END."""


class GeneratorPeer:
    """A generator that runs the model in another library, as a `Peer`."""

    def __init__(self, generator: Generator) -> None:
        assert isinstance(generator, ExternalGenerator)
        self.generator, self.longest = generator, generator.longest

    def write(self, sources: Sequence[Tokens], settings: SearchSettings) -> list[list[int]]:
        results = self.generator.generate([DecodingRequest(source) for source in sources], settings)
        return [best[0].tokens for best in results]

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        return [one.token_log_probs for one in self.generator.score(sources, targets, SEARCHES["greedy"])]


@dataclass(frozen=True)
class Agreement:
    """How far two models say the same.

    Attributes:
        sentences: on how many they were tried.
        difference: the largest between two log-probabilities of one token.
        mean: of those differences.
        same: for each search, how many translations were the same, and of how many that ended by themselves.
        ties: for each search, how many others our model holds to be worth as much as its own, within rounding.
    """

    sentences: int
    difference: float
    mean: float
    same: dict[str, tuple[int, int]]
    ties: dict[str, int]

    def __str__(self) -> str:
        return (
            f"{self.sentences} sentences: the same translations ({self._counts}); "
            f"log-probabilities within {self.difference:.1e}"
        )

    @property
    def as_quantised(self) -> str:
        """The same, of a model that is not meant to say exactly the same."""
        return (
            f"quantised, it gives the same translations in: {self._counts}; log-probabilities differ "
            f"by {self.mean:.1e} on average, {self.difference:.1e} at the most"
        )

    @property
    def _counts(self) -> str:
        tied = {name: f" and {count} worth as much" if count else "" for name, count in self.ties.items()}
        return ", ".join(f"{name} {same} of {ended}{tied[name]}" for name, (same, ended) in self.same.items())


def sample_sources(
    translator: Translator, texts: Sequence[str] | None = None, count: int = SENTENCES, longest: int | None = None
) -> list[list[int]]:
    """The given texts as tokens, or so many sentences of random pieces, always the same for the same vocabulary.

    Raises:
        UserError: there is no text, or one has more than `longest` tokens, END counted.
    """
    if texts is not None:
        filled = [text for text in texts if text.strip()]
        if not filled:
            raise UserError("no sentence to verify the export with; give some, or none at all")
        read = translator.vocabularies.source.encode_batch(filled)
        for text, tokens in zip(filled, read, strict=True):
            if longest is not None and len(tokens) >= longest:
                raise UserError(
                    f"the sentence that begins with {text[:40]!r} has {len(tokens)} tokens, and in this format "
                    f"{longest - 1} can be read at the most; leave it out of the sample"
                )
        return read
    config = translator.model.config
    specials = {config.pad, config.bos, config.eos}
    words = torch.tensor([i for i in range(config.source_vocab) if i not in specials] or [config.eos])
    draw = torch.Generator().manual_seed(0)
    longest = min(LONGEST, config.max_length - 1) if config.positions == "learned" else LONGEST
    lengths = torch.randint(1, max(longest, 1) + 1, (count,), generator=draw).tolist()
    return [words[torch.randint(len(words), (length,), generator=draw)].tolist() for length in lengths]


def compare(ours: Translator, theirs: Peer, sources: Sequence[Tokens]) -> Agreement:
    """Both on the same sentences.

    Where the limit of length has ended a hypothesis of ours, there is nothing to compare: what others do there differs.
    """
    longest = theirs.longest
    ties: dict[str, int] = {}
    same: dict[str, tuple[int, int]] = {}
    written: list[list[int]] = []
    for name, settings in SEARCHES.items():
        beams = ours.generator.generate([DecodingRequest(source) for source in sources], settings)
        ended = [i for i, beam in enumerate(beams) if has_ended(beam, sources[i], settings, longest)]
        found, other = [beam[0] for beam in beams], theirs.write(sources, settings)
        differing = [i for i in ended if other[i] != found[i].tokens]
        same[name] = (len(ended) - len(differing), len(ended))
        judged = [i for i in differing if longest is None or len(other[i]) < longest]
        ties[name] = _count_ties(ours, sources, found, other, judged, settings)
        written = [one.tokens for one in found]
    # Not only of what was written: of anything, so that no token and no place is left out.
    anything = [[token % ours.model.config.target_vocab for token in reversed(source)] for source in sources]
    pairs = [*zip(sources, written, strict=True), *zip(sources, anything, strict=True)]
    fitting = [pair for pair in pairs if longest is None or len(pair[1]) < longest]
    read, given = [source for source, _ in fitting], [target for _, target in fitting]
    mine, said = ours.generator.score(read, given, SEARCHES["greedy"]), theirs.score(read, given)
    gaps = [abs(a - b) for m, t in zip(mine, said, strict=True) for a, b in zip(m.token_log_probs, t, strict=True)]
    return Agreement(len(sources), max(gaps), sum(gaps) / len(gaps), same, ties)


def check(agreement: Agreement, what: str) -> None:
    """Does nothing where two models of the same numbers agree as they should.

    Raises:
        UserError: they do not, so that `what` cannot be relied on.
    """
    differing = [name for name, (same, ended) in agreement.same.items() if same + agreement.ties[name] != ended]
    if differing or not agreement.difference <= TOLERANCE:
        raise UserError(
            f"{what} does not say what our model says, so nothing was written: {agreement}; "
            f"log-probabilities may differ by {TOLERANCE:g}, translations not at all"
        )


def has_ended(
    beam: Sequence[TokenHypothesis | Hypothesis], source: Tokens, settings: SearchSettings, longest: int | None = None
) -> bool:
    """Whether all hypotheses of a beam ended by themselves, so early that none beside them was cut at the limit.

    That is the limit of the search, or `longest`, beyond which there are no positions.
    """
    limit = settings.max_target_length(len(source))
    return max(len(one.tokens) for one in beam) + 2 < (limit if longest is None else min(limit, longest))


def _count_ties(
    ours: Translator,
    sources: Sequence[Tokens],
    found: Sequence[TokenHypothesis],
    other: Sequence[Tokens],
    differing: Sequence[int],
    settings: SearchSettings,
) -> int:
    """How many of the differing translations our model itself holds to be as good as its own, within rounding."""
    if not differing:
        return 0
    judged = ours.generator.score([sources[i] for i in differing], [other[i] for i in differing], settings)
    return sum(abs(one.score - found[i].score) < TOLERANCE for i, one in zip(differing, judged, strict=True))


BATCHES = (1, 8)


def compare_images(model: Any, theirs: Callable[[Tensor], Tensor], what: str) -> str:
    """Both on batches of noise; a sentence about how far the logits agree.

    Raises:
        UserError: they do not.
    """
    config, largest = model.config, 0.0
    for batch in BATCHES:
        images = torch.randn(batch, config.channels, *config.image, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            largest = max(largest, float((model(images) - theirs(images)).abs().max()))
    if not largest <= TOLERANCE:
        raise UserError(
            f"{what} does not say what our model says, so nothing was written: logits differ by {largest:.1e}, and may "
            f"by {TOLERANCE:g}"
        )
    return f"{what}: batches of {' and '.join(map(str, BATCHES))} images, logits within {largest:.1e}"
