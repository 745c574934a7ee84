"""`TokenGenerator`: the interface through which `Translator` decodes. Tokens in, token hypotheses out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor, nn

from regard.attention.multi_head import Attention, use_qkv_hook
from regard.decoding.constraints import DecodingConstraints, DecodingRequest
from regard.decoding.settings import DecodingSettings
from regard.decoding.stepper import TokenHypothesis
from regard.masks import Mask

BATCH_TOKENS = 4096
"""Number of padded source tokens in a batch on a CPU."""


class TokenGenerator(Protocol):
    """Generates and scores translations.

    Attributes:
        settings_class: Class of the settings that it accepts.
        has_attention: Whether `run_forward` calls attention hooks.
    """

    settings_class: type[DecodingSettings]
    has_attention: bool

    def resolve_settings(
        self, settings: DecodingSettings, constraints: DecodingConstraints, trees: bool, snapshots: bool
    ) -> DecodingSettings:
        """Return the settings with the defaults of the model."""

    def batch_tokens(self, settings: DecodingSettings) -> int:
        """Return the number of padded source tokens in a batch."""

    def generate(
        self, requests: Sequence[DecodingRequest], settings: DecodingSettings, trace: bool = False
    ) -> list[list[TokenHypothesis]]:
        """Return the best hypotheses of every request, best first; traced ones carry their beam or iterations."""

    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Tensor:
        """Return the log-probabilities of all tokens at every position of given translations, (B, P, V).

        P is T + 1 for autoregressive models, where position t follows t target tokens. For non-autoregressive models,
        it is the number of positions of the NAT target.
        """

    def run_forward(self, sources: Sequence[Sequence[int]], hypotheses: Sequence[TokenHypothesis]) -> None:
        """Run one forward pass over complete hypotheses, for attention hooks."""

    def attention_rows(self, hypothesis: TokenHypothesis) -> list[int]:
        """Return the row of each token, END included, in the attention weights of `run_forward`."""

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: DecodingSettings
    ) -> list[TokenHypothesis]:
        """Return given translations with the scores that `generate` would give them."""


@contextmanager
def collect_cross_attention(models: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect the weights of all cross-attentions inside the block, averaged over heads, (B, T, S) each."""
    collected: list[Tensor] = []

    def collect(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
        collected.append(attention.kind.weights(q, k, mask).mean(1))

    modules = (pair for model in models for pair in model.named_modules())
    crosses = [module for name, module in modules if isinstance(module, Attention) and name.endswith(".cross")]
    with use_qkv_hook(crosses, collect):
        yield collected
