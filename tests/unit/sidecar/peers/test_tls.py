"""Pulls between nodes over mutual TLS: a certificate names the node that may use it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from omnibus.errors import BadRequest, NodeUnreachable
from services.sidecar.peers import credentials
from tests.certificates import CERTIFICATE, KEY, node_files
from tests.unit.sidecar.node import soon, until
from tests.unit.sidecar.peers.pair import Node, introduce, peer_config, start_node
from tests.unit.sidecar.peers.raw import dial, rest

SIZE = 3_000_000


@asynccontextmanager
async def two_tls_nodes(directory, b_uses: str = "b", **changes: object) -> AsyncIterator[tuple[Node, Node]]:
    nodes = []
    for name, files in (("a", "a"), ("b", b_uses)):
        client, server = credentials.load_tls(*node_files(files))
        config = peer_config(tls_client=client, tls_server=server, secret=b"", **changes)
        nodes.append(await start_node(name, directory, config))
    introduce(*nodes)
    try:
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            await node.sidecar.stop()


async def test_bytes_are_the_same_over_tls_and_freed_on_both(tmp_path):
    async with two_tls_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        sent = np.random.default_rng(1).integers(0, 255, SIZE, np.uint8)
        handle = await producer.put(sent, invocation="i", deadline=soon())

        assert np.array_equal(await consumer.open_tensor(handle, invocation="i", deadline=soon()), sent)

        consumer.release(handle)
        b.sidecar.end_invocation("i")
        await until(lambda: a.blocks == b.blocks == 0)


async def test_a_certificate_of_another_node_is_refused(tmp_path):
    async with (
        two_tls_nodes(tmp_path, b_uses="a") as (a, b),
        await a.client() as producer,
        await b.client() as consumer,
    ):
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=soon())

        with pytest.raises(NodeUnreachable):
            await consumer.open_tensor(handle, invocation="i", deadline=soon())

        assert a.counters["sent_bytes_total"] == 0


async def test_who_speaks_without_tls_is_never_served(tmp_path):
    async with two_tls_nodes(tmp_path, connect_seconds=1.0) as (a, _), await a.client() as producer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=soon())
        plain = await start_node("c", tmp_path, peer_config(connect_seconds=1.0))
        introduce(a, plain)
        async with await plain.client() as consumer:
            with pytest.raises(NodeUnreachable):
                await consumer.open_tensor(handle, invocation="i", deadline=soon())
        await plain.sidecar.stop()
        stream = await dial(a)
        await stream.write(b"x" * 100)
        await rest(stream)

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
