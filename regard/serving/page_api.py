"""The web page at /: its files, and the endpoints under /api/inspect/ that it calls."""

import asyncio
import gzip
import hashlib
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse

from regard.data.text.languages import ExpectedLanguage
from regard.inspection.bundle_modules import bundle_modules
from regard.serving import page_schemas, schemas
from regard.serving.api import IMAGE_BODY
from regard.serving.errors import ApiError, bad_request
from regard.serving.messages import UNFINISHED, Job
from regard.serving.parsing import read_images
from regard.serving.service import Service, ServiceDependency
from regard.serving.training_log import checkpoint_steps, has_model, read_log

ImageFields = TypeVar("ImageFields", bound=schemas.ImageRequest)
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PACKAGES = ("regard.inspection", "regard.serving")
"""Packages with a folder page/. Their files share one URL path, so that modules can import each other."""
INDEX, API_DOCS = "index.html", "docs.html"
ENTRY, BUNDLE = "page.js", "bundle.js"
"""The module that starts the page, and the script of this module and all others that index.html loads."""
BINARY = "application/octet-stream"
PACKET_RESPONSE: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {BINARY: {}}, "description": "JSON and arrays; see serving/page_data/packet.py"}},
}
HTML_RESPONSE: dict[str, Any] = {  # with HTMLResponse as the class, the schema would describe errors as HTML, too
    "response_class": Response,
    "responses": {200: {"content": {"text/html": {}}, "description": "An HTML page that opens from disk"}},
}
LEAST_PROBABILITY = 0.001
"""Probability of the language of a model below which a text is reported to be in another language."""
SECTIONS = {
    "translation": "translate",
    "map": "attention",
    "lens": "why",
    "image_overview": "overview",
    "training_map": "training",
    "look": "attention",
}
"""Section of the page of each operation, if it is not the operation's name."""

inspect_router = APIRouter(prefix="/api/inspect", tags=["page"], responses=schemas.ERROR_RESPONSES)
file_router = APIRouter(include_in_schema=False)


@inspect_router.post("/sentences")
async def sentences(
    request: Request, body: page_schemas.InspectRequest, service: ServiceDependency
) -> page_schemas.SentencesResponse:
    """Split a text into the sentences that the model translates."""
    service.check_request(request, body.api_key, [body.text])
    model = service.models.find(body.model, "translate")
    assert model.job_builder is not None
    views = [
        page_schemas.SentenceView(text=text, tokens=model.job_builder.count_tokens(text), divided=divided)
        for text, _, divided in model.job_builder.parse(body.text).sentences
    ]
    warning = await asyncio.to_thread(_unexpected_language, model.info.source, body.text)
    return page_schemas.SentencesResponse(
        sentences=views, longest=model.info.longest_source, source_language_warning=warning
    )


def _unexpected_language(language: str | None, text: str) -> str | None:
    """Return the language if a text is almost certainly not in it."""
    expected = ExpectedLanguage(language) if language else None
    if expected is None or not expected.known:
        return None
    return language if expected.probability(text)[0] < LEAST_PROBABILITY else None


@inspect_router.post("/translation", **PACKET_RESPONSE)
async def translation(request: Request, body: page_schemas.TranslationRequest, service: ServiceDependency) -> Response:
    """Return the best translations of a sentence and their alignments."""
    scripts = body.source, body.target
    return _packet(await _inspect_text(service, request, "translation", body, body.n_best, scripts))


@inspect_router.post("/attention", **PACKET_RESPONSE)
async def attention(request: Request, body: page_schemas.AttentionRequest, service: ServiceDependency) -> Response:
    """Return a small attention map of every head."""
    return _packet(await _inspect_text(service, request, "attention", body))


@inspect_router.post("/look", **HTML_RESPONSE)
async def look(request: Request, body: page_schemas.InspectRequest, service: ServiceDependency) -> HTMLResponse:
    """Return the attention maps of a sentence as one HTML page that opens from disk, as `regard look` writes it."""
    return HTMLResponse(await _inspect_text(service, request, "look", body))


@inspect_router.post("/map", **PACKET_RESPONSE)
async def attention_map(request: Request, body: page_schemas.MapRequest, service: ServiceDependency) -> Response:
    """Return the attention map of one head, or the mean over all heads of an attention module."""
    return _packet(await _inspect_text(service, request, "map", body))


@inspect_router.post("/arithmetic", **PACKET_RESPONSE)
async def arithmetic(request: Request, body: page_schemas.ArithmeticRequest, service: ServiceDependency) -> Response:
    """Return all intermediate results of the attention of one query."""
    return _packet(await _inspect_text(service, request, "arithmetic", body))


@inspect_router.post("/beam")
async def beam(
    request: Request, body: page_schemas.BeamRequest, service: ServiceDependency
) -> page_schemas.BeamResponse:
    """Return the tree of a beam search, or the iterations of a non-autoregressive model."""
    return page_schemas.BeamResponse(**await _inspect_text(service, request, "beam", body))


@inspect_router.post("/change")
async def change(
    request: Request, body: page_schemas.ChangeRequest, service: ServiceDependency
) -> page_schemas.ChangeResponse:
    """Return the translation by a model with scaled heads, other attention scores or other search settings."""
    return page_schemas.ChangeResponse(**await _inspect_text(service, request, "change", body))


@inspect_router.get("/training")
async def training(
    request: Request,
    service: ServiceDependency,
    model: schemas.ModelName = None,
    after: Annotated[int, Query(ge=0, le=10**15)] = 0,
) -> page_schemas.TrainingResponse:
    """Return a part of the log of a training run, and the steps of its checkpoints."""
    service.check_request(request, None)
    served = service.models.find(model, "training")
    run = served.request.run
    part = await asyncio.to_thread(read_log, run, after)
    is_saved = await asyncio.to_thread(has_model, run)
    if is_saved and served.info.kind == UNFINISHED:
        service.reload_in_background()
    steps = await asyncio.to_thread(checkpoint_steps, run)
    return page_schemas.TrainingResponse(entries=part.entries, next=part.next, steps=steps, has_model=is_saved)


@inspect_router.post("/training_map", **PACKET_RESPONSE)
async def training_map(request: Request, body: page_schemas.TrainingMapRequest, service: ServiceDependency) -> Response:
    """Return the attention map of one head at a checkpoint of the training."""
    return _packet(await _inspect_text(service, request, "training_map", body))


@inspect_router.post("/lens")
async def lens(
    request: Request, body: page_schemas.LensRequest, service: ServiceDependency
) -> page_schemas.LensResponse:
    """Return the states of all layers, read as tokens, and the most probable next tokens at every position."""
    return page_schemas.LensResponse(**await _inspect_text(service, request, "lens", body))


@inspect_router.post("/why")
async def why(request: Request, body: page_schemas.WhyRequest, service: ServiceDependency) -> page_schemas.WhyResponse:
    """Return why a model chose a word of its translation: attribution, layers, heads, and another sentence."""
    service.check_request(request, body.api_key, [body.against or ""])
    return page_schemas.WhyResponse(**await _inspect_text(service, request, "why", body))


@inspect_router.post("/positions", **PACKET_RESPONSE)
async def positions(request: Request, body: page_schemas.PositionsRequest, service: ServiceDependency) -> Response:
    """Return the position encodings of a model, their similarities, and the angles of rotary encodings."""
    service.check_request(request, body.api_key)
    return _packet(
        await _inspect(service, request, "positions", body.model, body.model_dump(include={"length", "compare"}))
    )


@inspect_router.post("/overview", **PACKET_RESPONSE)
async def overview(request: Request, body: page_schemas.AttentionRequest, service: ServiceDependency) -> Response:
    """Return the vectors of a translation between all sublayers of the model."""
    return _packet(await _inspect_text(service, request, "overview", body))


@inspect_router.post("/image_overview", openapi_extra=IMAGE_BODY, **PACKET_RESPONSE)
async def image_overview(request: Request, service: ServiceDependency) -> Response:
    """Return the vectors of the patches of an image, or of two views, between all sublayers of the model."""
    fields, images = await read_images(request, schemas.ImageRequest)
    service.check_request(request, fields.api_key)
    model = service.models.find(fields.model, "overview")
    count = 2 if model.supports("views") else 1
    if len(images) != count:
        raise bad_request(f"Invalid request: {len(images)} images; send {count} as image")
    item = {"images": images, "pixels": service.limits.image_pixels}
    size = sum(await service.measure_images(images))
    return _packet(await _inspect(service, request, "image_overview", model.name, item, size))


@inspect_router.post("/image", openapi_extra=IMAGE_BODY, **PACKET_RESPONSE)
async def image(request: Request, service: ServiceDependency) -> Response:
    """Return the classes of an image, and the attention of the class token or of a patch."""
    return _packet(await _inspect_image(service, request, "image", page_schemas.PatchRequest))


@inspect_router.post("/image_attention", openapi_extra=IMAGE_BODY, **PACKET_RESPONSE)
async def image_attention(request: Request, service: ServiceDependency) -> Response:
    """Return a small attention map of every head of an image model."""
    return _packet(await _inspect_image(service, request, "image_attention", page_schemas.ImageAttentionRequest))


@inspect_router.post("/image_map", openapi_extra=IMAGE_BODY, **PACKET_RESPONSE)
async def image_map(request: Request, service: ServiceDependency) -> Response:
    """Return the attention map of one head of an image model, or the mean over all heads of an attention module."""
    return _packet(await _inspect_image(service, request, "image_map", page_schemas.ImageMapRequest))


@inspect_router.post("/image_arithmetic", openapi_extra=IMAGE_BODY, **PACKET_RESPONSE)
async def image_arithmetic(request: Request, service: ServiceDependency) -> Response:
    """Return all intermediate results of the attention of one query of an image model."""
    return _packet(await _inspect_image(service, request, "image_arithmetic", page_schemas.ImageArithmeticRequest))


@inspect_router.post("/image_change", openapi_extra=IMAGE_BODY)
async def image_change(request: Request, service: ServiceDependency) -> page_schemas.ImageChangeResponse:
    """Return the classes of an image by a model with scaled heads or other attention scores."""
    result = await _inspect_image(service, request, "image_change", page_schemas.ImageChangeRequest)
    return page_schemas.ImageChangeResponse(**result)


@inspect_router.post("/views", openapi_extra=IMAGE_BODY, **PACKET_RESPONSE)
async def views(request: Request, service: ServiceDependency) -> Response:
    """Return the cross-attention between the patches of two views of a scene."""
    fields, images = await _read_images(service, request, schemas.ImageRequest, 2)
    item = {"images": images, "pixels": service.limits.image_pixels}
    size = sum(await service.measure_images(images))
    return _packet(await _inspect(service, request, "views", fields.model, item, size))


async def _inspect_image(service: Service, request: Request, operation: str, schema: type[ImageFields]) -> Any:
    """Run an operation on the image of a request, with its other fields."""
    fields, images = await _read_images(service, request, schema, 1)
    item = fields.model_dump(exclude={"model", "api_key"})
    item |= {"image": images[0], "pixels": service.limits.image_pixels}
    size = sum(await service.measure_images(images))
    return await _inspect(service, request, operation, fields.model, item, size)


async def _read_images(
    service: Service, request: Request, schema: type[ImageFields], count: int
) -> tuple[ImageFields, list[bytes]]:
    fields, images = await read_images(request, schema)
    service.check_request(request, fields.api_key)
    if len(images) != count:
        raise bad_request(f"Invalid request: {len(images)} images; send {count} as image")
    return fields, images


async def _inspect_text(
    service: Service,
    request: Request,
    operation: str,
    body: page_schemas.InspectRequest,
    n_best: int = 1,
    scripts: tuple[str | None, str | None] = (None, None),
) -> Any:
    """Check the sentence of a request, and run an operation on it, in the given scripts of Chinese."""
    service.check_request(request, body.api_key, [body.text], n_best)
    model = service.models.find(body.model, SECTIONS.get(operation, operation))
    if model.job_builder is None:  # an image model with a training log
        raise bad_request(f"{model.name} does not support {operation}")
    model = model.in_scripts(*(code and service.models.resolve_language(code) for code in scripts))
    assert model.job_builder is not None
    tokens = model.job_builder.count_tokens(body.text)
    limit = min(service.limits.inspect_tokens, model.info.max_source_tokens or service.limits.inspect_tokens)
    if tokens > limit:
        message = f"the sentence has {tokens} tokens; at most {limit} tokens can be inspected"
        raise bad_request(message, "tokens", tokens=tokens, limit=limit)
    item = body.model_dump(exclude={"model", "api_key"})
    if model.languages != model.info.languages:
        item["languages"] = model.languages
    return await _inspect(service, request, operation, body.model, item, tokens + 1)


async def _inspect(
    service: Service, request: Request, operation: str, model_name: str | None, item: dict[str, Any], size: int = 1
) -> Any:
    """Run an operation in a worker of the model."""
    request.state.log_fields["model"] = service.loggable(model_name)
    model = service.models.find(model_name, SECTIONS.get(operation, operation))
    (result,) = await service.run(request, model, [Job(operation, item, size=size)])
    return result


def _packet(content: bytes) -> Response:
    return Response(content, media_type=BINARY)


@file_router.get("/")
async def index(request: Request) -> Response:
    """Return the page."""
    return _file_response(request, INDEX)


@file_router.get("/docs")
async def api_docs(request: Request) -> Response:
    """Return a page that describes the HTTP API."""
    return _file_response(request, API_DOCS)


@file_router.get("/page/{name}")
async def page_file(request: Request, name: str) -> Response:
    """Return a module or style sheet of the page."""
    if name not in read_page_files() or name in (INDEX, API_DOCS):
        raise ApiError(404, "Not Found", "bad")
    return _file_response(request, name)


@cache
def read_page_files() -> dict[str, bytes]:
    """Return the contents of all files of the page by name, and the bundle of its modules."""
    files = {
        path.name: path.read_bytes()
        for package in PACKAGES
        for path in (resources.files(package) / "page").iterdir()
        if path.is_file() and PurePath(path.name).suffix in MEDIA_TYPES
    }
    return files | {BUNDLE: bundle_modules(files, ENTRY)}


def _file_response(request: Request, name: str) -> Response:
    compressed = _accepts_gzip(request.headers.get("accept-encoding", ""))
    content = _compress_file(name) if compressed else read_page_files()[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    # Browsers revalidate, and receive only changed files.
    headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if compressed:
        headers["content-encoding"] = "gzip"
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    media_type = MEDIA_TYPES[PurePath(name).suffix]
    return Response(content, media_type=f"{media_type}; charset=utf-8", headers=headers)


@cache
def _compress_file(name: str) -> bytes:
    return gzip.compress(read_page_files()[name], mtime=0)


def _accepts_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header, such as "gzip, deflate;q=0.5", allows gzip."""
    qualities = dict(one.replace(" ", "").lower().partition(";q=")[::2] for one in accepted.split(","))
    return qualities.get("gzip", "0") not in ("0", "0.0", "0.00", "0.000")
