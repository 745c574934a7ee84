"""What one client may ask of the server, and how the server shares its time: on from the start, each with a number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from regard.config import Settings
from regard.serving.messages import LoadRequest


class Limits(Settings):
    """Bounds of requests, of the queue and of batches."""

    body_bytes: int = Field(1_000_000, ge=1, description="of a request's body; more is answered with 413")
    body_seconds: float = Field(20.0, gt=0, description="in which headers and body must have arrived (408)")
    characters: int = Field(10_000, ge=1, description="of all texts of a request together (400)")
    items: int = Field(128, ge=1, description="texts a request (400)")
    alternatives: int = Field(4, ge=0, description="further translations a text, beside the best (400)")
    sentence_tokens: int = Field(
        256, ge=8, le=100_000, description="of one sentence; a longer one is cut, at white space where there is some"
    )
    inspect_tokens: int = Field(512, ge=8, le=4096, description="of a sentence that the page looks into (400)")
    image_bytes: int = Field(10_000_000, ge=1, description="of a request with an image (413)")
    image_pixels: int = Field(25_000_000, ge=1, description="of an image (400)")
    concurrent: int = Field(256, ge=1, description="requests worked on at once (429)")
    queue: int = Field(1024, ge=1, description="sentences that wait for a model (429)")
    deadline: float = Field(30.0, gt=0, description="seconds until an answer, waiting included (504)")
    batch_tokens: int = Field(1024, ge=1, description="source tokens that go through a model together")
    batch_items: int = Field(64, ge=1, description="sentences that go through a model together; 1 turns batching off")
    wait: float = Field(0.005, ge=0, description="seconds that a sentence waits for company while its model is free")
    drain: float = Field(1.0, ge=0, description="seconds after SIGTERM in which requests are still taken")


@dataclass
class ServingConfig:
    """What is served, to whom, within which limits."""

    orders: Sequence[LoadRequest]
    workers: int = 1
    limits: Limits = field(default_factory=Limits)
    keys: Path | None = None
    origins: Sequence[str] = ()
    log_text: bool = False


def split_cores(models: int) -> tuple[int, int]:
    """How many workers each of so many models gets on this machine, and how many threads each worker.

    Two workers with half of the threads each do more than one with all, and one is at work while the other is spoken
    with; more would mostly need more memory.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    each = max(1, cores // models)
    workers = min(2, each)
    return workers, each // workers
