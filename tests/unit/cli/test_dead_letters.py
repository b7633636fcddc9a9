"""``omnibus deadletters``: listing, showing, retrying and deleting, on a real bus."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import Delivery, subjects
from omnibus.bus.nats import NatsBus
from omnibus.cli import main
from omnibus.cli.dead_letters import letter_lines
from omnibus.errors import ProblemDetails
from omnibus.recording import dead_letters
from omnibus.recording.dead_letters import DeadLetter
from omnibus.recording.records import Moved
from omnibus.settings import BusSettings
from tests.unit.cli.documents import make_invocation
from tests.unit.sidecar.node import wait_until

PATIENCE = 20.0  # seconds


def make_letter(**changes: Any) -> DeadLetter:
    fields = {
        "v": 1, "inv": "g-0-1", "reason": "crashed", "at": 1002.5, "created": 1000.0, "app": "chat", "model": "m",
        "type": "vision+thinker", "path": "E>L", "problem": ProblemDetails("stage_unavailable", "it is gone"),
        "attempts": 2, "node": 2, "component": "thinker", "lost": ("l-0", "l-1"), "invocation": make_invocation(),
        "moves": (Moved(0, 1001.0, "gone", "l-0"), Moved(1, 1002.0, "gone", "l-1")),
    }  # fmt: skip
    return DeadLetter(**{**fields, **changes})


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[NatsBus]:
    nats_bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    await nats_bus.open_records(60.0, 1 << 20)
    await nats_bus.open_records(60.0, 1 << 20, subjects.DEADLETTERS)
    for delivery in await nats_bus.read_latest(subjects.DEADLETTERS, 1000):
        await nats_bus.purge_subject(subjects.DEADLETTERS, delivery.subject)
    yield nats_bus
    await nats_bus.drain()


@pytest.fixture
def run_deadletters(nats_url: str) -> Any:
    """Run ``omnibus deadletters`` in its own loop, as the shell does."""

    async def run_command(*arguments: str) -> int:
        command = ("deadletters", *arguments, "--nats", nats_url)
        return await asyncio.wait_for(asyncio.to_thread(main, command), PATIENCE)

    return run_command


async def store_letters(bus: NatsBus, *letters: DeadLetter) -> None:
    for each in letters:
        body = dead_letters.encode_dead_letter(each, limit=60_000)
        bus.publish_record(subjects.dead_letter_subject(each.app, each.inv), body, f"{each.inv}.{id(bus)}")

    async def are_stored() -> bool:
        return len(await bus.read_latest(subjects.DEADLETTERS, 1000)) >= len(letters)

    await wait_until(are_stored)


async def test_the_latest_are_listed_first(bus: NatsBus, run_deadletters: Any, capsys: pytest.CaptureFixture[str]):
    await store_letters(bus, make_letter(inv="a-1"), make_letter(inv="a-2", reason="failed", lost=(), component=""))

    assert await run_deadletters() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["when", "invocation", "model", "reason", "where", "why"]
    assert lines[1].split()[2:] == ["a-2", "m", "failed", "?", "on", "?", "stage_unavailable:", "it", "is", "gone"]
    assert lines[2].split()[2:8] == ["a-1", "m", "crashed", "thinker", "on", "l-1"]

    assert await run_deadletters("list", "--limit", "1", "--json") == 0
    assert [each["inv"] for each in json.loads(capsys.readouterr().out)] == ["a-2"]


async def test_the_options_of_the_list_stand_on_either_side(
    bus: NatsBus, run_deadletters: Any, capsys: pytest.CaptureFixture[str]
):
    await store_letters(bus, make_letter(inv="b-1"), make_letter(inv="b-2"))

    assert await run_deadletters("--limit", "1", "--json", "list") == 0
    assert [each["inv"] for each in json.loads(capsys.readouterr().out)] == ["b-2"]


async def test_none_is_said(bus: NatsBus, run_deadletters: Any, capsys: pytest.CaptureFixture[str]):
    assert await run_deadletters() == 0
    assert capsys.readouterr().out == "none\n"


def test_one_is_described_by_sizes():
    lines = letter_lines(make_letter())

    assert lines[0] == "g-0-1  m  vision+thinker  via E>L"
    assert lines[2:6] == [
        "reason  crashed thinker on l-1",
        "problem stage_unavailable: it is gone",
        "moved   attempt 0: gone l-0",
        "moved   attempt 1: gone l-1",
    ]
    assert "  [0] vision   media 2048 bytes aa" in lines
    assert lines[-2].startswith(" ![2] thinker  ")
    assert lines[-1] == "try it again with `omnibus deadletters retry g-0-1`"


async def test_what_is_not_there_is_one_line_and_exit_code_1(
    bus: NatsBus, run_deadletters: Any, capsys: pytest.CaptureFixture[str]
):
    assert await run_deadletters("show", "nothing") == 1
    assert capsys.readouterr().err.startswith("omnibus: no dead letter of invocation nothing")


@pytest.mark.parametrize(
    ("status", "flags", "code", "left"),
    [("done", [], 0, []), ("done", ["--keep"], 0, ["c-1"]), ("failed", [], 1, ["c-1"])],
)
async def test_a_retry_that_succeeds_takes_the_letter_away(
    bus: NatsBus, run_deadletters: Any, status: str, flags: list[str], code: int, left: list[str]
):
    await store_letters(bus, make_letter(inv="c-1", invocation=make_invocation(id="c-1")))
    requests: list[Any] = []

    async def answer_retry(delivery: Delivery) -> AsyncIterator[bytes]:
        requests.append(graph.decode_invocation(delivery.data))
        yield b'{"status":"running","id":"n-1","replay_of":"c-1","path":"E>L"}'
        problem = {"code": "stage_failed", "message": "again"}
        yield json.dumps({"status": status, "answer": {}, "identical": None, "problem": problem}).encode()

    stop = await bus.add_responder(subjects.REPLAY, answer_retry)

    assert await run_deadletters("retry", "c-1", *flags) == code
    assert requests == [make_invocation(id="c-1")]
    letters = await dead_letters.list_dead_letters(bus, 10)
    assert [dead_letters.decode_dead_letter(each.data).inv for each in letters] == left
    await stop()


async def test_one_can_be_forgotten(bus: NatsBus, run_deadletters: Any, capsys: pytest.CaptureFixture[str]):
    await store_letters(bus, make_letter(inv="d-1"), make_letter(inv="d-2"))

    assert await run_deadletters("remove", "d-1") == 0
    assert await run_deadletters("--json") == 0

    message, letter_list = capsys.readouterr().out.splitlines()
    assert message == "the dead letter d-1 is removed"
    assert [each["inv"] for each in json.loads(letter_list)] == ["d-2"]
