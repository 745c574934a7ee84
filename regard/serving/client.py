"""Client of LibreTranslate's API, for `regard translate --server`."""

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from regard.data.text.languages import match_language
from regard.errors import UserError

BATCH_LINES = 64
TIMEOUT = 120.0
RETRY_SECONDS = 600.0
"""Time for which requests to an overloaded server are repeated."""


class Client:
    """Translates lines with a server that implements LibreTranslate's API."""

    def __init__(self, url: str, key: str | None = None) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise UserError(f"--server {url}: expected a complete URL, such as http://127.0.0.1:5000")
        self._url, self._key = url.rstrip("/"), key

    def choose_languages(self, source: str | None, target: str | None) -> tuple[str, str]:
        """Return the given languages; if one is missing, the only matching pair of the server."""
        if source is not None and target is not None:
            return source, target
        pairs = [
            (language["code"], code)
            for language in self._request("/languages")
            for code in language.get("targets", ())
            if language["code"] != code
            and (source is None or match_language(source, [language["code"]]))
            and (target is None or match_language(target, [code]))
        ]
        if len(pairs) != 1:
            available = ", ".join(f"{a} to {b}" for a, b in pairs) or "no such pair"
            raise UserError(f"{self._url} offers {available}; choose a pair with --from and --to")
        return pairs[0]

    def translate(self, lines: Iterable[str], source: str, target: str) -> Iterator[str]:
        """Yield the translation of each line; blank lines are returned unchanged."""
        limit = int(self._request("/frontend/settings").get("charLimit", -1))
        max_characters = math.inf if limit < 0 else limit
        for batch in _batches(lines, BATCH_LINES, max_characters):
            texts = [line for line in batch if line.strip()]
            fields = {"q": texts, "source": source, "target": target, "format": "text"}
            translations = iter(self._request("/translate", fields)["translatedText"] if texts else ())
            yield from (next(translations) if line.strip() else line for line in batch)

    def _request(self, path: str, fields: dict[str, Any] | None = None) -> Any:
        """Send a request; repeat it while the server is overloaded or still loading."""
        retry_until = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return self._send(path, fields)
            except HTTPError as error:
                retry_after = error.headers.get("Retry-After", "1")
                if error.code not in (429, 503) or time.monotonic() > retry_until:
                    raise UserError(f"{self._url}{path} returned {error.code}: {_error_message(error)}") from None
                time.sleep(min(float(retry_after), 60) if retry_after.isdigit() else 1.0)
            except (URLError, OSError, HTTPException, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise UserError(f"{self._url}{path} cannot be reached ({reason})") from None

    def _send(self, path: str, fields: dict[str, Any] | None) -> Any:
        data = None
        if fields is not None:
            data = json.dumps(fields | ({"api_key": self._key} if self._key else {})).encode()
        request = Request(self._url + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=TIMEOUT) as response:
            return json.load(response)


def _batches(lines: Iterable[str], max_lines: int, max_characters: float) -> Iterator[Sequence[str]]:
    """Group lines so that each batch stays within the limits; a longer line is a batch of its own."""
    batch: list[str] = []
    characters = 0
    for line in lines:
        if batch and (len(batch) == max_lines or characters + len(line) > max_characters):
            yield batch
            batch, characters = [], 0
        batch.append(line)
        characters += len(line)
    if batch:
        yield batch


def _error_message(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)
