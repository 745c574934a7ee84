"""Explain a word of a translation from all sides: attribution, next tokens, layers, heads and another sentence."""

from dataclasses import dataclass
from typing import Any

from regard.errors import UserError
from regard.inspection.explain.activation_patching import PatchingMap, patch_activations
from regard.inspection.explain.attribution import Attribution, attribute_word
from regard.inspection.explain.heads import HeadEffect, rank_heads_of_word
from regard.inspection.explain.integrated_gradients import MAX_POINTS
from regard.inspection.explain.lens import LayerReadout, read_layers
from regard.inspection.explain.target_word import Tokens, check_explainable, translate_tokens
from regard.inspection.html import render_text

ALL_WORDS = "all"
DIGITS = 4
HEADS_LISTED = 5


@dataclass(frozen=True)
class Explanation:
    """Why a model chose a word of its translation.

    Attributes:
        attribution: Contribution of every word of source and prefix.
        layers: States of the decoder, read as tokens after every layer.
        heads: All heads, ranked by the decrease of the word's score without them.
        patching: States that carry the difference to another sentence; None if no other sentence was given.
    """

    attribution: Attribution
    layers: LayerReadout
    heads: list[HeadEffect]
    patching: PatchingMap | None = None

    def _repr_html_(self) -> str:
        """Return the text in a fixed-width font, for a notebook."""
        return render_text(self)

    def to_json(self) -> dict[str, Any]:
        """Return the explanation for the pages."""
        return {
            "attribution": self.attribution.to_json(),
            "lens": self.layers.to_json(),
            "heads": [[name, head, round(effect, DIGITS)] for name, head, effect in self.heads],
            "patching": None if self.patching is None else self.patching.to_json(),
        }

    def __str__(self) -> str:
        """Return the explanation as text for a terminal."""
        position = self.attribution.start
        next_tokens = ", ".join(f"{token} {share:.1%}" for token, share in self.layers.next_tokens(position))
        by_layer = ", ".join(
            f"{layer - 1 if layer else 'embedding'}: {tokens[position][0]} "
            f"{self.layers.probabilities[layer, position, 0]:.0%}"
            for layer, tokens in enumerate(self.layers.tokens)
        )
        heads = ", ".join(f"{name}/{head} {effect:+.3f}" for name, head, effect in self.heads[:HEADS_LISTED])
        lines = [
            str(self.attribution),
            f"  next tokens       {next_tokens}",
            f"  after each layer  {by_layer}",
            f"  without the head  {heads}",
        ]
        return "\n".join([*lines, *([] if self.patching is None else [str(self.patching)])])


def explain(
    translator: Any,
    sentence: str,
    word: str | int,
    contrast: str | None = None,
    against: str | None = None,
    target: Tokens | None = None,
    settings: Any = None,
    max_points: int = MAX_POINTS,
) -> Explanation:
    """Explain a word of a translation: why this word, and with `contrast`, why not that one.

    Examples:
        ```python
        print(explain(translator, "I love apples", "喜欢", contrast="爱", against="I buy apples"))
        ```

    Args:
        translator: A `Translator` with one autoregressive model.
        sentence: The sentence that is translated.
        word: Text that occurs in the translation, END, or the position of a token, counted from 1.
        contrast: A word to compare with.
        against: Another sentence with as many tokens, whose states are compared by activation patching.
        target: Token ids of the translation, without END. Defaults to the best translation of the model.
        settings: Search settings of this translation.
        max_points: Largest number of gradients of the attribution.

    Raises:
        UserError: The word does not occur in the translation, or the model cannot be explained.
    """
    check_explainable(translator)
    target = translate_tokens(translator, sentence, settings) if target is None else target
    attribution = attribute_word(translator, sentence, word, contrast, target, max_points=max_points)
    patching = None if against is None else patch_activations(translator, sentence, against, word, contrast, target)
    return Explanation(
        attribution=attribution,
        layers=read_layers(translator, sentence, target).decoder,
        heads=rank_heads_of_word(translator, sentence, word, contrast, target),
        patching=patching,
    )


def explain_words(
    translator: Any, sentence: str, word: str, contrast: str | None = None, against: str | None = None, **options: Any
) -> list[Explanation]:
    """Explain a word of a translation, or every token of it for the word "all".

    Further arguments are those of `explain`.
    """
    if word != ALL_WORDS:
        return [explain(translator, sentence, word, contrast, against, **options)]
    if contrast is not None or against is not None:
        raise UserError("a contrast and another sentence belong to one word; give this word instead of all")
    check_explainable(translator)
    target = translate_tokens(translator, sentence, options.pop("settings", None))
    positions = range(1, len(target) + 2)
    return [explain(translator, sentence, position, target=target, **options) for position in positions]
