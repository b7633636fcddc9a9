"""Rejected peers: without the secret, with garbage, too slow, too many."""

import asyncio
import os
import socket
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

from omnibus.errors import NodeUnreachable, ProtocolError, Unauthorized
from omnibus.tensors.peer_protocol import (
    FRAME_BYTES,
    PeerFrame,
    PeerGreeting,
    PeerVerb,
    PullStatus,
    decode_welcome,
    encode_peer_frame,
    encode_peer_text,
    make_proof,
)
from omnibus_sidecar.peers.handshake import (
    MAX_ADDRESS_HANDSHAKES,
    MAX_HANDSHAKES,
    Handshakes,
    PeerIdentity,
    greet_listener,
)
from omnibus_sidecar.peers.stream import read_frame, read_text
from tests.unit.sidecar.node import make_deadline, wait_until
from tests.unit.sidecar.peers.pair import introduce_nodes, peer_config, start_node, two_nodes
from tests.unit.sidecar.peers.raw import connect_greeted, dial_node, read_rest, request_block
from tests.unit.sidecar.peers.test_tls import two_tls_nodes


async def test_two_nodes_with_different_secrets_do_not_exchange_anything(tmp_path):
    a = await start_node("a", tmp_path, peer_config())
    b = await start_node("b", tmp_path, peer_config(secret=b"another secret of a node"))
    introduce_nodes(a, b)
    async with await a.client() as producer, await b.client() as consumer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())

        with pytest.raises(NodeUnreachable, match="secret"):
            await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())

        assert a.counters["sent_bytes_total"] == 0
    await b.sidecar.stop()
    await a.sidecar.stop()


async def test_a_stranger_with_a_wrong_proof_is_refused(tmp_path):
    async with two_nodes(tmp_path) as (a, _):
        stream = await dial_node(a)
        await stream.write(encode_peer_text(PeerVerb.HELLO, PeerGreeting("raw", 1, "n", "data")))
        frame = await read_frame(stream)
        await read_text(stream, frame.nbytes)
        await stream.write(encode_peer_text(PeerVerb.PROVE, "0" * 64))

        assert (await read_frame(stream)).verb == PeerVerb.REFUSED
        await wait_until(lambda: a.counters["refused_peers_total"] == {"unauthorized": 1})


async def test_a_proof_of_another_connection_is_refused(tmp_path):
    async with two_nodes(tmp_path) as (a, _):
        greeting = PeerGreeting("raw", 1, "n", "data")
        proofs = []
        for _ in range(2):
            stream = await dial_node(a)
            await stream.write(encode_peer_text(PeerVerb.HELLO, greeting))
            frame = await read_frame(stream)
            welcome = decode_welcome(await read_text(stream, frame.nbytes))
            proofs.append(make_proof(b"the same for all nodes", "dialler", greeting, welcome.greeting))
            await stream.write(encode_peer_text(PeerVerb.PROVE, proofs[0]))
            answer = await read_frame(stream)
        assert answer.verb == PeerVerb.REFUSED


async def test_the_listeners_own_proof_is_not_one_of_a_dialler(tmp_path):
    async with two_nodes(tmp_path) as (a, _):
        stream = await dial_node(a)
        await stream.write(encode_peer_text(PeerVerb.HELLO, PeerGreeting("raw", 1, "n", "data")))
        frame = await read_frame(stream)
        welcome = decode_welcome(await read_text(stream, frame.nbytes))
        await stream.write(encode_peer_text(PeerVerb.PROVE, welcome.proof))

        assert (await read_frame(stream)).verb == PeerVerb.REFUSED


@pytest.mark.parametrize(
    "garbage",
    [
        os.urandom(4096),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 8,
        encode_peer_frame(PeerFrame(PeerVerb.GET, nbytes=1 << 40)),
        encode_peer_frame(PeerFrame(PeerVerb.HELLO, nbytes=1 << 40)),
        encode_peer_text(PeerVerb.HELLO, {"node": "a"}),
        encode_peer_text(PeerVerb.HELLO, PeerGreeting("x" * 300, 1, "n", "data")),
        encode_peer_text(PeerVerb.HELLO, PeerGreeting("x", 1, "n", "everything")),
    ],
    ids=["random", "http", "a pull without a handshake", "a long greeting", "no greeting", "a long name", "a purpose"],
)
async def test_garbage_is_cut_off_at_once(tmp_path, garbage):
    async with two_nodes(tmp_path) as (a, _):
        stream = await dial_node(a)
        await stream.write(garbage)

        await asyncio.wait_for(read_rest(stream), 5.0)

        assert sum(a.counters["refused_peers_total"].values()) == 1


async def test_a_later_version_is_told_which_one_is_spoken_here(tmp_path):
    async with two_nodes(tmp_path) as (a, _):
        stream = await dial_node(a)
        frame = bytearray(encode_peer_text(PeerVerb.HELLO, PeerGreeting("raw", 1, "n", "data")))
        frame[2] = 99
        await stream.write(bytes(frame))

        answer = await read_frame(stream)

        assert answer.verb == PeerVerb.REFUSED
        assert b"version 99" in await read_text(stream, answer.nbytes)


async def test_slow_handshakes_end_in_time_and_keep_nobody_out(tmp_path):
    async with two_nodes(tmp_path, connect_seconds=1.0) as (a, b):
        slow = [socket.create_connection(("127.0.0.1", a.sidecar.peers.port)) for _ in range(MAX_HANDSHAKES + 10)]
        await asyncio.sleep(1.5)

        async with await a.client() as producer, await b.client() as consumer:
            handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
            assert (await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())).sum() == 1000
        for connection in slow:
            connection.close()


@pytest.mark.parametrize("pair", [two_nodes, two_tls_nodes])
async def test_silent_connections_make_room_for_right_ones_before_their_time_is_over(tmp_path, pair):
    async with pair(tmp_path, connect_seconds=60.0) as (a, b):
        silent = [socket.create_connection(("127.0.0.1", a.sidecar.peers.port)) for _ in range(2 * MAX_HANDSHAKES)]
        await wait_until(
            lambda: a.counters["refused_peers_total"].get("busy", 0) >= len(silent) - MAX_ADDRESS_HANDSHAKES
        )

        async with await a.client() as producer, await b.client() as consumer:
            handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
            assert (await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())).sum() == 1000

        silent[0].settimeout(5.0)
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""  # the oldest was cut off
        for connection in silent:
            connection.close()


async def hold_handshake(handshakes: Handshakes, address: str) -> None:
    with handshakes.admit(address, asyncio.current_task()):
        await asyncio.Event().wait()


async def test_the_oldest_handshake_of_the_address_with_most_makes_room():
    refusal_counts: Counter[str] = Counter()
    handshakes = Handshakes(refusal_counts)

    async def begin_handshake(address: str) -> asyncio.Task[None]:
        task = asyncio.create_task(hold_handshake(handshakes, address))
        await asyncio.sleep(0)
        return task

    right = await begin_handshake("10.0.0.1")
    crowd = [
        await begin_handshake(f"10.0.1.{number // MAX_ADDRESS_HANDSHAKES}") for number in range(MAX_HANDSHAKES - 1)
    ]
    newest = [await begin_handshake("10.0.0.2"), await begin_handshake("10.0.1.0")]
    await asyncio.sleep(0)

    assert refusal_counts == {"busy": 2}
    assert [place for place, task in enumerate(crowd) if task.cancelled()] == [0, MAX_ADDRESS_HANDSHAKES]
    assert not any(task.done() for task in (right, *newest))
    for task in (right, *crowd, *newest):
        task.cancel()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"key": 1}, PullStatus.STALE),
        ({"generation": 1}, PullStatus.STALE),
        ({"block": 99}, PullStatus.STALE),
        ({"offset": 1}, PullStatus.OUTSIDE),
        ({"nbytes": 1001}, PullStatus.OUTSIDE),
        ({"offset": 1 << 63}, PullStatus.OUTSIDE),
        ({"remaining": 0}, PullStatus.LATE),
    ],
)
async def test_a_node_reads_only_what_it_may(tmp_path, changes, status):
    async with two_nodes(tmp_path) as (a, _), await a.client() as producer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        stream = await connect_greeted(a)

        assert (await request_block(stream, handle, **changes)).status == status
        assert (await request_block(stream, handle)).status == PullStatus.OK  # the connection is as good as before
        assert await read_text(stream, 1000) == bytes([1] * 1000)


async def test_a_frame_out_of_turn_costs_the_connection(tmp_path):
    async with two_nodes(tmp_path) as (a, _), await a.client() as producer:
        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        stream = await connect_greeted(a)
        await request_block(stream, handle)
        await stream.write(encode_peer_frame(PeerFrame(PeerVerb.DONE, 99)))

        assert len(await asyncio.wait_for(read_rest(stream), 5.0)) <= 1000 + FRAME_BYTES
        await wait_until(lambda: a.counters["refused_peers_total"] == {"protocol_error": 1})


async def test_nobody_is_served_under_the_name_of_a_node_that_another_answers_for(tmp_path):
    async with two_nodes(tmp_path) as (a, _):
        with pytest.raises((Unauthorized, ProtocolError)):
            stream = await dial_node(a)
            await greet_listener(
                stream, PeerIdentity(node="raw", boot=1, secret=b"the same for all nodes"), "c", "data"
            )
