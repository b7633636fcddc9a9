"""Load of many requests over three nodes, and faults of nodes beside it."""

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import httpx
import psutil

from tests.e2e.omni.speech import Spoken, same, spoken, taken, wanted
from tests.e2e.questions import OMNI_QUESTIONS, Question
from tests.e2e.system import OMNI, System, command_line
from tests.nodes.namespaces import DATA, Node
from tests.nodes.system import APART, TOGETHER, ask

_AT_ONCE = 6
_SEED = 15
#: How long a fault lasts, and how long all is well before the next one, in seconds.
_FAULT_SECONDS = (0.5, 5.0)
_CALM_SECONDS = (3.0, 6.0)
#: No request may take longer: its deadline and what a client waits besides.
_HANG_SECONDS = 90.0
_TYPED = {
    "node_unreachable", "unavailable", "stage_unavailable", "stage_failed", "stale_handle", "deadline_exceeded",
    "overloaded", "rate_limit_exceeded", "arena_full", "no_executor",
}  # fmt: skip

Body = dict[str, Any]
Fault = Callable[["FaultDrawer"], Awaitable[None]]


def text_body(question: Question) -> Body:
    return {"model": OMNI, "messages": question.messages, "max_tokens": 10, "temperature": 0, "seed": 7}


class FaultDrawer:
    """Faults of nodes, one after the other, each of which is undone."""

    def __init__(self, system: System, nodes: list[Node]) -> None:
        self.system = system
        self.nodes = nodes
        self.dice = Random(_SEED)
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        """Never ends by itself."""
        for fault in itertools.cycle((cut_cable, kill_executor, deafen, freeze_sidecar, kill_sidecar)):
            await fault(self)
            self.done[fault.__name__] += 1
            await asyncio.sleep(self.dice.uniform(*_CALM_SECONDS))

    async def last(self) -> None:
        """Let the fault be there for a while."""
        await asyncio.sleep(self.dice.uniform(*_FAULT_SECONDS))

    def process(self, module: str) -> psutil.Process:
        """One of the processes that run ``module``."""
        return self.dice.choice([one for one in self.system.processes() if module in command_line(one)])


async def cut_cable(faults: FaultDrawer) -> None:
    node = faults.dice.choice(faults.nodes)
    node.cut_cable(DATA)
    try:
        await faults.last()
    finally:
        node.heal_cable(DATA)


async def deafen(faults: FaultDrawer) -> None:
    deaf, speaker = faults.dice.sample(faults.nodes, 2)
    deaf.deafen(speaker)
    try:
        await faults.last()
    finally:
        deaf.hear_again(speaker)


async def freeze_sidecar(faults: FaultDrawer) -> None:
    frozen = faults.process("services.sidecar")
    frozen.send_signal(signal.SIGSTOP)
    try:
        await faults.last()
    finally:
        frozen.send_signal(signal.SIGCONT)


async def kill_sidecar(faults: FaultDrawer) -> None:
    faults.process("services.sidecar").kill()


async def kill_executor(faults: FaultDrawer) -> None:
    faults.process(faults.dice.choice(["services.encoder", "services.llm", "services.generator"])).kill()


class Load:
    """Requests at ``_AT_ONCE`` connections, each compared with the answer of one executor."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.outcomes: Counter[str] = Counter()
        self._truths: list[tuple[Body, str, Spoken | str]] = []

    async def learn(self) -> None:
        """Have every request answered by one executor."""
        for name in ("text", "audio", "image"):
            question = OMNI_QUESTIONS[name]
            for speech in (False, True):
                body = wanted(question) if speech else text_body(question)
                truth = await ask(self.system, body, taken(TOGETHER, question, speech))
                self._truths.append((body, taken(APART, question, speech), answer_of(truth)))

    async def run(self, count: int) -> None:
        numbers = iter(range(count))
        async with self.system.http() as http:
            http.timeout = httpx.Timeout(_HANG_SECONDS)
            await asyncio.gather(*(self._ask_all(http, numbers) for _ in range(_AT_ONCE)))

    async def _ask_all(self, http: httpx.AsyncClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            body, route, truth = self._truths[number % len(self._truths)]
            answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})
            if answer.status_code == 200:
                self.outcomes["answered"] += 1
                agree(answer_of(answer.json()), truth)
                continue
            code = str(answer.json()["error"]["code"])
            self.outcomes[code] += 1
            assert answer.status_code in (429, 502, 503, 504), answer.text
            assert code in _TYPED, answer.text
            await asyncio.sleep(0.2)


def answer_of(body: Any) -> Spoken | str:
    message = body["choices"][0]["message"]
    return spoken(body) if message.get("audio") else str(message["content"])


def agree(found: Spoken | str, truth: Spoken | str) -> None:
    if isinstance(truth, Spoken) and isinstance(found, Spoken):
        same(found, truth)
    else:
        assert found == truth


async def load_again(load: Load) -> None:
    """Wait until every request is answered again."""
    async with asyncio.timeout(90):
        while True:
            before = load.outcomes["answered"]
            await load.run(_AT_ONCE)
            if load.outcomes["answered"] == before + _AT_ONCE:
                return
