"""``omnibus bisect``: all segments of a request, and exit codes for differences and for segments not compared."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnibus.bus import Delivery, subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.bus.nats import NatsBus
from omnibus.cli import bisect, main
from omnibus.settings import BusSettings
from tests.unit.cli.documents import ENDED, INVOCATION, make_node
from tests.unit.sidecar.node import wait_until

PATIENCE = 20.0  # seconds
ONE_STAGE = {"nodes": [make_node("thinker")], "outputs": [[0, "text"]], "options": ["L"], "route": ["l-0"]}


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[NatsBus]:
    nats_bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    await nats_bus.open_records(60.0, 1 << 20)
    yield nats_bus
    await nats_bus.drain()


async def record_invocation(bus: NatsBus, id: str, digest: str = "", **begun: Any) -> None:
    """Record an invocation of one stage whose output had ``digest``."""
    subject = subjects.record_subject("chat", id)
    end = {**ENDED, "inv": id, "route": ["l-0"], "hops": [], "outputs": {"0.text": digest} if digest else {}}
    end["segments"] = begun.pop("segments", [])
    bus.publish_record(subject, json.dumps({**INVOCATION, **ONE_STAGE, **begun, "id": id}).encode(), f"{id}.0")
    bus.publish_record(subject, json.dumps(end).encode(), f"{id}.end")

    async def is_recorded() -> bool:
        return len(await bus.read_records(subject)) == 2

    await wait_until(is_recorded)


@pytest.mark.parametrize(
    ("name", "recorded_digests", "executors", "replayed_digest", "code", "segment"),
    [
        ("alone", ["", ""], ["l-0"], "good", 3, 1),  # an executor is not compared with itself
        ("equal", ["good", "good"], ["l-0"], "good", 0, 1),
        ("first", ["bad", "good"], ["l-0"], "good", 1, 0),
        ("second", ["good", "bad"], ["l-0"], "good", 1, 1),
        ("others", ["", ""], ["l-0", "l-1"], "good", 0, 1),
        ("empty", ["", ""], ["l-0", "l-1"], "", 3, 1),
    ],
)
async def test_all_segments_are_bisected_and_what_was_not_compared_is_an_error(
    bus: NatsBus,
    nats_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    recorded_digests: list[str],
    executors: list[str],
    replayed_digest: str,
    code: int,
    segment: int,
):
    ids = [f"bisect-{name}", f"bisect-{name}_1"]
    await record_invocation(bus, ids[0], recorded_digests[0], segments=ids[1:])
    await record_invocation(bus, ids[1], recorded_digests[1], parent=ids[0], step=1)
    task = ONE_STAGE["nodes"][0]["task"]  # type: ignore[index]

    async def list_executors(_: NatsBus) -> list[ExecutorStatus]:
        about: Any = {"node": "n", "state": "ready", "credits": 1}
        return [ExecutorStatus(id, "m", "L", ("thinker",), (task,), **about) for id in executors]

    async def answer_replay(delivery: Delivery) -> AsyncIterator[bytes]:
        yield json.dumps({"status": "done", "digests": {"0.text": replayed_digest}}).encode()

    monkeypatch.setattr(bisect, "_ready_executors", list_executors)
    stop = await bus.add_responder(subjects.REPLAY, answer_replay)
    arguments = ("bisect", ids[0], "--json", "--nats", nats_url)

    assert await asyncio.wait_for(asyncio.to_thread(main, arguments), PATIENCE) == code
    output = capsys.readouterr()
    assert json.loads(output.out)["segment"] == ids[segment]
    assert ("not_compared" in output.err) is (code == 3)
    await stop()
