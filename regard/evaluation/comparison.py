"""Two systems side by side: only under the same conditions, and with the odds that the difference is chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.significance import PairedTest

from regard.errors import UserError
from regard.evaluation.metrics import Metrics, check_sizes
from regard.evaluation.report import Report, System, show

RESAMPLES = 1000


@dataclass(frozen=True)
class Difference:
    """A metric of two systems under the same conditions; positive where the first has the higher score."""

    metric: str
    value: float
    against: float

    @property
    def difference(self) -> float:
        return self.value - self.against

    def __str__(self) -> str:
        return f"{self.metric} {self.difference:+.2f}  {self.value:.2f} against {self.against:.2f}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"difference": self.difference}


@dataclass(frozen=True)
class Estimate:
    """The mean of a score over resampled test sets, and half the width of the interval that holds 95% of them."""

    mean: float
    margin: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.margin:.2f}"


@dataclass(frozen=True)
class Significance:
    """A metric's paired bootstrap test; the signature states the number of resamples and the seed."""

    metric: str
    p_value: float
    estimate: Estimate
    against: Estimate
    signature: str

    def __str__(self) -> str:
        return f"{self.metric} p = {self.p_value:.4f}  {self.estimate} against {self.against}  {self.signature}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(report: Report, against: Report) -> list[Difference]:
    """The difference of every metric that both have.

    Raises:
        UserError: the two were not measured under the same conditions, or have no metric in common; says how.
    """
    differences = report.conditions.differences(against.conditions)
    if differences:
        listed = ", ".join(f"{name} ({show(one)} against {show(two)})" for name, (one, two) in differences.items())
        raise UserError(f"these scores cannot be compared, since they differ in {listed}; evaluate both alike")
    shared = [name for name in report.scores if name in against.scores]
    if not shared:
        raise UserError(
            f"these scores cannot be compared, since one is of {', '.join(report.scores) or 'nothing'}, "
            f"the other of {', '.join(against.scores) or 'nothing'}; evaluate both alike"
        )
    return [Difference(name, report.scores[name], against.scores[name]) for name in shared]


def compare_with_stored(report: Report, stored: Sequence[Report]) -> tuple[Report, list[Difference]]:
    """The latest stored report with the same conditions, and the differences to it.

    Raises:
        UserError: there is none; says how the one that comes nearest differs.
    """
    if not stored:
        raise UserError("there is no evaluation to compare with; evaluate that system first")
    nearest = min(reversed(stored), key=lambda one: len(report.conditions.differences(one.conditions)))
    return nearest, compare(report, nearest)


def paired_bootstrap(
    system: System, against: System, references: Sequence[str], metrics: Metrics, resamples: int = RESAMPLES
) -> list[Significance]:
    """SacreBLEU's paired bootstrap test of every metric: how likely so large a difference is by chance.

    The seed is sacreBLEU's, 12345, or that of the environment variable SACREBLEU_SEED, and stands in the signature.

    Raises:
        UserError: the numbers of translations and references differ or are zero, or `resamples` is below 1.
    """
    check_sizes(system.translations, references)
    check_sizes(against.translations, references)
    if resamples < 1:
        raise UserError(f"resamples: {resamples} is too few; at least 1 is needed, and 1000 are usual")
    signatures, results = PairedTest(
        [("against", list(against.translations)), ("system", list(system.translations))],
        {str(number): metric for number, metric in enumerate(metrics.build())},
        [list(references)],
        test_type="bs",
        n_samples=resamples,
    )()
    found = []
    for name, signature in signatures.items():
        theirs, ours = (_result(one) for one in results[name])
        # SacreBLEU counts the resamples that differ by more than the two systems do, which for two equal systems is
        # none: it would call them significantly different. A difference of nothing is always reached by chance.
        p_value = 1.0 if ours[0] == theirs[0] else ours[1]
        found.append(Significance(name, p_value, Estimate(*ours[2:]), Estimate(*theirs[2:]), str(signature)))
    return found


def _result(result: Any) -> tuple[float, float, float, float]:
    """Score, p-value, mean and half interval as plain numbers; the baseline has no p-value."""
    p_value = 1.0 if result.p_value is None else result.p_value
    return float(result.score), float(p_value), float(result.mean), float(result.ci)
