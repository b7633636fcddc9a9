"""Several machines on this one: a main one without executors, and agents with their own sidecars and arenas."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx
import psutil

from omnibus.cluster.agents import AgentDirectory, AgentStatus
from omnibus.up.shm import remove_shared_memory
from tests.e2e import warm
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System

QUESTION = make_question(make_image(1), "describe the image")
TOKENS = 24
SLOTS = 3
#: Seconds until lost executors serve again on a busy machine: five to notice, and their start.
BACK_SECONDS = 60.0
#: Seconds for the first start of executors, on a machine that also runs other tests.
START_SECONDS = 150.0
_POLL_SECONDS = 0.1
_STOP_SECONDS = 40.0


class AgentCluster:
    """The main machine ``system``, and agents by name that joined it with ``join``.

    Names of nodes are those of arenas, which other clusters of this machine must not have: ``tag`` is in each.
    """

    def __init__(self, system: System, directory: Path, tag: str) -> None:
        self.system = system
        self._tag = tag
        self.join = directory / "join.json"
        self._agents: dict[str, subprocess.Popen[str]] = {}
        self._logs: dict[str, Path] = {}
        self._directory = directory

    def name(self, number: int) -> str:
        """Name of a machine: the main one is 1."""
        return f"n{number}-{self._tag}"

    @property
    def names(self) -> set[str]:
        """Names of three machines beside the main one."""
        return {self.name(number) for number in (2, 3, 4)}

    def write_join_file(self) -> None:
        command = self.run("node", "token", str(self.join))
        assert command.returncode == 0, command.stdout

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run ``omnibus arguments`` to its end, output and errors in one text."""
        process = self.system.command(*arguments)
        output, _ = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, output)

    def start_agent(self, name: str, *options: str) -> None:
        """Start the agent of another machine."""
        log = self._logs.setdefault(name, self._directory / f"{name}.log")
        with log.open("a") as output:
            self._agents[name] = subprocess.Popen(
                self.system.program("node", "join", str(self.join), "--name", name, "--slots", str(SLOTS), *options),
                env={**self.system.env, "OMNIBUS_SIDECAR_PORT": "0"},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def agent(self, name: str) -> psutil.Process:
        """The process of an agent."""
        return psutil.Process(warm.wait_for_fork(self._agents[name]))

    def kill_agent(self, name: str) -> None:
        """Lose a machine: its agent and everything that it started end at once."""
        self.agent(name).kill()
        self._agents.pop(name).wait(_STOP_SECONDS)

    def stop_agent(self, name: str) -> None:
        """Stop an agent as systemd does."""
        process = self._agents.pop(name)
        self.agent_of(process).terminate()
        process.wait(_STOP_SECONDS)

    @staticmethod
    def agent_of(process: "subprocess.Popen[str]") -> psutil.Process:
        return psutil.Process(warm.wait_for_fork(process))

    def log(self, name: str) -> str:
        return self._logs[name].read_text()

    def stop(self) -> None:
        for name in list(self._agents):
            if self._agents[name].poll() is None:
                os.kill(self.agent(name).pid, signal.SIGCONT)
                self.stop_agent(name)
        for name in self._logs:  # a killed agent leaves its arena to the next one of its name
            remove_shared_memory(f"omnibus-{name}")

    # What the agents report

    @asynccontextmanager
    async def agents(self) -> AsyncIterator[AgentDirectory]:
        directory = AgentDirectory()
        async with self.system.bus() as bus:
            await directory.listen(bus)
            yield directory

    async def wait_for_agents(
        self, condition: Callable[[dict[str, AgentStatus]], bool], within: float = BACK_SECONDS
    ) -> dict[str, AgentStatus]:
        """Wait until ``condition`` holds for the agents that are up, by name; return these."""
        async with self.agents() as directory:
            try:
                async with asyncio.timeout(within):
                    while not condition(directory.live()):
                        await asyncio.sleep(_POLL_SECONDS)
            except TimeoutError:
                raise AssertionError(f"the agents report {directory.known()}") from None
            return directory.live()

    async def whole(self, count: int) -> dict[str, AgentStatus]:
        """Wait until exactly ``count`` executors run, all of them ready."""
        return await self.wait_for_agents(lambda live: count_states(live) == {"ready": count})

    async def settle(self, names: set[str], count: int) -> None:
        """Start agents that are down, and wait until all ``names`` are up and the system is whole."""
        for name in names - self._agents.keys():
            self.start_agent(name)
        await self.wait_for_agents(
            lambda live: (
                names <= live.keys()
                and all(live[name].state == "ready" for name in names)
                and count_states(live) == {"ready": count}
            )
        )
        await self.system.becomes_ready()

    # Requests

    async def ask(self, http: httpx.AsyncClient, tokens: int = TOKENS) -> httpx.Response:
        request = {"model": VL, "messages": QUESTION.messages, "max_tokens": tokens, "temperature": 0}
        return await http.post("/v1/chat/completions", json=request)

    @asynccontextmanager
    async def load(self, clients: int = 2) -> AsyncIterator[list[httpx.Response]]:
        """Send requests one after another from each of ``clients`` in this context; yields the answers so far."""
        answers: list[httpx.Response] = []
        over = asyncio.Event()

        async def send_requests(http: httpx.AsyncClient) -> None:
            while not over.is_set():
                answers.append(await self.ask(http))

        async with self.system.http() as http, asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(send_requests(http))
            try:
                yield answers
            finally:
                over.set()


@contextmanager
def start_cluster(directory: Path, models: Mapping[str, Any], settings: Mapping[str, str]) -> Iterator[AgentCluster]:
    """Run a main machine without executors until the block ends. Fails if anything is left afterwards."""
    tag = token_hex(3)
    flags = ("--listen", "127.0.0.1:0", "--slots", "0", "--machine", f"n1-{tag}")
    system = System(directory, models, settings, flags, is_warm=warm.may_start_warm(settings))
    system.executors = set()  # none until agents join
    cluster = AgentCluster(system, directory, tag)
    try:
        system.start()
        cluster.write_join_file()
        yield cluster
    except BaseException:
        print(system.log[-12_000:])
        raise
    finally:
        cluster.stop()
        leftovers = system.stop()
    assert leftovers == []


def count_states(live: dict[str, AgentStatus]) -> dict[str, int]:
    """Return the number of executors of all agents by state."""
    counts: dict[str, int] = {}
    for agent in live.values():
        for each in agent.executors:
            counts[each.state] = counts.get(each.state, 0) + 1
    return counts


def error_of(answer: httpx.Response) -> Any:
    """Return the typed error of an answer; None for a success."""
    return None if answer.status_code == 200 else answer.json()["error"]["code"]


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])
