"""The served models: loading, selection by language pair or name, and reloading."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from regard.data.text.languages import (
    convertible_languages,
    is_same_language,
    language_of,
    match_language,
    script_code,
    script_conversion,
)
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
    """A loaded model with its queue.

    Attributes:
        job_builder: None if the model does not read text.
    """

    request: LoadRequest
    batcher: Batcher
    job_builder: JobBuilder | None

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def info(self) -> ModelInfo:
        return self.batcher.info

    @property
    def languages(self) -> tuple[str, str] | None:
        """Source and target language, in the scripts that are selected."""
        return self.info.languages if self.job_builder is None else self.job_builder.languages

    def in_scripts(self, source: str | None, target: str | None) -> "ServedModel":
        """Return the model with texts converted between scripts of Chinese; other languages are ignored.

        Raises:
            ApiError: The package for the conversion is missing.
        """
        if self.job_builder is None or self.info.languages is None:
            return self
        first, second = (
            code if code is not None and script_conversion(own, code) else own
            for own, code in zip(self.info.languages, (source, target), strict=True)
        )
        try:
            return replace(self, job_builder=self.job_builder.in_scripts((first, second)))
        except UserError as error:
            raise bad_request(str(error)) from None

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
        """The target languages of each language, which include the language itself.

        A model of Chinese has both scripts if text can be converted.
        """
        own = {code for pair in self.pairs for code in pair}
        pairs = {(s, t) for pair in self.pairs for s in _scripts(pair[0], own) for t in _scripts(pair[1], own)}
        codes = sorted({code for pair in pairs for code in pair})
        return {code: sorted({code, *(t for s, t in pairs if s == code)}) for code in codes}

    def resolve_language(self, tag: str) -> str:
        """Return the language that a tag such as `zh-CN` stands for, or the tag if no model has this language.

        This is a language of a model, or the other script of Chinese, such as `zt` or `zh-TW`.
        """
        own = {code for pair in self.pairs for code in pair}
        if code := match_language(tag, own):
            return code
        return script_code(tag) if any(script_conversion(code, tag) for code in own) else tag

    def is_same(self, source: str, target: str) -> bool:
        """Whether texts are already in the target language."""
        is_script = language_of(source) == language_of(target) == "zt"
        return (source == target or is_script) and match_language(source, self.languages) is not None

    def for_pair(self, source: str, target: str) -> ServedModel:
        """Return the model of a language pair, or one of the other scripts of Chinese."""
        self.check_loaded()
        pairs = self.pairs
        if (source, target) in pairs:
            return pairs[source, target]
        if not is_same_language(source, target):
            for own, model in pairs.items():
                if all(a == b or script_conversion(a, b) for a, b in zip(own, (source, target), strict=True)):
                    return model.in_scripts(source, target)
        for code in (source, target):
            self.check_language(code)
        languages = self.languages.items()
        available = ", ".join(f"{s} to {t}" for s, targets in languages for t in targets if s != t)
        raise bad_request(f"{target} is not available as a target language from {source}; available: {available}")

    def check_language(self, code: str) -> None:
        """Raise an `ApiError` if no model has a language."""
        languages = self.languages
        if match_language(code, languages) is None:
            supported = ", ".join(languages) or "none"
            raise bad_request(f"{_shorten(code)} is not supported; supported languages: {supported}")

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


def _scripts(code: str, own: Iterable[str]) -> list[str]:
    """Return the language of a model, and the other script of Chinese unless it is among the languages of models."""
    known = {language_of(one) for one in own}
    return [one for one in convertible_languages(code) if one == code or one not in known]


def _shorten(text: str) -> str:
    """Limit the length of a client's text in an error message."""
    return text if len(text) <= 40 else f"{text[:40]}..."
