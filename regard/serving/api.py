"""Our own endpoints under /api/: what LibreTranslate's form has no words for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from regard.serving.errors import Problem, bad
from regard.serving.libretranslate import ERRORS
from regard.serving.messages import Job, Translation
from regard.serving.parsing import read_images
from regard.serving.schemas import (
    ApiAlignment,
    ApiClass,
    ApiClassifyAnswer,
    ApiClassifyRequest,
    ApiEmbedAnswer,
    ApiEmbedRequest,
    ApiImage,
    ApiModel,
    ApiModels,
    ApiSentence,
    ApiText,
    ApiTranslateAnswer,
    ApiTranslateRequest,
    ApiTranslation,
)
from regard.serving.served_models import Model
from regard.serving.service import Service, Translated, facts, unless_gone

_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
_FORM = {
    "type": "object",
    "required": ["image"],
    "properties": {"image": _FILES, "top": {"type": "integer", "minimum": 1}, "model": {"type": "string"}},
}
IMAGES = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": _FORM},
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
"""How OpenAPI describes a body of images."""


def make_router(service: Service) -> APIRouter:
    """The routes, for one server."""
    router = APIRouter(prefix="/api", tags=["regard"], responses=ERRORS)

    @router.get("/models")
    async def models() -> ApiModels:
        """The models that are served."""
        return ApiModels(models=[_describe(model) for model in service.models.all])

    @router.post("/translate", response_model_exclude_none=True)
    async def translate(request: Request, asked: ApiTranslateRequest) -> ApiTranslateAnswer:
        """Translate texts sentence by sentence: n best, scores, alignments."""
        texts = _admit(service, request, asked)
        model = _choose(service, asked)
        work = service.translate(model, texts, n_best=asked.n_best, split=asked.split, alignments=asked.alignments)
        found = await unless_gone(request, work)
        return ApiTranslateAnswer(model=model.order.name, texts=[_text(one) for one in found])

    @router.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "An event for every sentence"}},
    )
    async def stream(request: Request, asked: ApiTranslateRequest) -> StreamingResponse:
        """Translate texts; each sentence is sent as soon as it is there, as a server-sent event.

        An event's data is `{"text": n, "sentence": m, "source": ..., "translations": [...]}`, numbers from 0. The last
        event is `done`; where something goes wrong on the way it is `error`.
        """
        texts = _admit(service, request, asked)
        events = _events(_choose(service, asked), texts, asked)
        first = await anext(events)  # what goes wrong before anything is sent has a status of its own
        return StreamingResponse(
            _follow(first, events), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    @router.post("/embed")
    async def embed(request: Request, asked: ApiEmbedRequest) -> ApiEmbedAnswer:
        """The encoder's context-aware vectors: one a text, or one a token."""
        service.admit(request, asked.api_key)
        texts = [asked.texts] if isinstance(asked.texts, str) else asked.texts
        service.check_texts(request, texts)
        model = service.models.named(asked.model, "embed")
        assert model.reader is not None
        jobs = model.reader.embedding_jobs(texts, asked.pool)
        longest = max(job.size for job in jobs)
        if longest > service.limits.sentence_tokens + 1:
            raise bad(f"a text has {longest - 1} tokens; vectors are made of up to {service.limits.sentence_tokens}")
        vectors = await unless_gone(request, model.batcher.submit(jobs))
        return ApiEmbedAnswer(model=model.order.name, vectors=vectors)

    @router.post("/classify", openapi_extra=IMAGES)
    async def classify(request: Request) -> ApiClassifyAnswer:
        """Tell images apart: a form with one or more files called `image`, or an image as the whole body."""
        asked, images = await read_images(request, ApiClassifyRequest)
        service.admit(request, asked.api_key)
        facts(request).update(images=len(images), model=service.loggable(asked.model))
        if not 0 < len(images) <= service.limits.items:
            raise bad(f"Invalid request: {len(images)} images; send 1 to {service.limits.items}, called image")
        model = service.models.named(asked.model, "classify")
        options = (("top", asked.top), ("pixels", service.limits.image_pixels))
        jobs = [Job("classify", image, options) for image in images]
        found = await unless_gone(request, model.batcher.submit(jobs))
        described = [[ApiClass(name=name, probability=share) for name, share in best] for best in found]
        return ApiClassifyAnswer(model=model.order.name, images=[ApiImage(classes=one) for one in described])

    return router


def _admit(service: Service, request: Request, asked: ApiTranslateRequest) -> list[str]:
    """The texts of a request that may pass."""
    service.admit(request, asked.api_key)
    texts = [asked.texts] if isinstance(asked.texts, str) else asked.texts
    service.check_texts(request, texts, asked.n_best)
    chosen = {"source": asked.source, "target": asked.target, "model": asked.model}
    facts(request).update({field: service.loggable(word) for field, word in chosen.items()})
    return texts


def _choose(service: Service, asked: ApiTranslateRequest) -> Model:
    if asked.model is not None or (asked.source is None and asked.target is None):
        model = service.models.named(asked.model, "translate")
        for wanted, there in zip((asked.source, asked.target), model.about.languages or (), strict=True):
            if wanted not in (None, there):
                raise bad(f"model {model.order.name} does not translate from or into {wanted}")
        return model
    if asked.source is None or asked.target is None:
        raise bad("give both source and target, or the name of a model")
    return service.models.for_pair(asked.source, asked.target)


async def _events(model: Model, texts: Sequence[str], asked: ApiTranslateRequest) -> AsyncIterator[str]:
    """The events of a stream."""
    reader = model.reader
    assert reader is not None
    documents = [reader.read(text, split=asked.split, alignments=asked.alignments) for text in texts]
    jobs = [(i, j, job) for i, one in enumerate(documents) for j, job in enumerate(reader.jobs(one, asked.n_best))]
    places = iter(jobs)
    async for best in model.batcher.stream([job for _, _, job in jobs]):
        i, j, job = next(places)
        sentence = _sentence(job.item, best).model_dump(exclude_none=True)
        yield f"data: {json.dumps({'text': i, 'sentence': j} | sentence, ensure_ascii=False)}\n\n"
    yield "event: done\ndata: {}\n\n"


async def _follow(first: str, events: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    try:
        async for event in events:
            yield event
    except Problem as problem:
        yield f"event: error\ndata: {json.dumps({'error': problem.sentence})}\n\n"


def _text(one: Translated) -> ApiText:
    sentences = [_sentence(text, best) for (text, _), best in zip(one.document.sentences, one.found, strict=True)]
    return ApiText(text=one.document.render([best[0] for best in one.found]), sentences=sentences)


def _sentence(source: str, best: Sequence[Translation]) -> ApiSentence:
    return ApiSentence(
        source=source,
        translations=[
            ApiTranslation(text=one.text, score=one.score, alignment=one.alignment and ApiAlignment.of(one.alignment))
            for one in best
        ],
    )


def _describe(model: Model) -> ApiModel:
    about = model.about
    source, target = about.languages or (None, None)
    return ApiModel(
        name=model.order.name,
        kind=about.kind,
        operations=list(about.operations),
        parameters=about.parameters,
        source=source,
        target=target,
        classes=list(about.classes),
        sections=list(about.sections),
        lacks=about.lacks,
        engine=about.engine,
        search={key: value for key, value in about.search.items() if key != "rerank"},  # a path, no stranger's business
    )
