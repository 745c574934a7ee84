"""The log: a JSON object a line on standard error. A user's text stands in it only where that was asked for."""

from __future__ import annotations

import datetime
import json
import logging
import sys
import traceback

_LOGGER = logging.getLogger("regard.serving")


def note(event: str, /, level: int = logging.INFO, exc_info: bool = False, **facts: object) -> None:
    """Writes what has happened, with what is known of it."""
    _LOGGER.log(level, event, exc_info=exc_info, extra={"facts": facts})


class JsonLines(logging.Formatter):
    """Time, level, event and facts; of an error its kind and where it was, as its message may quote a user's text."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-5:]]
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logs() -> None:
    """Sends our log and the HTTP server's to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("regard.serving", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "regard.serving" else logging.WARNING)
