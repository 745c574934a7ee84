"""What writers that are programs of others have in common: a plain search, and nothing to be seen of its inside."""

from __future__ import annotations

from collections.abc import Sequence

from regard.decoding.config import DecodingSettings, SearchSettings, check_settings_type
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import BATCH_TOKENS
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError

_LACKING = ("coverage", "groups", "temperature", "top_k", "top_p", "no_repeat", "min_length")
"""Settings of our search that mean something else in such a program, or nothing."""


class ExternalGenerator:
    """Greedy search, or a beam with its length penalty; `who` is what refusals call the program."""

    settings_class: type[DecodingSettings] = SearchSettings
    has_attention = False
    who: str

    def check_plain(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> SearchSettings:
        """The settings, if they are of a search that it has.

        Raises:
            UserError: they ask for more than that.
        """
        check_settings_type(settings, SearchSettings)
        assert isinstance(settings, SearchSettings)
        defaults = SearchSettings()
        asked = [name for name in _LACKING if getattr(settings, name) != getattr(defaults, name)]
        asked += ["length_penalty wu"] if settings.length_penalty == "wu" else []
        asked += [name for name in ("prefix", "required", "forbidden") if getattr(request, name)]
        asked += ["trees"] if trees else []
        asked += ["snapshots"] if snapshots else []
        if asked:
            raise UserError(f"{self.who} has no {', '.join(asked)}; leave it away, or use the engine regard")
        return settings

    def batch_tokens(self, settings: DecodingSettings) -> int:
        return BATCH_TOKENS

    def run_forward(self, sources: Sequence[Sequence[int]], found: Sequence[TokenHypothesis]) -> None:
        raise UserError(f"{self.who} does not show its attention (probe, alignments); use the engine regard")

    def attention_rows(self, found: TokenHypothesis) -> list[int]:
        return list(range(len(found.tokens) + 1))
