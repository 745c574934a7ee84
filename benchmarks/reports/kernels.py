"""What a step spends its time on, by what the names of its kernels say that they are for."""

import re
from collections.abc import Iterable

PRODUCTS = r"nvjet|gemm|(?<!fmha_)cutlass|splitK"
REST = "the rest"


def sum_by_group(times: Iterable[tuple[str, float]], groups: dict[str, str], total: float) -> dict[str, float]:
    """The time of each group, whose pattern is the first that fits, and of the rest of the total.

    Names are as much as was kept of them, so that several kernels may have the same.
    """
    sums = dict.fromkeys(groups, 0.0)
    for kernel, time in times:
        group = next((name for name, pattern in groups.items() if re.search(pattern, kernel)), None)
        if group is not None:
            sums[group] += time
    return sums | {REST: total - sum(sums.values())}
