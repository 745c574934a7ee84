"""Bodies of requests: bounded in size and in time, and for LibreTranslate's endpoints in all the forms clients send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from regard.serving.errors import Problem, bad

FIELDS = 1000
Model = TypeVar("Model", bound=BaseModel)


async def read_body(scope: Scope, receive: Receive, most: int, seconds: float) -> Receive:
    """Reads the whole body; gives a `receive` that hands it out once, and then waits for the client to leave.

    Raises:
        Problem: it is too large, or does not arrive in time.
    """
    sentence = f"the request is larger than {most} bytes; send less at once"
    too_large = Problem(413, sentence, "size", numbers={"most": most})
    headers = dict(scope["headers"])
    if b"content-length" in headers and b"transfer-encoding" in headers:  # a proxy may have believed the other one
        raise Problem(400, "send Content-Length or Transfer-Encoding, not both", "bad", close=True)
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Problem(499, "the client has left", "gone")
                body += message.get("body", b"")
                if len(body) > most:
                    raise too_large
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Problem(408, f"the request did not arrive within {seconds:g} seconds", "slow") from None
    whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def replay() -> Message:
        return whole.pop() if whole else await receive()

    return replay


async def read_fields(request: Request, model: type[Model]) -> Model:
    """The fields of a request, as JSON, as a form, or in the query string.

    Raises:
        Problem: they are malformed, or not what the model takes.
    """
    kind = _kind_of(request)
    with _explaining():
        if kind == "application/json" or kind.endswith("+json"):
            return model.model_validate_json(await request.body())
        fields = _several(_parse(request.scope["query_string"]))
        if kind == "multipart/form-data":
            form = await request.form(max_files=0, max_fields=FIELDS, max_part_size=10**9)  # the body is bounded
            fields |= _several(form.multi_items())
        elif kind == "application/x-www-form-urlencoded" or not kind:
            fields |= _several(_parse(await request.body()))
        elif await request.body():
            raise bad(f"Invalid request: send JSON or a form, not {kind[:80]}")
        return model.model_validate(fields)


async def read_images(request: Request, model: type[Model]) -> tuple[Model, list[bytes]]:
    """The fields of a request in its query string or in a form, and its images: the form's files, or the whole body.

    Raises:
        Problem: they are malformed, or not what the model takes.
    """
    kind = _kind_of(request)
    with _explaining():
        fields = _several(_parse(request.scope["query_string"]))
        if kind.startswith("image/"):
            return model.model_validate(fields), [await request.body()]
        if kind != "multipart/form-data":
            raise bad("Invalid request: send images in a form (multipart/form-data), or one as the body (image/...)")
        form = await request.form(max_files=FIELDS, max_fields=FIELDS, max_part_size=10**9)
        files = [value for name, value in form.multi_items() if name == "image" and isinstance(value, UploadFile)]
        fields |= _several((name, value) for name, value in form.multi_items() if not isinstance(value, UploadFile))
        return model.model_validate(fields), [await file.read() for file in files]


def _kind_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


@contextmanager
def _explaining() -> Iterator[None]:
    """What is wrong with fields becomes one sentence."""
    try:
        yield
    except ValidationError as error:
        raise bad(explain(error)) from None
    except UnicodeDecodeError:
        raise bad("Invalid request: the form is not valid UTF-8") from None
    except HTTPException as error:
        raise bad(f"Invalid request: {error.detail}") from None


def explain(error: ValidationError) -> str:
    """One sentence about what is wrong with the first wrong field; it quotes nothing that was sent."""
    return explain_mistakes(error.errors(include_input=False, include_url=False))


def explain_mistakes(mistakes: Iterable[Any]) -> str:
    """One sentence about the first mistake of pydantic's list."""
    first, *others = mistakes
    path = [str(part) for part in first["loc"] if part != "body"]
    fields = [part for part in path if part.isidentifier() or part.isdigit()]  # not the names of pydantic's own parts
    place = ".".join(fields) or "the body"
    if first["type"] in ("missing", "string_too_short", "too_short"):
        return f"Invalid request: missing {place} parameter"
    if first["type"] == "string_type" and fields != path and others:
        return f"Invalid request: {place} should be a text, or a list of texts"
    return f"Invalid request: {place}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _parse(text: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(text.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
    except UnicodeDecodeError:
        raise
    except ValueError:
        raise bad(f"Invalid request: more than {FIELDS} fields") from None
    return [(name, value.replace("\r\n", "\n")) for name, value in pairs]


def _several(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name; one that comes several times is a list."""
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            before = fields[name]
            fields[name] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            fields[name] = value
    return fields
