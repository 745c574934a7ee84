"""What a client is told when it gets no answer: a status and one sentence, in LibreTranslate's form.

The reason, and the numbers of the sentence, stand in a header beside it, for whoever says it in another language.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlencode

from regard.errors import ErrorKind

HEADER = "X-Problem"
Access = Literal["key", "stranger", "quota"]
Trouble = Literal["overload", "unavailable", "deadline", "failure", "gone"]
Reason = Literal[ErrorKind, Access, Trouble, "size", "slow", "tokens", "characters", "model"]
"""Why there is no answer, in one word."""


class Problem(Exception):  # noqa: N818  it is an answer too, and no mistake of ours
    """No answer, and why.

    `reason` is one word for the metrics and the page, `retry_after` seconds after which to try again, `close` ends the
    connection; `numbers` are those of the sentence.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        reason: Reason,
        retry_after: float | None = None,
        close: bool = False,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.reason = status, sentence, reason
        self.headers = {HEADER: urlencode({"reason": reason, **(numbers or {})})}
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        if close:
            self.headers["Connection"] = "close"


def bad(sentence: str, reason: Reason = "bad", **numbers: float) -> Problem:
    """A request that cannot be answered as it is."""
    return Problem(400, sentence, reason, numbers=numbers)


def overloaded(sentence: str, retry_after: float) -> Problem:
    """Too much at once; later it may do."""
    return Problem(429, sentence, "overload", retry_after)


def unavailable(sentence: str) -> Problem:
    """A model that is not there yet, or just now not."""
    return Problem(503, sentence, "unavailable", 1)


def too_late(seconds: float) -> Problem:
    """The deadline has passed."""
    sentence = f"no answer within {seconds:g} seconds; send less text at once, or try again later"
    return Problem(504, sentence, "deadline", numbers={"seconds": seconds})


def broken() -> Problem:
    """Something went wrong here; the log says what."""
    return Problem(500, "this text could not be worked on; the server's log says why", "failure")
