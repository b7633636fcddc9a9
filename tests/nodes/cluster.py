"""Sidecars in namespaces as nodes, with agents, and NATS in the hub.

They run as an operator would run them.
"""

import asyncio
import ctypes
import itertools
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from omnibus.process.spec import PACKAGE_PATH
from omnibus.process.tuning import die_with_parent
from omnibus.up import infra
from tests.nodes.namespaces import BUS, DATA, Node, Switch, last_descendant

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 30.0
MIB = 1 << 20
NATS_PORT, MONITOR_PORT = 4222, 8222
_PATHS = f"{ROOT}:{PACKAGE_PATH}"
_CLOCK = Path(__file__).parent / "ahead"
_MAX_LINE_BYTES = 1 << 20
_PR_SET_THP_DISABLE = 41  # linux/prctl.h

Answer = dict[str, Any]


class AgentProcess:
    """A client of a sidecar in a node, see ``tests.nodes.agent``."""

    def __init__(self, process: "asyncio.subprocess.Process") -> None:
        self._process = process
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._reading = asyncio.create_task(self._read_answers())

    async def send_command(self, do: str, **request: Any) -> Answer:
        """Run a command and return the answer, including errors."""
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "do": do, **request}).encode() + b"\n")
        return await asyncio.wait_for(future, 2 * PATIENCE_SECONDS)

    async def get(self, do: str, name: str, **request: Any) -> Any:
        """``name`` of the answer. Fails on an error."""
        answer = await self.send_command(do, **request)
        assert name in answer, answer
        return answer[name]

    async def stats(self) -> Answer:
        """Counters of the sidecar."""
        counters: Answer = await self.get("stats", "stats")
        return counters

    async def _read_answers(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer.pop("id"))
            if not future.done():
                future.set_result(answer)

    def close(self) -> None:
        self._reading.cancel()


class NodeMachine:
    """A node with its sidecar and one agent; more agents by ``start_agent``."""

    def __init__(self, node: Node, directory: Path, env: dict[str, str], small_pages: bool = False) -> None:
        self.node = node
        self.name = node.name
        self.socket = str(directory / f"{node.name}.sock")
        self.log = directory / f"{node.name}.log"
        self._env = {
            **os.environ,
            "PYTHONPATH": _PATHS,
            "OMNIBUS_SIDECAR_SOCKET": self.socket,
            "OMNIBUS_SIDECAR_NODE": node.name,
            "OMNIBUS_SIDECAR_HOST": node.address(DATA),
            "OMNIBUS_SIDECAR_SECRET_FILE": str(directory / "secret"),
            **env,
        }
        self._small_pages = small_pages
        self._sidecar: asyncio.subprocess.Process | None = None
        self._agents: list[AgentProcess] = []

    @property
    def agent(self) -> AgentProcess:
        return self._agents[0]

    @property
    def sidecar_pid(self) -> int:
        """The sidecar's process id out here."""
        assert self._sidecar is not None
        return last_descendant(self._sidecar.pid)

    async def start_sidecar(self) -> None:
        """Start the sidecar, and wait until it serves."""
        Path(self.socket).unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._sidecar = await self._start_process("omnibus_sidecar", stdout=log, stderr=log)
        await wait_until(lambda: Path(self.socket).exists())

    async def start_agent(self, owner: str = "agent") -> AgentProcess:
        pipe = asyncio.subprocess.PIPE
        process = await self._start_process(
            "tests.nodes.agent", self.socket, self.name, owner, stdin=pipe, stdout=pipe, limit=_MAX_LINE_BYTES
        )
        agent = AgentProcess(process)
        self._agents.append(agent)
        await agent.stats()
        return agent

    async def _start_process(self, module: str, *arguments: str, **options: Any) -> "asyncio.subprocess.Process":
        return await asyncio.create_subprocess_exec(
            *self.node.command_prefix, sys.executable, "-m", module, *arguments,
            env=self._env, cwd=ROOT, preexec_fn=_in_child(self._small_pages), **options,
        )  # fmt: skip

    def signal_sidecar(self, number: signal.Signals) -> None:
        os.kill(self.sidecar_pid, number)
        if number == signal.SIGCONT:  # nsenter stops when its child does
            self._wake_sidecar()

    def _wake_sidecar(self) -> None:
        with suppress(ProcessLookupError):
            if self._sidecar is not None and self._sidecar.returncode is None:
                self._sidecar.send_signal(signal.SIGCONT)

    async def restart_sidecar(self) -> None:
        """Kill the sidecar and start it again, at the same address."""
        assert self._sidecar is not None
        self.signal_sidecar(signal.SIGKILL)
        await self._sidecar.wait()
        await self.start_sidecar()
        await self.agent.send_command("wait_ready")

    def restart_node(self) -> None:
        """Restore the power of a node; its sidecar and agents must be restarted."""
        self.close()
        self._agents.clear()
        self.node.power_on()

    async def is_empty(self) -> bool:
        """Wait until no block is leased, held or requested here."""
        stats = await self.agent.stats()
        return (stats["blocks"], stats["used_bytes"], stats["waiting"]) == (0, 0, 0)

    def close(self) -> None:
        """Close the connections to its processes, which end together with the node."""
        self._wake_sidecar()
        for agent in self._agents:
            agent.close()


@asynccontextmanager
async def start_nodes(
    *names: str, ahead: Mapping[str, float] | None = None, small_pages: bool = False, **env: str
) -> AsyncIterator[list[NodeMachine]]:
    """Connected nodes, until the end of the block.

    ``env`` is the environment of sidecars and agents. ``ahead`` contains by how many seconds the clocks of nodes are
    ahead. ``small_pages``: arenas have no pages of 2 MiB.
    """
    async with AsyncExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="omnibus-nodes-"))  # short: sockets have at most 107 bytes
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        (directory / "secret").write_text(secrets.token_hex(32))
        switch = stack.enter_context(Switch())
        bus_url = await start_nats(switch, directory)
        machines = []
        for name in names:
            node = stack.enter_context(switch.add_node(name))
            clock = _clock_env(ahead[name]) if ahead and name in ahead else {}
            machines.append(NodeMachine(node, directory, {"OMNIBUS_BUS_URL": bus_url, **env, **clock}, small_pages))
            stack.callback(machines[-1].close)
        await asyncio.gather(*(start_machine(machine) for machine in machines))
        for machine in machines:
            await knows_others(machine, machines)
        try:
            yield machines
        except BaseException:
            for machine in machines:
                print(f"--- {machine.name}\n{machine.log.read_text()[-4000:]}")
            raise


def _in_child(small_pages: bool) -> Callable[[], None]:
    """Prepare a child process before it runs its program."""
    bind, prctl = die_with_parent(), ctypes.CDLL(None).prctl

    def prepare_child() -> None:
        assert bind is not None
        bind()
        if small_pages:
            prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)

    return prepare_child


def _clock_env(seconds: float) -> dict[str, str]:
    return {"TEST_CLOCK_AHEAD": str(seconds), "PYTHONPATH": os.pathsep.join([str(_CLOCK), _PATHS])}


async def start_machine(machine: NodeMachine) -> None:
    """Start what runs on a node."""
    await machine.start_sidecar()
    await machine.start_agent()


async def knows_others(reader: NodeMachine, machines: list[NodeMachine]) -> None:
    """Wait until ``reader`` can pull from all others."""
    for other in machines:
        if other is not reader:
            await wait_until(lambda other=other: has_pulled(reader, other))  # type: ignore[misc]


async def has_pulled(reader: NodeMachine, other: NodeMachine, nbytes: int = 1000) -> bool:
    """Let ``reader`` pull a small tensor of ``other``, and release it."""
    invocation = f"probe-{secrets.token_hex(4)}"
    handle = await other.agent.get("put", "handle", nbytes=nbytes, value=1, invocation=invocation)
    answer = await reader.agent.send_command("open", handle=handle, invocation=invocation, seconds=10.0)
    for machine in (reader, other):
        await machine.agent.send_command("end", invocation=invocation)
    return answer == {"counts": {"1": nbytes}}


async def start_nats(switch: Switch, directory: Path) -> str:
    """Start NATS in the hub, until the hub ends; return its URL for nodes."""
    server = infra.prepare_nats(directory, port=NATS_PORT, monitor_port=MONITOR_PORT)
    argv = ["0.0.0.0" if word == infra.LOOPBACK else word for word in server.spec.argv]
    await asyncio.create_subprocess_exec(
        *switch.command_prefix, *argv, stdout=asyncio.subprocess.DEVNULL, preexec_fn=die_with_parent()
    )
    log = directory / "nats" / "server.log"
    await wait_until(lambda: log.exists() and "Server is ready" in log.read_text())
    return f"nats://{switch.address(BUS)}:{NATS_PORT}"


async def wait_until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for an effect of another process or the kernel."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            answer = holds()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.02)
