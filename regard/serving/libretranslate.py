"""The API of LibreTranslate, which translators' clients speak."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from regard.data.text.languages import language_name
from regard.serving.documents import render_all
from regard.serving.errors import bad, unavailable
from regard.serving.parsing import read_fields
from regard.serving.schemas import (
    Choice,
    Detection,
    DetectRequest,
    Error,
    FrontendSettings,
    Language,
    LanguageName,
    Status,
    TranslateAnswer,
    TranslateRequest,
)
from regard.serving.served_models import Model
from regard.serving.service import Service, facts, unless_gone

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request cannot be answered as it is"},
    403: {"model": Error, "description": "No key, or a wrong one"},
    408: {"model": Error, "description": "The request arrived too slowly"},
    413: {"model": Error, "description": "The request is too large"},
    429: {"model": Error, "description": "Too much at once, see Retry-After"},
    500: {"model": Error, "description": "Something went wrong here"},
    503: {"model": Error, "description": "The models are not there yet, or the server is about to end"},
    504: {"model": Error, "description": "No answer in time"},
}
AUTO = "auto"


def fields_of(name: str) -> dict[str, Any]:
    """How OpenAPI describes a body in one of three forms; the query string is taken too."""
    forms = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {form: {"schema": schema} for form in forms}}}


def make_router(service: Service) -> APIRouter:
    """The routes, for one server."""
    router = APIRouter(tags=["LibreTranslate"], responses=ERRORS)

    @router.post(
        "/translate",
        response_model=TranslateAnswer,
        openapi_extra=fields_of("TranslateRequest"),
    )
    async def translate(request: Request) -> Response:
        """Translate a text, or a list of texts."""
        asked = await read_fields(request, TranslateRequest)
        service.admit(request, asked.api_key)
        texts = asked.q if isinstance(asked.q, list) else [asked.q]
        service.check_texts(request, texts, 1 + asked.alternatives)
        detected = _detect_sources(service, texts, asked) if asked.source == AUTO else None
        sources = [one.language for one in detected] if detected else [asked.source] * len(texts)
        named = sorted({str(service.loggable(code)) for code in sources})
        facts(request).update(source=named, target=service.loggable(asked.target))
        versions = await unless_gone(request, _translate(service, texts, sources, asked))
        best = [some[0] for some in versions]
        others = [some[1:] for some in versions] if asked.alternatives else None
        several = isinstance(asked.q, list)
        answer = TranslateAnswer(
            translatedText=best if several else best[0],
            detectedLanguage=detected if several or detected is None else detected[0],
            alternatives=others if several or others is None else others[0],
        )
        # Written here, as FastAPI would check it once more on its way.
        return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")

    @router.post("/detect", response_model=list[Detection], openapi_extra=fields_of("DetectRequest"))
    async def detect(request: Request) -> list[Detection]:
        """Guess the language of a text, among those of the loaded models."""
        asked = await read_fields(request, DetectRequest)
        service.admit(request, asked.api_key)
        service.check_texts(request, [asked.q])
        service.models.check_loaded()
        if not service.models.languages:
            raise bad("no model here translates")
        ranked = service.detector.rank(asked.q, list(service.models.languages))
        return [Detection(confidence=share, language=code) for code, share in ranked]

    @router.get("/languages")
    async def languages() -> list[Language]:
        """The languages of the loaded models."""
        known = service.models.languages.items()
        return [Language(code=code, name=language_name(code), targets=targets) for code, targets in known]

    @router.get("/frontend/settings")
    async def frontend_settings() -> FrontendSettings:
        """What a page has to know."""
        pairs = list(service.models.pairs)
        source, target = pairs[0] if pairs else (AUTO, AUTO)
        return FrontendSettings(
            charLimit=service.limits.characters,
            frontendTimeout=round(1000 * service.limits.deadline),
            apiKeys=service.keys is not None,
            keyRequired=service.keys is not None,
            language=Choice(
                source=LanguageName(code=source, name=language_name(source)),
                target=LanguageName(code=target, name=language_name(target)),
            ),
        )

    @router.get("/health")
    async def health() -> Status:
        """Whether the server is alive."""
        return Status(status="ok")

    @router.get("/ready")
    async def ready() -> Status:
        """Whether requests are welcome: all models are loaded and warm, and no end is near."""
        if not service.ready:
            raise unavailable("draining" if service.draining else "the models are not ready")
        return Status(status="ok")

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    return router


def _detect_sources(service: Service, texts: list[str], asked: TranslateRequest) -> list[Detection]:
    """The likeliest source of every text, among those from which the target can be reached."""
    service.models.check_loaded()
    sources = [code for code, targets in service.models.languages.items() if asked.target in targets]
    if not sources:
        service.models.for_pair(AUTO, asked.target)  # says what is wrong
        raise bad(f"{asked.target} is not available as a target language")
    ranked = [service.detector.rank(text, sources)[0] for text in texts]
    return [Detection(confidence=share, language=code) for code, share in ranked]


async def _translate(
    service: Service, texts: list[str], sources: list[str], asked: TranslateRequest
) -> list[list[str]]:
    """Every text's best versions; a text that is in the target language already is its own."""
    versions: list[list[str]] = [[text] for text in texts]
    n_best = 1 + asked.alternatives
    for source in sorted(set(sources)):
        if source == asked.target and source in service.models.languages:
            continue
        model: Model = service.models.for_pair(source, asked.target)
        places = [i for i, code in enumerate(sources) if code == source]
        found = await service.translate(model, [texts[i] for i in places], asked.format, n_best)
        for i, one in zip(places, found, strict=True):
            if asked.format == "html":  # in a thread, as it may take a while
                versions[i] = await asyncio.to_thread(render_all, one.document, one.found, n_best)
            else:
                versions[i] = render_all(one.document, one.found, n_best)
    return versions
