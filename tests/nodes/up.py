"""``omnibus up`` over namespaces, whose first node is the hub.

    python -m tests.nodes.up up ... --nodes 3

``TEST_NODES`` contains, as JSON, the addresses of all nodes on both cables, and the commands that enter all but the
first. A fork server forks in its own node, so each node has one for executors, and sidecars are not forked.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omnibus.cli import main as run_command
from omnibus.cli import up
from omnibus.process.spec import ProcessSpec, python_command
from omnibus.up import fork_client, infra
from omnibus.up.fork_servers import EXECUTOR_MODULES, EXECUTORS
from omnibus.up.health import wait_for_socket
from omnibus.up.nodes import Nodes
from omnibus.up.stack import Stack
from tests.nodes.namespaces import BUS, DATA

_PLACES: list[dict[str, Any]] = json.loads(os.environ.get("TEST_NODES", "[]"))


class NamespaceNodes(Nodes):
    """Nodes connected by cables, with NATS and Valkey in the hub."""

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
        process = super().place_executor(spec)
        *_, module = process.argv
        fork_server = self.fork_server(self._node_of(process))
        command = fork_client.fork_server_command(fork_server, module)  # a proxy: it enters the node first
        return self.enter_node(replace(process, argv=command, fork_server=""))

    def fork_server(self, index: int) -> str:
        """The socket of the fork server of a node."""
        return str(self._directory / f"fork-server-{index}.sock")

    def enter_node(self, spec: ProcessSpec) -> ProcessSpec:
        """``spec`` as a process in the namespaces of its node."""
        # Health endpoints are on the loopback of a node, where the supervisor does not reach them.
        return replace(spec, argv=(*_PLACES[self._node_of(spec)]["enter"], *spec.argv), alive=None)

    def _node_of(self, spec: ProcessSpec) -> int:
        name = spec.env["OMNIBUS_SIDECAR_NODE"]
        return next(index for index in range(self.count) if self.client_env(index)["OMNIBUS_SIDECAR_NODE"] == name)


class NamespaceStack(Stack):
    """A stack whose servers all nodes can reach."""

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.nats, self.valkey = _open_server(self.nats), _open_server(self.valkey)
        nodes = NamespaceNodes(self._nodes.count)
        nodes.__dict__.update(vars(self._nodes))  # prepared already
        nodes.servers = {"OMNIBUS_BUS_URL": self.nats.url, "OMNIBUS_STORE_URL": self.valkey.url}
        self._nodes = nodes

    def _service_specs(self) -> list[ProcessSpec]:
        return [*super()._service_specs(), *(self._node_fork_server(index) for index in range(self._nodes.count))]

    def _node_fork_server(self, index: int) -> ProcessSpec:
        assert isinstance(self._nodes, NamespaceNodes)
        socket = self._nodes.fork_server(index)
        usual = self._fork_server_spec(EXECUTORS, socket, EXECUTOR_MODULES)
        return self._nodes.enter_node(
            replace(
                usual,
                name=f"fork-server-{index}",
                argv=python_command("tests.nodes.fork_server", socket, *EXECUTOR_MODULES),
                env={**usual.env, **self._nodes.client_env(index)},
                ready=lambda: wait_for_socket(socket),
            )
        )

    def _sidecar_spec(self, index: int) -> ProcessSpec:
        spec = super()._sidecar_spec(index)
        assert isinstance(self._nodes, NamespaceNodes)
        return self._nodes.enter_node(replace(spec, argv=python_command("omnibus_sidecar"), fork_server=""))


def _open_server(server: infra.InfraServer) -> infra.InfraServer:
    argv = tuple("0.0.0.0" if word == infra.LOOPBACK else word for word in server.spec.argv)
    return replace(server, spec=replace(server.spec, argv=argv))


if __name__ == "__main__":
    up.Stack = NamespaceStack  # type: ignore[misc]
    sys.exit(run_command(sys.argv[1:]))
