"""Verify that a model in another format gives the same translations, log-probabilities and logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.decoding.constraints import DecodingRequest
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from regard.errors import UserError
from regard.models.transformer import EncoderDecoderConfig
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator

TOLERANCE = 1e-4
"""Maximum difference of log-probabilities and logits without quantisation."""
SAMPLE_SENTENCES, SAMPLE_LENGTH = 48, 16
"""Number and maximum length of the random sentences that are used if none are given."""
IMAGE_BATCHES = (1, 8)
BEAM = 4
SEARCHES = {
    "greedy": SearchSettings(beam=1, stop="first"),
    f"beam {BEAM}": SearchSettings(beam=BEAM, stop="first", n_best=BEAM),
}

Tokens = Sequence[int]
"""Token ids without END."""


class ExternalModel(Protocol):
    """A translation model that runs in another library.

    Attributes:
        longest: Maximum number of tokens of either side, END included; None if unlimited.
    """

    longest: int | None

    def generate(
        self, requests: Sequence[DecodingRequest], settings: SearchSettings
    ) -> Sequence[Sequence[TokenHypothesis]]:
        """Return the best hypotheses of each request, best first."""

    def score(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens], settings: SearchSettings
    ) -> Sequence[TokenHypothesis]:
        """Return given translations with the log-probability of each token and of END."""


@dataclass(frozen=True)
class Agreement:
    """Differences between a regard model and its copy in another format.

    Attributes:
        max_difference, mean_difference: Differences of token log-probabilities.
        identical: For each search, the number of identical translations and of translations compared. Translations
            that reach the length limit are not compared.
        ties: For each search, the number of different translations with equal scores within rounding.
    """

    sentences: int
    max_difference: float
    mean_difference: float
    identical: dict[str, tuple[int, int]]
    ties: dict[str, int]

    def __str__(self) -> str:
        return (
            f"{self.sentences} sentences: identical translations ({self._counts}); "
            f"log-probabilities within {self.max_difference:.1e}"
        )

    @property
    def quantised_summary(self) -> str:
        """Summary for a quantised copy, which is expected to differ."""
        return (
            f"quantised: identical translations ({self._counts}); log-probabilities differ by "
            f"{self.mean_difference:.1e} on average, by at most {self.max_difference:.1e}"
        )

    @property
    def _counts(self) -> str:
        ties = {name: f" and {count} with equal scores" if count else "" for name, count in self.ties.items()}
        return ", ".join(f"{name} {same} of {total}{ties[name]}" for name, (same, total) in self.identical.items())


def sample_sources(
    translator: Translator,
    texts: Sequence[str] | None = None,
    count: int = SAMPLE_SENTENCES,
    longest: int | None = None,
) -> list[list[int]]:
    """Tokenise the given texts, or sample sentences of random tokens, reproducibly for the same vocabulary.

    Args:
        count: Number of sentences to sample if no texts are given.
        longest: Maximum number of tokens of a text, END included.
    """
    config = translator.model.config
    if texts is not None:
        texts = [text for text in texts if text.strip()]
        if not texts:
            raise UserError("the sample for verification has only blank lines; give sentences, or no sample")
        sources = translator.vocabularies.source.encode_batch(texts)
        for text, tokens in zip(texts, sources, strict=True):
            if longest is not None and len(tokens) >= longest:
                raise UserError(
                    f"the sentence that begins with {text[:40]!r} has {len(tokens)} tokens, but this format supports "
                    f"at most {longest - 1}; remove it from the sample"
                )
        return sources
    special = {config.pad, config.bos, config.eos}
    vocabulary = torch.tensor([i for i in range(config.source_vocab) if i not in special] or [config.eos])
    rng = torch.Generator().manual_seed(0)
    max_length = min(SAMPLE_LENGTH, (config.max_positions or SAMPLE_LENGTH + 1) - 1)
    lengths = torch.randint(1, max(max_length, 1) + 1, (count,), generator=rng).tolist()
    return [vocabulary[torch.randint(len(vocabulary), (length,), generator=rng)].tolist() for length in lengths]


def compare(translator: Translator, external: ExternalModel, sources: Sequence[Tokens]) -> Agreement:
    """Compare the translations and token log-probabilities of two models.

    Translations that reach the length limit are not compared, because libraries handle the limit differently.
    """
    longest = external.longest
    identical: dict[str, tuple[int, int]] = {}
    ties: dict[str, int] = {}
    translations: list[list[int]] = []
    requests = [DecodingRequest(source) for source in sources]
    for name, settings in SEARCHES.items():
        beams = translator.generator.generate(requests, settings)
        best = [beam[0] for beam in beams]
        external_tokens = [beam[0].tokens for beam in external.generate(requests, settings)]
        ended = [i for i, beam in enumerate(beams) if ended_before_limit(beam, sources[i], settings, longest)]
        different = [i for i in ended if external_tokens[i] != best[i].tokens]
        identical[name] = (len(ended) - len(different), len(ended))
        scorable = [i for i in different if longest is None or len(external_tokens[i]) < longest]
        # Different translations with the same score under the regard model are ties.
        targets = [external_tokens[i] for i in scorable]
        scored = translator.generator.score([sources[i] for i in scorable], targets, settings) if scorable else []
        ties[name] = sum(abs(one.score - best[i].score) < TOLERANCE for i, one in zip(scorable, scored, strict=True))
        translations = [hypothesis.tokens for hypothesis in best]
    # Arbitrary targets are scored, too, so that all tokens and positions are covered.
    reversed_sources = [[token % translator.model.config.target_vocab for token in source[::-1]] for source in sources]
    pairs = [*zip(sources, translations, strict=True), *zip(sources, reversed_sources, strict=True)]
    pairs = [(source, target) for source, target in pairs if longest is None or len(target) < longest]
    scored_sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    greedy = SEARCHES["greedy"]
    scores = translator.generator.score(scored_sources, targets, greedy)
    external_scores = external.score(scored_sources, targets, greedy)
    differences = torch.tensor(
        [
            abs(a - b)
            for expected, actual in zip(scores, external_scores, strict=True)
            for a, b in zip(expected.token_log_probs, actual.token_log_probs, strict=True)
        ]
    )
    return Agreement(len(sources), float(differences.max()), float(differences.mean()), identical, ties)


def check_agreement(agreement: Agreement, what: str) -> None:
    """Raise a `UserError` if translations differ, or log-probabilities differ by more than `TOLERANCE`."""
    different = [name for name, (same, total) in agreement.identical.items() if same + agreement.ties[name] != total]
    if different or not agreement.max_difference <= TOLERANCE:
        raise UserError(
            f"{what} differs from the regard model, so nothing was written: {agreement}; "
            f"log-probabilities may differ by at most {TOLERANCE:g}"
        )


def ended_before_limit(
    beam: Sequence[TokenHypothesis | Hypothesis], source: Tokens, settings: SearchSettings, longest: int | None = None
) -> bool:
    """Return whether all hypotheses of a beam ended before the length limit of the search and of the format.

    Two tokens of margin ensure that no discarded hypothesis was cut at the limit either.
    """
    limit = settings.max_target_length(len(source))
    limit = limit if longest is None else min(limit, longest)
    return max(len(hypothesis.tokens) for hypothesis in beam) + 2 < limit


def longest_input(config: EncoderDecoderConfig, sinusoidal_positions: int) -> int | None:
    """Return the maximum number of tokens in a format with this many sinusoidal positions, END included."""
    if config.positions == "rotary":
        return None
    return config.max_positions or sinusoidal_positions


def compare_images(model: Any, external: Callable[[Tensor], Tensor], what: str) -> str:
    """Compare the logits of two image models on random images, and return a summary; see `TOLERANCE`."""
    config, differences = model.config, []
    for batch in IMAGE_BATCHES:
        images = torch.randn(batch, config.channels, *config.image, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            differences.append((model(images) - external(images)).abs().max())
    difference = float(torch.stack(differences).max())  # NaN if any is NaN
    if not difference <= TOLERANCE:
        raise UserError(
            f"{what} differs from the regard model, so nothing was written: logits differ by {difference:.1e}, "
            f"at most {TOLERANCE:g} is allowed"
        )
    return f"{what}: batches of {' and '.join(map(str, IMAGE_BATCHES))} images, logits within {difference:.1e}"
