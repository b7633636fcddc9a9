"""Files of other gateways, on any node, in separate directories."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.bus import media_messages, subjects
from omnibus.bus.media_messages import MediaAnswer, MediaQuery
from omnibus.errors import NotFound, ProtocolError, Retryable, StorageFull, TooLarge
from omnibus.settings import GatewaySettings
from omnibus_gateway.media import peers as peers_module
from omnibus_gateway.media.blob_store import BLOB, MediaStore
from omnibus_gateway.media.files import FILE, FileStore, UnwrittenFile
from omnibus_gateway.media.peers import PART_BYTES, FileResponder, FileSource, KeptFile, MediaPeers
from omnibus_gateway.videos.storage import VIDEO, VideoStorage
from tests.memory_bus import MemoryBus
from tests.unit.sidecar.node import wait_until
from tests.unit.sidecar.peers.pair import PeerNode, two_nodes

LARGE = bytes(range(256)) * (PART_BYTES // 100)  # two parts and a half
FILM = "video_" + "1" * 48


@dataclass
class PeerGateway:
    """The files and connections of one gateway, in its own directory."""

    directory: Path
    node: PeerNode
    bus: MemoryBus
    peers: MediaPeers
    media: MediaStore
    files: FileStore
    films: VideoStorage
    responder: FileResponder

    def store_media(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        self.media.put_nowait(digest, data)
        return digest

    async def store_film(self, data: bytes, seconds: float = 60.0) -> None:
        draft = await self.films.new_draft(FILM)
        draft.write_bytes(data)
        await self.films.store_video(FILM, draft, b"picture", seconds)


class PeerCluster:
    """Two nodes, a bus, and the started gateways."""

    def __init__(self, nodes: tuple[PeerNode, PeerNode], directory: Path, stack: AsyncExitStack) -> None:
        self.nodes = nodes
        self.bus = MemoryBus()
        self.gateways: list[PeerGateway] = []
        self._directory = directory
        self._stack = stack

    async def gateway(self, node: int = 0, **changes: Any) -> PeerGateway:
        name = f"g{len(self.gateways)}"
        place = self.nodes[node]
        tensors = await place.client(name)
        self._stack.push_async_callback(tensors.close)
        directory = self._directory / name
        settings = GatewaySettings(media_dir=str(directory), **changes)
        peers = MediaPeers(name, self.bus, tensors, lambda: len(self.gateways) - 1)
        media, files = MediaStore(str(directory), 1 << 30, peers), FileStore(settings, peers)
        films = VideoStorage(settings, peers)

        async def locate_file(digest: str) -> KeptFile | None:
            path = await media.locate(digest)
            return KeptFile(path) if path else None

        sources = {
            BLOB: FileSource(locate_file),
            FILE: FileSource(files.locate, files.remove_local),
            VIDEO: FileSource(films.locate),
        }
        responder = FileResponder(name, self.bus, tensors, sources)
        await responder.startup()
        for close in (media.close, files.close):
            self._stack.callback(close)
        self._stack.push_async_callback(responder.shutdown)
        self._stack.push_async_callback(films.close)
        self.gateways.append(PeerGateway(directory, place, self.bus, peers, media, files, films, responder))
        return self.gateways[-1]

    async def wait_until_empty(self) -> None:
        await wait_until(lambda: not any(node.blocks for node in self.nodes))


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PeerCluster]:
    """Gateways that report at once, with a long time limit for answers."""
    monkeypatch.setattr(peers_module, "GATEWAY_HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(peers_module, "ANSWER_SECONDS", 20.0)
    async with asyncio.timeout(60), two_nodes(tmp_path, 1 << 23) as nodes, AsyncExitStack() as stack:
        yield PeerCluster(nodes, tmp_path, stack)


# Content by its hash


@pytest.mark.parametrize("node", [0, 1], ids=["same node", "other node"])
@pytest.mark.parametrize("data", [b"", b"x", LARGE], ids=["empty", "one byte", "three parts"])
async def test_content_is_read_from_the_gateway_that_has_it(cluster: PeerCluster, node: int, data: bytes):
    first, second = await cluster.gateway(), await cluster.gateway(node)
    digest = first.store_media(data)

    assert await second.media.get(digest) == data

    await cluster.wait_until_empty()
    await first.responder.shutdown()
    assert await second.media.get(digest) == data  # stored here after that


async def test_content_that_nobody_has_is_not_found_as_with_one_gateway(cluster: PeerCluster):
    first = await cluster.gateway()
    await cluster.gateway(1)

    with pytest.raises(NotFound, match="is not kept here: record in `full` mode"):
        await first.media.get("a" * 64)


async def test_a_gateway_that_is_silent_is_not_waited_for_long(cluster: PeerCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers_module, "ANSWER_SECONDS", 0.05)
    first, second = await cluster.gateway(), await cluster.gateway(1)
    await first.responder.shutdown()

    with pytest.raises(NotFound):
        await second.media.get(first.store_media(b"x"))


async def test_a_gateway_that_has_just_begun_asks_those_that_it_has_not_heard_yet(
    cluster: PeerCluster, monkeypatch: pytest.MonkeyPatch
):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    second.peers._others = lambda: 0
    digest = first.store_media(b"x")
    with pytest.raises(NotFound):  # it would have received their heartbeats by now
        await second.media.get(digest)

    monkeypatch.setattr(peers_module, "GATEWAY_HEARTBEAT_SECONDS", 3600.0)

    assert await second.media.get(digest) == b"x"


async def test_bytes_that_are_not_those_of_the_hash_are_refused_and_not_kept(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    digest = first.store_media(b"right")
    path = await first.media.locate(digest)
    assert path is not None
    path.write_bytes(b"wrong")

    with pytest.raises(ProtocolError, match="its disk may be damaged"):
        await second.media.get(digest)

    assert await second.media.locate(digest) is None


async def test_when_one_gateway_cannot_send_it_the_next_one_does(cluster: PeerCluster):
    reader, keeper = await cluster.gateway(), await cluster.gateway(1)
    digest = keeper.store_media(b"content")
    await keeper.media.get(digest)
    liar = (await cluster.gateway()).responder
    lookups: list[str] = []

    async def locate_once(name: str) -> KeptFile | None:
        """Find the file at the first lookup, but not when read."""
        lookups.append(name)
        return KeptFile(Path(__file__)) if len(lookups) == 1 else None

    liar._sources = {BLOB: FileSource(locate_once)}
    await keeper.responder.shutdown()  # it resubscribes after the other one, so that it answers later
    await keeper.responder.startup()

    assert await reader.media.get(digest) == b"content"
    assert len(lookups) >= 2


async def test_what_keeps_the_bytes_from_coming_is_said(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    digest = first.store_media(b"x")
    await cluster.nodes[0].sidecar.stop()

    with pytest.raises(Retryable):
        await second.media.get(digest)


async def test_no_more_is_read_than_may_be_kept(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    digest = first.store_media(b"x" * 1000)
    second.media._limit = 999

    with pytest.raises(TooLarge):
        await second.media.get(digest)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "a" * 64 + "-owner"])
@pytest.mark.parametrize("kind", [BLOB, FILE, VIDEO, "else"])
async def test_names_from_other_gateways_are_no_paths(cluster: PeerCluster, kind: str, name: str):
    await cluster.gateway()
    secret = cluster.gateways[0].directory / "secret"
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("x")
    query = encoded_query("stranger", kind, name or "../secret")

    [answer] = [data async for data in first_answers(cluster.bus, query)]

    assert media_messages.decode_answer(answer).nbytes < 0


def encoded_query(gateway: str, kind: str, name: str) -> bytes:
    return msgspec.json.encode(MediaQuery(gateway, kind, name))


async def first_answers(bus: MemoryBus, query: bytes) -> AsyncIterator[bytes]:
    async for data in bus.request_stream(subjects.MEDIA, query, 20.0):
        yield data
        return


# Files by their ids


async def test_a_file_is_read_removed_and_forgotten_at_any_gateway(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    ticket = await first.files.put(LARGE, "audio/wav")

    assert await second.files.get_ticket(ticket.id) == ticket
    assert await second.files.read(ticket.id) == (ticket, LARGE)
    await second.files.remove(ticket.id)

    for gateway in (first, second):
        with pytest.raises(NotFound):
            await gateway.files.read(ticket.id)
        with pytest.raises(NotFound):
            await gateway.files.remove(ticket.id)
    await cluster.wait_until_empty()


@pytest.mark.parametrize("tenant", ["", "alice"])
async def test_a_file_that_has_its_ticket_with_it_is_read_and_removed_at_any_gateway(cluster: PeerCluster, tenant: str):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    id = "audio_" + "0123456789abcdef" * 3
    await first.files.put_named([UnwrittenFile(id, "audio/wav", LARGE, tenant)])

    ticket, data = await second.files.read(id)

    assert (ticket.nbytes, data) == (len(LARGE), LARGE)
    assert ticket == await first.files.get_ticket(id)
    await second.files.remove(id)
    with pytest.raises(NotFound):
        await first.files.read(id)
    await cluster.wait_until_empty()


async def test_a_file_that_has_expired_is_not_found_anywhere(cluster: PeerCluster):
    first, second = await cluster.gateway(file_seconds=0.0), await cluster.gateway(1)
    ticket = await first.files.put(b"old", "image/png")

    with pytest.raises(NotFound):
        await second.files.read(ticket.id)


async def test_a_file_of_other_bytes_than_its_ticket_says_is_refused(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    ticket = await first.files.put(b"right", "image/png")
    stored_file = await first.files.locate(ticket.id)
    assert stored_file is not None
    stored_file.path.write_bytes(b"wrong")

    with pytest.raises(ProtocolError):
        await second.files.read(ticket.id)


async def test_ids_that_cannot_be_are_asked_of_nobody(cluster: PeerCluster):
    first = await cluster.gateway()
    await cluster.gateway(1)
    requests: list[bytes] = []
    await cluster.bus.subscribe(subjects.MEDIA, lambda delivery: requests.append(delivery.data))

    for read in (first.files.read, first.files.get_ticket, first.files.remove):
        with pytest.raises(NotFound):
            await read("../../etc/passwd")
    with pytest.raises(NotFound):
        await first.media.get("../../etc/passwd")

    assert requests == []


# Videos


async def test_a_video_is_copied_once_for_all_who_wait_for_it(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    await first.store_film(LARGE)

    paths = await asyncio.gather(*(second.films.find_file(FILM, "video") for _ in range(8)))

    assert {path.read_bytes() for path in paths} == {LARGE}
    assert cluster.nodes[0].counters["granted_total"] == 3  # its parts
    assert [path.name for path in (second.directory / "videos").iterdir()] == [f"{FILM}.mp4"]
    original = await first.films.find_file(FILM, "video")
    assert paths[0].stat().st_mtime == pytest.approx(original.stat().st_mtime, abs=1e-3)
    assert paths[0].stat().st_mode & 0o777 == 0o600
    assert (await second.films.find_file(FILM, "thumbnail")).read_bytes() == b"picture"
    await cluster.wait_until_empty()


async def test_every_gateway_knows_that_a_video_is_made(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    assert await second.films.expiry_time(FILM) == 0.0

    await first.store_film(b"film")

    assert await second.films.expiry_time(FILM) == pytest.approx(await first.films.expiry_time(FILM), abs=1e-3)


async def test_a_copy_that_has_no_room_is_refused(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1, video_bytes=1000)
    await first.store_film(b"x" * 1001)

    with pytest.raises(StorageFull, match="no room for a copy of 1001 bytes"):
        await second.films.find_file(FILM, "video")

    assert os.listdir(second.directory / "videos") == []


async def test_a_video_that_nobody_has_is_not_found(cluster: PeerCluster):
    await cluster.gateway(1)
    first = await cluster.gateway()

    with pytest.raises(NotFound):
        await first.films.find_file(FILM, "video")

    assert os.listdir(first.directory / "videos") == []


async def test_a_file_that_takes_the_name_of_another_meanwhile_is_not_mixed_with_it(cluster: PeerCluster):
    first, second = await cluster.gateway(), await cluster.gateway(1)
    await first.store_film(LARGE)
    parts: list[bytes] = []

    def write_part(part: bytes) -> None:
        parts.append(part)
        if len(parts) == 1:
            other = first.directory / "other"
            other.write_bytes(bytes(len(LARGE)))
            other.rename(first.directory / "videos" / f"{FILM}.mp4")

    def check_answer(answer: MediaAnswer) -> None:
        assert answer.gateway == "g0"

    with pytest.raises(NotFound, match="is not what it was"):
        await second.peers.copy(VIDEO, f"{FILM}.mp4", check_answer, write_part)
    assert len(parts) == 1
