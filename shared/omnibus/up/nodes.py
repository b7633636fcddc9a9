"""Several nodes on one machine. Each has a sidecar and an arena, and reaches the others by TCP over loopback."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from omnibus.cluster.presence import CELL
from omnibus.process.spec import ProcessSpec

#: Prefix of the names of nodes.
NODE = "local"
_HOST = "127.0.0.1"
_SECRET_BYTES = 32


class Nodes:
    """``count`` nodes, and the placement of executors on them. Call ``prepare`` first.

    The first one has the given ``name``, or one of this process.
    """

    def __init__(self, count: int, name: str = "") -> None:
        self.count = count
        self._name = name
        self._directory = Path()
        self._places: dict[str, int] = {}

    def prepare(self, directory: Path) -> None:
        """Create the files of the nodes in ``directory``, that of the run."""
        self._directory = directory
        if self.count > 1:
            descriptor = os.open(self._secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(_SECRET_BYTES))

    def socket(self, index: int) -> str:
        """Return the path of the socket of a node's sidecar."""
        return str(self._directory / f"{sidecar_name(index)}.sock")

    def client_env(self, index: int) -> Mapping[str, str]:
        """Return the environment of a service on a node."""
        node = self._name or f"{NODE}-{os.getpid()}"
        return {
            "OMNIBUS_SIDECAR_SOCKET": self.socket(index),
            "OMNIBUS_SIDECAR_NODE": f"{node}-{index}" if index else node,
        }

    def sidecar_env(self, index: int) -> Mapping[str, str]:
        """Return the environment of a node's sidecar."""
        if self.count == 1:
            return self.client_env(index)
        return {
            **self.client_env(index),
            "OMNIBUS_SIDECAR_HOST": _HOST,
            "OMNIBUS_SIDECAR_PORT": "0",
            "OMNIBUS_SIDECAR_SECRET_FILE": str(self._secret_file),
        }

    def place_executor(self, spec: ProcessSpec) -> ProcessSpec:
        """Return ``spec`` on its node. Nodes take turns in the order in which executors first appear, and an executor
        keeps its node. Executors of a cell are on one node."""
        if self.count == 1:
            return spec
        cell = spec.env.get(CELL, "")
        name = f"{spec.env['OMNIBUS_EXECUTOR_MODEL']}@{cell}" if cell else spec.name.partition("@")[0]
        index = self._places.setdefault(name, len(self._places) % self.count)
        after = tuple(sidecar_name(index) if other == sidecar_name(0) else other for other in spec.after)
        return replace(spec, env={**spec.env, **self.client_env(index)}, after=after)

    @property
    def _secret_file(self) -> Path:
        return self._directory / "nodes.secret"


def sidecar_name(index: int) -> str:
    """Return the name of a sidecar's process."""
    return f"sidecar-{index}" if index else "sidecar"
