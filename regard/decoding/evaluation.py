"""Scores that carry their protocol: sacreBLEU's numbers with sacreBLEU's signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.errors import UserError

Tokenisation = Literal["13a", "zh", "ja-mecab", "char", "intl", "none"]

_TOKENISATION_OF = {"zh": "zh", "ja": "ja-mecab", "ko": "char", "th": "char"}


@dataclass(frozen=True)
class Score:
    """A number and how it came about."""

    metric: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.2f}  {self.signature}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def tokenisation_for(language: str) -> str:
    """The sacreBLEU tokeniser for a language code, such as "zh" or "zh-CN"."""
    return _TOKENISATION_OF.get(language.split("-")[0].split("_")[0].lower(), "13a")


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenisation: str = "13a", lowercase: bool = False
) -> Score:
    """Corpus BLEU. "none" is for text that is tokenised already, as published protocols ask."""
    _check(hypotheses, references)
    metric = BLEU(tokenize=tokenisation, lowercase=lowercase, force=True)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score("BLEU", result.score, f"{metric.get_signature()}|reflen:{result.ref_len}")


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2, the character n-gram F-score."""
    _check(hypotheses, references)
    metric = CHRF()
    return Score("chrF2", metric.corpus_score(list(hypotheses), [list(references)]).score, str(metric.get_signature()))


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The percentage of translations that equal their reference to the letter."""
    _check(hypotheses, references)
    equal = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return 100 * equal / len(references)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise UserError(f"{len(hypotheses)} translations cannot be scored against {len(references)} references")
    if not references:
        raise UserError("there is nothing to score: no references")
