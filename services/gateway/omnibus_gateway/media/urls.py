"""URLs of media: parsed once, with the addresses that the fetcher may connect to, and data URLs (RFC 2397).

The parsed ``UrlTarget`` is both checked and connected to, so no second parser can read the same text differently.
Anything unusual is rejected instead of repaired.

All common variants of base64 are accepted. These are line breaks (RFC 2045), the alphabet of URLs, no padding (RFC
4648, section 5), and percent-encoding in a URL. Any other character is an error.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import quote, unquote_to_bytes

import msgspec
import pybase64

from omnibus.errors import BadRequest, TooLarge
from omnibus_gateway.openai.cut_media import EncodedUrl, parse_header

Address = IPv4Address | IPv6Address

# Reachable only with ``allow_private``, for development: the machine itself and private networks.
_PRIVATE_NETWORKS = tuple(
    ip_network(block)
    for block in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)

# Never reachable. Sources: the IANA special-purpose address registries for IPv4 and IPv6. The list is explicit because
# ``ipaddress.is_global`` changed between patch releases of Python 3.11.
_BLOCKED_NETWORKS = tuple(
    ip_network(block)
    for block in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; cloud metadata of one provider
        "168.63.129.16/32",  # a cloud's host service on a public address
        "169.254.0.0/16",  # link-local: most cloud metadata
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # Teredo, ORCHID and other protocol assignments
        "2001:db8::/32",
        "2002::/16",  # 6to4 embeds an IPv4 address
        "3fff::/20",
        "fd00:ec2::/32",  # cloud metadata inside the private range
    )
)

# All other addresses are mapped (::ffff:0:0/96), NAT64 (64:ff9b::/96), link-local, multicast or unassigned.
_PUBLIC_V6 = ip_network("2000::/3")

_LOCAL_NAMES = frozenset({"localhost", "metadata", "instance-data", "metadata.goog"})
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".svc", ".home.arpa")


def is_allowed(address: Address, *, allow_private: bool = False) -> bool:
    """Return True if a connection to ``address`` may be opened."""
    if any(address in block for block in _BLOCKED_NETWORKS):
        return False
    if any(address in block for block in _PRIVATE_NETWORKS):
        return allow_private
    return address.version == 4 or address in _PUBLIC_V6


def is_local_name(host: str) -> bool:
    """Return True for names of this machine, cluster or metadata services.

    ``host`` must be in lower case.
    """
    return host in _LOCAL_NAMES or host.endswith(_LOCAL_SUFFIXES)


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
    def address(self) -> Address | None:
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
        is_refused = is_local_name(target.host) and not rules.allow_private
    else:
        is_refused = not is_allowed(address, allow_private=rules.allow_private)
    if is_refused:
        raise BadRequest("The media URL's host is not reachable from here.", param=param)


_PERCENT = re.compile(r"(?:[!-$&-~]|%[0-9A-Fa-f]{2})*")
_WHITESPACE = b" \t\r\n\f"
#: Characters that JSON does not allow unescaped in a string.
_CONTROL = re.compile(rb"[\0-\x1f]")
_URL_ALPHABET = bytes.maketrans(b"-_", b"+/")
#: Percent-encoded characters of base64.
_ESCAPES = {
    b"%2B": b"+", b"%2b": b"+", b"%2F": b"/", b"%2f": b"/", b"%3D": b"=", b"%3d": b"=",
    b"%0A": b"", b"%0a": b"", b"%0D": b"", b"%0d": b"", b"%20": b"",
}  # fmt: skip
#: Base64 with line breaks and percent-encoded characters is at most this much longer.
_LOOSE_FACTOR = 1.5


class Inline(msgspec.Struct, frozen=True):
    """Decoded bytes and the media type declared by the data URL, or ""."""

    data: bytes
    declared: str


def decode_base64(text: str | memoryview, limit: int, param: str = "", *, in_url: bool = False) -> bytes:
    """Decode base64 of at most ``limit`` bytes; ``text`` may be a view of ASCII bytes of a JSON string.

    Text ``in_url`` may be percent-encoded. Raises ``BadRequest`` or, before any decoding, ``TooLarge``.
    """
    padding = text[-2:].count("=") if isinstance(text, str) else bytes(text[-2:]).count(b"=")
    nbytes = len(text) // 4 * 3 - padding
    if nbytes > limit:
        if nbytes > _LOOSE_FACTOR * limit + 64 or _is_dense(text):
            raise _too_large_error(nbytes, limit, param)
    else:
        try:
            # As strict as binascii.a2b_base64 in strict mode, and many times as fast.
            return pybase64.b64decode(text, validate=True)
        except ValueError:
            pass
    data = _decode_loosely(text, param, in_url)
    if len(data) > limit:
        raise _too_large_error(len(data), limit, param)
    return data


def decode_data_url(url: str, limit: int, param: str = "") -> Inline:
    """Decode ``data:[<type>][;name=value]*[;base64],<data>``. Raises as ``decode_base64``."""
    header = parse_header(url)
    if header is None:
        raise BadRequest("The data URL is malformed: expected data:<type>;base64,<data>.", param=param)
    if isinstance(url, EncodedUrl):
        return Inline(decode_base64(url.encoded, limit, param, in_url=True), header.mime)
    body = url[header.end :]
    if header.is_base64:
        return Inline(decode_base64(body, limit, param, in_url=True), header.mime)
    return Inline(_decode_percent(body, limit, param), header.mime)


def _is_dense(text: str | memoryview) -> bool:
    """Return True if every character of ``text`` is part of its data."""
    data = text.encode(errors="replace") if isinstance(text, str) else bytes(text)
    return not any(each in data for each in b"%" + _WHITESPACE)


def _decode_loosely(text: str | memoryview, param: str, in_url: bool) -> bytes:
    try:
        if isinstance(text, str):
            data = text.encode("ascii")
        else:
            data = bytes(text)
            if _CONTROL.search(data):
                raise BadRequest("The request body is not valid JSON in UTF-8.")
        for escape, byte in _ESCAPES.items() if in_url and b"%" in data else ():
            data = data.replace(escape, byte)
        data = data.translate(None, _WHITESPACE)
        if not (b"+" in data or b"/" in data):
            data = data.translate(_URL_ALPHABET)
        if not data.endswith(b"="):
            data += b"=" * (-len(data) % 4)
        return pybase64.b64decode(data, validate=True)
    except ValueError:
        raise BadRequest("The media data is not valid base64.", param=param) from None


def _decode_percent(body: str, limit: int, param: str) -> bytes:
    nbytes = len(body) - 2 * body.count("%")
    if nbytes > limit:
        raise _too_large_error(nbytes, limit, param)
    if _PERCENT.fullmatch(body) is None:
        raise BadRequest("The data URL is malformed: its data is not percent-encoded ASCII.", param=param)
    return unquote_to_bytes(body)


def _too_large_error(nbytes: int, limit: int, param: str) -> TooLarge:
    return TooLarge(f"A media item has {nbytes} bytes; at most {limit} are accepted.", param=param)
