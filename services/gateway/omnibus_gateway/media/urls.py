"""Media URLs, parsed exactly once.

The parsed ``UrlTarget`` is both checked and connected to, so no second parser can read the same text differently.
Anything unusual is rejected instead of repaired.
"""

import re
from ipaddress import ip_address
from urllib.parse import quote

import msgspec

from omnibus.errors import BadRequest
from omnibus_gateway.media import ssrf

MAX_URL_CHARS = 8192  # characters; data URLs do not come here

_URL = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<host>[a-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?(?:#.*)?",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_DEFAULT_PORTS = {"http": 80, "https": 443}


class UrlRules(msgspec.Struct, frozen=True):
    """Rules for accepted media URLs. The defaults are for production."""

    allow_http: bool = False
    allow_private: bool = False  # loopback and private networks, for development
    ports: frozenset[int] | None = frozenset({80, 443})  # None: any port


class UrlTarget(msgspec.Struct, frozen=True):
    """One HTTP request target: lower-case ASCII ``host`` without brackets, ``path`` with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def address(self) -> ssrf.Address | None:
        """The address if ``host`` is an IP literal, else None."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """The ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str, rules: UrlRules, param: str = "") -> UrlTarget:
    """Parse ``url`` strictly. Raises ``BadRequest`` with fixed text; the URL is never echoed."""
    match = None if len(url) > MAX_URL_CHARS or _FORBIDDEN.search(url) else _URL.fullmatch(url)
    if match is None:
        raise BadRequest(_url_error(url), param=param)
    scheme = match["scheme"].lower()
    if scheme == "http" and not rules.allow_http:
        raise BadRequest("Plain http media URLs are disabled here: use https or a data URL.", param=param)
    target = UrlTarget(scheme, _parse_host(match, param), _parse_port(match, rules, param), _parse_path(match))
    _check_host(target, rules, param)
    return target


def _url_error(url: str) -> str:
    if len(url) > MAX_URL_CHARS:
        return f"The media URL is longer than {MAX_URL_CHARS} characters: use a shorter URL or a data URL."
    if not url[:8].lower().startswith(("http://", "https://")):
        return "Only https and data URLs are accepted for media."
    if "@" in url.split("/", 3)[2]:
        return "The media URL contains a user name or password: remove it."
    return "The media URL is malformed: spaces, backslashes and non-ASCII host names are not accepted."


def _parse_host(match: re.Match[str], param: str) -> str:
    host = (match["v6"] or match["host"]).lower().removesuffix(".")
    labels = host.split(".")
    bad_name = match["v6"] is None and (len(host) > 253 or not all(0 < len(label) < 64 for label in labels))
    # A name whose last label is a number is an address in disguise (2130706433, 0177.0.0.1, 0x7f.1).
    if bad_name or match["v6"] is not None or _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ip_address(host))
        except ValueError:
            raise BadRequest("The media URL's host is not a valid name or address.", param=param) from None
    return host


def _parse_port(match: re.Match[str], rules: UrlRules, param: str) -> int:
    port = int(match["port"] or _DEFAULT_PORTS[match["scheme"].lower()])
    if not 0 < port < 65536 or (rules.ports is not None and port not in rules.ports):
        raise BadRequest("The media URL's port is not allowed here.", param=param)
    return port


def _parse_path(match: re.Match[str]) -> str:
    return quote((match["path"] or "/") + (match["query"] or ""), safe=_PRINTABLE)


def _check_host(target: UrlTarget, rules: UrlRules, param: str) -> None:
    address = target.address
    if address is None:
        is_refused = ssrf.is_local_name(target.host) and not rules.allow_private
    else:
        is_refused = not ssrf.is_allowed(address, allow_private=rules.allow_private)
    if is_refused:
        raise BadRequest("The media URL's host is not reachable from here.", param=param)
