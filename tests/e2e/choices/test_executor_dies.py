"""Several answers continue on another executor when theirs dies.

They are the same as without the fault.
"""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.system import System, start_system
from tests.e2e.tool_calls.test_tools import make_order_tool
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

TEXT, HALVES = "qwen3-tiny", "qwen3-halves"
TOKENS = 240
CHOICES = 3
#: An answer takes less than a second: some are there before their executor is killed.
ATTEMPTS = 4
#: Requests, whose answers must be the same with and without a lost executor.
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 5},
    "logprobs": {"temperature": 1.0, "seed": 6, "logprobs": True, "top_logprobs": 1},
    "stop": {"temperature": 1.0, "seed": 8, "stop": ["umm"]},
    "calls": {
        "temperature": 1.0,
        "seed": 9,
        "tools": [make_order_tool(1)],
        "tool_choice": "required",
        "ignore_eos": False,
    },
}
#: Asks and collects the answers.
Ask = Callable[[httpx.AsyncClient, dict[str, Any]], Awaitable["ChoiceAnswers"]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.build("qwen3", tmp_path_factory.mktemp("checkpoints") / "qwen3"))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoint: str) -> Iterator[System]:
    """Two executors of a language model."""
    with _start_system(tmp_path_factory, TEXT, catalog.model_declaration("qwen3", checkpoint)) as new_system:
        yield new_system


@pytest.fixture(scope="module")
def split_system(tmp_path_factory: pytest.TempPathFactory, checkpoint: str) -> Iterator[System]:
    """The model in two halves, with two executors each."""
    with _start_system(tmp_path_factory, HALVES, catalog.split_declaration("qwen3", checkpoint, "P>D")) as new_system:
        yield new_system


@contextmanager
def _start_system(factory: pytest.TempPathFactory, name: str, model_spec: dict[str, Any]) -> Iterator[System]:
    options = {option: {**spec, "replicas": 2} for option, spec in model_spec["options"].items()}
    # Executors are killed from outside here, which does not depend on their input.
    settings = {"OMNIBUS_GATEWAY_QUARANTINE": "0"}
    with start_system(factory.mktemp("choices"), {name: {**model_spec, "options": options}}, **settings) as new_system:
        yield new_system


def make_body(model: str, **more: Any) -> dict[str, Any]:
    usual = {"max_tokens": TOKENS, "ignore_eos": True, "n": CHOICES}
    return {"model": model, "messages": [{"role": "user", "content": "hello there"}], **usual, **more}


class ChoiceAnswers:
    """Answers of a stream by index, as they arrive."""

    def __init__(self) -> None:
        self.texts = [""] * CHOICES
        self.calls = [""] * CHOICES
        self.finish: list[str | None] = [None] * CHOICES
        self.logprobs: list[list[tuple[str, float]]] = [[] for _ in range(CHOICES)]
        self.usage: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        for choice in event["choices"]:
            place, delta = choice["index"], choice.get("delta") or choice.get("message") or {}
            assert self.finish[place] is None, "nothing comes behind the end of an answer"
            self.texts[place] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                self.calls[place] += f"{function.get('name') or ''}{function.get('arguments') or ''}"
            self.logprobs[place] += [
                (each["token"], round(each["logprob"], 3))
                for each in (choice.get("logprobs") or {}).get("content") or ()
            ]
            self.finish[place] = choice["finish_reason"]
        self.usage = event.get("usage") or self.usage

    def require_equal(self, other: "ChoiceAnswers") -> None:
        """Check that these are the answers of ``other``, up to rounding.

        The sender rounds values.
        """
        assert (self.texts, self.calls, self.finish) == (other.texts, other.calls, other.finish)
        assert self.usage["completion_tokens"] == other.usage["completion_tokens"]
        for one, two in zip(self.logprobs, other.logprobs, strict=True):
            assert [token for token, _ in one] == [token for token, _ in two]
            assert [value for _, value in one] == pytest.approx([value for _, value in two], abs=2e-3)


async def send_whole(http: httpx.AsyncClient, request_body: dict[str, Any]) -> ChoiceAnswers:
    response = await http.post("/v1/chat/completions", json=request_body)
    assert response.status_code == 200, response.text
    answers = ChoiceAnswers()
    answers.take(response.json())
    return answers


async def send_streamed(http: httpx.AsyncClient, request_body: dict[str, Any]) -> ChoiceAnswers:
    answers = ChoiceAnswers()
    more = {"stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", "/v1/chat/completions", json={**request_body, **more}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                answers.take(json.loads(line[6:]))
    return answers


def list_executors(watch: Watch, part: str) -> list[tuple[str, str]]:
    """Executors of ``part`` with their invocations' ids, in order of sending."""
    requests = [each for each in watch.seen if each.subject.startswith("omnibus.task.")]
    pairs = [(each.subject.rpartition(".")[2], json.loads(each.data)["id"]) for each in requests]
    return [each for each in pairs if f"-{part}-" in each[0]]


async def kill_when(watch: Watch, pids: dict[str, int], part: str, tokens: int) -> str:
    """Kill the executor of ``part`` after ``tokens`` of the next invocation.

    Returns the executor's name.
    """
    await watch.until(lambda: list_executors(watch, part))
    victim, invocation = list_executors(watch, part)[0]
    await watch.until(lambda: len(watch.ids(invocation)) >= tokens)
    os.kill(pids[victim], signal.SIGKILL)
    return victim


async def ask_and_kill(
    system: System, ask: Ask, bodies: Sequence[dict[str, Any]], part: str, tokens: int
) -> tuple[list[ChoiceAnswers], bool]:
    """Answer ``bodies`` while the executor of ``part`` with the first answer dies.

    Also returns whether the gateway noticed the loss.
    """
    pids = await system.whole()
    await system.becomes_ready()
    async with Watch.on(system) as watch, system.http() as http:
        asking = asyncio.gather(*[asyncio.create_task(ask(http, each)) for each in bodies])
        await asyncio.wait_for(kill_when(watch, pids, part, tokens), 30)
        answers = await asyncio.wait_for(asking, 60)
        return answers, len(list_executors(watch, part)) > len(bodies)


async def compare_answers(
    system: System, ask: Ask, bodies: Sequence[dict[str, Any]], part: str, share: float, missed: bool = True
) -> None:
    """Compare the answers to ``bodies`` under a fault with undisturbed ones.

    The executor of ``part`` dies after a ``share`` of all tokens. With ``missed``, the gateway must notice the loss,
    and another executor must continue the answers.
    """
    async with system.http() as http:
        plain = [await ask(http, each) for each in bodies]
    tokens = int(share * plain[0].usage["completion_tokens"])
    for _ in range(ATTEMPTS):
        answers, was_missed = await ask_and_kill(system, ask, bodies, part, tokens)
        for one, other in zip(answers, plain, strict=True):
            one.require_equal(other)
        await system.ledger_is_empty()
        if was_missed or not missed:
            return
    pytest.fail(f"all answers were there each time before the executor of {part} died")


BRIEF = [("seeded", 0.2, send_streamed), ("seeded", 0.2, send_whole)]
LONG = [
    (kind, share, ask)
    for kind in ASKED
    for share in (0.0, 0.2, 0.5)
    for ask in (send_streamed, send_whole)
    if (kind, share, ask) not in BRIEF
]


@pytest.mark.parametrize(
    ("kind", "share", "ask"), [*BRIEF, *(pytest.param(*case, marks=pytest.mark.nightly) for case in LONG)]
)
async def test_every_answer_goes_on(system: System, kind: str, share: float, ask: Ask):
    await compare_answers(system, ask, [make_body(TEXT, **ASKED[kind])], "L", share)


@pytest.mark.nightly
async def test_the_answers_of_many_go_on_each_as_its_own(system: System):
    bodies = [make_body(TEXT, temperature=1.0, seed=10 * number, max_tokens=200 + number) for number in range(4)]

    await compare_answers(system, send_streamed, bodies, "L", 0.3)


@pytest.mark.nightly
@pytest.mark.parametrize("ask", [send_streamed, send_whole])
@pytest.mark.parametrize(("part", "share"), [("P", 0.0), ("D", 0.0), ("D", 0.3), ("D", 0.5)])
async def test_every_answer_goes_on_from_halves(split_system: System, part: str, share: float, ask: Ask):
    is_missed = part == "D"  # a prompt may be computed by then
    await compare_answers(split_system, ask, [make_body(HALVES, **ASKED["seeded"])], part, share, is_missed)


async def test_without_another_executor_the_request_fails_by_name(system: System):
    everybody = await system.whole()
    await system.becomes_ready()
    request_body = make_body(TEXT, max_tokens=3000)
    async with Watch.on(system) as watch, system.http() as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=request_body))
        streaming = asyncio.create_task(http.post("/v1/chat/completions", json={**request_body, "stream": True}))
        await watch.until(lambda: len({id for _, id in list_executors(watch, "L") if len(watch.ids(id)) > 30}) == 2)
        for name, pid in everybody.items():
            if "-L-" in name:
                os.kill(pid, signal.SIGKILL)
        answer, events = await asyncio.wait_for(asyncio.gather(asking, streaming), 30)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["stage"]) == (503, "stage_unavailable", "thinker")
    [last] = [json.loads(line[6:]) for line in events.text.splitlines() if line.startswith('data: {"error"')]
    assert last["error"]["code"] == "stage_unavailable"
    assert "[DONE]" not in events.text
    await system.ledger_is_empty()
