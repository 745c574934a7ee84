"""Metrics of translations, computed by sacreBLEU and reported with its signatures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.config import Settings
from regard.errors import UserError

_PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}


@dataclass(frozen=True)
class Score:
    """The value of a metric and sacreBLEU's signature of how it was computed."""

    metric: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.2f}  {self.signature}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenisation: str = "13a", lowercase: bool = False
) -> Score:
    """Compute corpus BLEU. Use the tokenisation "none" for text that is already tokenised."""
    check_sizes(hypotheses, references)
    metric = _build_bleu(tokenisation, lowercase)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score("BLEU", result.score, f"{metric.get_signature()}|reflen:{result.ref_len}")


def chrf(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Score:
    """Compute corpus chrF2, the character n-gram F-score."""
    check_sizes(hypotheses, references)
    metric = CHRF(lowercase=lowercase)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.name, result.score, str(metric.get_signature()))


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the percentage of translations that are equal to their reference."""
    check_sizes(hypotheses, references)
    equal = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return 100 * equal / len(references)


def choose_closest(
    hypotheses: Sequence[str], reference: str, metric: Literal["chrf", "bleu"], tokenisation: str = "13a"
) -> int:
    """Return the index of the hypothesis with the highest sentence score; the first one of equal scores."""
    scorer = CHRF() if metric == "chrf" else _build_bleu(tokenisation, False, effective_order=True)
    scores = [scorer.sentence_score(hypothesis, [reference]).score for hypothesis in hypotheses]
    return scores.index(max(scores))


def check_tokenisation(name: str) -> None:
    """Raise a `UserError` if sacreBLEU has no such tokenizer, or lacks a package or file that it needs."""
    _build_bleu(name, False)


class Metrics(Settings):
    """The metrics of an evaluation. TER always ignores case."""

    tokenisation: str = "13a"
    lowercase: bool = False
    ter: bool = False

    def build(self) -> list[Metric]:
        """Return the metrics of sacreBLEU, BLEU first."""
        metrics: list[Metric] = [_build_bleu(self.tokenisation, self.lowercase), CHRF(lowercase=self.lowercase)]
        if self.ter:  # without these options, a Chinese or Japanese sentence, which has no spaces, would be one word
            cjk = self.tokenisation in ("zh", "ja-mecab")
            metrics.append(TER(normalized=cjk, asian_support=cjk))
        return metrics


def check_sizes(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Check that there are as many translations as references, and at least one."""
    if len(hypotheses) != len(references):
        raise UserError(f"{len(hypotheses)} translations cannot be scored against {len(references)} references")
    if not references:
        raise UserError("there is nothing to score: no references")


def _build_bleu(tokenisation: str, lowercase: bool, effective_order: bool = False) -> BLEU:
    if tokenisation not in BLEU.TOKENIZERS:
        raise UserError(
            f"sacreBLEU has no tokenizer {tokenisation!r}; choose one of {', '.join(sorted(BLEU.TOKENIZERS))}"
        )
    try:
        return BLEU(tokenize=tokenisation, lowercase=lowercase, force=True, effective_order=effective_order)
    except (RuntimeError, ImportError):
        package = _PACKAGES.get(tokenisation, "sentencepiece")
        raise UserError(
            f"sacreBLEU's tokenizer {tokenisation!r} needs a package that is not installed; "
            f"run pip install '{package}', or choose char"
        ) from None
    except OSError as error:
        raise UserError(
            f"sacreBLEU's tokenizer {tokenisation!r} needs a file that cannot be downloaded ({error}); choose another"
        ) from None
