"""Failed requests of this gateway, for operators: the last ones of each error code, without their contents.

Only responses with an error are added, so a successful request costs nothing. A client that causes many errors of one
code does not displace errors of other codes.
"""

import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from starlette.types import Scope, Send

from omnibus.errors import ProblemDetails
from omnibus_gateway.openai.errors import ErrorBody
from omnibus_gateway.tenancy.tenant import current_tenant

#: Failures that a gateway keeps of each code, and those that wait for the store.
MAX_KEPT, MAX_UNSAVED = 100, 1000
#: Characters of a path, a model and a message that are kept.
_MAX_PATH_CHARS, _MAX_MODEL_CHARS, _MAX_MESSAGE_CHARS = 160, 128, 500
#: Key of the scope for a ``Failure``.
FAILURE = "omnibus.failure"
#: Prefixes of the operators' own requests, which are not added.
_OPERATORS = ("/v1/console/", "/v1/invocations")
#: First and last bytes of a body that are searched for its model.
_SEARCHED_BYTES = 64 << 10
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,256})"')


class Failure(NamedTuple):
    """Error of a request, the ``model`` that it names, and whether it ``ran``, that is, became an invocation.

    ``id`` is set if the headers have none.
    """

    problem: ProblemDetails
    status: int
    model: str = ""
    ran: bool = False
    id: str = ""


class FailedRequest(msgspec.Struct, frozen=True):
    """Request with an error: when, which one, on which route, why, and with which key.

    ``key`` is the id of the API key, and ``note`` its operator's note. ``status`` is that of the error, even in a
    stream that had begun. ``ran`` is True if the request became an invocation.
    """

    at: float
    id: str
    method: str
    path: str
    model: str
    status: int
    code: str
    message: str
    param: str = ""
    stage: str = ""
    tenant: str = ""
    key: str = ""
    note: str = ""
    ran: bool = False


class FailureLog:
    """Failed requests, bounded in memory. ``unsaved`` ones wait until a recorder takes them."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[FailedRequest]] = {}
        self._unsaved: deque[FailedRequest] = deque(maxlen=MAX_UNSAVED)

    def __iter__(self) -> Iterator[FailedRequest]:
        return (each for failures in self._kept.values() for each in failures)

    def add_response(self, scope: Scope, status: int, id: str, body: bytes) -> None:
        """Add a response of the current tenant: its ``Failure`` in ``scope``, else ``body``, an error of OpenAI."""
        if scope["path"].startswith(_OPERATORS):
            return
        failure = scope.get(FAILURE) or Failure(_decode_problem(body, status), status)
        self.add_failure(scope.get("method", "GET"), scope["path"], id or failure.id, failure)

    def add_failure(self, method: str, path: str, id: str, failure: Failure) -> None:
        """Add a failure of the current tenant."""
        tenant, problem = current_tenant(), failure.problem
        failed_request = FailedRequest(
            at=round(time.time(), 3),
            id=id,
            method=method,
            path=path[:_MAX_PATH_CHARS],
            model=failure.model[:_MAX_MODEL_CHARS],
            status=failure.status,
            code=problem.code,
            message=problem.message[:_MAX_MESSAGE_CHARS],
            param=problem.param[:_MAX_MODEL_CHARS],
            stage=problem.stage,
            tenant=tenant.name.strip(),
            key=tenant.key.id if tenant.key is not None else "",
            note=tenant.key.note[:_MAX_MODEL_CHARS] if tenant.key is not None else "",
            ran=failure.ran,
        )
        self._kept.setdefault(problem.code, deque(maxlen=MAX_KEPT)).append(failed_request)
        self._unsaved.append(failed_request)

    def take_unsaved(self) -> list[FailedRequest]:
        """Return failures since the last call."""
        failures = list(self._unsaved)
        self._unsaved.clear()
        return failures

    def put_back(self, failures: list[FailedRequest]) -> None:
        """Undo ``take_unsaved``: the store did not take ``failures``."""
        self._unsaved = deque([*failures, *self._unsaved], maxlen=MAX_UNSAVED)


class Handshake:
    """Handshake of a WebSocket, which is added to ``failures`` if it is rejected.

    One that is accepted and closed with an error has a ``Failure`` in ``scope``.
    """

    def __init__(self, failures: FailureLog, scope: Scope, send: Send) -> None:
        self._failures = failures
        self._scope = scope
        self._send = send
        self._head: Any = None

    def send(self, message: Any) -> Any:
        """Send a message."""
        if message["type"] == "websocket.http.response.start":
            self._head = message
        elif message["type"] == "websocket.http.response.body":
            id = dict(self._head["headers"]).get(b"x-request-id", b"").decode("latin-1")
            self._failures.add_response(self._scope, self._head["status"], id, message.get("body", b""))
        elif message["type"] == "websocket.close" and FAILURE in self._scope:
            self._failures.add_response(self._scope, self._scope[FAILURE].status, "", b"")
        return self._send(message)


def find_named_model(body: bytes) -> str:
    """Return the model that a JSON body names, also an invalid one; "" if none is found."""
    ends = body if len(body) <= 2 * _SEARCHED_BYTES else body[:_SEARCHED_BYTES] + body[-_SEARCHED_BYTES:]
    found = _MODEL.search(ends) if body[:1] in b"{ \n\r\t" else None
    return found[1].decode(errors="replace") if found else ""


_decode = msgspec.json.Decoder(ErrorBody).decode


def _decode_problem(body: bytes, status: int) -> ProblemDetails:
    try:
        detail = _decode(body).error
    except msgspec.MsgspecError:  # of a page or a library
        return ProblemDetails(f"http_{status}", "")
    return ProblemDetails(detail.code or f"http_{status}", detail.message, detail.stage or "", param=detail.param or "")
