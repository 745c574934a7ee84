"""State and functions that all endpoints share."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends
from starlette.requests import Request

from regard.data.text.languages import match_language
from regard.errors import UserError
from regard.serving.config import ServingConfig
from regard.serving.documents import Format, TranslatedDocument
from regard.serving.errors import bad_request, disconnected
from regard.serving.keys import Keys
from regard.serving.language_detection import LanguageDetector
from regard.serving.messages import PIXELS_PER_TOKEN
from regard.serving.parsing import count_pixels
from regard.serving.served_models import ServedModel, ServedModels
from regard.serving.telemetry import Metrics, log_event

T = TypeVar("T")
BEARER = "bearer "


class Service:
    """Models, limits, keys, metrics and language detection of one server.

    Attributes:
        draining: True after SIGTERM: running requests are finished, and clients should not send new ones.
        fatal_error: error message that makes the server exit, such as that of a model that cannot be loaded.
    """

    def __init__(self, config: ServingConfig, models: ServedModels | None = None) -> None:
        self.config, self.limits = config, config.limits
        self.metrics = Metrics()
        self.models = models or ServedModels(config.load_requests, config.limits, self.metrics, workers=config.workers)
        self.keys = Keys.load(config.keys) if config.keys else None
        if self.keys is not None and not self.keys:
            raise UserError(f"{config.keys}: the file contains no keys; add one with `regard key`")
        self.detector = LanguageDetector()
        self.draining = False
        self.fatal_error: str | None = None
        self.metrics.ready.set_function(lambda: self.ready)

    @property
    def ready(self) -> bool:
        """Whether all models are loaded and the server is not shutting down."""
        return self.models.healthy and not self.draining

    async def start(self) -> None:
        """Load all models and the language detector; see `ServedModels.start`."""
        await asyncio.gather(self.models.start(), asyncio.to_thread(self.detector.load))
        for model in self.models.all:
            info = model.info
            log_event("model ready", model=info.name, kind=info.kind, languages=info.languages, device=info.device)

    async def reload(self) -> None:
        """Read the keys and the models again. What cannot be read is not replaced."""
        if self.config.keys is not None and self.keys is not None:
            try:
                keys = Keys.load(self.config.keys)
            except UserError as error:
                log_event("keys reload failed", error=str(error))
            else:
                keys.copy_usage(self.keys)
                self.keys = keys
        await self.models.reload()

    def authenticate(self, request: Request, key: str | None) -> None:
        """Check the API key of a request, given as a field or in the header `Authorization: Bearer`."""
        if self.keys is None:
            return
        authorization = request.headers.get("authorization", "")
        if key is None and authorization.lower().startswith(BEARER):
            key = authorization[len(BEARER) :].strip()
        holder = self.keys.admit(key)
        log_fields(request)["key"] = holder.name
        request.scope["regard.key_holder"], request.scope["regard.client"] = holder, f"key {holder.name}"

    def loggable(self, name: str | None) -> str | None:
        """Return a language code or model name for the log; unknown names could be texts of users."""
        if name is None or name in {model.name for model in self.models.all}:
            return name
        return match_language(name, self.models.languages) or "unknown"

    def check_texts(self, request: Request, texts: Sequence[str], n_best: int = 1) -> None:
        """Log the size of the texts of a request, and raise an `ApiError` if they exceed a limit."""
        characters = sum(map(len, texts))
        log_fields(request).update(texts=len(texts), characters=characters)
        if self.config.log_text:
            log_fields(request)["text"] = list(texts)
        limits = self.limits
        if len(texts) > limits.items:
            raise bad_request(f"Invalid request: request ({len(texts)}) exceeds text limit ({limits.items})")
        if characters > limits.characters:
            message = f"Invalid request: request ({characters}) exceeds character limit ({limits.characters})"
            raise bad_request(message, "characters", characters=characters, limit=limits.characters)
        if n_best - 1 > limits.alternatives:
            raise bad_request(f"Invalid request: alternatives ({n_best - 1}) exceed the limit ({limits.alternatives})")

    def check_sentences(self, count: int) -> None:
        """Raise an `ApiError` if a request has too many sentences."""
        limit = self.limits.sentences
        if count > limit:
            raise bad_request(f"Invalid request: request ({count}) exceeds sentence limit ({limit})")

    async def measure_images(self, images: Sequence[bytes]) -> list[int]:
        """Return the sizes of the jobs of images, and raise an `ApiError` if they have too many pixels."""
        pixels = [await asyncio.to_thread(count_pixels, image) for image in images]
        if sum(pixels) > self.limits.request_pixels:
            message = f"Invalid request: request ({sum(pixels)}) exceeds pixel limit ({self.limits.request_pixels})"
            raise bad_request(message, "pixels")
        return [1 + count // PIXELS_PER_TOKEN for count in pixels]

    async def translate(
        self,
        request: Request,
        model: ServedModel,
        texts: Sequence[str],
        format: Format = "text",
        n_best: int = 1,
        split: bool = True,
        alignments: bool = False,
    ) -> list[TranslatedDocument]:
        """Split each text into sentences and translate them."""
        builder = model.job_builder
        assert builder is not None
        if format == "html":  # in a thread: malicious markup can take 250 ms to parse
            documents = [await asyncio.to_thread(builder.parse, text, format) for text in texts]
        else:
            documents = [builder.parse(text, format, split, alignments) for text in texts]
        if model.info.engine != "regard" and any(s.needs_alignment for one in documents for s in one.sentences):
            feature = "markup within sentences" if format == "html" else "alignments"
            raise bad_request(f"{model.name} runs on {model.info.engine}, which does not support {feature}")
        self.check_sentences(sum(len(document.sentences) for document in documents))
        jobs = [job for document in documents for job in builder.translation_jobs(document, n_best)]
        results = iter(await model.batcher.submit(jobs, client_of(request)))
        return [
            TranslatedDocument(
                document,
                [next(results) for _ in document.sentences],
                [builder.length_warning(sentence) for sentence in document.sentences],
            )
            for document in documents
        ]


async def _get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(_get_service)]
"""Parameter type with which FastAPI passes the service to an endpoint."""


def log_fields(request: Request) -> dict[str, Any]:
    """Return the fields of the log line of a request, to be extended."""
    fields: dict[str, Any] = request.scope.setdefault("regard.log_fields", {})
    return fields


def client_of(request: Request) -> str:
    """Return the name by which clients take turns: that of the key, or the address."""
    client: str = request.scope.get("regard.client", "")
    return client


def log_length_warnings(request: Request, documents: Mapping[int, TranslatedDocument]) -> list[str]:
    """Log the number of sentences that are longer than those of the training data, and return the warnings.

    Args:
        request: The request.
        documents: Translated texts by their index in the request.
    """
    warnings = [
        f"text {index + 1}, sentence {number}: {warning}"
        for index, document in sorted(documents.items())
        for number, warning in enumerate(document.warnings, 1)
        if warning is not None
    ]
    if warnings:
        log_fields(request)["long_sentences"] = len(warnings)
    return warnings


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Await the result of some work. If the client disconnects, cancel the work and raise an `ApiError`."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise disconnected()
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
