"""Access rules: the admin token of control routes, and the web pages that may call this gateway.

| token set | gateway bound to | control routes that look or steer | those that bring code (apps) |
|-----------|------------------|-----------------------------------|------------------------------|
| yes       | anything         | with the token                    | with the token               |
| no        | loopback         | open to clients of this machine   | closed                       |
| no        | another address  | closed                            | closed                       |

Where routes are open, the gateway still rejects requests that a page of another origin made a browser send.

Any client that reaches such a gateway may use it, including a browser on the same machine or network. A foreign page
could make that browser send requests, or could map its own name to this gateway's address and also read the responses.
So a request must address the gateway by a name that strangers cannot own. It must come from the gateway's own page, or
from none.
"""

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.errors import BadRequest, Forbidden, Unauthorized
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.exchange import rejecting_send, sent_authorization
from omnibus_gateway.http.response import LIVENESS, refuse_request

#: Shortest admin token, in characters.
MIN_TOKEN_CHARS = 16
_SETUP_HINT = "set OMNIBUS_GATEWAY_ADMIN_TOKEN at the gateway"


class AdminAuth:
    """The only dependency of control routes. Header names are in lower case."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._token = settings.admin_token
        self._host = settings.host

    def is_operator(self, authorization: str) -> bool:
        """Return whether the header has the admin token."""
        return bool(self._token) and hmac.compare_digest(bearer_token(authorization).encode(), self._token.encode())

    def require_token(self, headers: Mapping[str, str]) -> None:
        """Check access to routes that bring code. Raises ``Forbidden`` if no token is set, else ``Unauthorized``."""
        if not self._token:
            raise Forbidden(f"apps and adapters cannot be changed without an admin token: {_SETUP_HINT}")
        if not self.is_operator(headers.get("authorization", "")):
            raise Unauthorized("send the gateway's OMNIBUS_GATEWAY_ADMIN_TOKEN as `Authorization: Bearer <token>`")

    def check_control_access(self, headers: Mapping[str, str]) -> None:
        """Check access to all other control routes.

        Raises like ``require_token``, but lets local clients in if no token is set and the gateway is on loopback.
        """
        if self._token:
            self.require_token(headers)
        elif not is_loopback(self._host):
            raise Forbidden(f"this gateway listens on {self._host}, so control routes are closed: {_SETUP_HINT}")
        elif not _is_local_client(headers):
            raise Forbidden(f"control routes are only for clients of this machine: {_SETUP_HINT} to open them")


def check_token(settings: GatewaySettings) -> None:
    """Reject a token that can be guessed. Raises ``BadRequest``."""
    if 0 < len(settings.admin_token) < MIN_TOKEN_CHARS:
        raise BadRequest(
            f"OMNIBUS_GATEWAY_ADMIN_TOKEN has {len(settings.admin_token)} characters: set at least {MIN_TOKEN_CHARS}, "
            "for example what `openssl rand -base64 32` prints"
        )


def bearer_token(authorization: str) -> str:
    """Return the token of an ``Authorization`` header; "" if it has none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_local_client(headers: Mapping[str, str]) -> bool:
    """Return whether the host is loopback, and the same as the origin's."""
    host = headers.get("host", "")
    if not is_loopback(urlsplit(f"//{host}").hostname or ""):
        return False
    origin = headers.get("origin", "")
    return not origin or urlsplit(origin).netloc == host


#: Headers of responses that pages may read.
_EXPOSED_HEADERS = (
    "retry-after",
    "x-should-retry",
    "x-request-id",
    "request-id",
    "x-omnibus-path",
    "x-omnibus-epoch",
    "x-omnibus-continue",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
)
#: Seconds for which a browser caches a preflight response.
_PREFLIGHT_SECONDS = 600


def cors_origins(settings: GatewaySettings) -> tuple[str, ...]:
    """Return the origins in ``settings``, ``*`` for all. Raises ``BadRequest`` for ``*`` without API keys."""
    origins = tuple(each.strip().rstrip("/").lower() for each in settings.cors_origins.split(",") if each.strip())
    if "*" in origins and not (settings.keys or settings.keys_file):
        raise BadRequest(
            "OMNIBUS_GATEWAY_CORS_ORIGINS=* would let every web page use this gateway: list origins, or require API "
            "keys with OMNIBUS_GATEWAY_KEYS=true"
        )
    return origins


def allow_origins(application: ASGIApp, settings: GatewaySettings) -> ASGIApp:
    """Open ``application`` to pages of the origins in ``settings``, if any."""
    origins = cors_origins(settings)
    if not origins:
        return application
    return CORSMiddleware(
        application,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=_EXPOSED_HEADERS,
        max_age=_PREFLIGHT_SECONDS,
    )


#: Paths for probes, which have no keys, and files, which have secret ids.
_PUBLIC_PATHS = (*LIVENESS, "/readyz", "/version")
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
