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


def redirect(location: str) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % location.encode("latin-1")


class Site:
    """A server that answers paths with canned bytes and records requests."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.hang: set[str] = set()  # paths whose connection stays open after the answer
        self.heads: list[str] = []
        self.names: dict[str, list[Sequence[str]]] = {}  # host to its answers, one per lookup
        self.dialled: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        path = head.split(" ")[1]
        writer.write(self.answers[path])
        if path in self.hang:
            await reader.read()  # until the client gives up
        writer.close()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        answers = self.names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def connect(
        self, address: str, port: int, tls: ssl.SSLContext | None, name: str | None
    ) -> media_fetcher.Streams:
        """Connect any address to this site, in place of the internet."""
        self.dialled.append(address)
        return await media_fetcher.connect_address("127.0.0.1", self.port, tls, name)

    def fetcher(self, *, tls: ssl.SSLContext | None = None, **rules: object) -> Fetcher:
        options = {"allow_http": True, "timeout": 5.0, **rules}
        return Fetcher(FetchRules(**options), tls=tls, resolve=self.resolve, connect=self.connect)  # type: ignore[arg-type]


async def running(tls: ssl.SSLContext | None) -> AsyncIterator[Site]:
    site = Site()
    site.names["media.test"] = [["93.184.215.14"]]
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, ssl=tls)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async for running_site in running(None):
        yield running_site


@pytest.fixture
async def secure_site() -> AsyncIterator[Site]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async for running_site in running(context):
        yield running_site


async def test_a_body_arrives_whole_from_the_checked_address(site: Site) -> None:
    site.answers["/a.png?x=1"] = OK

    found = await site.fetcher().fetch("http://media.test/a.png?x=1", 100)

    assert found.data == b"hello"
    assert found.declared == ""
    assert site.dialled == ["93.184.215.14"]
    assert site.heads[0].startswith("GET /a.png?x=1 HTTP/1.1\r\nHost: media.test\r\n")


async def test_a_data_url_needs_no_network() -> None:
    found = await Fetcher().fetch("data:image/png;base64,AAEC", 100)

    assert (found.data, found.declared) == (b"\x00\x01\x02", "image/png")


async def test_chunked_and_unframed_bodies_arrive_whole(site: Site) -> None:
    site.answers["/chunked"] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    site.answers["/unframed"] = b"HTTP/1.0 200 OK\r\n\r\nabcde"

    for path in site.answers:
        assert (await site.fetcher().fetch(f"http://media.test{path}", 5)).data == b"abcde"


async def test_https_checks_the_certificate_against_the_name_although_the_address_is_pinned(secure_site: Site) -> None:
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    secure_site.answers["/a"] = OK
    secure_site.names["other.test"] = [["93.184.215.14"]]
    fetcher = secure_site.fetcher(tls=trusting)

    assert (await fetcher.fetch("https://media.test/a", 100)).data == b"hello"
    with pytest.raises(BadMedia, match="could not be fetched"):
        await fetcher.fetch("https://other.test/a", 100)


async def test_an_unknown_certificate_is_refused(secure_site: Site) -> None:
    secure_site.answers["/a"] = OK

    with pytest.raises(BadMedia, match="could not be fetched") as caught:
        await secure_site.fetcher().fetch("https://media.test/a", 100)

    assert "certificate" not in caught.value.message.lower()  # details stay in the log
    assert secure_site.heads == []


@pytest.mark.parametrize(
    "resolved",
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
async def test_a_name_that_resolves_to_an_internal_address_is_refused(site: Site, resolved: list[str]) -> None:
    site.names["media.test"] = [resolved]

    with pytest.raises(BadRequest, match="not reachable from here"):
        await site.fetcher().fetch("http://media.test/a", 100, "param")

    assert site.dialled == []


async def test_an_answer_that_changes_after_the_check_gains_nothing(site: Site) -> None:
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
async def test_a_redirect_is_checked_like_the_first_url(site: Site, location: str) -> None:
    site.names["inside.test"] = [["10.0.0.7"]]
    site.answers["/a"] = redirect(location)

    with pytest.raises(BadRequest):
        await site.fetcher().fetch("http://media.test/a", 100)

    assert site.dialled == ["93.184.215.14"]


@pytest.mark.parametrize("location", ["", "http:\\\\media.test\\b", "/caf\xe9"])
async def test_a_redirect_to_nowhere_is_refused(site: Site, location: str) -> None:
    site.answers["/a"] = redirect(location)

    with pytest.raises(BadMedia, match="redirects to a place"):
        await site.fetcher().fetch("http://media.test/a", 100)


async def test_a_few_redirects_are_followed_and_resolved_anew(site: Site) -> None:
    site.names["cdn.test"] = [["151.101.1.1"]]
    site.answers |= {"/a": redirect("b"), "/b": redirect("//cdn.test/c"), "/c": redirect("http://cdn.test/d"), "/d": OK}

    assert (await site.fetcher().fetch("http://media.test/a", 100)).data == b"hello"

    assert site.dialled == ["93.184.215.14", "93.184.215.14", "151.101.1.1", "151.101.1.1"]


async def test_a_redirect_loop_ends(site: Site) -> None:
    site.answers["/a"] = redirect("/a")

    with pytest.raises(BadMedia, match="more than 3 times"):
        await site.fetcher().fetch("http://media.test/a", 100)

    assert len(site.heads) == 4


async def test_a_downgrade_to_plain_http_is_refused(secure_site: Site) -> None:
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    secure_site.answers["/a"] = redirect("http://media.test/b")

    with pytest.raises(BadRequest, match="Plain http"):
        await secure_site.fetcher(tls=trusting, allow_http=False).fetch("https://media.test/a", 100)


async def test_a_declared_length_over_the_limit_is_refused_at_once(site: Site) -> None:
    site.answers["/a"] = b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n"
    site.hang.add("/a")

    with pytest.raises(TooLarge, match="more than 100 bytes"):
        await site.fetcher().fetch("http://media.test/a", 100)


async def test_a_body_is_cut_off_at_the_limit_while_it_streams(site: Site) -> None:
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
async def test_a_bad_answer_is_bad_media_and_never_echoed(site: Site, answer: bytes, reason: str) -> None:
    site.answers["/a"] = answer

    with pytest.raises(BadMedia, match=reason) as caught:
        await site.fetcher().fetch("http://media.test/a", 100, "messages[0].content[0].image_url.url")

    assert caught.value.param == "messages[0].content[0].image_url.url"
    assert "secret" not in caught.value.message


async def test_a_stalled_server_costs_no_more_than_the_deadline(site: Site) -> None:
    site.answers["/a"] = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"
    site.hang.add("/a")

    with pytest.raises(BadMedia, match="in time"):
        await site.fetcher(timeout=0.1).fetch("http://media.test/a", 100)


async def test_a_dead_address_is_followed_by_the_next_one(site: Site) -> None:
    site.names["media.test"] = [["93.184.215.14", "93.184.215.15"]]
    site.answers["/a"] = OK

    async def connect(address: str, port: int, tls: ssl.SSLContext | None, name: str | None) -> media_fetcher.Streams:
        if address == "93.184.215.14":
            raise ConnectionRefusedError
        return await site.connect(address, port, tls, name)

    fetcher = Fetcher(FetchRules(allow_http=True), resolve=site.resolve, connect=connect)

    assert (await fetcher.fetch("http://media.test/a", 100)).data == b"hello"


async def test_a_name_that_does_not_exist_is_bad_media(site: Site) -> None:
    fetcher = Fetcher(FetchRules(allow_http=True, timeout=5.0))

    with pytest.raises(BadMedia, match=r"could not be fetched|in time"):
        await fetcher.fetch("http://does-not-exist.invalid/a", 100)


async def test_development_rules_reach_a_local_server_without_any_stand_in(site: Site) -> None:
    site.answers["/a"] = OK
    fetcher = Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None))

    for host in ("127.0.0.1", "localhost"):
        assert (await fetcher.fetch(f"http://{host}:{site.port}/a", 100)).data == b"hello"
    assert site.heads[0].split("\r\n")[1] == f"Host: 127.0.0.1:{site.port}"


async def test_a_local_redirect_to_metadata_is_refused_even_in_development(site: Site) -> None:
    site.answers["/a"] = redirect("http://169.254.169.254/latest/")
    fetcher = Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None))

    with pytest.raises(BadRequest, match="not reachable from here"):
        await fetcher.fetch(f"http://127.0.0.1:{site.port}/a", 100)


async def test_a_proxy_of_the_environment_is_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    site.answers["/a"] = OK

    assert (await site.fetcher().fetch("http://media.test/a", 100)).data == b"hello"


async def test_a_cancelled_fetch_closes_its_connection(site: Site) -> None:
    site.answers["/a"] = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(site.answers["/a"])
        with contextlib.suppress(ConnectionError):
            while await reader.read(100):
                arrived.set()
        closed.set()
        writer.close()

    arrived = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    task = asyncio.create_task(site.fetcher().fetch("http://media.test/a", 100))
    await asyncio.wait_for(arrived.wait(), 5)

    task.cancel()

    await asyncio.wait_for(closed.wait(), 5)
    server.close()
