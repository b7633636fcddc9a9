"""Common parts of all routes: a body within its limit, one end for each run, errors in OpenAI's shape."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from omnibus.errors import DeadlineExceeded, Fatal, NotFound, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from services.gateway.http.exchange import EVENTS, ClientLeft, body_chunks, response_headers, while_connected
from services.gateway.http.response import ResponseWriter
from services.gateway.openai.parse import read_body
from services.gateway.request.accumulator import AnswerAccumulator
from services.gateway.request.request import ClientRequest

log = logging.getLogger(__name__)


class PostRequest(NamedTuple):
    """An HTTP request: its body, headers with names in lower case, the path it is pinned to, what it called us."""

    body: bytes
    headers: dict[bytes, bytes]
    pinned: str
    base: str

    @property
    def content_type(self) -> str:
        """The content type of the body."""
        return self.headers.get(b"content-type", b"").decode("latin-1")


class PostRoute(ABC):
    """Answers POST requests of one path. A client that leaves cancels what still runs."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    @abstractmethod
    async def handle_request(self, asked: PostRequest, sending: ResponseWriter) -> None:
        """Answer one request. Raises ``OmnibusError``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = ResponseWriter(send)
        await serve_request(sending, self._read_and_handle(scope, receive, sending))

    async def _read_and_handle(self, scope: Scope, receive: Receive, sending: ResponseWriter) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        declared = int(length) if length.isdigit() else None
        body = await read_body(body_chunks(receive), self._settings.max_body, declared)
        asked = PostRequest(body, headers, pinned_path(scope), public_base_url(scope, self._settings))
        await while_connected(scope, receive, self.handle_request(asked, sending))


async def serve_request(sending: ResponseWriter, work: Awaitable[None]) -> None:
    """Do the ``work`` that answers a request. What it raises is the answer; it is counted, and raised no further."""
    code = "ok"
    try:
        await work
    except ClientLeft:
        code = "cancelled"
    except OmnibusError as error:
        code = error.code
        if isinstance(error, NotFound):
            sending.model = ""
        await sending.report_error(error)
    except Exception:  # a defect of ours: the client gets an error in the usual shape, the log the rest
        log.exception("%s failed", sending.id)
        code = Fatal.code
        await sending.report_error(Fatal("internal error: the gateway's log has more under this request id"))
    GATEWAY.request_counter(sending.model, code).inc()


def pinned_path(scope: Scope) -> str:
    """The path that the client asks for."""
    return dict(scope["headers"]).get(b"x-omnibus-path", b"").decode("latin-1")


def public_base_url(scope: Scope, settings: GatewaySettings) -> str:
    """The beginning of URLs of this gateway, as the client sees it."""
    host = dict(scope["headers"]).get(b"host", b"localhost").decode("latin-1")
    return settings.public_url.rstrip("/") or f"{scope.get('scheme', 'http')}://{host}"


@asynccontextmanager
async def run_to_end(
    run: ClientRequest, sending: ResponseWriter, got: AnswerAccumulator | None = None
) -> AsyncIterator[None]:
    """See ``run`` to its one end, however the block is left; its deadline holds inside.

    ``got`` is what came of a chat, for its record.
    """
    sending.id = run.id
    try:
        async with asyncio.timeout(max(0.0, run.seconds_left)):
            yield
    except TimeoutError:
        run.expire()
        run.end("expired", got)
        raise DeadlineExceeded("the request took longer than its deadline") from None
    except (asyncio.CancelledError, GeneratorExit):
        run.fail(Fatal("the client left"))
        run.end("cancelled", got)
        raise
    except BaseException as error:
        if isinstance(error, OmnibusError):
            run.fail(error)
        run.end("failed", got)
        raise
    run.end("done", got)
    GATEWAY.duration_histogram(run.model).observe(run.age_seconds)


async def send_stream(
    sending: ResponseWriter,
    run: ClientRequest,
    parts: AsyncIterator[bytes],
    kind: bytes = EVENTS,
    got: AnswerAccumulator | None = None,
) -> None:
    """Send ``parts`` as they come. What fails before the first one is an error like any other."""
    async with aclosing(parts):  # type: ignore[type-var]
        first = await anext(parts, None)
        await sending.begin_stream(response_headers(run), kind)
        if first is not None:
            await sending.send_chunk(first)
            async for part in parts:
                await sending.send_chunk(part)
    run.end("done", got)
    await sending.end_stream()
