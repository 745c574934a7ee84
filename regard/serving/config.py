"""Configuration of the server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from regard.config import Settings
from regard.serving.messages import LoadRequest
from regard.threads import available_cpus


class Limits(Settings):
    """Limits of requests, of the queue and of batches."""

    body_bytes: int = Field(1_000_000, ge=1, description="size of a request body (413)")
    body_seconds: float = Field(20.0, gt=0, description="seconds in which headers and body must arrive (408)")
    write_seconds: float = Field(20.0, gt=0, description="seconds without progress until a response is dropped")
    characters: int = Field(10_000, ge=1, description="characters of all texts of a request (400)")
    sentences: int = Field(1000, ge=1, description="sentences of all texts of a request (400)")
    items: int = Field(128, ge=1, description="texts or images per request (400)")
    alternatives: int = Field(4, ge=0, description="alternative translations per text (400)")
    sentence_tokens: int = Field(256, ge=8, le=100_000, description="tokens of a sentence; longer ones are split")
    inspect_tokens: int = Field(512, ge=8, le=4096, description="tokens of a sentence on the page (400)")
    image_bytes: int = Field(10_000_000, ge=1, description="size of a request body with images (413)")
    image_pixels: int = Field(25_000_000, ge=1, description="pixels of an image (400)")
    request_pixels: int = Field(100_000_000, ge=1, description="pixels of all images of a request (400)")
    file_bytes: int = Field(10_000_000, ge=1, description="size of a document (413)")
    file_expanded: int = Field(50_000_000, ge=1, description="size of the expanded archive of a document (413)")
    file_characters: int = Field(500_000, ge=1, description="characters to translate of a document (400)")
    file_segments: int = Field(20_000, ge=1, description="paragraphs, cues or messages of a document (400)")
    file_seconds: float = Field(1800.0, gt=0, description="seconds until a document is translated (504)")
    file_keep: float = Field(3600.0, gt=0, description="seconds for which a translated document can be downloaded")
    file_storage: int = Field(500_000_000, ge=1, description="bytes of translated documents; the oldest are removed")
    files: int = Field(4, ge=1, description="documents in progress; a client has at most half of them (429)")
    connections: int = Field(1024, ge=1, description="open connections; more replace the slowest ones")
    buffer_bytes: int = Field(500_000_000, ge=1, description="bytes of requests and unread responses in memory")
    concurrent: int = Field(1024, ge=1, description="requests in progress; clients share them (429)")
    queue: int = Field(1024, ge=1, description="queued sentences per model; clients share them (429)")
    deadline: float = Field(30.0, gt=0, description="seconds until a request is answered, including queueing (504)")
    batch_tokens: int = Field(1024, ge=1, description="source tokens per batch")
    batch_items: int = Field(64, ge=1, description="sentences per batch; 1 disables batching")
    wait: float = Field(0.005, ge=0, description="seconds that an idle worker waits for a batch to fill")
    drain: float = Field(1.0, ge=0, description="seconds after SIGTERM in which new requests are still accepted")


@dataclass
class ServingConfig:
    """Models to serve, and the options of the server.

    Attributes:
        load_requests: the models; the first of several models for one language pair is used by default.
        keys: file of API keys; without it, no key is needed.
        origins: web origins that may send requests (CORS).
        hosts: allowed names of the server, besides local ones; None allows all names.
        proxies: addresses of reverse proxies whose header `X-Forwarded-For` names the client.
    """

    load_requests: Sequence[LoadRequest]
    workers: int = 1
    limits: Limits = field(default_factory=Limits)
    keys: Path | None = None
    origins: Sequence[str] = ()
    log_text: bool = False
    hosts: Sequence[str] | None = None
    proxies: Sequence[str] = ()


def split_cores(models: int) -> tuple[int, int]:
    """Return the default number of workers per model and of CPU threads per worker.

    Two workers with half of the threads each have a higher throughput than one worker with all threads, because one
    computes while the other communicates. One of them is always available for short jobs; see `Batcher`. More workers
    would mainly need more memory.
    """
    return 2, max(1, available_cpus() // (2 * models))
