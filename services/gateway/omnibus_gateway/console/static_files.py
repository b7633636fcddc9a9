"""Static files of the page. They are read once, so that a request's path never opens a file."""

import functools
import gzip
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from omnibus.errors import NotFound
from omnibus_gateway.http.exchange import add_routes

#: Paths where other servers document their API.
REFERENCE = ("/docs", "/redoc")
PAGE, FILES = "/console/", "/console/{name}"
STATIC = Path(__file__).parent / "static"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: No foreign or inline content, no markup from text, and no embedding in other pages. The page already has the bytes of
#: images and audio in answers, so they are blobs.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' blob:",
        "media-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=(), payment=(), usb=()",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


#: A worklet, which no page imports.
_WORKLET = "voice_worklet.js"


class ConsoleFile(NamedTuple):
    body: bytes
    packed: bytes  # by gzip
    kind: str
    tag: str


@functools.cache
def read_files(directory: Path = STATIC) -> Mapping[str, ConsoleFile]:
    """Return the files by name, read and compressed once per process."""
    files = {}
    for path in sorted(directory.iterdir()):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            gzip_body = gzip.compress(body, mtime=0)
            files[path.name] = ConsoleFile(body, gzip_body, _TYPES[path.suffix], f'"{sha256(body).hexdigest()[:16]}"')
    return MappingProxyType(files)


class ConsolePages:
    """Adds the page to an application."""

    def __init__(self) -> None:
        self._files = read_files()
        scripts = [name for name in self._files if name.endswith(".js") and name != _WORKLET]
        #: So that a browser loads all scripts at once, not each after the one that imports it.
        self._preload = {"link": ", ".join(f"<{name}>; rel=modulepreload" for name in scripts)}

    def add_routes(self, app: FastAPI) -> None:
        for path in ("/", "/console"):
            app.add_route(path, _redirect_to_page, methods=["GET"], include_in_schema=False)
        for path in REFERENCE:
            app.add_route(path, _redirect_to_reference, methods=["GET"], include_in_schema=False)
        add_routes(app, {path: {"GET": self._serve_file} for path in (PAGE, FILES)})

    async def _serve_file(self, request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        file = self._files.get(name)
        if file is None:
            raise NotFound(f"unknown file {name[:80]!r} of the console")
        headers = {**HEADERS, "etag": file.tag, **(self._preload if name == "index.html" else {})}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, 200, {**headers, "content-encoding": "gzip"}, file.kind)
        return Response(file.body, 200, headers, file.kind)


async def _redirect_to_reference(_: Request) -> Response:
    return RedirectResponse("console/#/api", 307, {"cache-control": "no-cache"})


async def _redirect_to_page(_: Request) -> Response:
    return RedirectResponse("console/", 307, {"cache-control": "no-cache"})
