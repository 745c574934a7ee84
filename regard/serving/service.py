"""State and functions that all endpoints share."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from regard.data.text.languages import LanguageDetector, match_language
from regard.errors import UserError
from regard.serving.config import ServingConfig
from regard.serving.documents import Document, Format, TranslatedDocument
from regard.serving.errors import bad_request, disconnected
from regard.serving.file_store import FileStore
from regard.serving.keys import Keys
from regard.serving.messages import PIXELS_PER_TOKEN, Job, Terms
from regard.serving.parsing import count_pixels
from regard.serving.served_models import ServedModel, ServedModels
from regard.serving.telemetry import Metrics, log_event


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
        self.files = FileStore(config.limits)
        self.detector = LanguageDetector()
        self.draining = False
        self._reloading: asyncio.Task[None] | None = None
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

    def reload_in_background(self) -> None:
        """Reload the models, such as that of a run which had not saved one; do nothing if they are being reloaded."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self.models.reload())

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

    def check_request(self, request: Request, key: str | None, texts: Sequence[str] = (), n_best: int = 1) -> None:
        """Check the API key and the texts of a request, and log the size of the texts.

        Raises:
            ApiError: The key is missing or invalid, its rate limit is exceeded, or the texts exceed a limit.
        """
        if self.keys is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            holder = self.keys.admit(token.strip() if key is None and scheme.lower() == "bearer" else key)
            request.state.key_holder, request.state.client = holder, f"key {holder.name}"
            request.state.log_fields["key"] = holder.name
        if texts:
            self._check_texts(request, texts, n_best)

    def _check_texts(self, request: Request, texts: Sequence[str], n_best: int) -> None:
        limits, characters = self.limits, sum(map(len, texts))
        request.state.log_fields.update(texts=len(texts), characters=characters)
        if self.config.log_text:
            request.state.log_fields["text"] = list(texts)
        if len(texts) > limits.items:
            raise bad_request(f"Invalid request: request ({len(texts)}) exceeds text limit ({limits.items})")
        if characters > limits.characters:
            message = f"Invalid request: request ({characters}) exceeds character limit ({limits.characters})"
            raise bad_request(message, "characters", characters=characters, limit=limits.characters)
        if n_best - 1 > limits.alternatives:
            raise bad_request(f"Invalid request: alternatives ({n_best - 1}) exceed the limit ({limits.alternatives})")

    def loggable(self, name: str | None) -> str | None:
        """Return a language code or model name for the log; unknown names could be texts of users."""
        if name is None or name in {model.name for model in self.models.all}:
            return name
        return match_language(name, self.models.languages) or "unknown"

    async def measure_images(self, images: Sequence[bytes]) -> list[int]:
        """Return the sizes of the jobs of images, and raise an `ApiError` if they have too many pixels."""
        pixels = [await asyncio.to_thread(count_pixels, image) for image in images]
        if sum(pixels) > self.limits.request_pixels:
            message = f"Invalid request: request ({sum(pixels)}) exceeds pixel limit ({self.limits.request_pixels})"
            raise bad_request(message, "pixels")
        return [1 + count // PIXELS_PER_TOKEN for count in pixels]

    async def parse(
        self,
        request: Request,
        model: ServedModel,
        texts: Sequence[str],
        n_best: int,
        format: Format = "text",
        split: bool = True,
        alignments: bool = False,
        confidence: bool = False,
        glossary: Terms = (),
    ) -> tuple[list[Document], list[Job]]:
        """Split texts into sentences; return a document for each text, and a job for each sentence."""
        builder = model.job_builder
        assert builder is not None
        if format == "html":  # in a thread: malicious markup can take 250 ms to parse
            documents = [await asyncio.to_thread(builder.parse, text, format) for text in texts]
        else:
            documents = [builder.parse(text, format, split, alignments) for text in texts]
        sentences = [sentence for document in documents for sentence in document.sentences]
        if model.info.engine != "regard" and any(sentence.needs_alignment for sentence in sentences):
            feature = "markup within sentences" if format == "html" else "alignments"
            raise bad_request(f"{model.name} runs on {model.info.engine}, which does not support {feature}")
        if len(sentences) > self.limits.sentences:
            limit = self.limits.sentences
            raise bad_request(f"Invalid request: request ({len(sentences)}) exceeds sentence limit ({limit})")
        if long := sum(builder.length_warning(sentence) is not None for sentence in sentences):
            log_fields = request.state.log_fields
            log_fields["long_sentences"] = log_fields.get("long_sentences", 0) + long
        jobs = (builder.translation_jobs(document, n_best, confidence, glossary) for document in documents)
        return documents, [job for of_document in jobs for job in of_document]

    async def translate(
        self, request: Request, model: ServedModel, texts: Sequence[str], n_best: int, **options: Any
    ) -> list[TranslatedDocument]:
        """Split each text into sentences and translate them; see `parse` for the options."""
        documents, jobs = await self.parse(request, model, texts, n_best, **options)
        results = iter(await self.run(request, model, jobs))
        assert model.job_builder is not None
        return [
            TranslatedDocument(
                document,
                [next(results) for _ in document.sentences],
                [model.job_builder.length_warning(sentence) for sentence in document.sentences],
            )
            for document in documents
        ]

    async def run(
        self, request: Request, model: ServedModel, jobs: Sequence[Job], seconds: float | None = None
    ) -> list[Any]:
        """Return the results of the jobs of a request. If the client disconnects, they are dropped."""
        task = asyncio.ensure_future(model.batcher.submit(jobs, request.state.client, seconds))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
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


async def _get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(_get_service)]
"""Parameter type with which FastAPI passes the service to an endpoint."""
