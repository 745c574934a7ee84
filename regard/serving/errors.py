"""Errors that become HTTP responses of the form `{"error": message}`, as in LibreTranslate.

The header `X-Error` repeats the reason and the numbers of the message, so that the page can translate them.
"""

import math
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlencode

from regard.errors import ErrorKind

HEADER = "X-Error"
AccessReason = Literal["missing_key", "invalid_key", "rate_limit", "host"]
ServerReason = Literal["overload", "unavailable", "deadline", "internal", "disconnected"]
Reason = Literal[ErrorKind, AccessReason, ServerReason, "body_size", "body_timeout", "tokens", "characters", "model"]
"""Reason of an error response: a label of the metrics, and the key of the page's message."""


class ApiError(Exception):
    """An error response.

    Args:
        message: one sentence for the client.
        reason: short reason for the log, the metrics and the page.
        retry_after: seconds after which the client may try again.
        numbers: numbers in the message, for the page's translation of it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        reason: Reason,
        retry_after: float | None = None,
        close: bool = False,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.reason = status, message, reason
        self.headers = {HEADER: urlencode({"reason": reason, **(numbers or {})})}
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        if close:
            self.headers["Connection"] = "close"


def bad_request(message: str, reason: Reason = "bad", **numbers: float) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(400, message, reason, numbers=numbers)


def overloaded(message: str, retry_after: float) -> ApiError:
    """Return the error for too many requests at once. Requests that the client has pipelined are not processed."""
    return ApiError(429, message, "overload", retry_after, close=True)


def unavailable(message: str) -> ApiError:
    """Return the error for models that are not ready."""
    return ApiError(503, message, "unavailable", 1)


def deadline_exceeded(seconds: float) -> ApiError:
    """Return the error for a request that was not answered before its deadline."""
    message = f"no answer within {seconds:g} seconds; send less text at once, or try again later"
    return ApiError(504, message, "deadline", numbers={"seconds": seconds})


def internal_error() -> ApiError:
    """Return the error for an unexpected exception; its details are only logged."""
    return ApiError(500, "the request could not be processed; see the log of the server", "internal")


def disconnected() -> ApiError:
    """Return the error for a client that closed its connection. The status 499 is only logged."""
    return ApiError(499, "the client closed the connection", "disconnected")
