"""``omnibus node`` and ``omnibus nodes``: machines of one Omnibus without Kubernetes."""

import argparse
import asyncio
import getpass
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from omnibus.bus import Bus, subjects
from omnibus.bus.permissions import NODE_USER, password_variable
from omnibus.cli.format.tables import size_text, table_lines
from omnibus.cli.invocations import connect_bus
from omnibus.cli.output import print_json, print_names
from omnibus.cluster.agents import GONE, LOST, AgentDirectory, AgentStatus
from omnibus.cluster.nodes import NodeDirectory, NodeLink
from omnibus.errors import BadRequest, DeadlineExceeded, NotFound
from omnibus.settings import UpSettings, read_settings
from omnibus.up import runs
from omnibus.up.agent import DRAIN
from omnibus.up.join import JoinFile, read_join_file, shared_secret, write_join_file
from omnibus.up.listening import ListenOptions, parse_listen
from omnibus.up.machine import JoinedMachine, NodeOptions

#: Seconds in which agents answer, and between two looks at a draining one.
_ANSWER_SECONDS, _POLL_SECONDS = 1.5, 0.2
_NO_NODES = "no other machine has joined: `omnibus up --listen ADDRESS` lets others join"
_UNIT = """[Unit]
Description=Omnibus node
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
User={user}
Restart=always
RestartSec=2
TimeoutStopSec=60
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
"""


async def run_node(options: argparse.Namespace) -> int:
    """Run this machine as a node until a signal. Raises ``BadRequest`` and ``Unauthorized`` for a wrong join file."""
    join = read_join_file(Path(options.join))
    async with JoinedMachine(join, _node_options(options, options.host)) as machine:
        name = machine.agent.node
        if options.json:
            print_json({"node": name, "directory": str(machine.directory)})
        else:
            print(f"\nOmnibus node {name} is up   stop: Ctrl-C\n", flush=True)
        await machine.supervisor.run_until_signal()
    return 0


def listen_options(options: argparse.Namespace) -> ListenOptions:
    """Return the options of ``omnibus up --listen``."""
    host, port = parse_listen(options.listen)
    up = read_settings(UpSettings)
    if bool(up.tls_cert) != bool(up.tls_key):
        raise BadRequest("TLS on the bus needs OMNIBUS_UP_TLS_CERT and OMNIBUS_UP_TLS_KEY: set both, or none")
    return ListenOptions(
        host, port, shared_secret(_secret_file(up)), _node_options(options, host), up.tls_cert, up.tls_key
    )


async def write_token(options: argparse.Namespace) -> int:
    """Write a join file. Raises ``BadRequest`` if the run does not listen for other machines."""
    path, password = Path(options.file), {}
    if options.bus:
        secret = shared_secret(_secret_file(read_settings(UpSettings)))
        join = JoinFile(options.bus, secret, _read_text(options.ca) if options.ca else "")
        password = {password_variable(NODE_USER): join.bus_password}
    else:
        state = runs.read_state()
        if state.join is None:
            raise BadRequest(f"{state.name} is closed to other machines: start it with `omnibus up --listen ADDRESS`")
        join = state.join
    write_join_file(path, join)
    if options.json:
        print_json({"file": str(path), "bus": join.bus, **password})
        return 0
    for name, value in password.items():
        print(f"# for the server: the password of user {NODE_USER}, see `omnibus nats-config --nodes`")
        print(f"export {name}={value}")
    print(f"{path} is written: copy it to the other machines, and run `omnibus node join FILE` there", file=sys.stderr)
    return 0


async def print_unit(options: argparse.Namespace) -> int:
    """Print a systemd unit for this installation."""
    file = os.path.join(os.getcwd(), options.join)
    command = shlex.join([sys.executable, "-m", "omnibus.cli", "node", "join", file])
    unit = _UNIT.format(command=command, user=getpass.getuser())
    if options.json:
        print_json({"unit": unit})
    else:
        print(unit, end="")
    return 0


async def list_nodes(options: argparse.Namespace) -> int:
    """Print the machines of the cluster, their executors and links."""
    async with _watch_agents(options) as (_, agents, links):
        known = agents.known()
    if options.json:
        print_json({"nodes": list(known.values()), "links": [link._asdict() for link in links.links()]})
    elif options.quiet:
        print_names(known)
    else:
        print("\n".join(_list_lines(list(known.values()), links.links()) if known else [_NO_NODES]))
    return 0


async def drain_node(options: argparse.Namespace) -> int:
    """Drain a machine and wait until it has no executors. Raises ``NotFound`` and ``DeadlineExceeded``."""
    async with _watch_agents(options) as (bus, agents, _):
        if options.node not in agents.live():
            raise NotFound(f"no node {options.node} is up: `omnibus nodes` lists them")
        left = -1
        try:
            async with asyncio.timeout(options.within):
                while (status := agents.known()[options.node]).executors or status.state not in ("draining", GONE):
                    bus.publish(subjects.drain_subject(options.node), DRAIN)
                    if len(status.executors) != left and not options.json:
                        left = len(status.executors)
                        print(f"{options.node}: {left} executors to move", file=sys.stderr)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{options.node} still has executors after {options.within:g} s: `omnibus plan show` prints the reason"
            ) from None
    if options.json:
        print_json({"node": options.node, "state": "drained"})
    else:
        print(f"{options.node} is drained: stop it, or restart it to use it again")
    return 0


@asynccontextmanager
async def _watch_agents(options: argparse.Namespace) -> AsyncIterator[tuple[Bus, AgentDirectory, NodeDirectory]]:
    """Follow agents and sidecars, after a time for their answers."""
    bus = await connect_bus(options)
    try:
        agents, links = AgentDirectory(), NodeDirectory()
        await links.listen(bus)
        await agents.listen(bus)
        await asyncio.sleep(_ANSWER_SECONDS)
        yield bus, agents, links
    finally:
        await bus.drain()


def _list_lines(nodes: list[AgentStatus], links: list[NodeLink]) -> Iterator[str]:
    head = ["NODE", "STATE", "GPUS", "SLOTS", "MEMORY", "EXECUTORS", "ADDRESS", "VERSION", "LABELS"]
    yield from table_lines(head, [_node_row(node) for node in nodes])
    rows = [
        [node.node, each.id, str(each.kind), each.state, str(each.ends), each.cause]
        for node in nodes
        for each in node.executors
        if node.state not in (GONE, LOST)
    ]
    if rows:
        yield ""
        yield from table_lines(["NODE", "EXECUTOR", "KIND", "STATE", "ENDS", "LAST CAUSE"], rows)
    if links:
        yield ""
        link_rows = [
            [link.source, link.reader, size_text(link.nbytes), "unreachable" if link.unreachable else "ok"]
            for link in links
        ]
        yield from table_lines(["FROM", "TO", "BYTES", "STATE"], link_rows)


def _node_row(node: AgentStatus) -> list[str]:
    labels = ",".join(f"{name}={value}" for name, value in sorted(node.labels.items()))
    gpus = f"{node.gpus} {node.gpu} ({node.gpu_gb:.0f} GB)" if node.gpus else "-"
    memory, ready = size_text(node.memory_bytes), sum(each.state == "ready" for each in node.executors)
    executors = f"{ready}/{len(node.executors)}"
    return [node.node, node.state, gpus, str(node.slots), memory, executors, node.address, node.version, labels]


def _node_options(options: argparse.Namespace, host: str) -> NodeOptions:
    labels = dict(label.partition("=")[::2] for label in options.label)
    name = options.machine or subjects.subject_token(socket.gethostname())
    if subjects.subject_token(name) != name:
        raise BadRequest(f"the name {name!r} of this node must have only letters, digits, - and _: set another one")
    return NodeOptions(name, host, options.slots, options.gpu, labels)


def _read_text(file: str) -> str:
    return Path(file).read_text()


def _secret_file(up: UpSettings) -> Path:
    return Path(up.node_secret_file) if up.node_secret_file else runs.registry_path().parent / "nodes.secret"
