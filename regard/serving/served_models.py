"""The served models: loading, selection by language pair or name, and reloading."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from regard.data.text.languages import match_language
from regard.errors import UserError
from regard.serving.batcher import Batcher
from regard.serving.config import Limits
from regard.serving.documents import JobBuilder
from regard.serving.errors import bad_request, unavailable
from regard.serving.messages import LoadRequest, ModelInfo
from regard.serving.telemetry import Metrics, log_event
from regard.serving.worker import WorkerDiedError, WorkerProcess


@dataclass
class ServedModel:
    """A loaded model with its queue; `job_builder` is None if the model does not read text."""

    request: LoadRequest
    batcher: Batcher
    job_builder: JobBuilder | None

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def info(self) -> ModelInfo:
        return self.batcher.info

    def supports(self, operation: str) -> bool:
        """Whether the model supports an operation, or a section of the page."""
        return operation in self.info.operations or operation in self.info.sections


class ServedModels:
    """All served models, in the order in which they were given."""

    def __init__(
        self,
        load_requests: Sequence[LoadRequest],
        limits: Limits,
        metrics: Metrics,
        start_worker: Callable[[LoadRequest], Awaitable[WorkerProcess]] = WorkerProcess.start,
        workers: int = 1,
    ) -> None:
        self._load_requests, self._limits, self._metrics = load_requests, limits, metrics
        self._start_worker, self._workers = start_worker, workers
        self._models: dict[str, ServedModel] = {}
        self._loading = asyncio.Lock()

    async def start(self) -> None:
        """Load and warm up all models in parallel."""
        async with self._loading:
            requests = [request for request in self._load_requests for _ in range(self._workers)]
            workers = iter(await self._start_workers(requests))
            for request in self._load_requests:
                model_workers = list(islice(workers, self._workers))
                batcher = Batcher(partial(self._start_worker, request), self._limits, self._metrics, model_workers)
                job_builder = self._create_job_builder(model_workers[0].info)
                self._models[request.name] = ServedModel(request, batcher, job_builder)

    async def _start_workers(self, requests: Sequence[LoadRequest]) -> list[WorkerProcess]:
        """Start one worker per request; if one of them does not start, stop the others."""
        outcomes = await asyncio.gather(*map(self._start_worker, requests), return_exceptions=True)
        workers = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                await asyncio.gather(*(worker.stop() for worker in workers))
                raise outcome
        return workers

    def _create_job_builder(self, info: ModelInfo) -> JobBuilder | None:
        return None if info.tokenizer is None else JobBuilder(info, self._limits)

    async def reload(self) -> None:
        """Load every model folder again. A model that cannot be loaded is not replaced."""
        async with self._loading:
            for model in self.all:
                try:
                    workers = await self._start_workers([model.request] * self._workers)
                except (UserError, WorkerDiedError) as error:
                    log_event("model reload failed", model=model.name, error=str(error))
                    continue
                await model.batcher.replace_workers(workers)
                model.job_builder = self._create_job_builder(workers[0].info)
                log_event("model reloaded", model=model.name)

    async def stop(self) -> None:
        await asyncio.gather(*(model.batcher.stop() for model in self.all))

    @property
    def healthy(self) -> bool:
        """Whether all models are loaded and no worker is being restarted."""
        return bool(self._models) and all(model.batcher.healthy for model in self._models.values())

    @property
    def all(self) -> list[ServedModel]:
        return list(self._models.values())

    @property
    def pairs(self) -> dict[tuple[str, str], ServedModel]:
        """The model of each language pair; the first one if there are several."""
        pairs: dict[tuple[str, str], ServedModel] = {}
        for model in self.all:
            if model.info.languages is not None:
                pairs.setdefault(model.info.languages, model)
        return pairs

    @property
    def languages(self) -> dict[str, list[str]]:
        """The target languages of each language, which include the language itself."""
        codes = sorted({code for pair in self.pairs for code in pair})
        return {code: sorted({code, *(t for s, t in self.pairs if s == code)}) for code in codes}

    def resolve_language(self, tag: str) -> str:
        """Return the served language that a tag such as `zh-CN` stands for, or the tag if there is none."""
        return match_language(tag, self.languages) or tag

    def for_pair(self, source: str, target: str) -> ServedModel:
        """Return the model of a language pair."""
        self.check_loaded()
        pairs = self.pairs
        if (source, target) in pairs:
            return pairs[source, target]
        languages = self.languages
        for code in (source, target):
            if code not in languages:
                supported = ", ".join(languages) or "none"
                raise bad_request(f"{_shorten(code)} is not supported; supported languages: {supported}")
        available = ", ".join(f"{s} to {t}" for s, t in pairs)
        raise bad_request(f"{target} is not available as a target language from {source}; available: {available}")

    def find(self, name: str | None, operation: str) -> ServedModel:
        """Return the named model, or the first model, that supports an operation or a section of the page."""
        self.check_loaded()
        candidates = [model for model in self.all if model.supports(operation)]
        if name is None:
            if not candidates:
                raise bad_request(f"no model supports {operation}")
            return candidates[0]
        for model in candidates:
            if model.name == name:
                return model
        for model in self.all:
            if model.name == name and model.info.engine != "regard":
                raise bad_request(f"{name} runs on {model.info.engine}, which does not support {operation}")
        names = ", ".join(model.name for model in candidates) or "none"
        raise bad_request(f"no model {_shorten(name)} that supports {operation}; available: {names}", "model")

    def check_loaded(self) -> None:
        """Raise an `ApiError` if the models are still loading."""
        if not self._models:
            raise unavailable("the models are still loading; try again in a moment")


def _shorten(text: str) -> str:
    """Limit the length of a client's text in an error message."""
    return text if len(text) <= 40 else f"{text[:40]}..."
