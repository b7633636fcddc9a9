"""The one fetcher: only this module of the system opens URLs.

A ``UrlTarget`` is parsed once, and both checked and connected to. Anything unusual is rejected, not repaired. The
connection is opened to a checked address, so a name that resolves differently later gains nothing. Data URLs (RFC 2397)
may have any common variant of base64 (RFC 2045; RFC 4648, section 5).
"""

import asyncio
import functools
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import quote, urljoin

import h11
import msgspec

from omnibus.errors import BadMedia, BadRequest, TooLarge
from omnibus_gateway.openai.messages import Inline, decode_data_url
from omnibus_gateway.tenancy import tenant as tenants
from omnibus_gateway.tenancy.body_budget import TenantSlots

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


log = logging.getLogger(__name__)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Connect = Callable[[str, int, ssl.SSLContext | None, str | None], Awaitable[Streams]]

_BUFFER_BYTES = 256 * 1024  # bytes of the stream's buffer
_READ_BYTES = 16 * 1024  # bytes that are parsed at a time, before other tasks have a turn
_MAX_EVENTS_PER_TURN = 64  # parts of a response until then, because they may be as small as a byte
_MAX_INFORMATIONAL = 5  # informational responses before the answer
_UNCHECKED_CHUNK_COUNT, _MIN_MEAN_CHUNK_BYTES = (
    1000,
    256,
)  # after so many chunks, the least mean size of one
_FRAMING_FRACTION, _FRAMING_BYTES = 0.1, 64 * 1024  # most framing of a body: a fraction of it, plus bytes
_MAX_HEADER_BYTES = 32 * 1024  # bytes of response headers at most
_MAX_ADDRESSES = 3  # addresses of one name that are tried in turn
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_UNREACHABLE_MESSAGE = "The media URL could not be fetched: check that it is public and reachable, or send a data URL."


class FetchRules(UrlRules, frozen=True):
    """Rules for fetches and their times in seconds."""

    redirects: int = 3
    timeout: float = 15.0  # of one item: waiting for a slot, all redirects, the whole body
    connect_timeout: float = 4.0
    concurrency: int = 64  # connections at once


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return every address of ``host``, from the system's resolver."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


async def connect_address(address: str, port: int, tls: ssl.SSLContext | None, name: str | None) -> Streams:
    """Open a connection to ``address``; with ``tls`` the certificate must be for ``name``."""
    return await asyncio.open_connection(address, port, ssl=tls, server_hostname=name, limit=_BUFFER_BYTES)


@functools.cache
def _trusting_context() -> ssl.SSLContext:
    """Return TLS that trusts the system's certificates. Reading them takes 40 ms, so the fetchers of a process share
    it.
    """
    return ssl.create_default_context()


class Fetcher:
    """Fetches the bytes of a media URL. Safe for concurrent use on one event loop."""

    def __init__(
        self,
        rules: FetchRules | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        resolve: Resolve = resolve_host,
        connect: Connect = connect_address,
    ) -> None:
        self._rules = rules or FetchRules()
        self._tls = tls or _trusting_context()
        self._resolve = resolve
        self._connect = connect
        self._slots = TenantSlots(self._rules.concurrency)

    async def fetch(self, url: str, limit: int, param: str = "") -> Inline:
        """Fetch a data or http(s) URL of at most ``limit`` bytes.

        ``param`` names the place in the request, and is only used in errors. A remote server's content type is not
        trusted: ``declared`` is "" then. Raises ``BadRequest`` (the URL is rejected), ``BadMedia`` (it cannot be
        fetched) and ``TooLarge``, each with fixed text.
        """
        if url[:5].lower() == "data:":
            return decode_data_url(url, limit, param)
        try:
            async with asyncio.timeout(self._rules.timeout), self._slots.hold(tenants.current_tenant().name):
                return Inline(await self._follow_redirects(url, limit, param), "")
        except TimeoutError:
            log.info("media fetch timed out", extra={"param": param})
            raise BadMedia("The media URL did not deliver in time.", param=param) from None
        except (OSError, h11.ProtocolError) as error:
            log.info("media fetch failed: %.200s", error, extra={"param": param})
            raise BadMedia(_UNREACHABLE_MESSAGE, param=param) from None

    async def _follow_redirects(self, url: str, limit: int, param: str) -> bytes:
        for _ in range(self._rules.redirects + 1):
            target = parse_url(url, self._rules, param)
            answer = await self._fetch_target(target, limit, param)
            if isinstance(answer, bytes):
                return answer
            try:
                url = urljoin(url, answer)
            except ValueError:  # brackets without an address
                raise BadMedia("The media URL redirects to a malformed address.", param=param) from None
        raise BadMedia(f"The media URL redirects more than {self._rules.redirects} times.", param=param)

    async def _fetch_target(self, target: UrlTarget, limit: int, param: str) -> bytes | str:
        reader, writer = await self._open_connection(target, await self._resolve_addresses(target, param))
        try:
            return await _HttpExchange(reader, writer, limit, param).get(target)
        finally:
            # Not close(): a TLS goodbye to a stalled server would wait.
            writer.transport.abort()

    async def _resolve_addresses(self, target: UrlTarget, param: str) -> Sequence[str]:
        if target.address is not None:
            return [target.host]
        addresses = await self._resolve(target.host, target.port)
        private = self._rules.allow_private
        if not addresses or not all(is_allowed(ip_address(entry), allow_private=private) for entry in addresses):
            log.warning("media host refused: %.100s resolves to %.200s", target.host, addresses)
            raise BadRequest("The media URL's host is not reachable from here.", param=param)
        return addresses[:_MAX_ADDRESSES]

    async def _open_connection(self, target: UrlTarget, addresses: Sequence[str]) -> Streams:
        tls = self._tls if target.scheme == "https" else None
        name = target.host if tls else None
        failure: OSError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(self._rules.connect_timeout):
                    return await self._connect(address, target.port, tls, name)
            except OSError as error:  # a timeout is one too
                failure = error
        raise ConnectionError(f"no address of {target.host:.100} answered: {failure}")


class _HttpExchange:
    """One GET on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int, param: str) -> None:
        self._reader = reader
        self._writer = writer
        self._limit = limit
        self._param = param
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)
        self._raw = 0  # bytes received
        self._events = 0

    async def get(self, target: UrlTarget) -> bytes | str:
        """Return the body, or the location of a redirect."""
        self._send_request(target)
        response = await self._read_response()
        headers = {name: value.decode("latin-1") for name, value in response.headers}
        if response.status_code in _REDIRECTS:
            return self._redirect_location(headers)
        self._check_response(response.status_code, headers)
        return await self._read_body()

    def _send_request(self, target: UrlTarget) -> None:
        # identity: without decompression there is no decompression bomb.
        headers = [
            ("Host", target.authority),
            ("User-Agent", "omnibus"),
            ("Accept", "*/*"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
        ]
        request = self._http.send(h11.Request(method="GET", target=target.path, headers=headers))
        self._writer.write((request or b"") + (self._http.send(h11.EndOfMessage()) or b""))

    async def _read_response(self) -> h11.Response:
        for _ in range(_MAX_INFORMATIONAL + 1):
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                break
        raise h11.RemoteProtocolError("no response")

    async def _read_body(self) -> bytes:
        parts: list[bytes] = []
        received_bytes = 0
        while isinstance(event := await self._next_event(), h11.Data):
            parts.append(event.data)
            received_bytes += len(event.data)
            self._check_size(received_bytes)
            self._check_framing(len(parts), received_bytes)
        if not isinstance(event, h11.EndOfMessage):
            raise h11.RemoteProtocolError("the body ended early")
        return b"".join(parts)

    async def _next_event(self) -> object:
        self._events += 1
        if self._events % _MAX_EVENTS_PER_TURN == 0:
            await asyncio.sleep(0)
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_READ_BYTES)
            self._raw += len(data)
            self._http.receive_data(data)
            await asyncio.sleep(0)  # buffered bytes would be read without a turn for other tasks
        return event

    def _check_framing(self, chunks: int, received_bytes: int) -> None:
        """Raise ``BadMedia`` for a body whose framing costs too much.

        The pieces of such a body cost far more than its bytes.
        """
        small = chunks > _UNCHECKED_CHUNK_COUNT and received_bytes < chunks * _MIN_MEAN_CHUNK_BYTES
        if small or self._raw > received_bytes * (1 + _FRAMING_FRACTION) + _FRAMING_BYTES + _MAX_HEADER_BYTES:
            raise BadMedia("The media URL's server sends its file in pieces that are too small.", param=self._param)

    def _redirect_location(self, headers: dict[bytes, str]) -> str:
        location = headers.get(b"location", "")
        if not location or not location.isascii() or "\\" in location:
            raise BadMedia("The media URL redirects to a place that is not accepted.", param=self._param)
        return location

    def _check_response(self, status: int, headers: dict[bytes, str]) -> None:
        if status != 200:
            raise BadMedia(f"The media URL answered with HTTP status {status}.", param=self._param)
        if headers.get(b"content-encoding", "identity").lower() != "identity":
            raise BadMedia("The media URL's server sent compressed content, which is not accepted.", param=self._param)
        # h11 has checked that it is a number.
        self._check_size(int(headers.get(b"content-length", 0)))

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._limit:
            raise TooLarge(f"A media item has more than {self._limit} bytes, the most accepted.", param=self._param)
