"""The page at / and the files that it is made of, all from this package."""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import APIRouter, Request, Response

from regard.serving.errors import Problem

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOLDERS = ("regard.inspection", "regard.serving")
"""Packages with a folder page/; their files are served side by side, so that modules find each other."""
INDEX = "index.html"


def make_router() -> APIRouter:
    """The routes; the files are read once."""
    router = APIRouter(include_in_schema=False)
    files = read_files()

    @router.get("/")
    async def index(request: Request) -> Response:
        return _answer(request, files[INDEX], INDEX)

    @router.get("/page/{name}")
    async def file(request: Request, name: str) -> Response:
        if name not in files or name == INDEX:
            raise Problem(404, "Not Found", "bad")
        return _answer(request, files[name], name)

    return router


def read_files() -> dict[str, bytes]:
    """Every file of the page by its name."""
    found: dict[str, bytes] = {}
    for package in FOLDERS:
        for path in (resources.files(package) / "page").iterdir():
            if path.is_file() and _suffix(path.name) in KINDS:
                found[path.name] = path.read_bytes()
    return found


def _answer(request: Request, content: bytes, name: str) -> Response:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}  # asked for each time, sent only when it is another
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=f"{KINDS[_suffix(name)]}; charset=utf-8", headers=headers)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
