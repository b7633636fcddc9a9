"""A misbehaving peer that writes frames by hand."""

import asyncio
import socket

from omnibus.tensors.handle import Handle
from omnibus.tensors.peer_protocol import PeerFrame, PeerVerb
from omnibus_sidecar.peers.handshake import PeerIdentity, greet_listener
from omnibus_sidecar.peers.plain_stream import PlainStream
from omnibus_sidecar.peers.stream import PeerStream, read_frame, write_frame
from tests.unit.sidecar.peers.pair import SECRET, PeerNode


class NoArena:
    """The memory of a peer without an arena."""

    def bytes_at(self, offset: int, nbytes: int) -> memoryview:
        raise AssertionError


def port_of(node: PeerNode) -> int:
    assert node.sidecar.peers is not None
    return node.sidecar.peers.port


async def dial_node(node: PeerNode, receive_bytes: int = 0) -> PlainStream:
    """Return a connection to ``node`` before any handshake; ``receive_bytes`` is the size of its receive buffer."""
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port_of(node)))
    return PlainStream(connection, NoArena())


async def connect_greeted(
    node: PeerNode, purpose: str = "data", name: str = "raw", secret: bytes = SECRET, receive_bytes: int = 1 << 16
) -> PlainStream:
    """Return a connection to ``node`` after its handshake."""
    stream = await dial_node(node, receive_bytes)
    await greet_listener(stream, PeerIdentity(node=name, boot=1, secret=secret), node.name, purpose)
    return stream


async def request_block(stream: PeerStream, handle: Handle, **changes: int) -> PeerFrame:
    """Request a block and return the head of the answer."""
    get = PeerFrame(PeerVerb.GET, 1, handle.id, handle.generation, handle.key, 0, handle.nbytes, 30.0)
    await write_frame(stream, get._replace(**changes))
    return await read_frame(stream)


async def read_rest(stream: PlainStream) -> bytes:
    """Return all bytes until the connection is closed or reset; ``stream`` reads nothing afterwards."""
    buffer = bytearray()
    while True:
        try:
            piece = await asyncio.get_running_loop().sock_recv(stream._socket, 1 << 20)
        except OSError:
            return bytes(buffer)
        if not piece:
            return bytes(buffer)
        buffer += piece
