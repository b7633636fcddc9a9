"""Resume state of a restarted stage: a talker's codes and whole texts, as far as they fit."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.bus.messages import Chunk
from omnibus.families import catalog
from omnibus_gateway.dispatch.failures import StageRestarts
from omnibus_gateway.dispatch.retention import NUMBER_BYTES, RECORD_BYTES, OutputRetention
from omnibus_gateway.dispatch.streams import MAX_RESUMED_VALUES
from tests.unit.executor.arithmetic import make_call
from tests.unit.executor.arithmetic import make_invocation as request
from tests.unit.gateway.deaths import SPEECH, Ward
from tests.unit.gateway.house import OMNI, ToyGateway, start_toy_gateway
from tests.unit.sidecar.node import wait_until


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, quarantine=0.0) as gateway:
        yield gateway


def codes_chunk(seq: int, codes: list[Any]) -> Chunk:
    return Chunk("i", 1, "codes", seq, data={"codes": codes})


def test_codes_count_for_what_they_take(home: ToyGateway) -> None:
    retention = home.dispatcher.retention
    record = retention.open_record((1, "codes"))

    retention.record_chunk(record, codes_chunk(0, [1, 2, 3]))
    retention.record_chunk(record, codes_chunk(1, [[1, 2, 3, 4], [5, 6, 7, 8]]))

    assert retention.nbytes == record.nbytes == 2 * RECORD_BYTES + 11 * NUMBER_BYTES
    retention.drop_record(record)
    assert retention.nbytes == 0
    assert record.joined_list("codes") == []


@pytest.mark.parametrize("frame", [0, 16])
def test_a_node_begins_behind_so_many_numbers_at_most(home: ToyGateway, frame: int) -> None:
    retention = home.dispatcher.retention
    record = retention.open_record((1, "codes"))
    every: list[Any] = [[number] * frame if frame else number for number in range(MAX_RESUMED_VALUES + 500)]

    retention.record_chunk(record, codes_chunk(0, every[:10]))
    retention.record_chunk(record, codes_chunk(1, every[10:]))

    assert record.joined_list("codes") == every[: MAX_RESUMED_VALUES // max(1, frame)]


async def test_what_takes_most_of_a_full_message_is_left_out_for_both_halves(home: ToyGateway) -> None:
    words, codes = {"ids": [151_000] * 400}, {"codes": [12] * 100}
    states = ((0, "text", words), (1, "text", words), (2, "codes", codes))
    invocation = msgspec.structs.replace(request([make_call("think")] * 3, ["a", "b", "c"], []), resumes=states)
    fits = StageRestarts(home.bus, OutputRetention(home.tensors), 1 << 16)
    full = StageRestarts(home.bus, OutputRetention(home.tensors), 3000)

    assert fits._fit_message(invocation).resumes == invocation.resumes
    assert full._fit_message(invocation).resumes == ((2, "codes", codes),)


async def test_all_of_an_executor_begins_behind_what_it_had_made(home: ToyGateway) -> None:
    ward = Ward(home)
    paths = [{"options": ["M"], "share": 1}]
    home.serve(**{OMNI: {**catalog.model_declaration("qwen2_5_omni", ""), "paths": paths}})
    works = {each: ward.counting(each) for each in ("vision", "audio", "thinker", "talker", "vocoder")}
    for number in range(2):
        await home.executor(OMNI, "M", *works, id=f"M-{number}", **works)
    ward.gate("vocoder")
    asking = asyncio.create_task(home.ask(model=OMNI, content="one two three", seed=5, **SPEECH))
    executor = await ward.running("vocoder")
    [running] = home.dispatcher._running.values()
    await wait_until(lambda: running.streams[0, "text"].ended and any(each.chunks for each in running.records.values()))
    await wait_until(lambda: bool(running.streams[2, "audio"].progress()))

    await ward.kill(executor)
    response = await asking

    words = len(response.json()["choices"][0]["message"]["content"].split())
    [move] = (await home.ended(response.headers["x-request-id"])).moves
    assert move.resumed == {"0.text": words, "1.codes": words, "2.audio": 240}
    assert (ward.began["thinker"], ward.began["talker"], ward.began["vocoder"]) == (2, 2, 2)
    await home.emptied()
    assert home.dispatcher.retention.nbytes == 0
