"""Options with which ``omnibus up`` lets other machines join."""

from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from omnibus.errors import BadRequest
from omnibus.up.infra import BusAccess
from omnibus.up.join import JoinFile, derive_secret
from omnibus.up.machine import NodeOptions

#: Port of the NATS server for other machines.
BUS_PORT = 4222


class ListenOptions(NamedTuple):
    """Address for other machines, the secret of all nodes, and this machine as a node. ``port`` 0 is a free one.

    ``certificate`` and ``key`` are PEM files for TLS on the bus; both or neither.
    """

    host: str
    port: int
    secret: str
    node: NodeOptions
    certificate: str = ""
    key: str = ""

    @property
    def sidecar_secret(self) -> str:
        return derive_secret(self.secret, "sidecar")

    @property
    def bus_access(self) -> BusAccess:
        return BusAccess(self.host, derive_secret(self.secret, "bus"), self.certificate, self.key)

    def join_file(self, port: int) -> JoinFile:
        """Return the join file, with the actual ``port`` of the bus. Raises ``BadRequest`` for an unreadable
        certificate."""
        try:
            ca = Path(self.certificate).read_text() if self.certificate else ""
        except OSError as error:
            raise BadRequest(f"OMNIBUS_UP_TLS_CERT={self.certificate} cannot be read: {error.strerror}") from error
        return JoinFile(f"{'tls' if ca else 'nats'}://{self.host}:{port}", self.secret, ca)


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST`` or ``HOST:PORT``. Raises ``BadRequest``."""
    host, _, port = text.partition(":")
    if not host or _is_unspecified(host):
        raise BadRequest(f"--listen {text!r} must be an address of this machine that the others reach, as 10.0.0.1")
    if port and not port.isdecimal():
        raise BadRequest(f"--listen {text!r}: the port must be a number")
    return host, int(port) if port else BUS_PORT


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:  # a name
        return False
