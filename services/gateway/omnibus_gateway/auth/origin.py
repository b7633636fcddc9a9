"""Rejection of requests from foreign web pages, for a gateway without keys.

Any client that reaches such a gateway may use it, including a browser on the same machine or network. A foreign page
could make that browser send requests, or could map its own name to this gateway's address and also read the responses.
So a request must address the gateway by a name that strangers cannot own. It must come from the gateway's own page, or
from none.
"""

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.errors import Forbidden
from omnibus.settings import GatewaySettings
from omnibus_gateway.auth.admin import AdminAuth
from omnibus_gateway.auth.cors import cors_origins
from omnibus_gateway.http.response import refuse_request
from omnibus_gateway.http.websocket import rejecting_send, sent_authorization

#: Paths for probes, which have no keys, and files, which have secret ids.
_PUBLIC_PATHS = ("/health", "/readyz", "/version")
_FILES_PREFIX = "/v1/files/"
#: Suffixes of names for this machine or inside a network, which strangers cannot register.
_INTERNAL_SUFFIXES = (".localhost", ".internal", ".svc", ".cluster.local")
_SAFE_SITES = ("", "same-origin", "none")


class SameOriginMiddleware:
    """Checks requests to ``application`` by headers that a page cannot set: Host, Origin, Sec-Fetch-Site."""

    def __init__(self, application: ASGIApp, settings: GatewaySettings) -> None:
        host_names = {name.strip().lower() for name in settings.allowed_hosts.split(",")}
        self._application = application
        self._admin = AdminAuth(settings)
        #: Names that an operator set. Names of this machine are excluded, because its other ports serve other pages.
        self._given = (host_names | {_parse_hostname(settings.public_url)}) - {""}
        #: Origins with pages that are allowed.
        self._origins = frozenset(cors_origins(settings))
        self._names = self._given | {settings.host, socket.gethostname().lower()}
        self.allows = lru_cache(1024)(self._is_allowed_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._origin_error(scope) if scope["type"] in ("http", "websocket") else None
        if error is None:
            await self._application(scope, receive, send)
        else:
            await refuse_request(rejecting_send(scope, send), error)

    def _origin_error(self, scope: Scope) -> Forbidden | None:
        path: str = scope["path"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host, origin = headers.get(b"host", b""), headers.get(b"origin", b"")
        site = headers.get(b"sec-fetch-site", b"").decode("latin-1")
        if (
            path in _PUBLIC_PATHS
            or path.startswith(_FILES_PREFIX)
            or self._admin.is_operator(sent_authorization(scope))
        ):
            return None
        if host and not self.allows(host):
            return Forbidden(
                "this gateway requires no keys, so requests must use one of its own names: "
                "add this one to OMNIBUS_GATEWAY_ALLOWED_HOSTS"
            )
        if origin and _decode_header(origin).lower() in self._origins:
            return None
        if (origin and not self._is_own_origin(origin, host)) or (
            site not in _SAFE_SITES and not _is_navigation(scope, headers)
        ):
            return Forbidden(
                "this gateway requires no keys, so pages of other origins cannot use it: "
                "add this origin to OMNIBUS_GATEWAY_CORS_ORIGINS"
            )
        return None

    def _is_allowed_host(self, host: bytes) -> bool:
        """Return whether a request may address this gateway as ``host``."""
        name = _parse_hostname(f"//{_decode_header(host)}") if b"@" not in host else ""
        return bool(name) and (
            name in self._names or "." not in name or name.endswith(_INTERNAL_SUFFIXES) or _is_ip_address(name)
        )

    def _is_own_origin(self, origin: bytes, host: bytes) -> bool:
        """Return whether ``origin`` is this gateway's own. Settings have the names of a proxy."""
        return (
            urlsplit(_decode_header(origin)).netloc == _decode_header(host)
            or _parse_hostname(_decode_header(origin)) in self._given
        )


def _is_navigation(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Return whether a user followed a link: the linking page cannot see the response."""
    return scope.get("method") == "GET" and (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == (
        b"navigate",
        b"document",
    )


def _parse_hostname(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_ip_address(name: str) -> bool:
    """Return whether the name is an address, which no page's name is."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _decode_header(value: bytes) -> str:
    return value.decode("latin-1")
