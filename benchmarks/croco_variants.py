"""Several settings of completion side by side, each in a process of its own; the best on other scenes wins."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIANTS = (
    "recipe",
    "large-batches batch.pairs=512 optim.lr=1.5e-3",
    "quick optim.lr=2.0e-3",
)
"""A name, and changes of the recipe."""
PATCH = "model.patch="
"""Losses and hits are by the patch: models of several sizes of it cannot be compared by them."""


def race(
    arguments: argparse.Namespace, minutes: float, score: Callable[[Path], dict[str, float]]
) -> tuple[dict[str, Any], list[str]]:
    """Trains all variants at once; returns how each did, by `score` of its run, and the changes of the winner."""
    parts = [variant.split() for variant in arguments.variant or VARIANTS]
    variants = {name: changes for name, *changes in parts}
    if unlike := [name for name, changes in variants.items() if any(one.startswith(PATCH) for one in changes)]:
        sys.exit(f"{unlike[0]}: {PATCH} cannot differ within a race; give it in --set, for all")
    places = {name: arguments.out / "race" / name for name in variants}
    running = {name: _start(arguments, places[name], variants[name], minutes) for name in variants}
    codes = {name: process.wait() for name, process in running.items()}
    found: dict[str, dict[str, float]] = {}
    for name, place in places.items():
        if codes[name]:
            print(f"{name} has failed; its last words:\n{_log(place).read_text('utf-8')[-1500:]}", flush=True)
        else:
            found[name] = score(place / "completion")
            print(f"{name}: {found[name]}", flush=True)
    if not found:
        sys.exit("no variant came to an end")
    winner = min(found, key=lambda name: found[name]["ratio"])
    return {"variants": variants, "scores": found, "winner": winner, "minutes": minutes}, variants[winner]


def _start(arguments: argparse.Namespace, out: Path, changes: list[str], minutes: float) -> subprocess.Popen[bytes]:
    out.mkdir(parents=True, exist_ok=True)
    words = ["train", "--minutes", str(minutes), "--out", str(out), "--device", arguments.device]
    words += [word for change in (*arguments.set, *changes) for word in ("--set", change)]
    with _log(out).open("wb") as log:
        script = Path(__file__).with_name("croco.py")
        return subprocess.Popen([sys.executable, str(script), *words], stdout=log, stderr=subprocess.STDOUT)


def _log(out: Path) -> Path:
    return out / "train.log"
