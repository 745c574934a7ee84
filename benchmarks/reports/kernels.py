"""Time of a step by the purpose of its kernels, inferred from their names."""

import re
from collections.abc import Iterable

MATMULS = r"nvjet|gemm|(?<!fmha_)cutlass|splitK"
REST = "other"


def sum_by_group(times: Iterable[tuple[str, float]], groups: dict[str, str], total: float) -> dict[str, float]:
    """Time of each group of kernels, and of the rest.

    A kernel belongs to the first group whose pattern matches. Names are truncated, so several kernels may share one.
    """
    sums = dict.fromkeys(groups, 0.0)
    for kernel, time in times:
        group = next((name for name, pattern in groups.items() if re.search(pattern, kernel)), None)
        if group is not None:
            sums[group] += time
    return sums | {REST: total - sum(sums.values())}
