"""A contender of benchmarks/training.py at work, in a process of its own: its speed, kernels, memory, and losses."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training_systems import CONTENDERS, SIZES, Trainer
from training_workload import Workload, begin_with_unlike_sizes, make_lessons, make_one

from regard.training.cuda_graph import WARMUP_STEPS
from regard.training.memory import is_out_of_memory

WARM_UP = 10
"""Steps before any is timed, at the least; every batch is seen once, since a new shape may take longer."""
TRACED = 3
TOP = 40
DOUBLINGS, REFINEMENTS = 8, 2
MEMORY = "memory"
RATE, RISE = 5e-4, 200
"""The learning rate of a curve, and after how many steps it is reached."""
TENS = 10
NOTED = 100
"""A curve has a figure for so many steps, and is kept after so many, though it may never end."""
Row = dict[str, Any]
Turn = tuple[Any, Any]
"""A batch, and the same as the contender reads it."""


def work_as_child(options: argparse.Namespace) -> None:
    measuring = Measuring(options.child, options, options.out)
    if options.curve:
        measuring.curve()
    else:
        measuring.measure()


class Measuring:
    """Writes what it finds to a file as soon as it is known."""

    def __init__(self, name: str, options: argparse.Namespace, out: Path) -> None:
        self.options, self.out = options, out
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        self.contender, self.size = CONTENDERS[name], SIZES[options.preset]
        self.row: Row = {"name": name}

    def note(self, **found: Any) -> None:
        self.row |= found
        new = self.out.with_suffix(".new")
        new.write_text(json.dumps(self.row), encoding="utf-8")
        new.replace(self.out)  # whole, whenever this process is ended
        brief = {key: value for key, value in found.items() if not isinstance(value, (list, dict))}
        if brief:
            print("   ", *(f"{key}={value}" for key, value in brief.items()), flush=True)

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def measure(self) -> None:
        """Speed and memory, then what else was asked for."""
        options = self.options
        made = Workload(self.size.vocab, options.tokens, options.batches, self.device).make(self.contender.layout)
        made = begin_with_unlike_sizes(made)
        turns = cycle([(batch, self.contender.prepare(batch)) for batch in made])
        counts = [batch.count for batch in made]
        self.note(tokens=round(mean(counts)), places=round(mean(batch.positions for batch in made)))
        trainer = Trainer(self.contender, self.size, self.device)
        warm = self.warm_up(trainer, turns, max(WARM_UP, len(made)))
        held = torch.cuda.memory_allocated() if self.cuda else 0
        if self.cuda and not self.contender.record:  # what replays what was recorded asks for no memory any more
            torch.cuda.reset_peak_memory_stats()
        times, done = self.clock(trainer, turns, options.steps)
        rates = [batch.count / seconds for batch, seconds in zip(done, times, strict=True)]
        flops = [self.size.flops(batch) / seconds / 1e12 for batch, seconds in zip(done, times, strict=True)]
        self.note(
            tokens_per_second=round(median(rates)),
            slowest=round(min(rates)),
            fastest=round(max(rates)),
            mean_tokens_per_second=round(sum(batch.count for batch in done) / sum(times)),
            step_ms=round(1000 * median(times), 2),
            tflops=round(median(flops), 1),
            warm_up_s=round(max(0.0, warm - max(WARM_UP, len(made)) * median(times)), 1),
            last_loss=round(trainer.step(*next(turns)).item(), 3),
        )
        if self.cuda:
            peak = torch.cuda.max_memory_allocated()
            per_token = (peak - held) / max(counts)
            self.note(peak_gib=round(peak / 2**30, 2), step_kib_per_token=round(per_token / 1024, 1))
        if options.profile:
            self.profile(trainer, turns)
        if options.largest:
            self.find_largest(trainer)

    def warm_up(self, trainer: Trainer, turns: Iterator[Turn], steps: int) -> float:
        """Seconds of the first steps."""
        begin = time.perf_counter()
        loss = trainer.step(*next(turns))
        self.wait()
        self.note(first_step_s=round(time.perf_counter() - begin, 1), first_loss=round(loss.item(), 3))
        for turn in islice(turns, steps - 1):
            trainer.step(*turn)
        self.wait()
        return time.perf_counter() - begin

    def clock(self, trainer: Trainer, turns: Iterator[Turn], steps: int) -> tuple[list[float], list[Any]]:
        """Seconds of each step, by events in the device's stream, without waiting in between; and their batches."""
        done = list(islice(turns, steps))
        batches = [batch for batch, _ in done]
        if not self.cuda:
            times = []
            for turn in done:
                begin = time.perf_counter()
                trainer.step(*turn)
                times.append(time.perf_counter() - begin)
            return times, batches
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        self.wait()
        events[0].record()
        for turn, event in zip(done, events[1:], strict=True):
            trainer.step(*turn)
            event.record()
        self.wait()
        return [one.elapsed_time(other) / 1000 for one, other in pairwise(events)], batches

    def profile(self, trainer: Trainer, turns: Iterator[Turn]) -> None:
        """Kernels of a step by time, launches, the host's time, and how long the device had nothing to do."""
        self.wait()
        begin = time.perf_counter()
        for turn in islice(turns, TRACED):
            trainer.step(*turn)
        host = time.perf_counter() - begin
        self.wait()
        whole = time.perf_counter() - begin
        self.note(host_ms=round(1000 * host / TRACED, 2), whole_ms=round(1000 * whole / TRACED, 2))
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        with profile(activities=kinds) as traced:
            for turn in islice(turns, TRACED):
                trainer.step(*turn)
            self.wait()
        averages = traced.key_averages()
        calls = Counter({row.key: row.count for row in averages})
        launches = sum(n for name, n in calls.items() if "LaunchKernel" in name or "GraphLaunch" in name)
        time_of = "self_device_time_total" if self.cuda else "self_cpu_time_total"
        # Of operators and of marks round them the device has times, too, but those are the times of their kernels.
        where = DeviceType.CUDA if self.cuda else DeviceType.CPU
        rows = [row for row in averages if row.device_type == where and not row.is_user_annotation]
        rows.sort(key=lambda row: -getattr(row, time_of))
        kernels = [
            {"ms": round(getattr(row, time_of) / 1000 / TRACED, 3), "calls": row.count / TRACED, "name": row.key[:110]}
            for row in rows[:TOP]
        ]
        busy = sum(getattr(row, time_of) for row in rows) / 1000 / TRACED
        idle = max(0.0, 1000 * whole / TRACED - busy)
        self.note(launches=launches / TRACED, kernels_ms=round(busy, 2), idle_ms=round(idle, 2), kernels=kernels)
        for kernel in kernels:
            print(f"    {kernel['ms']:8.3f} ms {kernel['calls']:7.1f} x  {kernel['name']}", flush=True)

    def find_largest(self, trainer: Trainer) -> None:
        """The most target tokens of a batch that fits: by doubling, then between what fits and what does not."""
        tokens, obstacle = self.options.tokens, ""
        for _ in range(DOUBLINGS):
            obstacle = self.find_obstacle(trainer, tokens)
            if obstacle:
                break
            tokens *= 2
        if obstacle == MEMORY:
            self.refine(trainer, tokens // 2, tokens)
        elif obstacle:
            self.note(largest_stopped_by=obstacle)

    def refine(self, trainer: Trainer, fits: int, too_many: int) -> None:
        for _ in range(REFINEMENTS):
            between = (fits + too_many) // 2
            if self.find_obstacle(trainer, between):  # after a recording that failed, whatever it is
                too_many = between
            else:
                fits = between

    def find_obstacle(self, trainer: Trainer, tokens: int) -> str:
        """Why a batch of so many tokens does not go through, if so."""
        try:
            self.note(**self.attempt(trainer, tokens))
            return ""
        except Exception as error:  # some kernels count in 32 bits
            why = MEMORY if _wants_memory(error) else f"{type(error).__name__}: {str(error)[:120]}"
        print(f"    {tokens:,} tokens do not go through: {why}", flush=True)
        return why

    def attempt(self, trainer: Trainer, tokens: int) -> Row:
        """Some steps on one batch, until they are recorded and a bit longer."""
        trainer.let_go()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        batch = make_one(self.size.vocab, tokens, self.contender.layout, self.device)
        read = self.contender.prepare(batch)
        for _ in range(WARMUP_STEPS + 2 if self.contender.record else 2):
            loss = trainer.step(batch, read)
        if not loss.isfinite():
            raise ArithmeticError(f"the loss is {loss.item()}")
        peak = torch.cuda.max_memory_allocated() if self.cuda else 0
        return {
            "largest_batch_tokens": batch.count,
            "largest_batch_places": batch.positions,
            "largest_peak_gib": round(peak / 2**30, 1),
        }

    def curve(self) -> None:
        """The mean loss of every ten steps on the built-in corpus."""
        options = self.options
        batches = make_lessons(options.curve_tokens, options.curve_steps, self.contender.layout, self.device)
        trainer = Trainer(self.contender, self.size, self.device, options.seed, lr=RATE)
        self.note(tokens=round(mean(batch.count for batch in batches)))
        begin, losses = time.perf_counter(), list[torch.Tensor]()
        for number, batch in enumerate(batches, start=1):
            trainer.set_rate(RATE * min(1, number / RISE))
            losses.append(trainer.step(batch, self.contender.prepare(batch)))
            if number % NOTED == 0 or number == len(batches):
                values = torch.stack(losses).tolist()
                tens = [round(mean(values[i : i + TENS]), 4) for i in range(0, len(values), TENS)]
                self.note(seconds=round(time.perf_counter() - begin, 1), last=tens[-1], losses=tens)


def _wants_memory(error: BaseException | None) -> bool:
    """Whether it was raised, or something else on its way, for want of memory."""
    return error is not None and (is_out_of_memory(error) or _wants_memory(error.__context__))
