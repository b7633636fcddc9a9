"""Join files: address and credentials with which a machine becomes a node of a running Omnibus.

A file has one secret. The password on the bus and the secret of sidecars are derived from it, so a changed file is
refused by both.
"""

import hmac
import os
import secrets
import stat
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from omnibus.bus.permissions import NODE_USER
from omnibus.errors import BadRequest
from omnibus.settings import BusSettings

_SECRET_BYTES = 32


class JoinFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of a join file. ``ca`` is the PEM of the authority that signed the bus's certificate."""

    bus: str
    secret: str
    ca: str = ""

    @property
    def bus_password(self) -> str:
        return derive_secret(self.secret, "bus")

    @property
    def sidecar_secret(self) -> str:
        return derive_secret(self.secret, "sidecar")

    @property
    def bus_host(self) -> tuple[str, int]:
        """Host and port of the first server."""
        address = urlsplit(self.bus.split(",")[0])
        return address.hostname or "", address.port or 4222

    def bus_settings(self, ca_file: str, seconds: float) -> BusSettings:
        """Return the connection of a node. ``ca_file`` has the content of ``ca``."""
        return BusSettings(
            url=self.bus,
            user=NODE_USER,
            password=self.bus_password,
            tls_ca=ca_file if self.ca else "",
            connect_timeout=seconds,
        )


def derive_secret(secret: str, purpose: str) -> str:
    """Return the secret for one purpose, from which the others cannot be computed."""
    return hmac.digest(secret.encode(), f"omnibus {purpose}".encode(), "sha256").hex()


def write_join_file(path: Path, join: JoinFile) -> None:
    """Write a file that only its owner can read, in place of an existing one."""
    write_private(path, msgspec.json.format(msgspec.json.encode(join)) + b"\n")


def read_join_file(path: Path) -> JoinFile:
    """Read a join file. Raises ``BadRequest`` with the file and its problem."""
    try:
        mode, body = path.stat().st_mode, path.read_bytes()
        join = msgspec.json.decode(body, type=JoinFile)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is not a file of `omnibus node token`: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise BadRequest(f"{path} contains a secret that other users can read: run `chmod 600 {path}`")
    if len(join.secret) < _SECRET_BYTES or not join.bus_host[0]:
        raise BadRequest(f"{path} has no address or secret: write it again with `omnibus node token`")
    return join


def shared_secret(path: Path) -> str:
    """Return the secret of all nodes in the file ``path``, which is created on first use. Raises ``BadRequest``."""
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, secrets.token_hex(_SECRET_BYTES).encode())
        secret = path.read_text().strip()
    except OSError as error:
        raise BadRequest(f"the secret of nodes in {path} cannot be used: {error.strerror}") from error
    if len(secret) < _SECRET_BYTES:
        raise BadRequest(f"the secret of nodes in {path} is too short: remove the file to create a new one")
    return secret


def write_private(path: Path, body: bytes) -> None:
    """Replace ``path`` by a file of mode 0600."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(body)
    fresh.replace(path)
