"""Profile of decoding: kernels, driver calls and idle time per step on a GPU, operations on a CPU."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from harness import synchronize
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

TOP = 25  # number of kernels or operations to report
MAX_NAME = 110


def profile_decoding(decode: Callable[[], object], steps: int, device: torch.device) -> dict[str, Any]:
    """Profile one call after a warm-up; print and return values per step."""
    for _ in range(2):
        decode()
    synchronize(device)
    start = time.perf_counter()
    decode()
    synchronize(device)
    seconds = time.perf_counter() - start
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        decode()
        synchronize(device)
    summarise = summarise_kernels if on_gpu else summarise_operations
    summary = {"ms_per_step": 1000 * seconds / steps, **summarise(profiler, steps)}
    print_profile(summary)
    return summary


def summarise_kernels(profiler: profile, steps: int) -> dict[str, Any]:
    microseconds: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    driver_calls: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            name = event.name[:MAX_NAME]
            microseconds[name] += event.time_range.elapsed_us()
            counts[name] += 1
        elif event.name.startswith("cu"):
            driver_calls[event.name] += 1
    return _summarise(microseconds, counts, steps) | {"driver_calls": dict(driver_calls.most_common(8))}


def summarise_operations(profiler: profile, steps: int) -> dict[str, Any]:
    rows = profiler.key_averages()
    microseconds = {row.key[:MAX_NAME]: row.self_cpu_time_total for row in rows}
    return _summarise(microseconds, Counter({row.key[:MAX_NAME]: row.count for row in rows}), steps)


def _summarise(microseconds: dict[str, float], counts: Counter[str], steps: int) -> dict[str, Any]:
    top = sorted(microseconds, key=lambda name: -microseconds[name])[:TOP]
    return {
        "busy_ms_per_step": round(sum(microseconds.values()) / 1000 / steps, 4),
        "kernels_per_step": round(counts.total() / steps, 1),
        "top": [
            {
                "name": name,
                "us_per_step": round(microseconds[name] / steps, 2),
                "calls_per_step": round(counts[name] / steps, 2),
            }
            for name in top
        ],
    }


def print_profile(summary: dict[str, Any]) -> None:
    print(
        f"  {summary['ms_per_step']:.3f} ms per step, {summary['busy_ms_per_step']:.3f} ms of them in "
        f"{summary['kernels_per_step']:.0f} kernels or operations; driver calls: {summary.get('driver_calls', {})}"
    )
    for row in summary["top"]:
        print(f"  {row['us_per_step']:9.1f} µs {row['calls_per_step']:7.2f} × {row['name']}")
