"""The models that are served: started, found by their languages or their name, and exchanged while at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from regard.errors import UserError
from regard.serving.batcher import AnyWorker, Batcher
from regard.serving.config import Limits
from regard.serving.documents import Reader
from regard.serving.errors import bad, unavailable
from regard.serving.logs import note
from regard.serving.messages import LoadRequest, ModelInfo
from regard.serving.metrics import Metrics
from regard.serving.worker_process import Worker, WorkerError

Start = Callable[[LoadRequest], Awaitable[AnyWorker]]


@dataclass
class Model:
    """A model at work, and what reads texts for it."""

    order: LoadRequest
    batcher: Batcher
    reader: Reader | None

    @property
    def about(self) -> ModelInfo:
        return self.batcher.about


class Models:
    """Every model that is served, in the order in which they were given: of two for one pair, the first is chosen."""

    def __init__(
        self,
        orders: Sequence[LoadRequest],
        limits: Limits,
        metrics: Metrics,
        start: Start = Worker.start,
        workers: int = 1,
    ) -> None:
        self._orders, self._limits, self._metrics = orders, limits, metrics
        self._start, self._workers = start, workers
        self._models: dict[str, Model] = {}
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Loads and warms up all models, side by side.

        Raises:
            UserError: one of them cannot be loaded.
        """
        async with self._changing:
            teams = await asyncio.gather(*map(self._team, self._orders), return_exceptions=True)
            errors = [one for one in teams if isinstance(one, BaseException)]
            started = [one for one in teams if not isinstance(one, BaseException)]
            if errors:
                await asyncio.gather(*(worker.stop() for team in started for worker in team))
                raise errors[0]
            self._models = {
                order.name: self._set_up(order, team) for order, team in zip(self._orders, started, strict=True)
            }

    async def _team(self, order: LoadRequest) -> list[AnyWorker]:
        """The workers of one model, all of them or none."""
        workers = await asyncio.gather(*(self._start(order) for _ in range(self._workers)), return_exceptions=True)
        errors = [one for one in workers if isinstance(one, BaseException)]
        started = [one for one in workers if not isinstance(one, BaseException)]
        if errors:
            await asyncio.gather(*(worker.stop() for worker in started))
            raise errors[0]
        return started

    def _set_up(self, order: LoadRequest, team: Sequence[AnyWorker]) -> Model:
        batcher = Batcher(lambda: self._start(order), self._limits, self._metrics.model(order.name), team)
        return Model(order, batcher, self._reader(team[0]))

    def _reader(self, worker: AnyWorker) -> Reader | None:
        return None if worker.about.tokenizer is None else Reader(worker.about, self._limits)

    async def reload(self) -> None:
        """Loads every folder again; a model that does not load stays as it was."""
        async with self._changing:
            for model in self.all:
                try:
                    team = await self._team(model.order)
                except (UserError, WorkerError) as error:
                    note("model not replaced", model=model.order.name, error=str(error))
                    continue
                await model.batcher.replace(team)
                model.reader = self._reader(team[0])
                note("model replaced", model=model.order.name)

    async def stop(self) -> None:
        await asyncio.gather(*(model.batcher.stop() for model in self.all))

    @property
    def well(self) -> bool:
        """Whether all models are there and can be asked."""
        return bool(self._models) and all(model.batcher.well for model in self._models.values())

    @property
    def all(self) -> list[Model]:
        return list(self._models.values())

    @property
    def pairs(self) -> dict[tuple[str, str], Model]:
        """The model of every pair of languages."""
        pairs: dict[tuple[str, str], Model] = {}
        for model in self.all:
            if model.about.languages is not None:
                pairs.setdefault(model.about.languages, model)
        return pairs

    @property
    def languages(self) -> dict[str, list[str]]:
        """Every language that is read or written, and into which it can be translated; itself is one of them."""
        codes = sorted({code for pair in self.pairs for code in pair})
        return {code: sorted({code, *(t for s, t in self.pairs if s == code)}) for code in codes}

    def for_pair(self, source: str, target: str) -> Model:
        """The model that translates from one language into another.

        Raises:
            Problem: there is none.
        """
        self.check_loaded()
        pairs = self.pairs
        if (source, target) in pairs:
            return pairs[source, target]
        languages = self.languages
        for code in (source, target):
            if code not in languages:
                raise bad(f"{_show(code)} is not supported; the languages here are {', '.join(languages) or 'none'}")
        served = ", ".join(f"{s} to {t}" for s, t in pairs)
        raise bad(f"{target} is not available as a target language from {source}; there is {served}")

    def named(self, name: str | None, operation: str) -> Model:
        """The model of that name, or the first that can do the operation, or fill the section of the page.

        Raises:
            Problem: there is none, or it cannot.
        """
        self.check_loaded()
        able = [model for model in self.all if operation in (*model.about.operations, *model.about.sections)]
        if name is None:
            if not able:
                raise bad(f"no model here can {operation}")
            return able[0]
        for model in able:
            if model.order.name == name:
                return model
        for model in self.all:
            if model.order.name == name and model.about.engine != "regard":
                raise bad(f"{name} runs in the engine {model.about.engine}, which has no {operation}")
        names = ", ".join(model.order.name for model in able) or "none"
        raise bad(f"no model {_show(name)} that can {operation}; there is {names}", "model")

    def check_loaded(self) -> None:
        """Does nothing once the models are there.

        Raises:
            Problem: they are still being loaded.
        """
        if not self._models:
            raise unavailable("the models are still being loaded; try again in a moment")


def _show(text: str) -> str:
    """What a client has sent, short enough to be sent back."""
    return text if len(text) <= 40 else f"{text[:40]}..."
