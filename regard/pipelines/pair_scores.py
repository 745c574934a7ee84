"""Cross-entropies of sentence pairs under translation models, by which corpora are filtered."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.data.text.languages import match_language
from regard.data.text.readers import Pair
from regard.errors import UserError
from regard.pipelines.translator import Translator


class PairScorer:
    """Scores pairs by one model or, with a model of the opposite direction, by dual cross-entropy.

    Dual cross-entropy (Junczys-Dowmunt, 2018) is |H(t|s) - H(s|t)| + (H(t|s) + H(s|t)) / 2 with cross-entropies H per
    token: low if both models find the pair probable, and agree.

    Args:
        forward: Model from the source to the target language.
        backward: Model of the opposite direction.

    Raises:
        UserError: The languages of the models do not fit together.
    """

    def __init__(self, forward: Translator, backward: Translator | None = None) -> None:
        if backward is not None:
            codes = zip(forward.languages, backward.languages[::-1], strict=True)
            if not all(match_language(code, [other]) for code, other in codes):
                one, other = (" to ".join(model.languages) for model in (forward, backward))
                raise UserError(
                    f"the model translates {one}, but the reverse model {other}; give one of the opposite direction"
                )
        self.forward, self.backward = forward, backward

    def __call__(self, pairs: Sequence[Pair]) -> npt.NDArray[np.float64]:
        """Return the cross-entropy of each pair in nats per token; NaN for pairs that are too long for a model."""
        forward = cross_entropies(self.forward, pairs)
        if self.backward is None:
            return forward
        backward = cross_entropies(self.backward, [Pair(pair.target, pair.source) for pair in pairs])
        scores: npt.NDArray[np.float64] = np.abs(forward - backward) + (forward + backward) / 2
        return scores


def cross_entropies(translator: Translator, pairs: Sequence[Pair]) -> npt.NDArray[np.float64]:
    """Return the cross-entropy of each target given its source, per token; NaN for pairs that are too long."""
    result = np.full(len(pairs), np.nan)
    fitting = [
        index for index, pair in enumerate(pairs) if translator.fits(pair.source) and fits(translator, pair.target)
    ]
    if fitting:
        sources, targets = [pairs[index].source for index in fitting], [pairs[index].target for index in fitting]
        scored = translator.score(sources, targets)
        result[fitting] = [-float(np.mean(hypothesis.token_log_probs)) for hypothesis in scored]
    return result


def fits(translator: Translator, target: str) -> bool:
    """Return whether a target is short enough for the model."""
    limit = translator.max_source_tokens
    return limit is None or len(translator.vocabularies.target.encode(target)) <= limit
