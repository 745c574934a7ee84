"""Where the time of decoding goes: on a GPU its kernels, launches and idle time a step, on a CPU its operations."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

TOP = 25


def profile_decoding(decode: Callable[[], object], steps: int, device: torch.device) -> dict[str, Any]:
    """One warmed-up call under the profiler, printed and returned; everything is per step."""
    on_gpu = device.type == "cuda"
    for _ in range(2):
        decode()
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    wait()
    begin = time.perf_counter()
    decode()
    wait()
    seconds = time.perf_counter() - begin
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        decode()
        wait()
    found = {"ms_a_step": 1000 * seconds / steps, **(_of_gpu(seen, steps) if on_gpu else _of_cpu(seen, steps))}
    _print(found)
    return found


def _of_gpu(seen: profile, steps: int) -> dict[str, Any]:
    spent: defaultdict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in seen.events():
        if event.device_type == DeviceType.CUDA:
            name = event.name[:110]
            spent[name] += event.time_range.elapsed_us()
            count[name] += 1
        elif event.name.startswith("cuda") or event.name.startswith("cu"):
            calls[event.name] += 1
    kernels = [
        {"name": name, "us_a_step": round(spent[name] / steps, 2), "calls_a_step": round(count[name] / steps, 2)}
        for name in sorted(spent, key=lambda name: -spent[name])[:TOP]
    ]
    return {
        "busy_ms_a_step": round(sum(spent.values()) / 1000 / steps, 4),
        "kernels_a_step": round(sum(count.values()) / steps, 1),
        "driver_calls": dict(calls.most_common(8)),
        "top": kernels,
    }


def _of_cpu(seen: profile, steps: int) -> dict[str, Any]:
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_cpu_time_total)
    return {
        "busy_ms_a_step": round(sum(row.self_cpu_time_total for row in rows) / 1000 / steps, 4),
        "kernels_a_step": round(sum(row.count for row in rows) / steps, 1),
        "top": [
            {
                "name": row.key[:110],
                "us_a_step": round(row.self_cpu_time_total / steps, 2),
                "calls_a_step": round(row.count / steps, 2),
            }
            for row in rows[:TOP]
        ],
    }


def _print(found: dict[str, Any]) -> None:
    print(
        f"  {found['ms_a_step']:.3f} ms a step, of which {found['busy_ms_a_step']:.3f} ms in "
        f"{found['kernels_a_step']:.0f} kernels or operations; calls of the driver: {found.get('driver_calls', {})}"
    )
    for row in found["top"]:
        print(f"  {row['us_a_step']:9.1f} µs {row['calls_a_step']:7.2f} × {row['name']}")
