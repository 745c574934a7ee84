"""LibreTranslate's API, and the endpoints for monitoring."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from regard.data.documents.formats import FORMATS
from regard.data.text.languages import language_name, match_language
from regard.serving import schemas
from regard.serving.errors import bad_request, unavailable
from regard.serving.messages import Quality
from regard.serving.parsing import read_fields
from regard.serving.service import Service, ServiceDependency

AUTO = "auto"
TYPING_DELAY = 500
"""Milliseconds after the last key press until LibreTranslate's page sends a text; it calls this `frontendTimeout`."""

router = APIRouter(tags=["LibreTranslate"], responses=schemas.ERROR_RESPONSES)


def _form_body(schema: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that `read_fields` parses."""
    types = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    content = {"schema": schema.model_json_schema()}
    return {"requestBody": {"required": True, "content": dict.fromkeys(types, content)}}


@router.post("/translate", response_model=schemas.TranslateResponse, openapi_extra=_form_body(schemas.TranslateRequest))
async def translate(request: Request, service: ServiceDependency) -> Response:
    """Translate a text or a list of texts."""
    fields = await read_fields(request, schemas.TranslateRequest)
    is_list = isinstance(fields.q, list)
    texts = fields.q if isinstance(fields.q, list) else [fields.q]
    service.check_request(request, fields.api_key, texts, 1 + fields.alternatives)
    source, target = (service.models.resolve_language(tag) for tag in (fields.source, fields.target))
    detected = detect_sources(service, texts, target) if source == AUTO else None
    sources = [detection.language for detection in detected] if detected else [source] * len(texts)
    logged_sources = sorted({str(service.loggable(code)) for code in sources})
    request.state.log_fields.update(source=logged_sources, target=service.loggable(target))
    fields.target = target
    versions, qualities, warnings, terms = await _translate(request, service, texts, sources, fields)
    best = [text_versions[0] for text_versions in versions]
    others = [text_versions[1:] for text_versions in versions] if fields.alternatives else None
    confidences, flags = [quality.confidence for quality in qualities], [quality.flags for quality in qualities]
    response = schemas.TranslateResponse(
        translatedText=best if is_list else best[0],
        detectedLanguage=detected if is_list or detected is None else detected[0],
        alternatives=others if is_list or others is None else others[0],
        confidence=(confidences if is_list else confidences[0]) if fields.confidence else None,
        flags=(flags if is_list else flags[0]) if fields.confidence else None,
        warnings=warnings or None,
        terms=None if not fields.glossary else terms if is_list else terms[0],
    )
    # Serialised here, because FastAPI would validate the response a second time.
    return Response(response.model_dump_json(exclude_none=True), media_type="application/json")


@router.post("/detect", openapi_extra=_form_body(schemas.DetectRequest))
async def detect(request: Request, service: ServiceDependency) -> list[schemas.Detection]:
    """Detect the language of a text, among the languages of the served models."""
    fields = await read_fields(request, schemas.DetectRequest)
    service.check_request(request, fields.api_key, [fields.q])
    service.models.check_loaded()
    if not service.models.languages:
        raise bad_request("no model supports translate")
    ranked = service.detector.rank(fields.q, list(service.models.languages))
    return [schemas.Detection(confidence=share, language=code) for code, share in ranked]


@router.get("/languages")
async def list_languages(service: ServiceDependency) -> list[schemas.LanguageTargets]:
    """List the languages of the served models."""
    service.models.check_loaded()
    items = service.models.languages.items()
    return [schemas.LanguageTargets(code=code, name=language_name(code), targets=targets) for code, targets in items]


@router.get("/frontend/settings")
async def frontend_settings(service: ServiceDependency) -> schemas.FrontendSettings:
    """Return the settings that web pages of LibreTranslate read."""
    service.models.check_loaded()
    source, target = next(iter(service.models.pairs), (AUTO, AUTO))
    return schemas.FrontendSettings(
        charLimit=service.limits.characters,
        frontendTimeout=TYPING_DELAY,
        apiKeys=service.keys is not None,
        keyRequired=service.keys is not None,
        filesTranslation=True,
        supportedFilesFormat=sorted(suffix for format in FORMATS.values() for suffix in format.suffixes),
        language=schemas.DefaultLanguages(
            source=schemas.LanguageName(code=source, name=language_name(source)),
            target=schemas.LanguageName(code=target, name=language_name(target)),
        ),
    )


@router.get("/health")
async def health() -> schemas.Status:
    """Report that the server process is alive."""
    return schemas.Status(status="ok")


@router.get("/ready")
async def ready(service: ServiceDependency) -> schemas.Status:
    """Report whether the server is ready for requests: all models are loaded, and it is not shutting down."""
    if not service.ready:
        raise unavailable("the server is shutting down" if service.draining else "the models are not ready")
    return schemas.Status(status="ok")


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(service: ServiceDependency) -> Response:
    """Return the metrics in the text format of Prometheus."""
    return Response(generate_latest(service.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})


def detect_sources(service: Service, texts: list[str], target: str) -> list[schemas.Detection]:
    """Detect the language of each text, among those that can be translated into the target language.

    If none can, all languages are considered: the text is in the target language, or the error names its language.
    """
    service.models.check_loaded()
    sources = [code for code, targets in service.models.languages.items() if match_language(target, targets)]
    if not sources:
        service.models.check_language(target)
        raise bad_request(f"{target} is not available as a target language")
    if all(service.models.is_same(code, target) for code in sources):
        sources = list(service.models.languages)
    ranked = [service.detector.rank(text, sources)[0] for text in texts]
    return [schemas.Detection(confidence=share, language=code) for code, share in ranked]


async def _translate(
    request: Request, service: Service, texts: list[str], sources: list[str], fields: schemas.TranslateRequest
) -> tuple[list[list[str]], list[Quality], list[str], list[list[dict[str, Any]]]]:
    """Return translation and alternatives, quality and terms of each text, and warnings about long sentences.

    Texts in the target language are returned unchanged.
    """
    versions: list[list[str]] = [[text] for text in texts]
    qualities = [Quality(1.0, [], {})] * len(texts)
    warnings: dict[int, list[str]] = {}
    terms: list[list[dict[str, Any]]] = [[] for _ in texts]
    n_best = 1 + fields.alternatives
    for source in sorted(set(sources)):
        if service.models.is_same(source, fields.target):
            continue
        model = service.models.for_pair(source, fields.target)
        indices = [i for i, code in enumerate(sources) if code == source]
        documents = await service.translate(
            request,
            model,
            [texts[i] for i in indices],
            n_best,
            format=fields.format,
            confidence=fields.confidence,
            glossary=fields.glossary,
        )
        for i, document in zip(indices, documents, strict=True):
            if fields.format == "html":  # in a thread, because it can take long
                versions[i] = await asyncio.to_thread(document.render_n_best, n_best)
            else:
                versions[i] = document.render_n_best(n_best)
            qualities[i], terms[i] = document.quality, document.terms
            numbered = enumerate(document.warnings, 1)
            warnings[i] = [f"text {i + 1}, sentence {number}: {warning}" for number, warning in numbered if warning]
    return versions, qualities, [warning for _, of_text in sorted(warnings.items()) for warning in of_text], terms
