"""Network input between nodes: frames of strangers and of a malicious node."""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from omnibus.errors import ProtocolError
from omnibus.tensors import peer_protocol
from omnibus.tensors.peer_protocol import (
    FRAME_BYTES,
    PeerFrame,
    PeerGreeting,
    PeerVerb,
    PeerWelcome,
    UcxAddress,
    encode_peer_frame,
    encode_peer_text,
)
from tests.fuzz import corpus
from tests.fuzz.mutate import EDGES, mutate_bytes
from tests.fuzz.profile import limit_examples
from tests.unit.sidecar import node as nodes
from tests.unit.sidecar.peers.pair import two_nodes
from tests.unit.sidecar.peers.raw import connect_greeted, dial_node

GREETING = PeerGreeting("raw", 1, "ab" * 16, "data")
HELLO = encode_peer_text(PeerVerb.HELLO, GREETING)
TEXTS = [
    HELLO,
    encode_peer_text(PeerVerb.WELCOME, PeerWelcome(GREETING, "0" * 64)),
    encode_peer_text(PeerVerb.PROVE, "0" * 64),
    encode_peer_text(PeerVerb.REFUSED, "no"),
    encode_peer_text(PeerVerb.UCX, UcxAddress("1.0", b"abc")),
]
DECODERS = (
    peer_protocol.decode_greeting,
    peer_protocol.decode_welcome,
    peer_protocol.decode_ucx_address,
    peer_protocol.decode_words,
)
_NUMBERS = st.sampled_from([abs(each) % 2**64 for each in EDGES]) | st.integers(0, 64)
FRAMES = st.builds(
    lambda verb, request, block, generation, key, offset, nbytes, remaining, reads, status: encode_peer_frame(
        PeerFrame(verb, request, block, generation, key, offset, nbytes, remaining, reads, status)
    ),
    st.sampled_from([int(verb) for verb in PeerVerb]) | st.integers(0, 255),
    st.integers(0, 2**32 - 1), _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS,
    st.sampled_from([0.0, 1.0, 4e6]), st.integers(0, 65535), st.integers(0, 255),
)  # fmt: skip


@limit_examples(300)
@given(data=mutate_bytes(TEXTS) | FRAMES | st.binary(min_size=FRAME_BYTES, max_size=200))
def test_a_frame_of_another_node_is_read_or_refused(data: bytes):
    head, text = data[:FRAME_BYTES].ljust(FRAME_BYTES, b"\0"), data[FRAME_BYTES:]
    for decode, part in ((peer_protocol.decode_peer_frame, head), *((each, text) for each in DECODERS)):
        refusal = "fine"
        try:
            decode(part)
        except ProtocolError as error:
            refusal = str(error)
        assert 0 < len(refusal) < 2000


@corpus.try_saved("peer_frames", known=True)
@limit_examples(40, cost=8)
@given(data=st.lists(FRAMES, max_size=5).map(b"".join) | mutate_bytes([HELLO * 3, *TEXTS]), known=st.booleans())
def test_hostile_frames_cost_their_sender_the_connection_and_no_pull_of_others(data: bytes, known: bool):
    with corpus.save_failing("peer_frames", data):
        uvloop.run(_send_frames(data, known))


async def _send_frames(data: bytes, known: bool) -> None:
    """Send ``data`` to a node, with or without a handshake.

    The handshake is that of a node that is ``known``.
    """
    with tempfile.TemporaryDirectory() as name:
        async with two_nodes(Path(name)) as (a, b), asyncio.timeout(nodes.PATIENCE * 2):
            there, here = await a.client(), await b.client()
            handle = await there.put(np.arange(50, dtype=np.int32), invocation="i", deadline=nodes.make_deadline())
            stream = await (connect_greeted(a, name="liar") if known else dial_node(a))
            with suppress(OSError):  # it is cut off in the middle
                await stream.write(data)
            stream.abort()

            array = await here.open_tensor(handle, invocation="i", deadline=nodes.make_deadline())

            assert array.sum() == np.arange(50).sum()
            for client in (here, there):
                client.end_invocation("i")
                await client.stats()
            await nodes.wait_until(lambda: not a.blocks and not b.blocks)
            for client in (here, there):
                await client.close()
