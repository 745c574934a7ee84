"""A client of LibreTranslate's API, for `regard translate --server`; any server that speaks it will do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from regard.errors import UserError

LINES = 64
"""Texts that are sent at once, if they are short."""
PATIENCE = 600.0
"""Seconds for which an overloaded server is asked again."""


class Client:
    """Translates by way of a server."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        timeout: float = 120.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise UserError(f"--server {url}: write a whole address, such as http://127.0.0.1:5000")
        self._url, self._key, self._timeout, self._sleep = url.rstrip("/"), key, timeout, sleep

    def choose_languages(self, source: str | None, target: str | None) -> tuple[str, str]:
        """The languages that are given, or the only pair that fits what is given.

        Raises:
            UserError: none fits, or several do.
        """
        if source is not None and target is not None:
            return source, target
        pairs = [
            (one["code"], other)
            for one in self._ask("/languages")
            for other in one.get("targets", ())
            if one["code"] != other and source in (None, one["code"]) and target in (None, other)
        ]
        if len(pairs) != 1:
            offered = ", ".join(f"{a} to {b}" for a, b in pairs) or "no such pair"
            raise UserError(f"{self._url} offers {offered}; choose with --from and --to")
        return pairs[0]

    def translate(self, lines: Iterable[str], source: str, target: str) -> Iterator[str]:
        """The translation of every line, in order; blank lines stay as they are.

        Raises:
            UserError: the server cannot be reached, or refuses.
        """
        most = int(self._ask("/frontend/settings").get("charLimit", -1))
        for batch in _batches(lines, LINES, most):
            filled = [line for line in batch if line.strip()]
            asked = {"q": filled, "source": source, "target": target, "format": "text"}
            answers = iter(self._ask("/translate", asked)["translatedText"] if filled else ())
            yield from (next(answers) if line.strip() else line for line in batch)

    def _ask(self, path: str, fields: dict[str, Any] | None = None) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self._send(path, fields)
            except HTTPError as error:
                wait = error.headers.get("Retry-After", "1")
                if error.code not in (429, 503) or time.monotonic() > until:
                    raise UserError(f"{self._url}{path} answers {error.code}: {_reason(error)}") from None
                self._sleep(min(float(wait), 60) if wait.isdigit() else 1.0)
            except (URLError, OSError, HTTPException, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise UserError(f"{self._url}{path} cannot be asked ({reason})") from None

    def _send(self, path: str, fields: dict[str, Any] | None) -> Any:
        data = None
        if fields is not None:
            data = json.dumps(fields | ({"api_key": self._key} if self._key else {})).encode()
        request = Request(self._url + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=self._timeout) as answer:
            return json.load(answer)


def _batches(lines: Iterable[str], most_lines: int, most_characters: int) -> Iterator[Sequence[str]]:
    """The lines in order, no more at once than a request may hold; -1 characters means as many as there are."""
    batch: list[str] = []
    characters = 0
    for line in lines:
        if batch and (len(batch) == most_lines or 0 <= most_characters < characters + len(line)):
            yield batch
            batch, characters = [], 0
        batch.append(line)
        characters += len(line)
    if batch:
        yield batch


def _reason(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)
