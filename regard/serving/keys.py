"""API keys: a file with a hash of each, and how many requests a minute its holder may send.

A line is `name hash requests-a-minute`; `#` begins a comment. Keys are long and random, so that a plain SHA-256 keeps
them safe. The file never holds a key itself. Keys are looked up by their hash, so that the time it takes tells nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import UserError
from regard.serving.errors import Problem
from regard.serving.logs import note

PER_MINUTE = 600
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass
class Holder:
    """Whom a key belongs to, and what is left of this minute's requests."""

    name: str
    per_minute: int
    left: float = field(init=False)
    seen: float = field(init=False)

    def __post_init__(self) -> None:
        self.left, self.seen = float(self.per_minute), 0.0

    def spend(self, now: float) -> float:
        """Takes one request, if there is one left; gives the seconds until there is."""
        pace = self.per_minute / 60
        self.left = min(float(self.per_minute), self.left + (now - self.seen) * pace)
        self.seen = now
        if self.left < 1:
            return (1 - self.left) / pace
        self.left -= 1
        return 0.0


class Keys:
    """The keys of a file; whoever has none of them is turned away."""

    def __init__(self, holders: dict[str, Holder], clock: Callable[[], float] = time.monotonic) -> None:
        self._holders, self._clock = holders, clock

    @classmethod
    def load(cls, path: Path) -> Keys:
        """Reads a file of hashes.

        Raises:
            UserError: it cannot be read, or a line of it is malformed.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from None
        if os.name == "posix" and path.stat().st_mode & OTHERS_WRITE:
            note("others can write keys", logging.WARNING, file=str(path), advice=f"chmod go-w {path}")
        holders: dict[str, Holder] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if not re.fullmatch(r"\S+ [0-9a-f]{64} [1-9][0-9]{0,8}", " ".join(words)):
                raise UserError(
                    f"{path}, line {number}: write a name, the SHA-256 of its key and its requests a minute; "
                    f"`regard key` makes such lines"
                )
            if words[1] in holders:
                raise UserError(f"{path}, line {number}: this key stands there twice")
            holders[words[1]] = Holder(words[0], int(words[2]))
        return cls(holders)

    def __len__(self) -> int:
        return len(self._holders)

    def admit(self, key: str | None) -> str:
        """The name of the key's holder, whose request is counted.

        Raises:
            Problem: there is no such key (403), or it has been used too often (429).
        """
        if not key:
            raise Problem(403, "an API key is needed here; send it as api_key", "key")
        holder = self._holders.get(hash_key(key))
        if holder is None:
            raise Problem(403, "Invalid API key", "stranger")
        if wait := holder.spend(self._clock()):
            sentence = f"Slowdown: {holder.per_minute} requests a minute are allowed"
            raise Problem(429, sentence, "quota", wait, numbers={"most": holder.per_minute})
        return holder.name

    def keep_counting(self, before: Keys) -> None:
        """Goes on with what the holders of another reading of the file have left."""
        for key, holder in self._holders.items():
            if key in before._holders:
                holder.left = min(float(holder.per_minute), before._holders[key].left)
                holder.seen = before._holders[key].seen


def hash_key(key: str) -> str:
    """What the file holds of a key."""
    return hashlib.sha256(key.encode("utf-8", errors="replace")).hexdigest()


def make_key(name: str, per_minute: int = PER_MINUTE) -> tuple[str, str]:
    """A new key, and its line for the file.

    Raises:
        UserError: the name is not one word.
    """
    if not re.fullmatch(r"[^\s#]+", name):
        raise UserError(f"{name!r} is no name for a key; use one word without #")
    key = secrets.token_urlsafe(32)
    return key, f"{name} {hash_key(key)} {per_minute}\n"
