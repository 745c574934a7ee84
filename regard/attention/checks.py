"""What kinds of attention refuse when they are made, each time with one sentence."""

from __future__ import annotations

from collections.abc import Collection


def check_least(what: str, name: str, value: int, least: int) -> None:
    """Refuses a whole number that is too small, and what is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what}: {name} must be a whole number, {least} or more, not {value!r}")


def check_one_of(what: str, name: str, value: object, known: Collection[str]) -> None:
    """Refuses what is not among the known."""
    if value not in known:
        raise ValueError(f"{what}: {name} must be one of {', '.join(known)}, not {value!r}")


def check_share(what: str, name: str, value: float) -> None:
    """Refuses what is no part of one."""
    if not 0 <= value <= 1:
        raise ValueError(f"{what}: {name} must lie between 0 and 1, not {value!r}")
