"""Minimum Bayes risk decoding: choose the candidate with the highest mean utility against samples of the model.

The utilities are chrF2 and sentence BLEU as defined by sacreBLEU, computed for all pairs of texts at once: the k-th
occurrence of an n-gram in a text is a feature, so that the number of common n-grams is a product of binary matrices.

Shapes: X texts (C candidates, R references), L symbols (characters or words), F features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.bleu import BLEU

from regard.data.text.languages import tokenisation_for
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import TokenGenerator
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from regard.errors import UserError

Metric = Literal["chrf", "bleu"]
Utility = Callable[[Sequence[str], Sequence[str]], "Doubles"]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CHRF_ORDER, BLEU_ORDER = 6, 4
BETA_SQUARED = 4.0
"""Weight of recall in chrF2."""


def minimise_risk(
    generator: TokenGenerator,
    requests: Sequence[DecodingRequest],
    settings: SearchSettings,
    decode: Callable[[Sequence[int]], str],
    utility: Utility,
) -> list[list[TokenHypothesis]]:
    """Return the best candidates of every request, each with its mean utility, from 0 to 100, as the score.

    Args:
        settings: With `mbr`. Candidates are the samples and, if `beam` is given, the hypotheses of a beam.
        decode: Converts tokens to text.
        utility: Computes the similarity of every candidate to every reference, (C, R).
    """
    samples = generator.generate(requests, settings.for_samples())
    beams = generator.generate(requests, settings.for_beam()) if settings.beam else [[] for _ in requests]
    found = []
    for beam, sampled in zip(beams, samples, strict=True):
        candidates: dict[str, TokenHypothesis] = {}
        for hypothesis in (*beam, *sampled):
            candidates.setdefault(decode(hypothesis.tokens), hypothesis)
        texts = [decode(hypothesis.tokens) for hypothesis in sampled]
        references = list(dict.fromkeys(texts))
        weights = np.array([texts.count(text) for text in references]) / len(texts)
        scores = (utility(list(candidates), references) * weights).sum(1)
        order = np.argsort(-scores, kind="stable")[: settings.n_best]  # ties keep the order of the candidates
        hypotheses = list(candidates.values())
        found.append([replace(hypotheses[i], score=float(scores[i])) for i in order])
    return found


def build_utility(metric: Metric, language: str) -> Utility:
    """Return the utility for texts in a language, which determines the tokenizer of BLEU."""
    if metric == "chrf":
        return chrf_matrix
    name = tokenisation_for(language)
    try:
        tokenise = BLEU(tokenize=name, force=True).tokenizer
    except (RuntimeError, ImportError):
        raise UserError(f"mbr=bleu needs sacreBLEU's tokenizer {name}, which is not installed; use mbr=chrf") from None

    def split(texts: Sequence[str]) -> list[list[str]]:
        return [tokenise(text.rstrip()).split() for text in texts]

    def bleu_utility(candidates: Sequence[str], references: Sequence[str]) -> Doubles:
        return bleu_matrix(split(candidates), split(references))

    return bleu_utility


def chrf_matrix(candidates: Sequence[str], references: Sequence[str]) -> Doubles:
    """Return sacreBLEU's sentence chrF2 of every candidate with every reference, (C, R), from 0 to 100."""
    symbols = [["".join(text.split()) for text in texts] for texts in (candidates, references)]
    precisions = np.zeros((len(candidates), len(references)))
    recalls, orders = precisions.copy(), precisions.copy()
    for common, of_candidate, of_reference in match_ngrams(symbols[0], symbols[1], CHRF_ORDER):
        counted = (of_candidate > 0)[:, None] & (of_reference > 0)  # an order that one side lacks is not counted
        precisions += np.where(counted, common / np.maximum(of_candidate, 1)[:, None], 0)
        recalls += np.where(counted, common / np.maximum(of_reference, 1), 0)
        orders += counted
    precisions, recalls = precisions / np.maximum(orders, 1), recalls / np.maximum(orders, 1)
    total = BETA_SQUARED * precisions + recalls
    return 100 * (1 + BETA_SQUARED) * precisions * recalls / np.where(total > 0, total, 1)


def bleu_matrix(candidates: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Doubles:
    """Return sacreBLEU's sentence BLEU of every candidate with every reference, (C, R), from 0 to 100.

    The texts are given as words. Orders that a candidate is too short for are not counted, and precisions of 0 are
    smoothed exponentially.
    """
    shape = len(candidates), len(references)
    log_precisions, smoothing, matched = np.zeros(shape), np.ones(shape), np.zeros(shape, np.bool_)
    orders = np.zeros(len(candidates))
    lengths = [np.array([len(text) for text in texts], np.float64) for texts in (candidates, references)]
    for common, of_candidate, _ in match_ngrams(candidates, references, BLEU_ORDER):
        counted = of_candidate > 0
        smoothing = np.where((common == 0) & counted[:, None], 2 * smoothing, smoothing)
        numerators = np.where(common > 0, common, 1 / smoothing)
        precisions = numerators / np.maximum(of_candidate, 1)[:, None]
        log_precisions += np.where(counted[:, None], np.log(precisions), 0)
        matched |= common > 0
        orders += counted
    brevity = np.exp(np.minimum(0, 1 - lengths[1] / np.maximum(lengths[0], 1)[:, None]))
    scores = 100 * brevity * np.exp(log_precisions / np.maximum(orders, 1)[:, None])
    return np.where(matched, scores, 0.0)


def match_ngrams(
    candidates: Sequence[Sequence[str]], references: Sequence[Sequence[str]], orders: int
) -> list[tuple[Doubles, Ints, Ints]]:
    """Return, for n-grams of each order, the common ones, (C, R), and those of each candidate and of each reference."""
    texts = [*candidates, *references]
    lengths = np.array([len(text) for text in texts])
    numbers: dict[str, int] = {}
    flat = [numbers.setdefault(symbol, len(numbers)) for text in texts for symbol in text]
    symbols_XL = np.zeros((len(texts), max(1, lengths.max())), np.int64)
    symbols_XL[np.arange(symbols_XL.shape[1]) < lengths[:, None]] = flat
    results, ngrams_XL = [], symbols_XL
    for order in range(1, orders + 1):
        if order > 1:  # extend each n-gram by the next symbol, and number the distinct results
            ngrams_XL = ngrams_XL[:, :-1] * len(numbers) + symbols_XL[:, order - 1 :]
            ngrams_XL = np.unique(ngrams_XL, return_inverse=True)[1].reshape(ngrams_XL.shape)
        counts = np.maximum(lengths - order + 1, 0)
        features = _mark_features(ngrams_XL, counts)
        common = features[: len(candidates)] @ features[len(candidates) :].T
        results.append((common.astype(np.float64), counts[: len(candidates)], counts[len(candidates) :]))
    return results


def _mark_features(ngrams_XL: Ints, counts: Ints) -> npt.NDArray[np.float32]:
    """Return a binary matrix, (X, F), of the n-grams of each text; the k-th occurrence of one is a feature."""
    if not ngrams_XL.shape[1]:
        return np.zeros((len(counts), 0), np.float32)
    text, position = np.nonzero(np.arange(ngrams_XL.shape[1]) < counts[:, None])
    keys = text * (ngrams_XL.max() + 1) + ngrams_XL[text, position]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))  # of runs of equal n-grams in a text
    occurrence = np.arange(len(keys)) - np.repeat(starts, np.diff(starts, append=len(keys)))
    kinds = (keys % (ngrams_XL.max() + 1)) * (occurrence.max(initial=0) + 1) + occurrence
    columns = np.unique(kinds, return_inverse=True)[1]
    features_XF = np.zeros((len(counts), columns.max(initial=-1) + 1), np.float32)
    features_XF[text[order], columns] = 1
    return features_XF
