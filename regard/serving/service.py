"""What every endpoint shares: the models, the limits, who may ask, and texts that become translations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from regard.errors import UserError
from regard.serving.config import ServingConfig
from regard.serving.documents import Document, Format
from regard.serving.errors import Problem, bad
from regard.serving.keys import Keys
from regard.serving.language_detection import Detector
from regard.serving.logs import note
from regard.serving.messages import Translation
from regard.serving.metrics import Metrics
from regard.serving.served_models import Model, Models

Answer = TypeVar("Answer")
BEARER = "bearer "


@dataclass
class Translated:
    """A document with the n best translations of each of its sentences."""

    document: Document
    found: list[list[Translation]]


class Service:
    """The state of a server from its start to its end.

    Attributes:
        draining: whether the end is near: what has come is answered, but nobody should send more.
        fatal: why it cannot go on, as one sentence.
    """

    def __init__(self, offer: ServingConfig, models: Models | None = None) -> None:
        self.offer, self.limits = offer, offer.limits
        self.metrics = Metrics()
        self.models = models or Models(offer.orders, offer.limits, self.metrics, workers=offer.workers)
        self.keys = Keys.load(offer.keys) if offer.keys else None
        if self.keys is not None and not self.keys:
            raise UserError(f"{offer.keys}: holds no key, so nobody could ask; `regard key` makes one")
        self.detector = Detector()
        self.draining = False
        self.fatal: str | None = None
        self.metrics.ready.set_function(lambda: self.ready)

    @property
    def ready(self) -> bool:
        """Whether requests are welcome: all models are warm, and no end is near."""
        return self.models.well and not self.draining

    async def start(self) -> None:
        """Loads everything.

        Raises:
            UserError: a model cannot be loaded.
        """
        await asyncio.gather(self.models.start(), asyncio.to_thread(self.detector.load))
        for model in self.models.all:
            about = model.about
            note("model ready", model=about.name, kind=about.kind, languages=about.languages, device=about.device)

    async def reload(self) -> None:
        """Reads the models and the keys again; what cannot be read stays as it was."""
        if self.offer.keys is not None and self.keys is not None:
            try:
                fresh = Keys.load(self.offer.keys)
            except UserError as error:
                note("keys not replaced", error=str(error))
            else:
                fresh.keep_counting(self.keys)
                self.keys = fresh
        await self.models.reload()

    def admit(self, request: Request, key: str | None) -> None:
        """Lets a request pass whose key is good, be it in its fields or in its headers.

        Raises:
            Problem: it is not.
        """
        if self.keys is None:
            return
        bearer = request.headers.get("authorization", "")
        if key is None and bearer.lower().startswith(BEARER):
            key = bearer[len(BEARER) :].strip()
        facts(request)["key"] = self.keys.admit(key)

    def loggable(self, word: str | None) -> str | None:
        """A language's code or a model's name as the log may hold it: as it was sent only where it is one of ours."""
        ours = ((model.order.name, *(model.about.languages or ())) for model in self.models.all)
        return word if word is None or any(word in some for some in ours) else "unknown"

    def check_texts(self, request: Request, texts: Sequence[str], n_best: int = 1) -> None:
        """Refuses more than a request may hold.

        Raises:
            Problem: it holds more.
        """
        characters = sum(map(len, texts))
        facts(request).update(texts=len(texts), characters=characters)
        if self.offer.log_text:
            facts(request)["text"] = list(texts)
        limits = self.limits
        if len(texts) > limits.items:
            raise bad(f"Invalid request: request ({len(texts)}) exceeds text limit ({limits.items})")
        if characters > limits.characters:
            sentence = f"Invalid request: request ({characters}) exceeds character limit ({limits.characters})"
            raise bad(sentence, "characters", characters=characters, most=limits.characters)
        if n_best - 1 > limits.alternatives:
            raise bad(f"Invalid request: alternatives ({n_best - 1}) exceed the limit ({limits.alternatives})")

    async def translate(
        self,
        model: Model,
        texts: Sequence[str],
        form: Format = "text",
        n_best: int = 1,
        split: bool = True,
        alignments: bool = False,
    ) -> list[Translated]:
        """Every text as a document, and translations of its sentences.

        Raises:
            Problem: there is no answer.
        """
        reader = model.reader
        assert reader is not None
        # In a thread: hostile markup can take a quarter of a second, in which others are to be answered.
        documents = [
            await asyncio.to_thread(reader.read, text, form)
            if form == "html"
            else reader.read(text, form, split, alignments)
            for text in texts
        ]
        if model.about.engine != "regard" and any(aligned for one in documents for _, aligned in one.sentences):
            what = "alignments, by which markup within a sentence finds its place" if form == "html" else "alignments"
            raise bad(f"{model.order.name} runs in the engine {model.about.engine}, which has no {what}")
        jobs = [reader.jobs(document, n_best) for document in documents]
        results = iter(await model.batcher.submit([job for some in jobs for job in some]))
        return [
            Translated(document, [next(results) for _ in some]) for document, some in zip(documents, jobs, strict=True)
        ]


def facts(request: Request) -> dict[str, Any]:
    """What the log will say of a request."""
    known: dict[str, Any] = request.scope.setdefault("regard.facts", {})
    return known


async def unless_gone(request: Request, work: Awaitable[Answer]) -> Answer:
    """The result of the work, which is dropped when the client leaves.

    Raises:
        Problem: the client has left.
    """
    task, departure = asyncio.ensure_future(work), asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait({task, departure}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Problem(499, "the client has left", "gone")
        return task.result()
    finally:
        task.cancel()
        departure.cancel()


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
