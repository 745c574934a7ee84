"""What Prometheus may read at /metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The figures of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Answered requests", "endpoint", "status")
        self.seconds = self._histogram("request_seconds", "Time to answer", SECONDS, "endpoint")
        self.in_flight = self._gauge("requests_in_flight", "Requests being answered")
        self.rejects = self._counter("rejects", "Requests without an answer, by reason", "reason")
        self.ready = self._gauge("ready", "Whether requests are welcome")
        self.queue = self._gauge("queue_sentences", "Sentences that wait", "model")
        self.batch_sizes = self._histogram("batch_sentences", "Sentences a batch", SIZES, "model")
        self.batch_seconds = self._histogram("batch_seconds", "Time of a batch", SECONDS, "model")
        self.tokens = self._counter("tokens", "Source tokens worked on", "model")
        self.dropped = self._counter("dropped_sentences", "Sentences whose client had left", "model")
        self.restarts = self._counter("worker_restarts", "Workers that had to be started again", "model")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"regard_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"regard_{name}", about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"regard_{name}", about, labels, registry=self.registry, buckets=buckets)

    def model(self, name: str) -> ModelMetrics:
        """The figures of one model."""
        return ModelMetrics(self, name)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)


class ModelMetrics:
    """The figures of one model."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.dropped, self.restarts = metrics.dropped.labels(name), metrics.restarts.labels(name)
        self._queue, self._tokens = metrics.queue.labels(name), metrics.tokens.labels(name)
        self._sizes, self._seconds = metrics.batch_sizes.labels(name), metrics.batch_seconds.labels(name)

    def watch_queue(self, length: Callable[[], int]) -> None:
        self._queue.set_function(length)

    def batch(self, sentences: int, tokens: int, seconds: float) -> None:
        """Counts a batch that has been done."""
        self._sizes.observe(sentences)
        self._seconds.observe(seconds)
        self._tokens.inc(tokens)
