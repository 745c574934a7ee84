"""`Generator`: how a model writes translations, as `Translator` sees it. Tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor, nn

from regard.attention.masks import Mask
from regard.attention.multi_head import Attention, use_qkv_hook
from regard.decoding.config import DecodingSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.search import TokenHypothesis

BATCH_TOKENS = 4096


class Generator(Protocol):
    """A way of writing: token by token in stepwise.py, all at once in parallel.py."""

    settings_class: type[DecodingSettings]
    has_attention: bool

    def resolve_settings(
        self, settings: DecodingSettings, request: DecodingRequest, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        """The settings as this model takes them.

        Raises:
            UserError: it cannot write like that.
        """

    def batch_tokens(self, settings: DecodingSettings) -> int:
        """How many padded source tokens are worked on at once."""

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        """The best hypotheses of every request, best first; with a trace, also how they came about."""

    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        """The log-probabilities of the token at every place of given translations, (B, T, V)."""

    def run_forward(self, sources: Sequence[Sequence[int]], found: Sequence[TokenHypothesis]) -> None:
        """Passes hypotheses through the model once more, whole sentences at once, for whoever observes it."""

    def attention_rows(self, found: TokenHypothesis) -> list[int]:
        """In which row of the attention seen in a `review` each token stands, END too where it is said."""

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        """Given translations, scored as `write` would score them."""


@contextmanager
def collect_cross_attention(models: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collects the weights of every cross-attention, averaged over heads, (B, T, S) each."""
    seen: list[Tensor] = []

    def see(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
        seen.append(attention.kind.weights(q, k, mask).mean(1))

    named = (pair for model in models for pair in model.named_modules())
    crosses = [module for name, module in named if isinstance(module, Attention) and name.endswith(".cross")]
    with use_qkv_hook(crosses, see):
        yield seen
