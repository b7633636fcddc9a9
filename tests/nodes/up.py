"""``omnibus up`` over namespaces: ``python -m tests.nodes.up up ... --nodes 3``; its first node is the hub.

``TEST_NODES`` holds, as JSON, the addresses of all nodes on both cables and the commands that enter all but the first.
Executors are processes of their own, since a fork server bears them where it is itself.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omnibus.cli import main as run_command
from omnibus.cli import up
from omnibus.process.spec import ProcessSpec
from omnibus.up import infra
from omnibus.up.nodes import Nodes
from omnibus.up.stack import Stack
from tests.nodes.namespaces import BUS, DATA

_PLACES: list[dict[str, Any]] = json.loads(os.environ.get("TEST_NODES", "[]"))


class NamespaceNodes(Nodes):
    """Nodes that reach each other by cables, and NATS and Valkey in the hub."""

    servers: Mapping[str, str]

    def client_env(self, index: int) -> Mapping[str, str]:
        env = dict(super().client_env(index))
        if index:
            hub = _PLACES[0][BUS]
            env |= {name: url.replace(infra.LOOPBACK, hub) for name, url in self.servers.items()}
        return env

    def sidecar_env(self, index: int) -> Mapping[str, str]:
        return {**super().sidecar_env(index), "OMNIBUS_SIDECAR_HOST": str(_PLACES[index][DATA])}

    def place_executor(self, spec: ProcessSpec) -> ProcessSpec:
        return self.enter_node(super().place_executor(spec))

    def enter_node(self, spec: ProcessSpec) -> ProcessSpec:
        """``spec`` as a process in the namespaces of its node."""
        name = spec.env["OMNIBUS_SIDECAR_NODE"]
        index = next(index for index in range(self.count) if self.client_env(index)["OMNIBUS_SIDECAR_NODE"] == name)
        # Health endpoints are on the loopback of a node, where the supervisor does not reach them.
        return replace(spec, argv=(*_PLACES[index]["enter"], *spec.argv), alive=None)


class NamespaceStack(Stack):
    """A stack whose servers all nodes reach."""

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.nats, self.valkey = _open_server(self.nats), _open_server(self.valkey)
        nodes = NamespaceNodes(self._nodes.count)
        nodes.__dict__.update(vars(self._nodes))  # prepared already
        nodes.servers = {"OMNIBUS_BUS_URL": self.nats.url, "OMNIBUS_STORE_URL": self.valkey.url}
        self._nodes = nodes

    def _sidecar_spec(self, index: int) -> ProcessSpec:
        spec = super()._sidecar_spec(index)
        assert isinstance(self._nodes, NamespaceNodes)
        return self._nodes.enter_node(spec)


def _open_server(server: infra.InfraServer) -> infra.InfraServer:
    argv = tuple("0.0.0.0" if word == infra.LOOPBACK else word for word in server.spec.argv)
    return replace(server, spec=replace(server.spec, argv=argv))


if __name__ == "__main__":
    up.Stack = NamespaceStack  # type: ignore[misc]
    sys.exit(run_command(sys.argv[1:]))
