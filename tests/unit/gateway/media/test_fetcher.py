"""The fetcher on real sockets: a loopback server plays every remote host."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from omnibus.errors import BadMedia, BadRequest, TooLarge
from omnibus_gateway.media import fetcher as media_fetcher
from omnibus_gateway.media.fetcher import Fetcher, FetchRules

CERTIFICATE = Path(__file__).with_name("media.test.pem")  # for media.test, valid until 2125
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def build_redirect(location: str) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % location.encode("latin-1")


class CannedMediaSite:
    """A server that answers paths with canned bytes and records requests."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.hang: set[str] = set()  # paths whose connection stays open after the answer
        self.heads: list[str] = []
        self.names: dict[str, list[Sequence[str]]] = {}  # host to its answers, one per lookup
        self.dialled: list[str] = []
        self.port = 0

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        path = head.split(" ")[1]
        writer.write(self.answers[path])
        if path in self.hang:
            await reader.read()  # until the client gives up
        writer.close()

    async def resolve_host(self, host: str, port: int) -> Sequence[str]:
        answers = self.names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect_to_site(
        self, address: str, port: int, tls: ssl.SSLContext | None, name: str | None
    ) -> media_fetcher.Streams:
        """Connect any address to this site, in place of the internet."""
        self.dialled.append(address)
        return await media_fetcher.connect_address("127.0.0.1", self.port, tls, name)

    def fetcher(self, *, tls: ssl.SSLContext | None = None, **rules: object) -> Fetcher:
        options = {"allow_http": True, "timeout": 5.0, **rules}
        return Fetcher(FetchRules(**options), tls=tls, resolve=self.resolve_host, connect=self.connect_to_site)  # type: ignore[arg-type]


async def run_site(tls: ssl.SSLContext | None) -> AsyncIterator[CannedMediaSite]:
    site = CannedMediaSite()
    site.names["media.test"] = [["93.184.215.14"]]
    server = await asyncio.start_server(site.serve_connection, "127.0.0.1", 0, ssl=tls)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()


@pytest.fixture
async def site() -> AsyncIterator[CannedMediaSite]:
    async for running_site in run_site(None):
        yield running_site


@pytest.fixture
async def secure_site() -> AsyncIterator[CannedMediaSite]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async for running_site in run_site(context):
        yield running_site


async def test_a_body_arrives_whole_from_the_checked_address(site: CannedMediaSite) -> None:
    site.answers["/a.png?x=1"] = OK

    media = await site.fetcher().fetch("http://media.test/a.png?x=1", 100)

    assert media.data == b"hello"
    assert media.declared == ""
    assert site.dialled == ["93.184.215.14"]
    assert site.heads[0].startswith("GET /a.png?x=1 HTTP/1.1\r\nHost: media.test\r\n")


async def test_a_data_url_needs_no_network() -> None:
    media = await Fetcher().fetch("data:image/png;base64,AAEC", 100)

    assert (media.data, media.declared) == (b"\x00\x01\x02", "image/png")


async def test_chunked_and_unframed_bodies_arrive_whole(site: CannedMediaSite) -> None:
    site.answers["/chunked"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    site.answers["/unframed"] = b"HTTP/1.0 200 OK\r\n\r\nabcde"

    for path in site.answers:
        assert (await site.fetcher().fetch(f"http://media.test{path}", 5)).data == b"abcde"


async def test_https_checks_the_certificate_against_the_name_although_the_address_is_pinned(
    secure_site: CannedMediaSite,
) -> None:
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    secure_site.answers["/a"] = OK
    secure_site.names["other.test"] = [["93.184.215.14"]]
    fetcher = secure_site.fetcher(tls=trusting)

    assert (await fetcher.fetch("https://media.test/a", 100)).data == b"hello"
    with pytest.raises(BadMedia, match="could not be fetched"):
        await fetcher.fetch("https://other.test/a", 100)


async def test_an_unknown_certificate_is_refused(secure_site: CannedMediaSite) -> None:
    secure_site.answers["/a"] = OK

    with pytest.raises(BadMedia, match="could not be fetched") as caught:
        await secure_site.fetcher().fetch("https://media.test/a", 100)

    assert "certificate" not in caught.value.message.lower()  # details stay in the log
    assert secure_site.heads == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%lo"],
        ["64:ff9b::7f00:1"],
        ["93.184.215.14", "127.0.0.1"],  # one bad address among good ones spoils the name
        [],
    ],
)
async def test_a_name_that_resolves_to_an_internal_address_is_refused(
    site: CannedMediaSite, addresses: list[str]
) -> None:
    site.names["media.test"] = [addresses]

    with pytest.raises(BadRequest, match="not reachable from here"):
        await site.fetcher().fetch("http://media.test/a", 100, "param")

    assert site.dialled == []


async def test_an_answer_that_changes_after_the_check_gains_nothing(site: CannedMediaSite) -> None:
    site.names["media.test"] = [["93.184.215.14"], ["127.0.0.1"]]
    site.answers["/a"] = OK

    assert (await site.fetcher().fetch("http://media.test/a", 100)).data == b"hello"

    assert site.dialled == ["93.184.215.14"]
    assert site.names["media.test"] == [["127.0.0.1"]]  # exactly one lookup


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/secret",
        "http://[::1]/secret",
        "http://169.254.169.254/latest/meta-data/",
        "http://inside.test/secret",
        "//inside.test/secret",
        "file:///etc/passwd",
        "data:image/png;base64,AAEC",
        "http://user:word@media.test/b",
        "http://media.test:22/b",
        "http://2130706433/",
    ],
)
async def test_a_redirect_is_checked_like_the_first_url(site: CannedMediaSite, location: str) -> None:
    site.names["inside.test"] = [["10.0.0.7"]]
    site.answers["/a"] = build_redirect(location)

    with pytest.raises(BadRequest):
        await site.fetcher().fetch("http://media.test/a", 100)

    assert site.dialled == ["93.184.215.14"]


@pytest.mark.parametrize("location", ["", "http:\\\\media.test\\b", "/caf\xe9"])
async def test_a_redirect_to_nowhere_is_refused(site: CannedMediaSite, location: str) -> None:
    site.answers["/a"] = build_redirect(location)

    with pytest.raises(BadMedia, match="redirects to a place"):
        await site.fetcher().fetch("http://media.test/a", 100)


async def test_a_few_redirects_are_followed_and_resolved_anew(site: CannedMediaSite) -> None:
    site.names["cdn.test"] = [["151.101.1.1"]]
    site.answers |= {
        "/a": build_redirect("b"),
        "/b": build_redirect("//cdn.test/c"),
        "/c": build_redirect("http://cdn.test/d"),
        "/d": OK,
    }

    assert (await site.fetcher().fetch("http://media.test/a", 100)).data == b"hello"

    assert site.dialled == ["93.184.215.14", "93.184.215.14", "151.101.1.1", "151.101.1.1"]


async def test_a_redirect_loop_ends(site: CannedMediaSite) -> None:
    site.answers["/a"] = build_redirect("/a")

    with pytest.raises(BadMedia, match="more than 3 times"):
        await site.fetcher().fetch("http://media.test/a", 100)

    assert len(site.heads) == 4


async def test_a_downgrade_to_plain_http_is_refused(secure_site: CannedMediaSite) -> None:
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    secure_site.answers["/a"] = build_redirect("http://media.test/b")

    with pytest.raises(BadRequest, match="Plain http"):
        await secure_site.fetcher(tls=trusting, allow_http=False).fetch("https://media.test/a", 100)


async def test_a_declared_length_over_the_limit_is_refused_at_once(site: CannedMediaSite) -> None:
    site.answers["/a"] = b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n"
    site.hang.add("/a")

    with pytest.raises(TooLarge, match="more than 100 bytes"):
        await site.fetcher().fetch("http://media.test/a", 100)


async def test_a_body_is_cut_off_at_the_limit_while_it_streams(site: CannedMediaSite) -> None:
    site.answers["/a"] = b"HTTP/1.0 200 OK\r\n\r\n" + bytes(101)
    site.hang.add("/a")

    with pytest.raises(TooLarge, match="more than 100 bytes"):
        await site.fetcher().fetch("http://media.test/a", 100)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP status 404"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 6\r\n\r\nsecret", "HTTP status 500"),
        (b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\na", "HTTP status 206"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", "compressed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "could not be fetched"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nshort", "could not be fetched"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 40_000, "could not be fetched"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "could not be fetched"),
        (b"", "could not be fetched"),
    ],
)
async def test_a_bad_answer_is_bad_media_and_never_echoed(site: CannedMediaSite, answer: bytes, reason: str) -> None:
    site.answers["/a"] = answer

    with pytest.raises(BadMedia, match=reason) as caught:
        await site.fetcher().fetch("http://media.test/a", 100, "messages[0].content[0].image_url.url")

    assert caught.value.param == "messages[0].content[0].image_url.url"
    assert "secret" not in caught.value.message


async def test_a_stalled_server_costs_no_more_than_the_deadline(site: CannedMediaSite) -> None:
    site.answers["/a"] = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"
    site.hang.add("/a")

    with pytest.raises(BadMedia, match="in time"):
        await site.fetcher(timeout=0.1).fetch("http://media.test/a", 100)


async def test_a_dead_address_is_followed_by_the_next_one(site: CannedMediaSite) -> None:
    site.names["media.test"] = [["93.184.215.14", "93.184.215.15"]]
    site.answers["/a"] = OK

    async def connect_or_refuse(
        address: str, port: int, tls: ssl.SSLContext | None, name: str | None
    ) -> media_fetcher.Streams:
        if address == "93.184.215.14":
            raise ConnectionRefusedError
        return await site.connect_to_site(address, port, tls, name)

    fetcher = Fetcher(FetchRules(allow_http=True), resolve=site.resolve_host, connect=connect_or_refuse)

    assert (await fetcher.fetch("http://media.test/a", 100)).data == b"hello"


async def test_a_name_that_does_not_exist_is_bad_media(site: CannedMediaSite) -> None:
    fetcher = Fetcher(FetchRules(allow_http=True, timeout=5.0))

    with pytest.raises(BadMedia, match=r"could not be fetched|in time"):
        await fetcher.fetch("http://does-not-exist.invalid/a", 100)


async def test_development_rules_reach_a_local_server_without_any_stand_in(site: CannedMediaSite) -> None:
    site.answers["/a"] = OK
    fetcher = Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None))

    for host in ("127.0.0.1", "localhost"):
        assert (await fetcher.fetch(f"http://{host}:{site.port}/a", 100)).data == b"hello"
    assert site.heads[0].split("\r\n")[1] == f"Host: 127.0.0.1:{site.port}"


async def test_a_local_redirect_to_metadata_is_refused_even_in_development(site: CannedMediaSite) -> None:
    site.answers["/a"] = build_redirect("http://169.254.169.254/latest/")
    fetcher = Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None))

    with pytest.raises(BadRequest, match="not reachable from here"):
        await fetcher.fetch(f"http://127.0.0.1:{site.port}/a", 100)


async def test_a_proxy_of_the_environment_is_not_used(site: CannedMediaSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    site.answers["/a"] = OK

    assert (await site.fetcher().fetch("http://media.test/a", 100)).data == b"hello"


async def test_a_cancelled_fetch_closes_its_connection(site: CannedMediaSite) -> None:
    site.answers["/a"] = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"
    close_event = asyncio.Event()

    async def serve_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(site.answers["/a"])
        with contextlib.suppress(ConnectionError):
            while await reader.read(100):
                arrival_event.set()
        close_event.set()
        writer.close()

    arrival_event = asyncio.Event()
    server = await asyncio.start_server(serve_until_closed, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    task = asyncio.create_task(site.fetcher().fetch("http://media.test/a", 100))
    await asyncio.wait_for(arrival_event.wait(), 5)

    task.cancel()

    await asyncio.wait_for(close_event.wait(), 5)
    server.close()
