"""The ASGI application."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from regard.errors import UserError
from regard.serving import api, files, libretranslate, page_api
from regard.serving.errors import ApiError, bad_request
from regard.serving.middleware import RequestMiddleware, error_response
from regard.serving.parsing import explain
from regard.serving.service import Service
from regard.serving.telemetry import log_event
from regard.serving.worker import WorkerDiedError


def make_app(service: Service, wait_for_models: bool = False) -> FastAPI:
    """Create the application of a service; its lifespan loads and stops the models.

    Args:
        wait_for_models: finish the startup only when all models are loaded. Otherwise they are loaded in the
            background, and /ready reports when they are.
    """
    app = FastAPI(
        title="regard",
        version=version("regard"),
        summary="Translation and image classification with attention models; compatible with LibreTranslate.",
        lifespan=lambda app: lifespan(service, wait_for_models),
        docs_url=None,  # FastAPI's documentation pages load scripts from other hosts
        redoc_url=None,
    )
    app.state.service = service
    app.include_router(libretranslate.router)
    app.include_router(files.router)
    app.include_router(api.router)
    app.include_router(page_api.inspect_router)
    app.include_router(page_api.file_router)
    for kind in (ApiError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _handle_error)
    app.add_middleware(RequestMiddleware, service=service)
    if service.config.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.config.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return app


@asynccontextmanager
async def lifespan(service: Service, wait_for_models: bool = False) -> AsyncIterator[None]:
    """Load the models, reload them on SIGHUP, and stop them at the end.

    Raises:
        UserError: A model cannot be loaded, and `wait_for_models` is set.
    """
    loading = asyncio.create_task(_load(service))
    if wait_for_models:
        await loading
        if service.fatal_error is not None:
            raise UserError(service.fatal_error)
    reloads: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()

    def reload() -> None:
        task = asyncio.create_task(service.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    handles_signal = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP")
    if handles_signal:
        loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        if handles_signal:
            loop.remove_signal_handler(signal.SIGHUP)
        for task in (loading, *reloads):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await service.models.stop()
        service.files.close()


async def _load(service: Service) -> None:
    """Load the models while the server already answers; if that fails, the server stops with `fatal_error`."""
    try:
        await service.start()
    except Exception as error:
        service.fatal_error = str(error)
        if not isinstance(error, UserError | WorkerDiedError):
            log_event("models not loaded", logging.ERROR, exc_info=True)
        return
    log_event("ready")


async def _handle_error(request: Request, exception: Exception) -> JSONResponse:
    """Convert an exception of an endpoint or of FastAPI to a response of the form `{"error": message}`."""
    if isinstance(exception, RequestValidationError):
        error = bad_request(explain(exception.errors()))
    elif isinstance(exception, HTTPException):  # 404 and 405
        error = ApiError(exception.status_code, str(exception.detail), "bad")
        error.headers |= exception.headers or {}
    else:
        assert isinstance(exception, ApiError)
        error = exception
    return error_response(request, error)
