"""Load of many requests over three nodes, and faults of nodes beside it.

| environment | |
|---|---|
| ``OMNIBUS_TEST_SOAK_REQUESTS`` | requests of the long run (10,000) |
| ``OMNIBUS_TEST_SOAK_SEED`` | of the chance that draws faults (15) |
| ``OMNIBUS_TEST_SOAK_AT_ONCE`` | requests at a time (6) |
"""

import asyncio
import os
import signal
import time
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

REQUESTS = int(os.environ.get("OMNIBUS_TEST_SOAK_REQUESTS", "10000"))
_SEED = int(os.environ.get("OMNIBUS_TEST_SOAK_SEED", "15"))
_AT_ONCE = int(os.environ.get("OMNIBUS_TEST_SOAK_AT_ONCE", "6"))
#: How long a fault lasts, and how long all is well before the next one, in seconds.
_FAULT_SECONDS = (0.5, 5.0)
_CALM_SECONDS = (1.0, 6.0)
#: Rate of a cable that is slow for a while: a tensor of these models then takes up to a second.
_SLOW_RATE = "200kbit"
#: Questions by turns, and whether the answer is spoken, which is ten times the work.
_TURNS = (*(("image", False), ("audio", False)) * 6, ("text", True), ("image", True), ("audio", True))
#: Requests after which a long run says how far it is.
_REPORT_EVERY = 500
_SHOWN_CHARACTERS = 600
ANSWERED = "answered"
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
    """Faults of nodes at random times, one after the other, each of which is undone."""

    def __init__(self, system: System, nodes: list[Node]) -> None:
        self.system = system
        self.nodes = nodes
        self.dice = Random(_SEED)
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        """Draw every kind once in each round. Never ends by itself."""
        while True:
            for fault in self.dice.sample(_FAULTS, len(_FAULTS)):
                self.done[fault.__name__] += 1
                await fault(self)
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


async def slow_cable(faults: FaultDrawer) -> None:
    node = faults.dice.choice(faults.nodes)
    node.limit_rate(_SLOW_RATE)
    try:
        await faults.last()
    finally:
        node.lift_rate()


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


_FAULTS: tuple[Fault, ...] = (cut_cable, slow_cable, kill_executor, deafen, freeze_sidecar, kill_sidecar)


class Load:
    """Requests at ``_AT_ONCE`` connections, each compared with the answer of one executor.

    ``outcomes`` counts answers that were right, and typed errors by their code; ``faults`` says what is neither: a
    wrong answer, an error that is none of ``_TYPED``, a request that hung.
    """

    def __init__(self, system: System) -> None:
        self.system = system
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self._truths: list[tuple[Body, str, Spoken | str]] = []

    async def learn(self) -> None:
        """Have every request answered by one executor."""
        truths: dict[tuple[str, bool], tuple[Body, str, Spoken | str]] = {}
        for name, speech in dict.fromkeys(_TURNS):
            question = OMNI_QUESTIONS[name]
            body = wanted(question) if speech else text_body(question)
            truth = await ask(self.system, body, taken(TOGETHER, question, speech))
            truths[name, speech] = (body, taken(APART, question, speech), answer_of(truth))
        self._truths = [truths[turn] for turn in _TURNS]

    async def run(self, count: int) -> None:
        numbers = iter(range(count))
        async with self.system.http() as http:
            http.timeout = httpx.Timeout(_HANG_SECONDS)
            await asyncio.gather(*(self._ask_all(http, numbers) for _ in range(_AT_ONCE)))

    async def _ask_all(self, http: httpx.AsyncClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            try:
                outcome = await self._ask(http, number)
            except (AssertionError, httpx.HTTPError, KeyError, ValueError) as error:
                self.faults.append(f"request {number}: {error!r}"[:_SHOWN_CHARACTERS])
                continue
            self.outcomes[outcome] += 1
            if outcome != ANSWERED:
                await asyncio.sleep(0.2)
            if number and not number % _REPORT_EVERY:
                print(f"{time.strftime('%H:%M:%S')} request {number}: {dict(self.outcomes)}", flush=True)

    async def _ask(self, http: httpx.AsyncClient, number: int) -> str:
        """The outcome of one request. Raises ``AssertionError`` for one that is neither right nor a typed error."""
        body, route, truth = self._truths[number % len(self._truths)]
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})
        if answer.status_code == 200:
            agree(answer_of(answer.json()), truth)
            return ANSWERED
        code = str(answer.json()["error"]["code"])
        assert answer.status_code in (429, 502, 503, 504), answer.text
        assert code in _TYPED, answer.text
        return code


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
            before = load.outcomes[ANSWERED]
            await load.run(len(_TURNS))
            if load.outcomes[ANSWERED] == before + len(_TURNS):
                return
