"""Single scores: sacreBLEU's numbers with sacreBLEU's signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.config import Settings
from regard.errors import UserError

_TOKENISATION_OF = {"zh": "zh", "ja": "ja-mecab", "ko": "char", "th": "char"}
_PACKAGE_OF = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}


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
    check_sizes(hypotheses, references)
    metric = _make_bleu(tokenisation, lowercase)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score("BLEU", result.score, f"{metric.get_signature()}|reflen:{result.ref_len}")


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Corpus chrF2, the character n-gram F-score."""
    return _measure(CHRF(lowercase=lowercase), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[str], cjk: bool = False) -> Score:
    """The translation edit rate, lower is better, without regard to case; `cjk` counts characters as words."""
    return _measure(_make_ter(cjk), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The percentage of translations that equal their reference to the letter."""
    check_sizes(hypotheses, references)
    equal = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return 100 * equal / len(references)


def choose_closest(
    hypotheses: Sequence[str], reference: str, metric: Literal["chrf", "bleu"], tokenisation: str = "13a"
) -> int:
    """The place of the hypothesis that is nearest to the reference; of equally near ones, the first."""
    measure = CHRF() if metric == "chrf" else _make_bleu(tokenisation, False, effective_order=True)
    scores = [measure.sentence_score(hypothesis, [reference]).score for hypothesis in hypotheses]
    return scores.index(max(scores))


def check_tokenisation(name: str) -> None:
    """Does nothing where sacreBLEU can tokenise so.

    Raises:
        UserError: there is no such tokeniser, or a package or file that it needs is missing; says which.
    """
    _make_bleu(name, False)


class Metrics(Settings):
    """What is measured, and how text is prepared for it. TER ignores case, as it always has."""

    tokenisation: str = "13a"
    lowercase: bool = False
    ter: bool = False

    def build(self) -> list[Metric]:
        """SacreBLEU's metrics; BLEU is the first."""
        metrics: list[Metric] = [_make_bleu(self.tokenisation, self.lowercase), CHRF(lowercase=self.lowercase)]
        return [*metrics, _make_ter(self.tokenisation in ("zh", "ja-mecab"))] if self.ter else metrics


def check_sizes(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Refuses translations that cannot be matched with references."""
    if len(hypotheses) != len(references):
        raise UserError(f"{len(hypotheses)} translations cannot be scored against {len(references)} references")
    if not references:
        raise UserError("there is nothing to score: no references")


def _make_bleu(tokenisation: str, lowercase: bool, effective_order: bool = False) -> BLEU:
    if tokenisation not in BLEU.TOKENIZERS:
        raise UserError(
            f"sacreBLEU has no tokeniser {tokenisation!r}; choose one of {', '.join(sorted(BLEU.TOKENIZERS))}"
        )
    try:
        return BLEU(tokenize=tokenisation, lowercase=lowercase, force=True, effective_order=effective_order)
    except (RuntimeError, ImportError):
        package = _PACKAGE_OF.get(tokenisation, "sentencepiece")
        raise UserError(
            f"sacreBLEU's tokeniser {tokenisation!r} needs a package that is not installed; "
            f"run pip install '{package}', or choose char"
        ) from None
    except OSError as error:
        raise UserError(
            f"sacreBLEU's tokeniser {tokenisation!r} needs a file that cannot be fetched ({error}); choose another"
        ) from None


def _make_ter(cjk: bool) -> TER:
    """Chinese and Japanese write no spaces, so that without this a sentence would be one word."""
    return TER(normalized=cjk, asian_support=cjk)


def _measure(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    check_sizes(hypotheses, references)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.name, result.score, str(metric.get_signature()))
