"""Base class of generators that run a model in another library."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard.decoding.config import DecodingSettings, SearchSettings, check_settings_type
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import BATCH_TOKENS
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError

Tokens = Sequence[int]
UNSUPPORTED = ("coverage", "groups", "temperature", "top_k", "top_p", "no_repeat", "min_length")
"""Search settings that other libraries lack or define differently."""


class ExternalGenerator:
    """Greedy and beam search with a length penalty in another library, whose attention is not accessible.

    Attributes:
        library: name of the library, for errors.
        longest: maximum number of tokens of either side, END included; None if unlimited.
    """

    settings_class: type[DecodingSettings] = SearchSettings
    has_attention = False
    library: str
    longest: int | None

    def check_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> SearchSettings:
        """Return the settings if the library supports them.

        Raises:
            UserError: it does not; names the settings.
        """
        check_settings_type(settings, SearchSettings)
        assert isinstance(settings, SearchSettings)
        defaults = SearchSettings()
        unsupported = [name for name in UNSUPPORTED if getattr(settings, name) != getattr(defaults, name)]
        unsupported += ["length_penalty wu"] if settings.length_penalty == "wu" else []
        unsupported += [name for name in ("prefix", "required", "forbidden") if getattr(request, name)]
        unsupported += ["trees"] if trees else []
        unsupported += ["snapshots"] if snapshots else []
        if unsupported:
            raise UserError(f"{self.library} has no {', '.join(unsupported)}; omit it, or use the engine regard")
        return settings

    def batch_tokens(self, settings: DecodingSettings) -> int:
        return BATCH_TOKENS

    def max_target_length(self, source: Tokens, settings: SearchSettings) -> int:
        """Return the maximum length of the translation of `source`, END included."""
        limit = settings.max_target_length(len(source))
        return limit if self.longest is None else min(limit, self.longest)

    def log_probs(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> Tensor:
        raise UserError(f"{self.library} does not return log-probabilities of the vocabulary; use the engine regard")

    def run_forward(self, sources: Sequence[Tokens], found: Sequence[TokenHypothesis]) -> None:
        raise UserError(f"{self.library} does not return attention (probe, alignments); use the engine regard")

    def attention_rows(self, found: TokenHypothesis) -> list[int]:
        return list(range(len(found.tokens) + 1))
