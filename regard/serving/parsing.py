"""Parsing of request bodies: JSON, forms, query strings and images.

Clients of LibreTranslate send JSON, form fields or a query string, so its endpoints accept all of them.
"""

import asyncio
import io
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from PIL import Image
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive

from regard.files import supported_image_formats
from regard.serving.errors import ApiError, bad_request, disconnected, unavailable
from regard.serving.telemetry import log_event

MAX_FIELDS = 1000
MAX_PART_BYTES = 10**9  # the size of the whole body is limited by `read_body`
Schema = TypeVar("Schema", bound=BaseModel)


async def read_body(headers: Headers, receive: Receive, max_bytes: int, seconds: float) -> tuple[Receive, int]:
    """Read the whole request body, and return a `receive` function that replays it, and its size in bytes.

    Raises:
        ApiError: The body is too large, or does not arrive in time.
    """
    message = f"the request is larger than {max_bytes} bytes; send less at once"
    too_large = ApiError(413, message, "body_size", numbers={"limit": max_bytes})
    if "content-length" in headers and "transfer-encoding" in headers:  # request smuggling
        raise ApiError(400, "send Content-Length or Transfer-Encoding, not both", "bad", close=True)
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            more = True
            while more:
                event = await receive()
                if event["type"] != "http.request":
                    raise disconnected()
                body += event.get("body", b"")
                if len(body) > max_bytes:
                    raise too_large
                more = event.get("more_body", False)
    except TimeoutError:
        message = f"the request did not arrive within {seconds:g} seconds"
        raise ApiError(408, message, "body_timeout", close=True) from None
    events: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def replay() -> Message:
        return events.pop() if events else await receive()

    return replay, len(body)


async def read_fields(request: Request, schema: type[Schema]) -> Schema:
    """Parse the fields of a request from JSON, a form or the query string."""
    content_type = _content_type(request)
    with _validation_errors():
        if content_type == "application/json" or content_type.endswith("+json"):
            return schema.model_validate_json(await request.body())
        fields = _group(_parse_query(request.scope["query_string"]))
        if content_type == "multipart/form-data":
            form = await request.form(max_files=0, max_fields=MAX_FIELDS, max_part_size=MAX_PART_BYTES)
            fields |= _group(form.multi_items())
        elif content_type == "application/x-www-form-urlencoded" or not content_type:
            fields |= _group(_parse_query(await request.body()))
        elif await request.body():
            raise bad_request(f"Invalid request: send JSON or a form, not {content_type[:80]}")
        return schema.model_validate(fields)


async def read_images(request: Request, schema: type[Schema]) -> tuple[Schema, list[bytes]]:
    """Parse the fields and images of a request.

    Images are the files named `image` of a form, or the whole body. Fields are those of the form and the query string.
    """
    content_type = _content_type(request)
    with _validation_errors():
        fields = _group(_parse_query(request.scope["query_string"]))
        if content_type.startswith("image/"):
            return schema.model_validate(fields), [await request.body()]
        if content_type != "multipart/form-data":
            raise bad_request("Invalid request: send a form (multipart/form-data) with images, or an image (image/*)")
        form = await request.form(max_files=MAX_FIELDS, max_fields=MAX_FIELDS, max_part_size=MAX_PART_BYTES)
        files = [value for name, value in form.multi_items() if name == "image" and isinstance(value, UploadFile)]
        fields |= _group((name, value) for name, value in form.multi_items() if not isinstance(value, UploadFile))
        return schema.model_validate(fields), [await file.read() for file in files]


async def read_file(request: Request, schema: type[Schema]) -> tuple[Schema, str, bytes]:
    """Parse the fields and the file of a request to translate a document; return the fields, and its name and content.

    The file is named `file`.
    """
    with _validation_errors():
        if _content_type(request) != "multipart/form-data":
            raise bad_request("Invalid request: send a form (multipart/form-data) with a file")
        form = await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_PART_BYTES)
        fields = _group(_parse_query(request.scope["query_string"]))
        fields |= _group((name, value) for name, value in form.multi_items() if not isinstance(value, UploadFile))
        files = [value for name, value in form.multi_items() if name == "file" and isinstance(value, UploadFile)]
        parsed = schema.model_validate(fields)
        if not files or not files[0].filename:
            raise bad_request("Invalid request: missing file parameter")
        return parsed, files[0].filename, await files[0].read()


def count_pixels(image: bytes) -> int:
    """Return the number of pixels according to the header of an image, or 0 if the worker will reject it."""
    try:
        with Image.open(io.BytesIO(image), formats=supported_image_formats()) as opened:
            return opened.width * opened.height
    except Exception:  # Pillow raises many exception types for damaged files
        return 0


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


@contextmanager
def _validation_errors() -> Iterator[None]:
    """Convert parsing errors to error responses."""
    try:
        yield
    except ValidationError as error:
        raise bad_request(explain(error.errors(include_input=False, include_url=False))) from None
    except UnicodeDecodeError:
        raise bad_request("Invalid request: the form is not valid UTF-8") from None
    except HTTPException as error:
        raise bad_request(f"Invalid request: {error.detail}") from None
    except OSError as error:  # large files are stored in a temporary file
        log_event("request not stored", logging.ERROR, reason=error.strerror)
        raise unavailable(f"the request cannot be stored ({error.strerror})") from None


def explain(errors: Iterable[Any]) -> str:
    """Return one sentence about the first of pydantic's errors, without quoting the input."""
    first, *others = errors
    if first["type"] == "json_invalid":
        return f"Invalid request: the body is not valid JSON ({first['ctx']['error']})"
    path = [str(part) for part in first["loc"] if part != "body"]
    field_path = [part for part in path if part.isidentifier() or part.isdigit()]  # without pydantic's own type names
    name = ".".join(field_path) or "the body"
    if first["type"] in ("missing", "string_too_short", "too_short"):
        return f"Invalid request: missing {name} parameter"
    if first["type"] == "string_type" and field_path != path and others:
        return f"Invalid request: {name} must be a string or a list of strings"
    if first["type"] == "value_error":  # raised by our validators, whose messages name the field
        return f"Invalid request: {name}: {str(first['ctx']['error']).removeprefix(f'{name}: ')}"
    return f"Invalid request: {name}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _parse_query(text: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(text.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise
    except ValueError:
        raise bad_request(f"Invalid request: more than {MAX_FIELDS} fields") from None
    return [(name, value.replace("\r\n", "\n")) for name, value in pairs]


def _group(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields by name; a repeated field becomes a list."""
    fields = defaultdict[str, list[Any]](list)
    for name, value in pairs:
        fields[name].append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}
