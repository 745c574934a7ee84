"""Log and metrics of the server.

The log has one JSON object per line on standard error. It contains texts of users only with `--log-text`.
"""

import datetime
import json
import logging
import sys
import traceback
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LOGGER_NAME = "regard.serving"
_LOGGER = logging.getLogger(LOGGER_NAME)

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


def log_event(event: str, /, level: int = logging.INFO, exc_info: bool = False, **fields: object) -> None:
    """Write one line to the log."""
    _LOGGER.log(level, event, exc_info=exc_info, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object with time, level, event and fields.

    Exceptions are logged by type and location only, because their messages may quote texts of users.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-5:]]
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging() -> None:
    """Send the log of the server and warnings of uvicorn to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, level in ((LOGGER_NAME, logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class Metrics:
    """Prometheus metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        seconds = partial(Histogram, registry=self.registry, buckets=SECONDS_BUCKETS)
        sizes = partial(Histogram, registry=self.registry, buckets=SIZE_BUCKETS)
        self.requests = counter("regard_requests", "Number of answered requests", ["endpoint", "status"])
        self.seconds = seconds("regard_request_seconds", "Latency of requests", ["endpoint"])
        self.in_flight = gauge("regard_requests_in_flight", "Number of requests being processed")
        self.rejects = counter("regard_rejects", "Number of requests answered with an error", ["reason"])
        self.ready = gauge("regard_ready", "Whether the server is ready for requests")
        self.queue = gauge("regard_queue_sentences", "Number of queued sentences", ["model"])
        self.batch_sizes = sizes("regard_batch_sentences", "Number of sentences per batch", ["model"])
        self.batch_seconds = seconds("regard_batch_seconds", "Duration of batches", ["model"])
        self.tokens = counter("regard_tokens", "Number of processed source tokens", ["model"])
        self.dropped = counter("regard_dropped_sentences", "Number of sentences dropped after a disconnect", ["model"])
        self.dropped_connections = counter("regard_dropped_connections", "Number of dropped connections", ["reason"])
        self.restarts = counter("regard_worker_restarts", "Number of restarted workers", ["model"])

    def record_batch(self, model: str, sentences: int, tokens: int, seconds: float) -> None:
        self.batch_sizes.labels(model).observe(sentences)
        self.batch_seconds.labels(model).observe(seconds)
        self.tokens.labels(model).inc(tokens)
