"""``omnibus tail``, ``show`` and ``replay``: lines for people, JSON for programs, exit codes for scripts."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import Delivery, subjects
from omnibus.bus.nats import NatsBus
from omnibus.cli import invocations, main
from omnibus.recording import records
from omnibus.settings import BusSettings
from tests.unit.cli.documents import ENDED, INVOCATION, make_end, make_invocation
from tests.unit.sidecar.node import wait_until

PATIENCE = 20.0  # seconds


def format_line(document: dict[str, Any]) -> str:
    """Return the line of ``omnibus tail`` without its clock."""
    clock, _, rest = invocations._record_line(json.dumps(document).encode()).partition(" ")
    assert len(clock) == len("12:00:00")
    return rest


def test_tail_shows_a_beginning():
    assert format_line(INVOCATION) == "begin g-0-1  m  vision+thinker  via E>L"
    assert format_line({**INVOCATION, "replay_of": "g-0-0"}).endswith("via E>L (replay of g-0-0)")


def test_tail_shows_an_end_and_why():
    problem = {"code": "stage_failed", "message": "vision failed"}

    assert format_line(ENDED) == "end   g-0-1  done after 1000 ms"
    assert format_line({**ENDED, "status": "failed", "problem": problem}) == (
        "end   g-0-1  failed after 1000 ms  stage_failed: vision failed"
    )


def test_tail_shows_both_of_one_message(capsys: pytest.CaptureFixture[str]):
    whole = records.join_records(json.dumps(INVOCATION).encode(), json.dumps(ENDED).encode())

    invocations._print_records(Delivery("s", whole), as_json=False)
    begin, end = capsys.readouterr().out.splitlines()
    invocations._print_records(Delivery("s", whole), as_json=True)

    assert ("begin g-0-1" in begin, "end   g-0-1" in end) == (True, True)
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert documents == json.loads(json.dumps([INVOCATION, ENDED]))


def test_an_invocation_is_described_from_beginning_to_end():
    lines = invocations.invocation_lines(make_invocation(), make_end())

    assert lines[0] == "g-0-1  m  seed 7"
    assert lines[-3:] == ["status  done", "answer  'hello'", "audio   1.50 s, sha256 0123456789abcdef…"]
    assert sum(line.startswith("  [") for line in lines) == 6


def test_a_failure_is_described_with_its_attempts():
    problem = {"code": "stage_failed", "message": "vision failed"}
    over = make_end(status="failed", attempts=3, problem=problem, answer={})

    assert invocations.invocation_lines(make_invocation(), over)[-2:] == [
        "status  failed, after 3 attempts",
        "problem stage_failed: vision failed",
    ]


def test_what_has_not_ended_says_so():
    assert invocations.invocation_lines(make_invocation(), None)[-1] == "it has not ended yet"


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"status": "running", "id": "b", "replay_of": "a", "path": "EL"}, "replaying a as b via EL"),
        ({"status": "failed", "problem": {"code": "not_found", "message": "gone"}}, "failed: not_found: gone"),
        (
            {"status": "done", "answer": {"text": "hi"}, "identical": True, "compared": ["thinker.text (2 tokens)"]},
            "answer  'hi'\nidentical to the recorded answer\n  compared thinker.text (2 tokens)",
        ),
        (
            {"status": "done", "answer": {}, "identical": False, "why": "the text differs"},
            "done\nDIFFERENT: the text differs",
        ),
        (
            {"status": "done", "answer": {"audio_seconds": 2.0}, "identical": None, "why": "unknown"},
            "done\naudio   2.00 s\nnot compared: unknown",
        ),
    ],
)
def test_the_progress_of_a_replay_is_said(part: dict[str, Any], text: str):
    assert invocations._progress_text(part) == text


# The commands on a real bus


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[NatsBus]:
    nats_bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    await nats_bus.open_records(60.0, 1 << 20)
    yield nats_bus
    await nats_bus.drain()


async def run_omnibus(*arguments: str) -> int:
    """Run ``omnibus`` with ``arguments`` in its own loop, as the shell does."""
    return await asyncio.wait_for(asyncio.to_thread(main, arguments), PATIENCE)


async def publish_documents(bus: NatsBus, id: str, *documents: dict[str, Any]) -> None:
    for number, document in enumerate(documents):
        name = "inv" if document.get("kind") == "end" else "id"
        bus.publish_record(
            subjects.record_subject("chat", id), json.dumps({**document, name: id}).encode(), f"{id}.{number}"
        )

    async def are_published() -> bool:
        return len(await bus.read_records(subjects.record_subject("chat", id))) == len(documents)

    await wait_until(are_published)


async def test_show_prints_lines_or_json(bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str]):
    await publish_documents(bus, "show-1", INVOCATION, ENDED)

    assert await run_omnibus("show", "show-1", "--nats", nats_url) == 0
    assert capsys.readouterr().out.splitlines()[0] == "show-1  m  seed 7"

    assert await run_omnibus("show", "show-1", "--json", "--nats", nats_url) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["invocation"]["id"], output["end"]["status"]) == ("show-1", "done")
    assert output["waterfall"]["summary"]["id"] == "show-1"


async def test_show_of_nothing_is_one_line_and_exit_code_1(
    bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str]
):
    assert await run_omnibus("show", "nothing", "--nats", nats_url) == 1

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("omnibus: no record of invocation nothing")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ({"status": "done", "answer": {}, "identical": True, "compared": ["thinker.text (2 tokens)"]}, 0),
        ({"status": "done", "answer": {}, "identical": None, "why": "unknown"}, 3),
        ({"status": "done", "answer": {}, "identical": False, "why": "differs"}, 1),
        ({"status": "failed", "problem": {"code": "not_found", "message": "gone"}}, 1),
    ],
)
async def test_the_exit_code_of_replay_says_whether_the_answers_agree(
    bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str], last: dict[str, Any], code: int
):
    await publish_documents(bus, "again-1", INVOCATION)
    requests: list[dict[str, Any]] = []

    async def answer_replay(delivery: Delivery) -> AsyncIterator[bytes]:
        requests.append(json.loads(delivery.data))
        yield json.dumps({"status": "running", "id": "b", "replay_of": "again-1", "path": "E>L"}).encode()
        yield json.dumps(last).encode()

    stop = await bus.add_responder(subjects.REPLAY, answer_replay)

    assert await run_omnibus("replay", "again-1", "--nats", nats_url) == code
    assert [graph.decode_invocation(json.dumps(each).encode()) for each in requests] == [make_invocation(id="again-1")]
    assert capsys.readouterr().out.startswith("replaying again-1 as b via E>L\n")

    assert await run_omnibus("replay", "again-1", "--json", "--nats", nats_url) == code
    assert [json.loads(each)["status"] for each in capsys.readouterr().out.splitlines()] == ["running", last["status"]]
    await stop()


async def test_replay_without_a_gateway_says_so(bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str]):
    await publish_documents(bus, "alone-1", INVOCATION)

    assert await run_omnibus("replay", "alone-1", "--nats", nats_url) == 1
    assert "no subscriber on omnibus.replay" in capsys.readouterr().err


async def test_steps_are_printed_and_two_invocations_compared(
    bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str]
):
    await publish_documents(bus, "step-1", INVOCATION, ENDED)
    await publish_documents(bus, "step-2", INVOCATION, {**ENDED, "answer": {"text": "bye"}})

    assert await run_omnibus("step", "step-1", "--at", "thinker", "--nats", nats_url) == 0
    printed_one = capsys.readouterr()
    assert printed_one.err == ""
    assert printed_one.out.splitlines() == [
        "[2] thinker on l-1 (L): done in 950 ms",
        "  ← items: from 1.embedding, 0.embedding",
        '  ← messages: [{"role": "user"}]',
        "  ← prompt: hü",
        "  ← top: 3",
        "  → text: hello",
        "  a fork can change messages, prompt, top, and runs all stages:",
        "    omnibus fork step-1 2 INPUT=VALUE",
    ]
    assert await run_omnibus("step", "step-1", "--nats", nats_url) == 0
    printed_all = capsys.readouterr()
    assert "not kept" in printed_all.out
    assert printed_all.err == "set OMNIBUS_GATEWAY_RECORD=stages to keep the values between stages\n"
    assert await run_omnibus("compare", "step-1", "step-1", "--nats", nats_url) == 0
    assert await run_omnibus("compare", "step-1", "step-2", "--json", "--nats", nats_url) == 1
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["value"], row["second"]) for row in rows if row["same"] is False] == [("→ text", "bye")]
    assert {row["value"] for row in rows if row["same"] is None} == {"→ embedding"}


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ({"text": "hi", "text_sha256": "a" * 64}, {"text": "hi", "text_sha256": "a" * 64}, 0),
        ({"text_sha256": "a" * 64, "characters": 2}, {"text_sha256": "a" * 64, "characters": 2}, 0),  # digests alone
        ({"text": "hi"}, {"text": "hi"}, 0),  # of builds without digests
        ({}, {}, 3),
        ({"text": "hi", "text_sha256": "a" * 64}, {}, 3),
        ({"text": "x" * 2000, "text_sha256": "a" * 64}, {"text": "x" * 2000, "text_sha256": "b" * 64}, 1),
        ({"text_sha256": "a" * 64, "calls_sha256": "c" * 64}, {"text_sha256": "a" * 64, "calls_sha256": "d" * 64}, 1),
        ({"text_sha256": "a" * 64}, {"text_sha256": "a" * 64}, 3),  # both are empty texts
    ],
)
async def test_what_was_not_compared_is_not_equal(
    bus: NatsBus,
    nats_url: str,
    capsys: pytest.CaptureFixture[str],
    first: dict[str, Any],
    second: dict[str, Any],
    code: int,
):
    name = f"side-{abs(hash(json.dumps([first, second])))}"
    await publish_documents(bus, f"{name}-1", INVOCATION, {**ENDED, "answer": first})
    await publish_documents(bus, f"{name}-2", INVOCATION, {**ENDED, "answer": second})

    assert await run_omnibus("compare", f"{name}-1", f"{name}-2", "--json", "--nats", nats_url) == code
    assert ("not_compared" in capsys.readouterr().err) is (code == 3)


async def test_all_segments_of_two_requests_are_compared(
    bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str]
):
    text = {"text": "hi", "text_sha256": "a" * 64}
    for name, later in (("grown-1", text), ("grown-2", {**text, "text": "ho", "text_sha256": "b" * 64})):
        await publish_documents(bus, name, INVOCATION, {**ENDED, "answer": text, "segments": [f"{name}_1"]})
        await publish_documents(bus, f"{name}_1", {**INVOCATION, "parent": name, "step": 1}, {**ENDED, "answer": later})
    await publish_documents(bus, "grown-3", INVOCATION, {**ENDED, "answer": text})

    assert await run_omnibus("compare", "grown-1", "grown-2", "--json", "--nats", nats_url) == 1
    differing = [row["node"] for row in json.loads(capsys.readouterr().out) if row["same"] is False]
    assert differing == ["1:[2] thinker"]
    assert await run_omnibus("compare", "grown-1", "grown-3", "--nats", nats_url) == 1


@pytest.mark.parametrize(
    ("id", "advice"), [("sess_1", "omnibus show"), ("resp_1", "x-request-id"), ("batch_1", "request_id")]
)
async def test_ids_of_what_has_several_invocations_say_where_these_are(
    bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str], id: str, advice: str
):
    assert await run_omnibus("replay", id, "--nats", nats_url) == 1
    assert advice in capsys.readouterr().err


async def test_the_id_of_a_completion_names_its_invocation(
    bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str]
):
    await publish_documents(bus, "named-1", INVOCATION, ENDED)

    assert await run_omnibus("show", "chatcmpl-named-1", "--nats", nats_url) == 0
    assert capsys.readouterr().out.startswith("named-1  m")


async def test_a_fork_is_a_replay_with_one_input_changed(
    bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str]
):
    await publish_documents(bus, "fork-1", INVOCATION, ENDED)
    requests: list[dict[str, Any]] = []

    async def answer_replay(delivery: Delivery) -> AsyncIterator[bytes]:
        requests.append(json.loads(delivery.data))
        yield json.dumps({"status": "running", "id": "b", "replay_of": "fork-1", "path": "E>L"}).encode()
        yield json.dumps({"status": "done", "id": "b", "answer": {"text": "hi"}, "identical": False}).encode()

    stop = await bus.add_responder(subjects.REPLAY, answer_replay)

    assert await run_omnibus("fork", "fork-1", "thinker", "top=5", "--seed", "9", "--nats", nats_url) == 0
    assert (requests[0]["nodes"][2]["inputs"]["top"], requests[0]["seed"], requests[0]["id"]) == (5, 9, "fork-1")
    assert capsys.readouterr().out.splitlines() == [
        "forked fork-1 as b via E>L",
        "answer  'hi'",
        "different from before; side by side:",
        "  omnibus compare fork-1 b",
    ]
    assert await run_omnibus("fork", "fork-1", "thinker", "--nats", nats_url) == 1
    assert "a fork changes something" in capsys.readouterr().err
    await stop()


async def test_tail_prints_what_begins_and_ends(bus: NatsBus, nats_url: str, capsys: pytest.CaptureFixture[str]):
    options = argparse.Namespace(nats=nats_url, json=False)
    tailing = asyncio.ensure_future(invocations.tail_records(options))
    texts: list[str] = []

    async def is_printed() -> bool:
        bus.publish_record(subjects.record_subject("chat", "tail-1"), json.dumps(INVOCATION).encode(), "tail-1.0")
        bus.publish_record(subjects.record_subject("chat", "tail-1"), json.dumps(ENDED).encode(), "tail-1.end")
        await asyncio.sleep(0.02)
        texts.append(capsys.readouterr().out)
        return "done after 1000 ms" in "".join(texts)

    await wait_until(is_printed)
    tailing.cancel()
    await asyncio.gather(tailing, return_exceptions=True)

    assert "begin g-0-1  m  vision+thinker  via E>L" in "".join(texts)


async def test_without_a_bus_and_without_a_running_system_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("OMNIBUS_BUS_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    assert await run_omnibus("show", "x") == 1
    assert "start one with `omnibus up`" in capsys.readouterr().err
