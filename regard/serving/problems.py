"""What a client is told when it gets no answer: a status and one sentence, in LibreTranslate's form."""

from __future__ import annotations

import math


class Problem(Exception):  # noqa: N818  it is an answer too, and no mistake of ours
    """No answer, and why.

    `reason` is one word for the metrics, `retry_after` seconds after which to try again, `close` ends the connection.
    """

    def __init__(
        self, status: int, sentence: str, reason: str, retry_after: float | None = None, close: bool = False
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.reason = status, sentence, reason
        self.headers = {} if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
        if close:
            self.headers["Connection"] = "close"


def bad(sentence: str) -> Problem:
    """A request that cannot be answered as it is."""
    return Problem(400, sentence, "bad")


def overloaded(sentence: str, retry_after: float) -> Problem:
    """Too much at once; later it may do."""
    return Problem(429, sentence, "overload", retry_after)


def unavailable(sentence: str) -> Problem:
    """A model that is not there yet, or just now not."""
    return Problem(503, sentence, "unavailable", 1)


def too_late(seconds: float) -> Problem:
    """The deadline has passed."""
    return Problem(504, f"no answer within {seconds:g} seconds; send less text at once, or try again later", "deadline")


def broken() -> Problem:
    """Something went wrong here; the log says what."""
    return Problem(500, "this text could not be worked on; the server's log says why", "failure")
