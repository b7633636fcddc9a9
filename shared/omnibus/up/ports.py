"""Loopback ports for servers that this machine starts itself."""

import random
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from omnibus.errors import BadRequest, Conflict

LOOPBACK = "127.0.0.1"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_COUNT = 12_000
_CANDIDATE_COUNT = 200


def free_ports(count: int) -> list[int]:
    """Return ``count`` different unused TCP ports on 127.0.0.1. Raises ``OSError`` if too few are free."""
    with held_ports(count) as ports:
        return ports


@contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Return ``count`` different unused TCP ports on 127.0.0.1, which on Linux are free for their servers alone.

    Until the context ends, a server that sets SO_REUSEADDR can listen on them, as NATS, Valkey and uvicorn do, but
    they are not chosen again: two systems may start at the same time, and a server may be restarted. The ports are
    below the kernel's ephemeral range. A client that reconnects to a dead server on an ephemeral loopback port can
    connect to itself. That would block the port for the server's restart. Raises ``OSError`` if too few ports are free.
    """
    first = _first_ephemeral()
    candidates = random.sample(range(max(1024, first - _PORT_COUNT), first), _CANDIDATE_COUNT)
    ports: list[int] = []
    with ExitStack() as holders:
        for port in candidates:
            if len(ports) < count and (holder := _hold(port)):
                holders.enter_context(holder)
                ports.append(port)
        if len(ports) < count:
            raise OSError(f"only {len(ports)} of {count} free ports found below {first} on {LOOPBACK}")
        if sys.platform != "linux":  # there a bound socket keeps servers away as well
            holders.close()
        yield ports


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


def _hold(port: int) -> socket.socket | None:
    """Return a socket that is bound to the port, but does not listen; None if the port is in use."""
    holder = socket.socket()
    try:
        holder.bind((LOOPBACK, port))  # without SO_REUSEADDR, which would also find a port free that another one holds
    except OSError:
        holder.close()
        return None
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder


def _bind(port: int) -> None:
    """Bind the port and release it. Raises ``OSError`` and ``OverflowError``."""
    with socket.socket() as probe:
        # Servers set SO_REUSEADDR too: a port in TIME_WAIT is free for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
