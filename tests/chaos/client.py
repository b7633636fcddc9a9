"""An HTTP client that sends one request and reports its end."""

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any

import httpx

from tests.chaos.outcome import CUT, HANG, LEFT, REFUSED, RESET, ChaosOutcome
from tests.chaos.requests import ChaosRequest, read_events

#: Seconds after which a client gives up on a gateway: well beyond any deadline.
PATIENCE_SECONDS = 45.0
_SHOWN = 300  # characters of a body that is not an answer
#: Without certificates, because gateways use plain HTTP here. Loading the trusted ones for each client takes 70 ms of
#: processor time, which blocks all other clients, and takes seconds on a busy machine.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def open_client(url: str, timeout: float | None) -> httpx.AsyncClient:
    """Open a client of the gateway at ``url``, with its own connection.

    ``timeout`` is in seconds; None disables it.
    """
    return httpx.AsyncClient(base_url=url, timeout=timeout, verify=_NO_TLS, trust_env=False)


async def send_request(
    number: int, request: ChaosRequest, url: str, gateway: int, clock: Callable[[], float], leave: float = 0.0
) -> ChaosOutcome:
    """Send ``request`` on a new connection.

    ``leave``: disconnect after that many seconds, or never if 0.
    """
    begin = clock()
    fields: dict[str, Any] = {}
    try:
        async with asyncio.timeout(leave or PATIENCE_SECONDS), open_client(url, None) as http:
            fields = await _exchange_messages(http, request)
    except TimeoutError:
        fields = {"broken": LEFT if leave else HANG}
    except httpx.ConnectError as error:
        fields = {"broken": REFUSED, "detail": repr(error)}
    except (httpx.HTTPError, OSError) as error:
        fields = {"broken": RESET, "detail": repr(error)}
    return ChaosOutcome(
        number, request.case, gateway, begin, clock(), streamed=request.streamed, harmless=request.harmless, **fields
    )


async def _exchange_messages(http: httpx.AsyncClient, request: ChaosRequest) -> dict[str, Any]:
    body = b""
    async with http.stream("POST", request.path, content=request.body, headers=request.headers) as answer:
        fields: dict[str, Any] = {"status": answer.status_code, "retry_after": "retry-after" in answer.headers}
        flowing = answer.headers.get("content-type", "").startswith("text/event-stream")
        try:
            async for chunk in answer.aiter_bytes():
                body += chunk
        except httpx.HTTPError as error:
            return {**fields, "broken": CUT, "detail": repr(error)}
    return {**fields, **(_read_stream(body, request) if flowing else _read_whole(answer.status_code, body, request))}


def _read_whole(status: int, body: bytes, request: ChaosRequest) -> dict[str, Any]:
    if status >= 300:
        return {"code": error_code(body), "detail": body[:_SHOWN].decode(errors="replace")}
    return _read_answer(body, request)


def _read_stream(body: bytes, request: ChaosRequest) -> dict[str, Any]:
    try:
        problems = [event["error"] for event in read_events(body) if isinstance(event, dict) and "error" in event]
    except ValueError:
        return {"broken": CUT, "detail": body[-_SHOWN:].decode(errors="replace")}
    if problems:
        return {"code": str(problems[0].get("code") or ""), "detail": json.dumps(problems[0])[:_SHOWN]}
    if not body.rstrip().rpartition(b"\n")[2].startswith(request.end):
        return {"broken": CUT, "detail": body[-_SHOWN:].decode(errors="replace")}
    return _read_answer(body, request)


def _read_answer(body: bytes, request: ChaosRequest) -> dict[str, Any]:
    try:
        answer = request.read(body)
    except (ValueError, LookupError, TypeError) as error:
        return {"broken": CUT, "detail": f"{error!r}: {body[:_SHOWN]!r}"}
    return {"samples": answer} if isinstance(answer, tuple) else {"answer": answer}


def error_code(body: bytes) -> str:
    """Code of an error in OpenAI's shape, or "" for other answers."""
    try:
        error = json.loads(body)["error"]
        whole = isinstance(error["message"], str) and isinstance(error["type"], str)
        return str(error["code"] or "") if whole else ""
    except (ValueError, LookupError, TypeError):
        return ""
