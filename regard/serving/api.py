"""Our own API under /api/, for features that LibreTranslate's API does not have."""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from regard.data.text.languages import match_language
from regard.serving import schemas
from regard.serving.documents import TranslatedDocument
from regard.serving.errors import ApiError, bad_request
from regard.serving.messages import Job, Translation
from regard.serving.parsing import read_images
from regard.serving.served_models import ServedModel
from regard.serving.service import Service, ServiceDependency

router = APIRouter(prefix="/api", tags=["regard"], responses=schemas.ERROR_RESPONSES)

_BINARY = {"type": "string", "format": "binary"}
_IMAGE_FIELDS = {
    "image": {"type": "array", "items": _BINARY, "minItems": 1},
    "top": {"type": "integer", "minimum": 1},
    "model": {"type": "string"},
}
_IMAGE_FORM = {"type": "object", "required": ["image"], "properties": _IMAGE_FIELDS}
_IMAGE_CONTENT = {"multipart/form-data": {"schema": _IMAGE_FORM}, "image/*": {"schema": _BINARY}}
IMAGE_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": _IMAGE_CONTENT}}
"""OpenAPI description of a request body with images."""


@router.get("/models")
async def list_models(service: ServiceDependency) -> schemas.ApiModels:
    """List the served models."""
    service.models.check_loaded()
    return schemas.ApiModels(models=[model.info for model in service.models.all])


@router.post("/translate", response_model=schemas.ApiTranslateResponse)
async def translate(request: Request, body: schemas.ApiTranslateRequest, service: ServiceDependency) -> Response:
    """Translate texts, with n-best lists, scores and alignments of each sentence."""
    _check_translation(service, request, body)
    model = _select_model(service, body)
    documents = await service.translate(request, model, body.text_list, body.n_best, **_options(body))
    return _json_response(model.name, "texts", map(_text_json, documents))


@router.post(
    "/translate/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "One event for each sentence"}},
)
async def stream_translation(
    request: Request, body: schemas.ApiTranslateRequest, service: ServiceDependency
) -> StreamingResponse:
    """Translate texts, and send each sentence as a server-sent event as soon as it is translated.

    The data of an event is `{"text": index, "sentence": index, "source": ..., "translations": [...]}`. The last event
    is `done`, or `error` if the translation fails.
    """
    events = _sentence_events(service, request, body)
    first = await anext(events)  # errors before the first event become error responses
    return StreamingResponse(
        _with_error_event(first, events), media_type="text/event-stream", headers={"cache-control": "no-store"}
    )


@router.post("/embed", response_model=schemas.ApiEmbedResponse)
async def embed(request: Request, body: schemas.ApiEmbedRequest, service: ServiceDependency) -> Response:
    """Return the encoder outputs of texts."""
    service.check_request(request, body.api_key, body.text_list)
    model = service.models.find(body.model, "embed")
    assert model.job_builder is not None
    jobs = model.job_builder.embedding_jobs(body.text_list, body.pool)
    longest = max(job.size for job in jobs) - 1  # without END
    limit = service.limits.sentence_tokens
    if longest > limit:
        raise bad_request(f"a text has {longest} tokens; at most {limit} tokens can be embedded")
    return _json_response(model.name, "vectors", await service.run(request, model, jobs))


@router.post("/classify", openapi_extra=IMAGE_BODY)
async def classify(request: Request, service: ServiceDependency) -> schemas.ApiClassifyResponse:
    """Classify images, sent as files named `image` of a form, or as the body of the request."""
    fields, images = await read_images(request, schemas.ClassifyRequest)
    service.check_request(request, fields.api_key)  # after reading, because the key is a field of the form
    request.state.log_fields.update(images=len(images), model=service.loggable(fields.model))
    if not 0 < len(images) <= service.limits.items:
        raise bad_request(f"Invalid request: {len(images)} images; send 1 to {service.limits.items} as image")
    model = service.models.find(fields.model, "classify")
    options = (("top", fields.top), ("pixels", service.limits.image_pixels))
    sizes = await service.measure_images(images)
    jobs = [Job("classify", image, options, size) for image, size in zip(images, sizes, strict=True)]
    rankings = await service.run(request, model, jobs)
    results = [
        schemas.ApiImage(
            classes=[schemas.ApiClass(name=name, probability=probability) for name, probability in ranking]
        )
        for ranking in rankings
    ]
    return schemas.ApiClassifyResponse(model=model.name, images=results)


def _check_translation(service: Service, request: Request, body: schemas.ApiTranslateRequest) -> None:
    """Check the key and the limits of a request, and log which model and languages it names."""
    service.check_request(request, body.api_key, body.text_list, body.n_best)
    names = {"source": body.source, "target": body.target, "model": body.model}
    request.state.log_fields.update({field: service.loggable(name) for field, name in names.items()})


def _options(body: schemas.ApiTranslateRequest) -> dict[str, Any]:
    """Return the options of `Service.parse`."""
    return {
        "split": body.split,
        "alignments": body.alignments,
        "confidence": body.confidence,
        "glossary": body.glossary,
    }


def _select_model(service: Service, body: schemas.ApiTranslateRequest) -> ServedModel:
    """Return the model that a request names, or one for its languages."""
    if body.model is not None or (body.source is None and body.target is None):
        model = service.models.find(body.model, "translate")
        source, target = (tag and service.models.resolve_language(tag) for tag in (body.source, body.target))
        model = model.in_scripts(source, target)
        for requested, supported in zip((source, target), model.languages or (), strict=True):
            if requested is not None and match_language(requested, [supported]) is None:
                raise bad_request(f"model {model.name} does not translate from or into {requested}")
        return model
    if body.source is None or body.target is None:
        raise bad_request("give both source and target, or the name of a model")
    return service.models.for_pair(*map(service.models.resolve_language, (body.source, body.target)))


async def _sentence_events(service: Service, request: Request, body: schemas.ApiTranslateRequest) -> AsyncIterator[str]:
    _check_translation(service, request, body)
    model = _select_model(service, body)
    assert model.job_builder is not None
    documents, jobs = await service.parse(request, model, body.text_list, body.n_best, **_options(body))
    sentences = (
        (text_index, sentence_index, sentence)
        for text_index, document in enumerate(documents)
        for sentence_index, sentence in enumerate(document.sentences)
    )
    async for n_best in model.batcher.stream(jobs, request.state.client):
        text_index, sentence_index, sentence = next(sentences)
        content = _sentence_json(sentence.text, n_best, model.job_builder.length_warning(sentence))
        yield f'data: {{"text": {text_index}, "sentence": {sentence_index}, {content[1:]}\n\n'
    yield "event: done\ndata: {}\n\n"


async def _with_error_event(first: str, events: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    try:
        async for event in events:
            yield event
    except ApiError as error:
        yield f"event: error\ndata: {json.dumps({'error': error.message})}\n\n"


def _json_response(model: str, name: str, items: Iterable[str]) -> Response:
    """Return the name of the model and a list of JSON texts, which FastAPI would validate and encode again."""
    content = f'{{"model": {json.dumps(model)}, "{name}": [{", ".join(items)}]}}'
    return Response(content, media_type="application/json")


def _text_json(translated: TranslatedDocument) -> str:
    """Return an `ApiText`."""
    sentences = zip(translated.document.sentences, translated.n_best_lists, translated.warnings, strict=True)
    parts = ", ".join(_sentence_json(sentence.text, n_best, warning) for sentence, n_best, warning in sentences)
    return f'{{"text": {json.dumps(translated.render_n_best(1)[0], ensure_ascii=False)}, "sentences": [{parts}]}}'


def _sentence_json(source: str, n_best: Sequence[Translation], warning: str | None) -> str:
    """Return an `ApiSentence`."""
    translations = ", ".join(translation.to_json() for translation in n_best)
    suffix = "" if warning is None else f', "warning": {json.dumps(warning, ensure_ascii=False)}'
    return f'{{"source": {json.dumps(source, ensure_ascii=False)}, "translations": [{translations}]{suffix}}}'
