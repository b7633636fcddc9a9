"""Client of a Kubernetes API server, with this pod's service account."""

import asyncio
import json
import ssl
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from omnibus.errors import BadRequest, Fatal, Retryable
from omnibus.settings import KubernetesSettings

#: Errors that a retry may resolve.
_TRANSIENT_STATUSES = frozenset({409, 429})
#: Most characters of a response in an error.
_MAX_QUOTED_CHARS = 300


class ClusterUnavailable(Retryable):
    """The API server cannot be reached, or cannot answer now."""

    code = "cluster_unavailable"


class ClusterRefused(Fatal):
    """The API server rejected a request. ``answer`` is the HTTP status."""

    code = "cluster_refused"

    def __init__(self, message: str, answer: int) -> None:
        super().__init__(message)
        self.answer = answer


class _NoRedirects(HTTPRedirectHandler):
    """Forbids redirects, because the token is for this server alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


class KubernetesClient:
    """JSON requests over HTTPS, each in a separate thread."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._account = Path(settings.account)
        self._opener: OpenerDirector | None = None

    @property
    def namespace(self) -> str:
        """Namespace in which executors run. Raises ``BadRequest`` if it is neither set nor mounted."""
        value = self._settings.namespace or self._read_account_file("namespace")
        if not value:
            raise BadRequest(f"no namespace: set OMNIBUS_KUBERNETES_NAMESPACE, or mount {self._account}")
        return value

    async def request_json(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        """Return the JSON response. Raises ``ClusterRefused`` and ``ClusterUnavailable``."""
        try:
            async with asyncio.timeout(2 * self._settings.timeout):
                return await asyncio.to_thread(self._request_json, method, path, body, kind)
        except TimeoutError as error:
            raise ClusterUnavailable(f"{self._settings.url} takes too long to answer {method} {path}") from error

    def _request_json(self, method: str, path: str, body: Any, kind: str) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._settings.url.rstrip('/')}{path}", data, method=method)  # noqa: S310 the configured one
        request.add_header("accept", "application/json")
        if data is not None:
            request.add_header("content-type", kind)
        if token := self._read_account_file("token"):  # it changes every hour or so
            request.add_unredirected_header("authorization", f"Bearer {token}")
        try:
            with self._open_request(request) as answer:
                return _decode_object(answer.read())
        except HTTPError as error:
            raise _to_api_error(error, f"{method} {path}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ClusterUnavailable(f"no API server at {self._settings.url}: {reason}") from error

    def _open_request(self, request: Request) -> HTTPResponse:
        if self._opener is None:
            authority = self._account / "ca.crt"
            tls = ssl.create_default_context(cafile=str(authority) if authority.is_file() else None)
            self._opener = build_opener(ProxyHandler({}), _NoRedirects(), HTTPSHandler(context=tls))
        answer: HTTPResponse = self._opener.open(request, timeout=self._settings.timeout)
        return answer

    def _read_account_file(self, name: str) -> str:
        try:
            return (self._account / name).read_text().strip()
        except OSError:
            return ""


def _decode_object(body: bytes) -> dict[str, Any]:
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("the answer is not a JSON object")
    return document


def _to_api_error(error: HTTPError, operation: str) -> ClusterRefused | ClusterUnavailable:
    text = error.read().decode(errors="replace")
    try:
        details = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        details = text[:_MAX_QUOTED_CHARS] or str(error.reason)
    message = f"the API server answers {error.code} to {operation}: {details}"
    if error.code >= 500 or error.code in _TRANSIENT_STATUSES:
        return ClusterUnavailable(message)
    return ClusterRefused(message, error.code)
