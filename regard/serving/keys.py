"""API keys and their rate limits.

Each line of the key file is `name hash requests_per_minute`; `#` starts a comment. The file contains the SHA-256 of
each key, never the key. Keys are long and random, so an unsalted hash is sufficient. They are looked up by their
hash, so the lookup time reveals nothing about them.
"""

import hashlib
import logging
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.files import read_text
from regard.serving.errors import ApiError

_LOGGER = logging.getLogger("regard.serving")
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass
class KeyHolder:
    """Owner of a key, with a token bucket for the rate limit."""

    name: str
    per_minute: int
    remaining: float = math.inf  # limited to `per_minute` by `take`
    updated: float = 0.0

    def take(self, now: float) -> float:
        """Count one request; return 0, or the seconds to wait if the rate limit is exceeded."""
        per_second = self.per_minute / 60
        self.remaining = min(float(self.per_minute), self.remaining + (now - self.updated) * per_second)
        self.updated = now
        if self.remaining < 1:
            return (1 - self.remaining) / per_second
        self.remaining -= 1
        return 0.0

    def charge(self, requests: int) -> None:
        """Count further requests, for a request that is as large as several; later ones may have to wait."""
        self.remaining -= requests

    def give_back(self) -> None:
        """Undo `take`, for a request that was not processed."""
        self.remaining += 1


class Keys:
    """The keys of a key file, by hash."""

    def __init__(self, holders: dict[str, KeyHolder], clock: Callable[[], float] = time.monotonic) -> None:
        self._holders, self._clock = holders, clock

    @classmethod
    def load(cls, path: Path) -> "Keys":
        """Read a key file."""
        lines = read_text(path).splitlines()
        if os.name == "posix" and path.stat().st_mode & WRITABLE_BY_OTHERS:
            fields = {"file": str(path), "advice": f"chmod go-w {path}"}
            _LOGGER.warning("key file is writable by others", extra={"fields": fields})
        holders: dict[str, KeyHolder] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if not re.fullmatch(r"\S+ [0-9a-f]{64} [1-9][0-9]{0,8}", " ".join(words)):
                raise UserError(
                    f"{path}, line {number}: expected a name, the SHA-256 of a key and its requests per minute; "
                    f"`regard key` adds such lines"
                )
            name, key_hash, per_minute = words
            if key_hash in holders:
                raise UserError(f"{path}, line {number}: duplicate key")
            holders[key_hash] = KeyHolder(name, int(per_minute))
        return cls(holders)

    def __len__(self) -> int:
        return len(self._holders)

    def admit(self, key: str | None) -> KeyHolder:
        """Count a request and return the holder of its key.

        Raises:
            ApiError: The key is missing or unknown (403), or its rate limit is exceeded (429).
        """
        if not key:
            raise ApiError(403, "this server requires an API key; send it as api_key", "missing_key")
        holder = self._holders.get(hash_key(key))
        if holder is None:
            raise ApiError(403, "Invalid API key", "invalid_key")
        if wait := holder.take(self._clock()):
            message = f"Slowdown: {holder.per_minute} requests per minute are allowed"
            raise ApiError(429, message, "rate_limit", wait, numbers={"limit": holder.per_minute})
        return holder

    def copy_usage(self, previous: "Keys") -> None:
        """Copy the used requests of each key from before a reload."""
        for key_hash, holder in self._holders.items():
            before = previous._holders.get(key_hash)
            if before is not None:
                holder.remaining, holder.updated = before.remaining, before.updated


def hash_key(key: str) -> str:
    """Return the hash of a key, as in the key file."""
    return hashlib.sha256(key.encode("utf-8", errors="replace")).hexdigest()


def make_key(name: str, per_minute: int = 600) -> tuple[str, str]:
    """Return a new random key, and its line for the key file. The name must be a single word."""
    if not re.fullmatch(r"[^\s#]+", name):
        raise UserError(f"{name!r} is not a valid key name; use a single word without #")
    key = secrets.token_urlsafe(32)
    return key, f"{name} {hash_key(key)} {per_minute}\n"
