"""Settings of a sidecar. The service's entry point fills them from the environment."""

import ssl
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerConfig:
    """Settings of the pulls between this node and others.

    host, port        Address on which to serve other sidecars; port 0 takes a free one.
    secret            Secret shared by all nodes; empty only with TLS.
    tls_client        Contexts of mutual TLS; both or neither.
    tls_server
    transport         Transport of large pulls, tcp or ucx; ucx not with TLS.
    links             Most data connections to one node, in addition to one for small tensors.
    incoming          Share of the arena that blocks of other nodes may take.
    connect_seconds   Longest time for a connection and its handshake.
    stall_seconds     Longest time without progress.
    ping_seconds      Time between two pings of a node.
    """

    host: str
    port: int = 0
    secret: bytes = b""
    tls_client: ssl.SSLContext | None = None
    tls_server: ssl.SSLContext | None = None
    transport: str = "tcp"
    links: int = 4
    incoming: float = 0.5
    connect_seconds: float = 2.0
    stall_seconds: float = 2.0
    ping_seconds: float = 0.5

    @property
    def silence_seconds(self) -> float:
        """Longest time without a ping from a node that pulls here."""
        return self.ping_seconds + self.stall_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class SidecarConfig:
    """Settings of one node's sidecar.

    node           Name of this node; handles carry it.
    socket         Path of the control socket (at most 107 bytes).
    arena          File name of the arena, unique on the machine.
    size           Bytes of the arena; memory is allocated on first use.
    directory      A tmpfs that every client sees under the same path.
    clear_on_free  Overwrite freed data with zeros; costs one pass over the bytes.
    grace          Seconds that a cancelled or expired block waits for a client that still has it open.
    max_wait       Longest wait for memory, in seconds.
    max_waiting    Most requests that may wait for memory.
    max_lease      Longest lease, in seconds; later deadlines are cut.
    peers          Pulls between nodes; None on a single node.
    """

    node: str
    socket: str
    arena: str = "omnibus"
    size: int = 256 * MIB
    directory: str = "/dev/shm"
    clear_on_free: bool = False
    grace: float = 30.0
    max_wait: float = 60.0
    max_waiting: int = 1024
    max_lease: float = 3600.0
    peers: PeerConfig | None = None
