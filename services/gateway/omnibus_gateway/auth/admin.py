"""Access rule of all control routes, by the admin token.

| token set | gateway bound to | control routes that look or steer | those that bring code (apps) |
|-----------|------------------|-----------------------------------|------------------------------|
| yes       | anything         | with the token                    | with the token               |
| no        | loopback         | open to clients of this machine   | closed                       |
| no        | another address  | closed                            | closed                       |

Where routes are open, the gateway still rejects requests that a page of another origin made a browser send.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from omnibus.errors import BadRequest, Forbidden, Unauthorized
from omnibus.settings import GatewaySettings

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
