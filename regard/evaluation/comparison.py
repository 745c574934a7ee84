"""Comparison of two systems under the same conditions, with significance tests."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from sacrebleu.significance import PairedTest

from regard.errors import UserError
from regard.evaluation.metrics import Metrics, check_sizes
from regard.evaluation.report import Report, format_setting
from regard.evaluation.translation import SystemOutput

RESAMPLES = 1000


@dataclass(frozen=True)
class Difference:
    """A metric of two systems under the same conditions; positive if the first has the higher score."""

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
    """Mean of a score over resampled test sets, and half the width of its 95 % confidence interval."""

    mean: float
    margin: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.margin:.2f}"


@dataclass(frozen=True)
class Significance:
    """Paired bootstrap test of a metric; the signature states the number of resamples and the seed."""

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
    """Return the difference of every metric that both reports have."""
    differences = report.conditions.differences(against.conditions)
    if differences:
        listed = ", ".join(
            f"{name} ({format_setting(one)} against {format_setting(two)})" for name, (one, two) in differences.items()
        )
        raise UserError(f"these scores cannot be compared, since they differ in {listed}; evaluate both alike")
    shared = [name for name in report.scores if name in against.scores]
    if not shared:
        raise UserError(
            f"these scores cannot be compared, since one has {', '.join(report.scores) or 'no metric'}, "
            f"the other {', '.join(against.scores) or 'no metric'}; evaluate both alike"
        )
    return [Difference(name, report.scores[name], against.scores[name]) for name in shared]


def compare_with_stored(report: Report, stored: Sequence[Report]) -> tuple[Report, list[Difference]]:
    """Return the latest stored report with the same conditions, and the differences from it.

    Raises:
        UserError: There is none; names the differences of the most similar one.
    """
    if not stored:
        raise UserError("there is no evaluation to compare with; evaluate that system first")
    nearest = min(reversed(stored), key=lambda one: len(report.conditions.differences(one.conditions)))
    return nearest, compare(report, nearest)


def paired_bootstrap(
    system: SystemOutput, against: SystemOutput, references: Sequence[str], metrics: Metrics, resamples: int = RESAMPLES
) -> list[Significance]:
    """Run sacreBLEU's paired bootstrap test of every metric.

    The seed is sacreBLEU's, 12345, or the environment variable SACREBLEU_SEED; it is part of the signature.
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
    tests = []
    for name, signature in signatures.items():
        theirs, ours = cast(list[Any], results[name])
        # SacreBLEU counts resamples with a larger difference than that of the systems. For equal systems there are
        # none, which would make them significantly different; but a difference of zero is always due to chance.
        p_value = 1.0 if ours.score == theirs.score else float(ours.p_value)
        our_estimate, their_estimate = (Estimate(float(one.mean), float(one.ci)) for one in (ours, theirs))
        tests.append(Significance(name, p_value, our_estimate, their_estimate, str(signature)))
    return tests
