"""The endpoints of the page under /api/inspect/. Each asks a model's worker, like every other request."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from regard.serving.api import IMAGES
from regard.serving.errors import bad
from regard.serving.inspect_schemas import (
    ArithmeticRequest,
    AttentionRequest,
    BeamAnswer,
    BeamRequest,
    ChangeAnswer,
    ChangeRequest,
    ImageRequest,
    InspectRequest,
    MapRequest,
    PositionsRequest,
    TranslationRequest,
    ViewsRequest,
)
from regard.serving.libretranslate import ERRORS
from regard.serving.messages import Job
from regard.serving.parsing import read_images
from regard.serving.schemas import Request as Asked
from regard.serving.service import Service, facts, unless_gone

BYTES = "application/octet-stream"
PACKET: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {BYTES: {}}, "description": "JSON and arrays, as views/packet.py writes them"}},
}
SECTION_OF = {"translation": "translate", "map": "attention"}
"""The section of the page to which an operation belongs, where it has another name."""


def make_router(service: Service) -> APIRouter:
    """The routes, for one server."""
    router = APIRouter(prefix="/api/inspect", tags=["page"], responses=ERRORS)
    asker = Asker(service)

    @router.post("/translation", **PACKET)
    async def translation(request: Request, asked: TranslationRequest) -> Response:
        """The best translations of a sentence and what their tokens looked at."""
        return _packet(await asker.read(request, "translation", asked, asked.n_best))

    @router.post("/attention", **PACKET)
    async def attention(request: Request, asked: AttentionRequest) -> Response:
        """Small maps of all heads."""
        return _packet(await asker.read(request, "attention", asked))

    @router.post("/map", **PACKET)
    async def one_map(request: Request, asked: MapRequest) -> Response:
        """The map of one head, or the mean of all of an attention."""
        return _packet(await asker.read(request, "map", asked))

    @router.post("/arithmetic", **PACKET)
    async def arithmetic(request: Request, asked: ArithmeticRequest) -> Response:
        """All numbers between one query and its output."""
        return _packet(await asker.read(request, "arithmetic", asked))

    @router.post("/beam")
    async def beam(request: Request, asked: BeamRequest) -> BeamAnswer:
        """The tree of the beam, or the rounds of a model that writes all tokens at once."""
        return BeamAnswer(**await asker.read(request, "beam", asked))

    @router.post("/change")
    async def change(request: Request, asked: ChangeRequest) -> ChangeAnswer:
        """The translation by a model with some of it changed."""
        return ChangeAnswer(**await asker.read(request, "change", asked))

    @router.post("/positions", **PACKET)
    async def positions(request: Request, asked: PositionsRequest) -> Response:
        """Encodings of positions, how alike they are, and by how much rotary ones turn."""
        service.admit(request, asked.api_key)
        return _packet(await asker.ask(request, "positions", asked, {"length": asked.length}))

    @router.post("/image", openapi_extra=IMAGES, **PACKET)
    async def image(request: Request) -> Response:
        """Classes of an image, and what the model looked at."""
        asked, images = await read_images(request, ImageRequest)
        service.admit(request, asked.api_key)
        given = {"image": _several(images, 1)[0], "patch": asked.patch, "pixels": service.limits.image_pixels}
        return _packet(await asker.ask(request, "image", asked, given))

    @router.post("/views", openapi_extra=IMAGES, **PACKET)
    async def views(request: Request) -> Response:
        """Two views: where each patch of the first looks in the second."""
        asked, images = await read_images(request, ViewsRequest)
        service.admit(request, asked.api_key)
        given = {"images": _several(images, 2), "pixels": service.limits.image_pixels}
        return _packet(await asker.ask(request, "views", asked, given))

    return router


class Asker:
    """Puts a question to the model that is meant, within the limits."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def read(self, request: Request, operation: str, asked: InspectRequest, n_best: int = 1) -> Any:
        """The answer to a question about a sentence.

        Raises:
            Problem: there is none.
        """
        service, limits = self._service, self._service.limits
        service.admit(request, asked.api_key)
        service.check_texts(request, [asked.text], n_best)
        model = service.models.named(asked.model, SECTION_OF.get(operation, operation))
        assert model.reader is not None
        tokens = model.reader.count(asked.text)
        most = min(limits.inspect_tokens, model.about.longest or limits.inspect_tokens)
        if tokens > most:
            sentence = f"the sentence has {tokens} tokens; looked into are sentences of up to {most}"
            raise bad(sentence, "tokens", tokens=tokens, most=most)
        given = asked.model_dump(exclude={"model", "api_key"})
        return await self.ask(request, operation, asked, given, tokens + 1)

    async def ask(self, request: Request, operation: str, asked: Asked, given: dict[str, Any], size: int = 1) -> Any:
        """The answer to any question.

        Raises:
            Problem: there is none.
        """
        name: str | None = getattr(asked, "model", None)
        facts(request).update(model=name)
        model = self._service.models.named(name, SECTION_OF.get(operation, operation))
        (answer,) = await unless_gone(request, model.batcher.submit([Job(operation, given, size=size)]))
        return answer


def _several(images: list[bytes], count: int) -> list[bytes]:
    if len(images) != count:
        raise bad(f"Invalid request: {len(images)} images; send {count}, called image")
    return images


def _packet(content: bytes) -> Response:
    return Response(content, media_type=BYTES)
