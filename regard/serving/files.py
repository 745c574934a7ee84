"""Translation of documents, in the form of LibreTranslate's API: `/translate_file` and `/download_file`."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from regard.data.documents.document import Document, Untranslated
from regard.data.documents.formats import FORMATS, find_format, parse_document
from regard.data.documents.marked_text import Part, align_tokens
from regard.data.documents.segment_translation import (
    AlignedTranslation,
    Requests,
    SegmentGroup,
    TranslatedSegment,
    explain,
    translate_segment,
)
from regard.data.documents.zipped import ExpandedSizeError
from regard.errors import UserError
from regard.serving import schemas
from regard.serving.errors import ApiError, bad_request, deadline_exceeded
from regard.serving.file_store import Progress
from regard.serving.libretranslate import AUTO, detect_sources
from regard.serving.messages import Options, Terms, Translation
from regard.serving.parsing import read_file
from regard.serving.served_models import ServedModel
from regard.serving.service import Service, ServiceDependency

SEGMENTS = 16
"""Segments that are prepared together."""
SENTENCES = 32
"""Sentences in the queue at once: other clients take turns with them."""
RETRY_SECONDS = 2.0
"""Pause before sentences are sent again that found the queue full."""
SHOWN = 100
"""Untranslated texts in a response."""
DETECTION_CHARACTERS = 2000

router = APIRouter(tags=["LibreTranslate"], responses=schemas.ERROR_RESPONSES)

_FIELDS = schemas.TranslateFileRequest.model_json_schema()
_FORM = _FIELDS | {
    "properties": _FIELDS["properties"] | {"file": {"type": "string", "format": "binary"}},
    "required": ["file", "source", "target"],
}
FILE_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.post("/translate_file", openapi_extra=FILE_BODY)
async def translate_file(request: Request, service: ServiceDependency) -> schemas.TranslateFileResponse:
    """Translate a document, and return the address of the translated file and what was not translated."""
    fields, name, data = await read_file(request, schemas.TranslateFileRequest)
    service.check_request(request, fields.api_key)
    if len(data) > service.limits.file_bytes:
        raise ApiError(413, f"the document is larger than {service.limits.file_bytes} bytes", "body_size")
    service.models.check_loaded()
    source, target = (service.models.resolve_language(tag) for tag in (fields.source, fields.target))
    named = None
    if fields.model is not None:
        named = service.models.find(fields.model, "translate").in_scripts(source, target)
        source, target = named.languages or (source, target)
    with service.files.take_slot(request.state.client):
        document = await _parse(service, data, name, fields, source, target)
        if source == AUTO:
            start = " ".join(segment.content.text for segment in document.segments[:50])[:DETECTION_CHARACTERS]
            source = detect_sources(service, [start], target)[0].language
        model = named or service.models.for_pair(source, target)
        request.state.log_fields.update(source=service.loggable(source), target=service.loggable(target))
        _check_size(request, service, document)
        with service.files.track(fields.job, len(document.segments)) as progress:
            results = await _translate(request, service, model, document, fields.glossary, progress)
        parts: dict[int, Sequence[Part]] = {number: result.parts for number, result in enumerate(results)}
        async with service.files.parsing:
            content = await asyncio.to_thread(_render, document, parts)
    stored = await asyncio.to_thread(service.files.add, name, target, content)
    untranslated = [*document.untranslated, *_find_untranslated(document, results)]
    return schemas.TranslateFileResponse(
        translatedFileUrl=f"{request.base_url}download_file/{quote(stored)}",
        segments=len(document.segments),
        sentences=sum(result.sentences for result in results),
        untranslated=[schemas.UntranslatedText.model_validate(one) for one in untranslated[:SHOWN]],
        untranslatedCount=len(untranslated),
        placed=sum(bool(result.placed) for result in results),
    )


@router.get(
    "/download_file/{name}",
    response_class=FileResponse,
    responses={200: {"content": _BINARY, "description": "The file"}, 404: {"model": schemas.ErrorResponse}},
)
async def download_file(name: str, service: ServiceDependency) -> Response:
    """Return a translated document. It is kept for a limited time."""
    file = service.files.find(name)
    if file is None:
        raise ApiError(404, "there is no such file, or it has expired; translate the document again", "bad")
    format = find_format(file.name)
    media_type = FORMATS[format].media_type if format is not None else "application/octet-stream"
    return FileResponse(file.path, media_type=media_type, filename=file.name, headers={"cache-control": "no-store"})


@router.get("/api/files/{job}", tags=["regard"])
async def file_progress(job: str, service: ServiceDependency) -> schemas.FileProgress:
    """Return the progress of a document; 0 of 0 if no document of this name is being translated."""
    progress = service.files.progress.get(job, Progress(0, 0))
    return schemas.FileProgress(done=progress.done, total=progress.total)


async def _parse(
    service: Service, data: bytes, name: str, fields: schemas.TranslateFileRequest, source: str, target: str
) -> Document:
    """Parse a document in a thread, one at a time."""
    languages = ("" if source == AUTO else source, target)
    options: dict[str, Any] = {"column": fields.column, "key": fields.key, "expanded": service.limits.file_expanded}
    async with service.files.parsing:
        try:
            return await asyncio.to_thread(parse_document, data, name[-200:], None, languages, **options)
        except ExpandedSizeError as error:
            raise ApiError(413, str(error), "body_size", numbers={"limit": service.limits.file_expanded}) from None
        except UserError as error:
            raise bad_request(str(error)) from None


def _render(document: Document, parts: dict[int, Sequence[Part]]) -> bytes:
    try:
        return document.render(parts)
    except UserError as error:
        raise bad_request(str(error)) from None


def _check_size(request: Request, service: Service, document: Document) -> None:
    """Check the limits of documents, and charge a key for each request that texts of this size would have needed."""
    limits, segments = service.limits, len(document.segments)
    characters = sum(len(segment.content.text) for segment in document.segments)
    request.state.log_fields.update(segments=segments, characters=characters)
    if segments > limits.file_segments:
        raise bad_request(f"Invalid request: the document ({segments}) exceeds segment limit ({limits.file_segments})")
    if characters > limits.file_characters:
        message = f"Invalid request: the document ({characters}) exceeds character limit ({limits.file_characters})"
        raise bad_request(message, "characters", characters=characters, limit=limits.file_characters)
    if request.state.key_holder is not None:
        request.state.key_holder.charge(math.ceil(characters / limits.characters) - 1)


async def _translate(
    request: Request, service: Service, model: ServedModel, document: Document, glossary: Terms, progress: Progress
) -> list[TranslatedSegment]:
    """Translate the segments of a document, a few at a time."""
    assert model.job_builder is not None
    fits, results = model.job_builder.fits, list[TranslatedSegment]()
    deadline = time.monotonic() + service.limits.file_seconds
    for start in range(0, len(document.segments), SEGMENTS):
        segments = document.segments[start : start + SEGMENTS]
        group = SegmentGroup([translate_segment(segment.content, fits) for segment in segments])
        requests = await asyncio.to_thread(group.advance)
        while requests:
            answers: list[AlignedTranslation] = []
            for first in range(0, len(requests), SENTENCES):
                chunk = requests[first : first + SENTENCES]
                answers += await _translate_sentences(request, service, model, chunk, glossary, deadline)
            requests = await asyncio.to_thread(group.advance, answers)
        results += group.results
        progress.done = len(results)
    return results


async def _translate_sentences(
    request: Request, service: Service, model: ServedModel, requests: Requests, glossary: Terms, deadline: float
) -> list[AlignedTranslation]:
    """Translate sentences; if the queue is full, try again until the deadline."""
    assert model.job_builder is not None
    has_attention = model.info.engine == "regard"
    terms: Options = (("glossary", glossary),) if glossary else ()
    jobs = [
        model.job_builder.translation_job(
            one.text, (("n_best", 1), ("alignments", one.needs_alignment and has_attention), *terms)
        )
        for one in requests
    ]
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise deadline_exceeded(service.limits.file_seconds)
        try:
            found: list[list[Translation]] = await service.run(request, model, jobs, remaining)
        except ApiError as error:
            if error.reason != "overload":
                raise
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return [_to_aligned(best) for best, *_ in found]


def _to_aligned(translation: Translation) -> AlignedTranslation:
    alignment = translation.alignment
    if alignment is None:
        return AlignedTranslation(translation.text)
    spans = align_tokens(alignment.weights, alignment.source_spans, alignment.target_spans)
    return AlignedTranslation(translation.text, spans)


def _find_untranslated(document: Document, results: Sequence[TranslatedSegment]) -> list[Untranslated]:
    """Return the segments and sentences that are not translated, with the reason."""
    return [one for segment, result in zip(document.segments, results, strict=True) for one in explain(segment, result)]
