"""Restarting a lost stage and its dependents. Earlier nodes continue, or their outputs are reread."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus.bus.messages import Chunk
from tests.unit.gateway.deaths import SPEECH, Ward
from tests.unit.gateway.house import (
    OMNI,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_chat_answer,
    start_toy_gateway,
)
from tests.unit.gateway.world import DispatcherWorld
from tests.unit.sidecar.node import wait_until

APART = {"EV": ("vision",), "EA": ("audio",), "Th": ("thinker",), "Ta": ("talker",), "V": ("vocoder",)}


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    # Tests kill executors here, so a death is not the input's fault.
    async with start_toy_gateway(tmp_path, quarantine=0.0) as gateway:
        yield gateway


@pytest.fixture
async def ward(home: ToyGateway) -> Ward:
    return Ward(home)


async def start_speech(ward: Ward, *, twice: str, **more: Any) -> asyncio.Task[httpx.Response]:
    await ward.serve(OMNI, (twice,), Th=("thinker",), Ta=("talker",), V=("vocoder",))
    return asyncio.create_task(ward.home.ask(model=OMNI, content="one two three", **SPEECH, **more))


def read_speech(response: httpx.Response) -> tuple[str, str]:
    message = response.json()["choices"][0]["message"]
    assert response.status_code == 200, response.text
    return message["content"] or "", message["audio"]["data"]


async def wait_for_stages(ward: Ward, component: str) -> None:
    """Wait until the stages before ``component`` are complete and others began.

    The client has then received the first samples of a vocoder.
    """
    [running] = ward.home.dispatcher._running.values()
    names = [each.component for each in running.invocation.nodes]
    node = names.index(component)
    sounds = [stream for key, stream in running.streams.items() if key == (node, "audio")]
    await wait_until(
        lambda: (
            set(range(node)) <= running.hops.keys()
            and all(ward.began[each] for each in names)
            and all(stream.samples for stream in sounds)
        )
    )


async def ask_undisturbed(ward: Ward) -> tuple[str, str]:
    again = await ward.home.ask(model=OMNI, content="one two three", seed=5, **SPEECH)
    return read_speech(again)


@pytest.mark.parametrize(
    ("component", "option", "counts"),
    [
        ("vocoder", "V", {"thinker": 1, "talker": 1, "vocoder": 2}),
        ("talker", "Ta", {"thinker": 1, "talker": 2, "vocoder": 2}),
        ("thinker", "Th", {"thinker": 2, "talker": 2, "vocoder": 2}),
    ],
)
async def test_what_comes_before_a_lost_stage_runs_once(
    ward: Ward, component: str, option: str, counts: dict[str, int]
):
    ward.gate(component)
    asking = await start_speech(ward, twice=option, seed=5)
    executor = await ward.running(component)
    await wait_for_stages(ward, component)

    await ward.kill(executor)
    answer = read_speech(await asking)

    assert dict(ward.began) == counts
    await ward.home.emptied()
    assert answer == await ask_undisturbed(ward)
    assert ward.home.dispatcher.retention.nbytes == 0


async def test_a_stage_that_still_streams_feeds_the_one_that_begins_again(ward: Ward):
    talking, sounding = ward.gate("talker"), ward.gate("vocoder")
    asking = await start_speech(ward, twice="V", seed=5)
    executor = await ward.running("vocoder")

    await ward.kill(executor)
    await ward.running("vocoder", 2)
    talking.set()
    sounding.set()
    answer = read_speech(await asking)

    assert dict(ward.began) == {"thinker": 1, "talker": 1, "vocoder": 2}
    await ward.home.emptied()
    assert answer == await ask_undisturbed(ward)


async def test_an_embedding_outlives_the_encoder_and_its_reader(ward: Ward):
    ward.gate("thinker")
    await ward.serve(VL, ("E", "L"), E=("vision",), L=("thinker",))
    asking = asyncio.create_task(ward.home.ask(content=[make_text_part("look"), make_image_part()], path="E>L", seed=5))
    reader = await ward.running("thinker")
    [running] = ward.home.dispatcher._running.values()
    await wait_until(lambda: any(record.whole for record in running.records.values()))

    await ward.kill(running.executors[0])
    await ward.kill(reader)
    answer_text = read_chat_answer(await asking)

    assert dict(ward.began) == {"vision": 1, "thinker": 2}
    await ward.home.emptied()
    assert answer_text == read_chat_answer(
        await ward.home.ask(content=[make_text_part("look"), make_image_part()], path="E>L", seed=5)
    )


async def test_a_lost_encoder_alone_runs_again_beside_others(ward: Ward):
    ward.gate("vision")
    await ward.serve(VL, ("E",), E=("vision",), L=("thinker",))
    asking = asyncio.create_task(ward.home.ask(content=[make_text_part("look"), make_image_part()], path="E>L"))
    executor = await ward.running("vision")

    await ward.kill(executor)
    read_chat_answer(await asking)

    assert ward.began == {"vision": 2, "thinker": 2}, "its reader had nothing to lose"
    await ward.home.emptied()


async def test_a_stage_may_be_lost_twice(ward: Ward):
    ward.gate("vocoder", runs=2)
    asking = await start_speech(ward, twice="V", seed=5)
    await ward.home.executor(OMNI, "V", "vocoder", id="V-2", vocoder=ward.counting("vocoder"))
    first = await ward.running("vocoder")
    await wait_for_stages(ward, "vocoder")
    await ward.kill(first)
    second = await ward.running("vocoder", 2)

    await ward.kill(second)
    answer = read_speech(await asking)

    assert (ward.began["thinker"], ward.began["talker"]) == (1, 1)
    await ward.home.emptied()
    assert answer == await ask_undisturbed(ward)


@pytest.mark.parametrize("change", ["off", "no room"])
async def test_without_what_is_retained_everything_runs_again(ward: Ward, change: str):
    retention = ward.home.dispatcher.retention
    retention.policy, retention.limit = ("off", 1 << 20) if change == "off" else ("auto", 0)
    ward.gate("vocoder")
    asking = await start_speech(ward, twice="V", seed=5)
    executor = await ward.running("vocoder")
    await wait_for_stages(ward, "vocoder")

    await ward.kill(executor)
    response = await asking

    assert ward.began["thinker"] == 2
    [move] = (await ward.home.ended(response.headers["x-request-id"])).moves
    assert (move.again, bool(move.resumed)) == ((), change != "off")
    answer = read_speech(response)
    await ward.home.emptied()
    assert answer == await ask_undisturbed(ward)


async def test_what_was_dropped_for_want_of_memory_is_computed_again(there: DispatcherWorld):
    vision, thinker, _ = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    handle = await there.put(running.id, 1.0)
    vision.reply(Chunk(running.id, 0, "y", 0, handle=handle, last=True), vision.hop(0))
    await there.turn()
    assert (await there.tensors.stats())["retained_bytes"] == handle.nbytes

    whole = there.sidecar.snapshot()["arena_bytes"]
    block = await there.tensors.allocate(whole - 64, invocation="big", deadline=time.time() + 60, wait=0.0)
    block.discard()
    thinker.say("gone")

    assert (await there.sent(vision, 2)).attempts == (), "both begin again"
    there.dispatcher.finish(running, "done")
    assert await there.blocks() == 0


async def test_what_is_retained_is_read_again_from_the_same_memory(there: DispatcherWorld):
    vision, thinker, other = await there.puppets_of(e="E", l="L", l2="L")
    running = there.submit()
    await there.turn()
    handle = await there.put(running.id, 1.0)
    vision.reply(Chunk(running.id, 0, "y", 0, handle=handle, last=True), vision.hop(0))
    await there.turn()

    thinker.say("gone")

    assert (await there.sent(other)).attempts == (0, 1)
    await there.turn()
    assert [(chunk.attempt, chunk.handle) for chunk in other.fed] == [(1, handle)]
    assert len(vision.taken) == 1
    there.dispatcher.finish(running, "done")
    assert await there.blocks() == 0


async def test_the_record_says_what_began_again_and_behind_what(ward: Ward):
    ward.gate("vocoder")
    asking = await start_speech(ward, twice="V", seed=5)
    executor = await ward.running("vocoder")
    await wait_for_stages(ward, "vocoder")

    await ward.kill(executor)
    response = await asking

    end_record = await ward.home.ended(response.headers["x-request-id"])
    [move] = end_record.moves
    assert (move.reason, move.executor, move.again) == ("gone", executor, (2,))
    assert move.resumed == {"2.audio": 240}
    assert [hop.attempt for hop in sorted(end_record.hops, key=lambda hop: hop.node)] == [0, 0, 1]
