"""The ASGI application."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from regard.errors import UserError
from regard.serving import api, libretranslate, page_api
from regard.serving.errors import ApiError, bad_request, internal_error
from regard.serving.middleware import RequestMiddleware
from regard.serving.parsing import explain
from regard.serving.schemas import DetectRequest, TranslateRequest
from regard.serving.service import Service, log_fields
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
    app.include_router(api.router)
    app.include_router(page_api.inspect_router)
    app.include_router(page_api.file_router)
    _add_error_handlers(app)
    app.add_middleware(RequestMiddleware, service=service)
    if service.config.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.config.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    _complete_openapi(app)
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


async def _load(service: Service) -> None:
    try:
        await service.start()
    except Exception as error:
        service.fatal_error = str(error)
        if not isinstance(error, UserError | WorkerDiedError):
            log_event("models not loaded", logging.ERROR, exc_info=True)
        return
    log_event("ready")


def _add_error_handlers(app: FastAPI) -> None:
    """Convert all exceptions to responses of the form `{"error": message}`."""

    async def handle(request: Request, exception: Exception) -> JSONResponse:
        error = _to_api_error(exception)
        log_fields(request)["reason"] = error.reason
        return JSONResponse({"error": error.message}, error.status, error.headers)

    for kind in (ApiError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, handle)


def _to_api_error(exception: Exception) -> ApiError:
    if isinstance(exception, ApiError):
        return exception
    if isinstance(exception, RequestValidationError):
        return bad_request(explain(exception.errors()))
    if isinstance(exception, HTTPException):  # 404 and 405
        error = ApiError(exception.status_code, str(exception.detail), "bad")
        error.headers |= exception.headers or {}
        return error
    return internal_error()


def _complete_openapi(app: FastAPI) -> None:
    """Add the schemas of bodies that `read_fields` parses, and remove the unused responses with status 422."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            for model in (TranslateRequest, DetectRequest):
                components[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                components.pop(name, None)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
