"""Responses whose content is read in parts, with ranges (RFC 9110, section 14)."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

#: Bytes per read, which is the memory per client.
PART_BYTES = 1 << 20
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Content(NamedTuple):
    """Immutable bytes. ``read`` returns those from one offset up to, but excluding, another."""

    nbytes: int
    etag: str
    read: Callable[[int, int], Awaitable[bytes]]


async def content_response(request: Request, content: Content, mime: str, headers: Mapping[str, str]) -> Response:
    """Respond with ``content``, or with the range in ``request``. Raises as ``content.read``.

    Several ranges and invalid ones are ignored: the response has the whole content.
    """
    response_headers = {**headers, "accept-ranges": "bytes", "etag": content.etag}
    byte_range = find_range(request.headers, content)
    if byte_range is None:
        begin, end, status = 0, content.nbytes, 200
    elif byte_range[0] >= byte_range[1]:
        return Response(status_code=416, headers={**response_headers, "content-range": f"bytes */{content.nbytes}"})
    else:
        (begin, end), status = byte_range, 206
        response_headers["content-range"] = f"bytes {begin}-{end - 1}/{content.nbytes}"
    response_headers["content-length"] = str(end - begin)
    if request.method == "HEAD":
        return Response(status_code=status, headers=response_headers, media_type=mime)
    first = await content.read(begin, min(end, begin + PART_BYTES))  # errors must occur before the response begins
    return StreamingResponse(_read_parts(content, first, begin, end), status, response_headers, mime)


def find_range(headers: Mapping[str, str], content: Content) -> tuple[int, int] | None:
    """Return the range in ``headers``, its end excluded; None for all, empty if unsatisfiable."""
    match = _RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or not (match[1] or match[2]) or headers.get("if-range", content.etag) != content.etag:
        return None
    size = content.nbytes
    if not match[1]:
        return max(0, size - int(match[2])), size
    begin, last = int(match[1]), int(match[2]) if match[2] else size - 1
    if last < begin and match[2]:
        return None
    return begin, min(last + 1, size)


async def _read_parts(content: Content, first: bytes, begin: int, end: int) -> AsyncIterator[bytes]:
    yield first
    for at in range(begin + PART_BYTES, end, PART_BYTES):
        yield await content.read(at, min(end, at + PART_BYTES))
