"""Measurement of one system of training.py, in its own process: speed, kernels, memory and losses."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from statistics import mean, median
from typing import Any

import torch
from harness import synchronize
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training_systems import SIZES, SYSTEMS, Trainer
from training_workload import Workload, make_builtin_batches, make_one, rotate_to_distinct_sizes

from regard.training.cuda_graph import WARMUP_STEPS
from regard.training.memory import is_out_of_memory

MIN_WARM_UP = 10
"""Minimum number of untimed steps; at least every batch is seen once, because a new shape may be slow."""
PROFILED_STEPS = 3
TOP = 40
DOUBLINGS, BISECTIONS = 8, 2
OUT_OF_MEMORY = "memory"
CURVE_LR, CURVE_WARM_UP = 5e-4, 200
STEPS_PER_POINT = 10
"""Number of steps whose mean loss is one point of a curve."""
SAVE_EVERY = 100
Row = dict[str, Any]
PreparedBatch = tuple[Any, Any]
"""A batch, and the same batch converted by `System.prepare`."""


class Measurement:
    """Measures a system and writes its row to a file after every part."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        self.system, self.size = SYSTEMS[options.child], SIZES[options.preset]
        self.row: Row = {"name": options.child}

    def add(self, **values: Any) -> None:
        """Add values to the row, save it atomically, and print numbers and strings."""
        self.row |= values
        new = self.out.with_suffix(".new")
        new.write_text(json.dumps(self.row), encoding="utf-8")
        new.replace(self.out)
        scalars = {key: value for key, value in values.items() if not isinstance(value, (list, dict))}
        if scalars:
            print("   ", *(f"{key}={value}" for key, value in scalars.items()), flush=True)

    def measure(self) -> None:
        """Measure speed and memory and, if requested, the profile and the largest batch."""
        options = self.options
        batches = Workload(self.size.vocab, options.tokens, options.batches, self.device).make(self.system.layout)
        batches = rotate_to_distinct_sizes(batches)
        stream = cycle([(batch, self.system.prepare(batch)) for batch in batches])
        self.add(
            tokens=round(mean(batch.count for batch in batches)),
            positions=round(mean(batch.padded_tokens for batch in batches)),
        )
        trainer = Trainer(self.system, self.size, self.device)
        warm_up_steps = max(MIN_WARM_UP, len(batches))
        warm_up_seconds = self.warm_up(trainer, stream, warm_up_steps)
        allocated = torch.cuda.memory_allocated() if self.cuda else 0
        if self.cuda and not self.system.capture:  # a replay allocates no memory: its peak was during capture
            torch.cuda.reset_peak_memory_stats()
        timed = list(islice(stream, options.steps))
        times = self.time_steps(trainer, timed)
        counts = [batch.count for batch, _ in timed]
        speeds = [count / seconds for count, seconds in zip(counts, times, strict=True)]
        tflops = [self.size.flops(batch) / seconds / 1e12 for (batch, _), seconds in zip(timed, times, strict=True)]
        self.add(
            tokens_per_second=round(median(speeds)),
            slowest=round(min(speeds)),
            fastest=round(max(speeds)),
            mean_tokens_per_second=round(sum(counts) / sum(times)),
            step_ms=round(1000 * median(times), 2),
            tflops=round(median(tflops), 1),
            warm_up_s=round(max(0.0, warm_up_seconds - warm_up_steps * median(times)), 1),
            last_loss=round(trainer.step(*next(stream)).item(), 3),
        )
        if self.cuda:
            peak = torch.cuda.max_memory_allocated()
            per_token = (peak - allocated) / max(batch.count for batch in batches)
            self.add(peak_gib=round(peak / 2**30, 2), step_kib_per_token=round(per_token / 1024, 1))
        if options.profile:
            self.profile(trainer, stream)
        if options.largest:
            self.find_largest_batch(trainer)

    def warm_up(self, trainer: Trainer, stream: Iterator[PreparedBatch], steps: int) -> float:
        """Run the first steps and return their time in seconds."""
        start = time.perf_counter()
        loss = trainer.step(*next(stream))
        synchronize(self.device)
        self.add(first_step_s=round(time.perf_counter() - start, 1), first_loss=round(loss.item(), 3))
        for prepared in islice(stream, steps - 1):
            trainer.step(*prepared)
        synchronize(self.device)
        return time.perf_counter() - start

    def time_steps(self, trainer: Trainer, batches: list[PreparedBatch]) -> list[float]:
        """Return the seconds of each step; on a GPU by CUDA events, without synchronisation between steps."""
        times = []
        if not self.cuda:
            for prepared in batches:
                start = time.perf_counter()
                trainer.step(*prepared)
                times.append(time.perf_counter() - start)
            return times
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(batches) + 1)]
        synchronize(self.device)
        events[0].record()
        for prepared, event in zip(batches, events[1:], strict=True):
            trainer.step(*prepared)
            event.record()
        synchronize(self.device)
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(events)]

    def profile(self, trainer: Trainer, stream: Iterator[PreparedBatch]) -> None:
        """Add the kernels of a step by time, the number of launches, the host time and the idle time of the device."""
        synchronize(self.device)
        start = time.perf_counter()
        for prepared in islice(stream, PROFILED_STEPS):
            trainer.step(*prepared)
        host_ms = 1000 * (time.perf_counter() - start) / PROFILED_STEPS
        synchronize(self.device)
        total_ms = 1000 * (time.perf_counter() - start) / PROFILED_STEPS
        self.add(host_ms=round(host_ms, 2), whole_ms=round(total_ms, 2))
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        with profile(activities=activities) as profiler:
            for prepared in islice(stream, PROFILED_STEPS):
                trainer.step(*prepared)
            synchronize(self.device)
        averages = profiler.key_averages()
        calls = Counter({row.key: row.count for row in averages})
        launches = sum(n for name, n in calls.items() if "LaunchKernel" in name or "GraphLaunch" in name)
        time_attribute = "self_device_time_total" if self.cuda else "self_cpu_time_total"
        # Operators and annotations have device times, too, which repeat the times of their kernels.
        device_type = DeviceType.CUDA if self.cuda else DeviceType.CPU
        rows = [row for row in averages if row.device_type == device_type and not row.is_user_annotation]
        rows.sort(key=lambda row: -getattr(row, time_attribute))
        kernels = [
            {
                "ms": round(getattr(row, time_attribute) / 1000 / PROFILED_STEPS, 3),
                "calls": row.count / PROFILED_STEPS,
                "name": row.key[:110],
            }
            for row in rows[:TOP]
        ]
        busy_ms = sum(getattr(row, time_attribute) for row in rows) / 1000 / PROFILED_STEPS
        self.add(
            launches=launches / PROFILED_STEPS,
            kernels_ms=round(busy_ms, 2),
            idle_ms=round(max(0.0, total_ms - busy_ms), 2),
            kernels=kernels,
        )
        for kernel in kernels:
            print(f"    {kernel['ms']:8.3f} ms {kernel['calls']:7.1f} x  {kernel['name']}", flush=True)

    def find_largest_batch(self, trainer: Trainer) -> None:
        """Find the largest number of target tokens that fits into memory, by doubling and bisection."""
        tokens, failure = self.options.tokens, ""
        for _ in range(DOUBLINGS):
            failure = self.try_batch(trainer, tokens)
            if failure:
                break
            tokens *= 2
        if failure and failure != OUT_OF_MEMORY:
            self.add(largest_stopped_by=failure)
        if failure != OUT_OF_MEMORY:
            return
        fits, too_large = tokens // 2, tokens
        for _ in range(BISECTIONS):
            middle = (fits + too_large) // 2
            # A failed capture may raise any error here.
            if self.try_batch(trainer, middle):
                too_large = middle
            else:
                fits = middle

    def try_batch(self, trainer: Trainer, tokens: int) -> str:
        """Run steps on a batch of this size and add its memory; return the reason if it fails."""
        try:
            self.add(**self.run_batch(trainer, tokens))
            return ""
        except Exception as error:  # some kernels use 32-bit indices
            failure = OUT_OF_MEMORY if _is_caused_by_memory(error) else f"{type(error).__name__}: {str(error)[:120]}"
        print(f"    a batch of {tokens:,} tokens fails: {failure}", flush=True)
        return failure

    def run_batch(self, trainer: Trainer, tokens: int) -> Row:
        """Run as many steps on one batch as capture needs; return its size and peak memory."""
        trainer.free_memory()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        batch = make_one(self.size.vocab, tokens, self.system.layout, self.device)
        prepared = self.system.prepare(batch)
        for _ in range(WARMUP_STEPS + 2 if self.system.capture else 2):
            loss = trainer.step(batch, prepared)
        if not loss.isfinite():
            raise ArithmeticError(f"the loss is {loss.item()}")
        peak = torch.cuda.max_memory_allocated() if self.cuda else 0
        return {
            "largest_batch_tokens": batch.count,
            "largest_batch_positions": batch.padded_tokens,
            "largest_peak_gib": round(peak / 2**30, 1),
        }

    def measure_curve(self) -> None:
        """Add the loss curve of training on the built-in corpus."""
        options = self.options
        batches = make_builtin_batches(options.curve_tokens, options.curve_steps, self.system.layout, self.device)
        trainer = Trainer(self.system, self.size, self.device, options.seed, lr=CURVE_LR)
        self.add(tokens=round(mean(batch.count for batch in batches)))
        start, losses = time.perf_counter(), list[torch.Tensor]()
        for step, batch in enumerate(batches, start=1):
            trainer.set_lr(CURVE_LR * min(1, step / CURVE_WARM_UP))
            losses.append(trainer.step(batch, self.system.prepare(batch)))
            if step % SAVE_EVERY == 0 or step == len(batches):
                values = torch.stack(losses).tolist()
                points = [
                    round(mean(values[i : i + STEPS_PER_POINT]), 4) for i in range(0, len(values), STEPS_PER_POINT)
                ]
                self.add(seconds=round(time.perf_counter() - start, 1), last=points[-1], losses=points)


def _is_caused_by_memory(error: BaseException | None) -> bool:
    return error is not None and (is_out_of_memory(error) or _is_caused_by_memory(error.__context__))
