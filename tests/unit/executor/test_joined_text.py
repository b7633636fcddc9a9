"""Text pieces in quick succession become one chunk, which records the cuts."""

import asyncio

import pytest

from omnibus.bus import coalescer
from omnibus.bus.messages import Chunk
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from tests.unit.executor.arithmetic import Place, call, invocation


async def write(job: Job) -> None:
    for number in range(4):
        await job.send_text("text", {"text": f" {number}", "ids": [number]})
    await job.send_text("text", {"text": " more", "reasoning": "other keys"})
    await job.send_text("text", {"text": " odd", "logprobs": {"at": 5}})
    await job.send_text("text", {"text": " odder", "logprobs": {"at": 6}})
    job.close("text", {"finish_reason": "stop"})


async def read(job: Job) -> None:
    async for _ in job.stream("text"):
        pass
    await job.put("y", {})


@pytest.fixture(autouse=True)
def _long_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", 3600.0)


async def test_pieces_of_one_kind_are_joined_but_for_the_first(here: Place):
    await here.executor("a", {"write": write})
    given = here.office.send(invocation([call("write")], ["a"], [(0, "text")]))

    chunks = await here.office.done(given)

    assert [(chunk.seq, chunk.data, chunk.cuts) for chunk in chunks] == [
        (0, {"text": " 0", "ids": [0]}, ()),
        (1, {"text": " 1 2 3", "ids": [1, 2, 3]}, (2, 2, 2)),
        (2, {"text": " more", "reasoning": "other keys"}, ()),
        (3, {"text": " odd", "logprobs": {"at": 5}}, ()),
        (4, {"text": " odder", "logprobs": {"at": 6}}, ()),
        (5, {"finish_reason": "stop"}, ()),
    ]


async def test_what_other_nodes_read_is_sent_piece_by_piece(here: Place):
    for id, does in (("a", {"write": write}), ("b", {"read": read})):
        await here.executor(id, does)
    given = here.office.send(
        invocation([call("write"), call("read", text=make_ref(0, "text"))], ["a", "b"], [(0, "text"), (1, "y")])
    )

    chunks = await here.office.done(given)

    assert [chunk.data["text"] for chunk in chunks if "ids" in chunk.data] == [" 0", " 1", " 2", " 3"]


async def test_held_text_leaves_though_nothing_follows(here: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", 0.05)
    arrived = asyncio.Event()

    async def wait(job: Job) -> None:
        for number in range(3):
            await job.send_text("text", {"text": f" {number}"})
        await arrived.wait()
        job.close("text")

    await here.executor("a", {"wait": wait})
    given = here.office.send(invocation([call("wait")], ["a"], [(0, "text")]))
    async with asyncio.timeout(30):
        while not any(isinstance(each, Chunk) and each.cuts == (2, 2) for each in here.office.replies):
            await asyncio.sleep(0.01)
    arrived.set()

    await here.office.done(given)


async def test_no_chunk_grows_beyond_what_a_message_may_have(here: Place):
    async def hurry(job: Job) -> None:
        for _ in range(400):
            await job.send_text("text", {"text": "x" * 500, "ids": [1]})
        await job.send_text("text", {"text": "y" * 5000, "ids": [2]})
        for _ in range(200):
            await job.send_text("text", {"text": "z", "ids": [3]})
        job.close("text")

    await here.executor("a", {"hurry": hurry})
    given = here.office.send(invocation([call("hurry")], ["a"], [(0, "text")]))

    chunks = await here.office.done(given)

    assert "".join(chunk.data.get("text", "") for chunk in chunks) == "x" * 200_000 + "y" * 5000 + "z" * 200
    assert max(len(chunk.data.get("text", "")) for chunk in chunks) == 5000
    assert max(len(chunk.cuts) for chunk in chunks) == 64
