"""Access rule of control routes: one rule for all of them, by the admin token.

| token set | gateway bound to | control routes that look or steer | those that bring code (apps) |
|-----------|------------------|-----------------------------------|------------------------------|
| yes       | anything         | with the token                    | with the token               |
| no        | loopback         | open to clients of this machine   | closed                       |
| no        | another address  | closed                            | closed                       |

Where they are open, a request that a browser was made to send by a page of somewhere else is refused all the same.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from omnibus.errors import BadRequest, Forbidden, Unauthorized
from omnibus.settings import GatewaySettings

#: Characters of an admin token at least.
MIN_TOKEN_CHARS = 16
_SETUP_HINT = "set OMNIBUS_GATEWAY_ADMIN_TOKEN at the gateway"


class AdminAuth:
    """The one dependency of control routes. Header names are in lower case."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._token = settings.admin_token
        self._host = settings.host

    def is_operator(self, authorization: str) -> bool:
        """Return whether the header is the operator's."""
        return bool(self._token) and hmac.compare_digest(bearer_token(authorization).encode(), self._token.encode())

    def require_token(self, headers: Mapping[str, str]) -> None:
        """For what brings code. Raises ``Forbidden`` while there is no token, and ``Unauthorized`` without it."""
        if not self._token:
            raise Forbidden(f"apps and adapters cannot be changed here: {_SETUP_HINT}")
        if not self.is_operator(headers.get("authorization", "")):
            raise Unauthorized("send the gateway's OMNIBUS_GATEWAY_ADMIN_TOKEN as `Authorization: Bearer <token>`")

    def check_control_access(self, headers: Mapping[str, str]) -> None:
        """For all other control routes. Raises as ``require_token``, but not at a machine's own gateway without one."""
        if self._token:
            self.require_token(headers)
        elif not is_loopback(self._host):
            raise Forbidden(f"this gateway listens on {self._host}, so control routes are closed: {_SETUP_HINT}")
        elif not _is_local_client(headers):
            raise Forbidden(f"control routes are for clients of this machine: {_SETUP_HINT} to use them from elsewhere")


def check_token(settings: GatewaySettings) -> None:
    """Refuse to start with a token that can be guessed. Raises ``BadRequest``."""
    if 0 < len(settings.admin_token) < MIN_TOKEN_CHARS:
        raise BadRequest(
            f"OMNIBUS_GATEWAY_ADMIN_TOKEN has {len(settings.admin_token)} characters: set at least {MIN_TOKEN_CHARS}, "
            "for example what `openssl rand -base64 32` prints"
        )


def bearer_token(authorization: str) -> str:
    """The token of an ``Authorization`` header; empty when it has none."""
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def is_loopback(host: str) -> bool:
    """Return whether nobody but this machine reaches ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_local_client(headers: Mapping[str, str]) -> bool:
    """Not by a name that was made to mean this machine, and not by a page of another origin."""
    called = headers.get("host", "")
    if not is_loopback(urlsplit(f"//{called}").hostname or ""):
        return False
    origin = headers.get("origin", "")
    return not origin or urlsplit(origin).netloc == called
