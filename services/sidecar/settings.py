"""Settings of a sidecar. The service's entry point fills them from the environment."""

from dataclasses import dataclass

MIB = 1 << 20


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
