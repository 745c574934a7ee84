"""The life of the models: they are loaded while the server already answers, and SIGHUP exchanges them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator

from regard.errors import UserError
from regard.serving.logs import note
from regard.serving.service import Service
from regard.serving.worker_process import WorkerError


@contextlib.asynccontextmanager
async def living(service: Service, patient: bool = False) -> AsyncIterator[None]:
    """Loads the models, in the background unless `patient`, and ends them at the end.

    Raises:
        UserError: a model cannot be loaded, and it was waited for.
    """
    loading = asyncio.create_task(_load(service))
    if patient:
        await loading
        if service.fatal is not None:
            raise UserError(service.fatal)
    reloads: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()

    def reload() -> None:
        task = asyncio.create_task(service.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    listens = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP")
    if listens:
        loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        if listens:
            loop.remove_signal_handler(signal.SIGHUP)
        for task in (loading, *reloads):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await service.models.stop()


async def _load(service: Service) -> None:
    try:
        await service.start()
    except (UserError, WorkerError) as error:
        service.fatal = str(error)
        return
    note("ready")
