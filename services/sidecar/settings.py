"""Settings of a sidecar. The service's entry point fills them from the environment."""

import ssl
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerConfig:
    """Settings of the pulls between this node and others.

    host, port        address at which other sidecars are served; port 0 takes a free one
    secret            shared by all nodes; empty only with TLS
    tls_client        contexts of mutual TLS; both or neither
    tls_server
    transport         tcp or ucx: what carries the bytes of large pulls; ucx not with TLS
    links             most data connections to one node, beside one for small tensors
    incoming          share of the arena that blocks of other nodes may take
    connect_seconds   longest time for a connection and its handshake
    stall_seconds     longest time without a byte or an answer
    ping_seconds      time between two questions whether a node lives
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
        """Longest time without a ping of a node that pulls from here."""
        return self.ping_seconds + self.stall_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class SidecarConfig:
    """Settings of one node's sidecar.

    node           name of this node; handles carry it
    socket         path of the control socket (at most 107 bytes)
    arena          file name of the arena, unique on the machine
    size           bytes of the arena; memory is taken when it is first used
    directory      a tmpfs that every client sees under the same path
    clear_on_free  overwrite freed data with zeros: costs one pass over the bytes
    grace          seconds that a cancelled or expired block waits for a client that still has it open
    max_wait       longest wait for memory, in seconds
    max_waiting    most requests that may wait for memory
    max_lease      longest lease, in seconds; later deadlines are cut
    peers          pulls between nodes; None: this node has no others
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
