"""Text pieces in quick succession become one chunk, which records the cuts."""

import asyncio

import pytest

from omnibus.bus import coalescer
from omnibus.bus.messages import Chunk
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from tests.unit.executor.arithmetic import Place, make_call, make_invocation


async def write_text(job: Job) -> None:
    for number in range(4):
        await job.send_text("text", {"text": f" {number}", "ids": [number]})
    await job.send_text("text", {"text": " more", "reasoning": "other keys"})
    await job.send_text("text", {"text": " odd", "logprobs": {"at": 5}})
    await job.send_text("text", {"text": " odder", "logprobs": {"at": 6}})
    job.close("text", {"finish_reason": "stop"})


async def read_text(job: Job) -> None:
    async for _ in job.stream("text"):
        pass
    await job.put("y", {})


@pytest.fixture(autouse=True)
def _long_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", 3600.0)


async def test_pieces_of_one_kind_are_joined_but_for_the_first(here: Place):
    await here.executor("a", {"write": write_text})
    request = here.office.send(make_invocation([make_call("write")], ["a"], [(0, "text")]))

    chunks = await here.office.done(request)

    assert [(chunk.seq, chunk.data, chunk.cuts) for chunk in chunks] == [
        (0, {"text": " 0", "ids": [0]}, ()),
        (1, {"text": " 1 2 3", "ids": [1, 2, 3]}, (2, 2, 2)),
        (2, {"text": " more", "reasoning": "other keys"}, ()),
        (3, {"text": " odd", "logprobs": {"at": 5}}, ()),
        (4, {"text": " odder", "logprobs": {"at": 6}}, ()),
        (5, {"finish_reason": "stop"}, ()),
    ]


async def test_what_other_nodes_read_is_sent_piece_by_piece(here: Place):
    for id, does in (("a", {"write": write_text}), ("b", {"read": read_text})):
        await here.executor(id, does)
    request = here.office.send(
        make_invocation(
            [make_call("write"), make_call("read", text=make_ref(0, "text"))], ["a", "b"], [(0, "text"), (1, "y")]
        )
    )

    chunks = await here.office.done(request)

    assert [chunk.data["text"] for chunk in chunks if "ids" in chunk.data] == [" 0", " 1", " 2", " 3"]


async def test_held_text_leaves_though_nothing_follows(here: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(coalescer, "PIECE_FLUSH_SECONDS", 0.05)
    arrival = asyncio.Event()

    async def write_and_wait(job: Job) -> None:
        for number in range(3):
            await job.send_text("text", {"text": f" {number}"})
        await arrival.wait()
        job.close("text")

    await here.executor("a", {"wait": write_and_wait})
    request = here.office.send(make_invocation([make_call("wait")], ["a"], [(0, "text")]))
    async with asyncio.timeout(30):
        while not any(isinstance(each, Chunk) and each.cuts == (2, 2) for each in here.office.replies):
            await asyncio.sleep(0.01)
    arrival.set()

    await here.office.done(request)


async def test_no_chunk_grows_beyond_what_a_message_may_have(here: Place):
    async def write_fast(job: Job) -> None:
        for _ in range(400):
            await job.send_text("text", {"text": "x" * 500, "ids": [1]})
        await job.send_text("text", {"text": "y" * 5000, "ids": [2]})
        for _ in range(200):
            await job.send_text("text", {"text": "z", "ids": [3]})
        job.close("text")

    await here.executor("a", {"hurry": write_fast})
    request = here.office.send(make_invocation([make_call("hurry")], ["a"], [(0, "text")]))

    chunks = await here.office.done(request)

    assert "".join(chunk.data.get("text", "") for chunk in chunks) == "x" * 200_000 + "y" * 5000 + "z" * 200
    assert max(len(chunk.data.get("text", "")) for chunk in chunks) == 5000
    assert max(len(chunk.cuts) for chunk in chunks) == 64
