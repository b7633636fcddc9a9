"""Pulls between nodes over mutual TLS: a certificate names the node that may use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from omnibus.errors import BadRequest, NodeUnreachable
from omnibus_sidecar.peers import handshake as credentials
from omnibus_sidecar.peers.plain_stream import open_stream
from omnibus_sidecar.peers.tls_stream import EARLY_BYTES, TlsStream
from tests.certificates import CERTIFICATE, KEY, node_files
from tests.unit.sidecar.node import make_deadline, wait_until
from tests.unit.sidecar.peers.pair import PeerNode, introduce_nodes, peer_config, start_node
from tests.unit.sidecar.peers.raw import NoArena, dial_node, read_rest

SIZE = 3_000_000


@asynccontextmanager
async def two_tls_nodes(directory, b_uses: str = "b", **changes: object) -> AsyncIterator[tuple[PeerNode, PeerNode]]:
    nodes = []
    for name, files in (("a", "a"), ("b", b_uses)):
        client, server = credentials.load_tls(*node_files(files))
        config = peer_config(tls_client=client, tls_server=server, secret=b"", **changes)
        nodes.append(await start_node(name, directory, config))
    introduce_nodes(*nodes)
    try:
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            await node.sidecar.stop()


async def test_bytes_are_the_same_over_tls_and_freed_on_both(tmp_path):
    async with two_tls_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        array = np.random.default_rng(1).integers(0, 255, SIZE, np.uint8)
        handle = await producer.put(array, invocation="i", deadline=make_deadline())

        assert np.array_equal(await consumer.open_tensor(handle, invocation="i", deadline=make_deadline()), array)

        consumer.release(handle)
        b.sidecar.end_invocation("i")
        await wait_until(lambda: a.blocks == b.blocks == 0)


async def test_bytes_that_come_before_anybody_reads_them_are_kept_and_no_more_than_there_is_room_for():
    client, server = credentials.load_tls(*node_files("a"))
    streams: asyncio.Queue[TlsStream] = asyncio.Queue()
    listening = await asyncio.get_running_loop().create_server(
        lambda: TlsStream(NoArena(), streams.put_nowait), "127.0.0.1", 0, ssl=server
    )
    reader = await open_stream(listening.sockets[0].getsockname(), client, NoArena())
    writer = await streams.get()
    sent_bytes, received_bytes = np.random.default_rng(2).bytes(40 * EARLY_BYTES), bytearray(40 * EARLY_BYTES)
    writing = asyncio.create_task(writer.write(sent_bytes))
    await asyncio.sleep(0.1)  # the buffers are full

    ends = (64, EARLY_BYTES, EARLY_BYTES + 1, len(received_bytes))
    for start, end in zip((0, *ends), ends, strict=False):
        await asyncio.wait_for(reader.read_into(memoryview(received_bytes)[start:end], lambda: None), 10.0)
    await writing
    writer.abort()

    assert received_bytes == sent_bytes
    with pytest.raises(OSError):
        await asyncio.wait_for(reader.read_into(memoryview(received_bytes), lambda: None), 10.0)
    with pytest.raises(OSError):
        await reader.write(b"x")
    reader.abort()
    listening.close()


async def test_a_certificate_of_another_node_is_refused(tmp_path):
    async with (
        two_tls_nodes(tmp_path, b_uses="a") as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())

        with pytest.raises(NodeUnreachable):
            await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())

        assert a.counters["sent_bytes_total"] == 0


async def test_who_speaks_without_tls_is_never_served(tmp_path):
    async with two_tls_nodes(tmp_path, connect_seconds=1.0) as (a, _), await a.client() as producer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        plain = await start_node("c", tmp_path, peer_config(connect_seconds=1.0))
        introduce_nodes(a, plain)
        async with await plain.client() as consumer:
            with pytest.raises(NodeUnreachable):
                await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())
        await plain.sidecar.stop()
        stream = await dial_node(a)
        await stream.write(b"x" * 100)
        await read_rest(stream)

        assert a.counters["sent_bytes_total"] == 0


def test_files_are_checked_at_the_start(tmp_path):
    ca, certificate, key = node_files("a")
    with pytest.raises(BadRequest, match="all three"):
        credentials.load_tls(ca, certificate, "")
    with pytest.raises(BadRequest, match="cannot be used"):
        credentials.load_tls(ca, certificate, str(KEY))
    with pytest.raises(BadRequest, match="cannot be used"):
        credentials.load_tls(str(tmp_path / "no"), str(CERTIFICATE), key)
    short = tmp_path / "secret"
    short.write_text("guess")
    with pytest.raises(BadRequest, match="5 bytes"):
        credentials.read_secret(str(short))
    with pytest.raises(BadRequest, match="cannot be read"):
        credentials.read_secret(str(tmp_path / "no"))
