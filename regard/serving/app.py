"""The app: every part put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from regard.serving import api, inspect_api, libretranslate, static
from regard.serving.errors import Problem, broken
from regard.serving.lifespan import living
from regard.serving.middleware import Gate
from regard.serving.parsing import explain_mistakes
from regard.serving.schemas import DetectRequest, TranslateRequest
from regard.serving.service import Service, facts


def make_app(service: Service, patient: bool = False) -> FastAPI:
    """The app of a service; it starts the service's models when it is started, and ends them with itself.

    A `patient` app has started when its models have; else it says at /ready when that is so.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with living(service, patient):
            yield

    app = FastAPI(
        title="regard",
        version=version("regard"),
        summary="Translation with attention models, in LibreTranslate's form and in our own.",
        lifespan=lifespan,
        docs_url=None,  # the usual page of documentation would load scripts from other hosts
        redoc_url=None,
    )
    app.state.service = service
    app.include_router(libretranslate.make_router(service))
    app.include_router(api.make_router(service))
    app.include_router(inspect_api.make_router(service))
    app.include_router(static.make_router())  # last, so that no file can hide an endpoint
    _explain_problems(app)
    app.add_middleware(Gate, service=service)
    if service.offer.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.offer.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    _describe_bodies(app)
    return app


def _explain_problems(app: FastAPI) -> None:
    """Every problem becomes a status and {"error": sentence}."""

    @app.exception_handler(Problem)
    async def explain(request: Request, problem: Problem) -> JSONResponse:
        facts(request)["reason"] = problem.reason
        return JSONResponse({"error": problem.sentence}, problem.status, problem.headers)

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        facts(request)["reason"] = "bad"
        return JSONResponse({"error": explain_mistakes(error.errors())}, 400)

    @app.exception_handler(HTTPException)
    async def answer(request: Request, error: HTTPException) -> JSONResponse:
        facts(request)["reason"] = "bad"
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def apologise(request: Request, error: Exception) -> JSONResponse:
        problem = broken()
        facts(request)["reason"] = problem.reason
        return JSONResponse({"error": problem.sentence}, problem.status)


def _describe_bodies(app: FastAPI) -> None:
    """Adds to the OpenAPI schema the bodies that are read by hand, and takes out answers that are never given."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            parts = schema.setdefault("components", {}).setdefault("schemas", {})
            for model in (TranslateRequest, DetectRequest):
                parts[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                parts.pop(name, None)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
