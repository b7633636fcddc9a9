"""Load of many requests over three nodes, with faults of nodes.

| environment | |
|---|---|
| ``OMNIBUS_TEST_SOAK_REQUESTS`` | requests of the long run (10,000) |
| ``OMNIBUS_TEST_SOAK_SEED`` | of the chance that draws faults (15) |
| ``OMNIBUS_TEST_SOAK_AT_ONCE`` | requests at a time (6) |
"""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, NamedTuple

import httpx
import psutil

from tests.e2e.omni.speech import Spoken, assert_same_speech, choose_path, make_speech_body, read_spoken
from tests.e2e.questions import OMNI_QUESTIONS, Question
from tests.e2e.system import OMNI, System, command_line
from tests.nodes.namespaces import DATA, Node
from tests.nodes.system import APART, TOGETHER, send_chat

REQUESTS = int(os.environ.get("OMNIBUS_TEST_SOAK_REQUESTS", "10000"))
_SEED = int(os.environ.get("OMNIBUS_TEST_SOAK_SEED", "15"))
_AT_ONCE = int(os.environ.get("OMNIBUS_TEST_SOAK_AT_ONCE", "6"))
#: How long a fault lasts, and how long all is well before the next one, in seconds.
_FAULT_SECONDS = (0.5, 5.0)
_CALM_SECONDS = (1.0, 6.0)
#: Rate of a cable that is slow for a while: a tensor of the tiny models then takes up to a second.
SLOW_RATE = "200kbit"
#: Questions by turns, and whether the answer is spoken, which is ten times the work.
TURNS = (*(("image", False), ("audio", False)) * 6, ("text", True), ("image", True), ("audio", True))
#: Requests between two progress reports of a long run.
_REPORT_EVERY = 500
_SHOWN_CHARACTERS = 600
ANSWERED = "answered"
#: Time limit of a request: its deadline and a client's additional wait.
_HANG_SECONDS = 90.0
_TYPED = {
    "node_unreachable", "unavailable", "stage_unavailable", "stage_failed", "stale_handle", "deadline_exceeded",
    "overloaded", "rate_limit_exceeded", "arena_full", "no_executor",
}  # fmt: skip

Fault = Callable[["FaultDrawer"], Awaitable[None]]


class SoakCase(NamedTuple):
    """A request: its JSON body, its headers, and ``check``, which fails for a wrong answer."""

    body: bytes
    headers: Mapping[str, str]
    check: Callable[[Any], None]


def text_body(question: Question) -> dict[str, Any]:
    return {"model": OMNI, "messages": question.messages, "max_tokens": 10, "temperature": 0, "seed": 7}


class FaultDrawer:
    """Draw faults of nodes at random times, and undo each one."""

    def __init__(self, system: System, nodes: list[Node], *, seed: int = _SEED, slow_rate: str = SLOW_RATE) -> None:
        """``slow_rate`` is that of a slow cable, in the units of ``tc``."""
        self.system = system
        self.nodes = nodes
        self.dice = Random(seed)
        self.slow_rate = slow_rate
        self.done: Counter[str] = Counter()

    async def run(self) -> None:
        """Draw every kind once in each round, until cancelled."""
        while True:
            for fault in self.dice.sample(_FAULTS, len(_FAULTS)):
                self.done[fault.__name__] += 1
                await fault(self)
                await asyncio.sleep(self.dice.uniform(*_CALM_SECONDS))

    async def wait_fault(self) -> None:
        """Wait while the fault lasts."""
        await asyncio.sleep(self.dice.uniform(*_FAULT_SECONDS))

    def choose_process(self, module: str) -> psutil.Process:
        """Choose one of the processes that run ``module``."""
        return self.dice.choice([one for one in self.system.processes() if module in command_line(one)])


async def cut_cable(faults: FaultDrawer) -> None:
    node = faults.dice.choice(faults.nodes)
    node.cut_cable(DATA)
    try:
        await faults.wait_fault()
    finally:
        node.heal_cable(DATA)


async def slow_cable(faults: FaultDrawer) -> None:
    node = faults.dice.choice(faults.nodes)
    node.limit_rate(faults.slow_rate)
    try:
        await faults.wait_fault()
    finally:
        node.lift_rate()


async def deafen_speaker(faults: FaultDrawer) -> None:
    deaf, speaker = faults.dice.sample(faults.nodes, 2)
    deaf.deafen(speaker)
    try:
        await faults.wait_fault()
    finally:
        deaf.hear_again(speaker)


async def freeze_sidecar(faults: FaultDrawer) -> None:
    frozen = faults.choose_process("omnibus_sidecar")
    frozen.send_signal(signal.SIGSTOP)
    try:
        await faults.wait_fault()
    finally:
        frozen.send_signal(signal.SIGCONT)


async def kill_sidecar(faults: FaultDrawer) -> None:
    faults.choose_process("omnibus_sidecar").kill()


async def kill_executor(faults: FaultDrawer) -> None:
    faults.choose_process(faults.dice.choice(["omnibus_encoder", "omnibus_llm", "omnibus_generator"])).kill()


_FAULTS: tuple[Fault, ...] = (cut_cable, slow_cable, kill_executor, deafen_speaker, freeze_sidecar, kill_sidecar)


class SoakLoad:
    """Requests at ``at_once`` connections; ``case_of`` gives that of a number.

    ``outcomes`` counts right answers, and typed errors by their code. ``faults`` describes all others: a wrong answer,
    an error outside of ``_TYPED``, or a request that took more than ``hang_seconds``.
    """

    def __init__(
        self,
        system: System,
        case_of: Callable[[int], SoakCase],
        *,
        at_once: int = _AT_ONCE,
        hang_seconds: float = _HANG_SECONDS,
    ) -> None:
        self.system = system
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.longest_seconds = 0.0
        self._case_of = case_of
        self._at_once = at_once
        self._hang_seconds = hang_seconds

    async def run(self, count: int, first: int = 0) -> None:
        """Send the requests from number ``first`` on."""
        numbers = iter(range(first, first + count))
        async with self.system.http() as http:
            http.timeout = httpx.Timeout(self._hang_seconds)
            await asyncio.gather(*(self._ask_all(http, numbers) for _ in range(self._at_once)))

    async def _ask_all(self, http: httpx.AsyncClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._hang_seconds):
                    outcome = await self._send_case(http, self._case_of(number))
            except (AssertionError, httpx.HTTPError, KeyError, TimeoutError, ValueError) as error:
                self.faults.append(f"request {number}: {error!r}"[:_SHOWN_CHARACTERS])
                continue
            self.outcomes[outcome] += 1
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
            if outcome != ANSWERED:
                await asyncio.sleep(0.2)
            if number and not number % _REPORT_EVERY:
                print(f"{time.strftime('%H:%M:%S')} request {number}: {dict(self.outcomes)}", flush=True)

    async def _send_case(self, http: httpx.AsyncClient, case: SoakCase) -> str:
        """The outcome of one request. Raises ``AssertionError`` for one that is neither right nor a typed error."""
        headers = {"content-type": "application/json", **case.headers}
        answer = await http.post("/v1/chat/completions", content=case.body, headers=headers)
        if answer.status_code == 200:
            case.check(answer.json())
            return ANSWERED
        code = str(answer.json()["error"]["code"])
        assert answer.status_code in (429, 502, 503, 504), answer.text
        assert code in _TYPED, answer.text
        return code


async def learned_cases(system: System) -> list[SoakCase]:
    """Questions in turn, each compared with the answer of one executor."""
    truths: dict[tuple[str, bool], SoakCase] = {}
    for name, speech in dict.fromkeys(TURNS):
        question = OMNI_QUESTIONS[name]
        body = make_speech_body(question) if speech else text_body(question)
        truth = answer_of(await send_chat(system, body, choose_path(TOGETHER, question, speech)))
        headers = {"x-omnibus-path": choose_path(APART, question, speech)}
        truths[name, speech] = SoakCase(json.dumps(body).encode(), headers, partial(check_answer, truth))
    return [truths[turn] for turn in TURNS]


def check_answer(truth: Spoken | str, body: Any) -> None:
    answer = answer_of(body)
    if isinstance(truth, Spoken) and isinstance(answer, Spoken):
        assert_same_speech(answer, truth)
    else:
        assert answer == truth


def answer_of(body: Any) -> Spoken | str:
    message = body["choices"][0]["message"]
    return read_spoken(body) if message.get("audio") else str(message["content"])


async def load_again(load: SoakLoad, count: int) -> None:
    """Wait until each of ``count`` requests is answered again."""
    async with asyncio.timeout(90):
        while True:
            before = load.outcomes[ANSWERED]
            await load.run(count)
            if load.outcomes[ANSWERED] == before + count:
                return
