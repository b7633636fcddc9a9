"""In front of a gateway that asks for no keys: what a web page made a browser send is refused.

Whoever reaches such a gateway may use it, and a browser on the same machine or network does. A page of somewhere else
could have it send requests, or could give its own name this gateway's address and read the answers too. So a request
has to call the gateway by a name that no stranger can own, and come from no page but the gateway's.
"""

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.errors import Forbidden
from omnibus.settings import GatewaySettings
from services.gateway.auth.admin import AdminAuth
from services.gateway.auth.cors import cors_origins
from services.gateway.http.response import refuse_request
from services.gateway.http.websocket import rejecting_send, sent_authorization

#: For probes, which hold no keys either, and files by ids that nobody can guess.
_PUBLIC_PATHS = ("/health", "/readyz", "/version")
_FILES_PREFIX = "/v1/files/"
#: Endings of names that stand for this machine, or for what is inside a network; strangers cannot register them.
_INTERNAL_SUFFIXES = (".localhost", ".internal", ".svc", ".cluster.local")
_SAFE_SITES = ("", "same-origin", "none")


class SameOriginMiddleware:
    """Checks requests to ``application`` by the headers that a page cannot set: Host, Origin, Sec-Fetch-Site."""

    def __init__(self, application: ASGIApp, settings: GatewaySettings) -> None:
        given = {name.strip().lower() for name in settings.allowed_hosts.split(",")}
        self._application = application
        self._admin = AdminAuth(settings)
        #: Names that an operator set. Those of this machine are not among them: other ports of it have other pages.
        self._given = (given | {_parse_hostname(settings.public_url)}) - {""}
        #: Origins whose pages are let in.
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
                "this gateway asks for no keys, so it has to be called by a name that is its own: "
                "add this one to OMNIBUS_GATEWAY_ALLOWED_HOSTS"
            )
        if origin and _decode_header(origin).lower() in self._origins:
            return None
        if (origin and not self._is_own_origin(origin, host)) or (
            site not in _SAFE_SITES and not _is_navigation(scope, headers)
        ):
            return Forbidden(
                "this gateway asks for no keys, so pages of other origins may not use it, "
                "unless OMNIBUS_GATEWAY_CORS_ORIGINS names theirs"
            )
        return None

    def _is_allowed_host(self, host: bytes) -> bool:
        """Return whether a request may call this gateway ``host``."""
        name = _parse_hostname(f"//{_decode_header(host)}") if b"@" not in host else ""
        return bool(name) and (
            name in self._names or "." not in name or name.endswith(_INTERNAL_SUFFIXES) or _is_ip_address(name)
        )

    def _is_own_origin(self, origin: bytes, host: bytes) -> bool:
        """Return whether a page of ``origin`` is this gateway's own; a proxy's names are in settings."""
        return (
            urlsplit(_decode_header(origin)).netloc == _decode_header(host)
            or _parse_hostname(_decode_header(origin)) in self._given
        )


def _is_navigation(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Return whether somebody followed a link: the page that it was on does not see where it led."""
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
    """Return whether it is an address: no page's own name is one."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _decode_header(value: bytes) -> str:
    return value.decode("latin-1")
