"""Loopback ports for servers that this machine starts itself."""

import random
import socket
from pathlib import Path

from omnibus.errors import BadRequest, Conflict

LOOPBACK = "127.0.0.1"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_COUNT = 12_000
_CANDIDATE_COUNT = 200


def free_ports(count: int) -> list[int]:
    """Return ``count`` different unused TCP ports on 127.0.0.1.

    The ports are below the kernel's ephemeral range. A client that reconnects to a dead server on an ephemeral loopback
    port can connect to itself. That would block the port for the server's restart. Raises ``OSError`` if too few ports
    are free.
    """
    first = _first_ephemeral()
    candidates = random.sample(range(max(1024, first - _PORT_COUNT), first), _CANDIDATE_COUNT)
    ports: list[int] = []
    for port in candidates:
        if len(ports) == count:
            break
        if _can_bind(port):
            ports.append(port)
    if len(ports) < count:
        raise OSError(f"only {len(ports)} of {count} free ports found below {first} on {LOOPBACK}")
    return ports


def require_free_port(port: int) -> None:
    """Raise ``BadRequest`` or ``Conflict`` if a server cannot listen on 127.0.0.1:``port``."""
    try:
        _bind(port)
    except OverflowError:
        raise BadRequest(f"port {port} must be a number from 1 to 65535, or 0 for a free one") from None
    except PermissionError:
        raise BadRequest(f"port {port} is reserved for root: choose one from 1024 on with --port") from None
    except OSError as error:
        raise Conflict(
            f"port {port} of {LOOPBACK} is in use ({error.strerror}): choose another one with --port, 0 for a free one"
        ) from None


def _first_ephemeral() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def _can_bind(port: int) -> bool:
    try:
        _bind(port)
    except OSError:
        return False
    return True


def _bind(port: int) -> None:
    """Bind the port and release it. Raises ``OSError`` and ``OverflowError``."""
    with socket.socket() as probe:
        # Servers set SO_REUSEADDR too: a port in TIME_WAIT is free for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
