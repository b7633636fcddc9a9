"""Retained outputs reach the gateway with confirmations, or at once after a restart."""

import asyncio

import numpy as np
import pytest

from omnibus.bus.messages import Chunk
from omnibus.executor import loop as acks
from omnibus.executor.runner import Job
from omnibus.graph import make_ref
from tests.unit.executor.arithmetic import Place, make_call, make_invocation

RETAINED = ((0, "rows"), (0, "codes"))


async def read_streams(job: Job) -> None:
    for name in ("rows", "codes"):
        async for _ in job.stream(name):
            pass
    await job.put("y", {})


@pytest.mark.parametrize("route", [["a", "b"], ["a", "a"]], ids=["apart", "together"])
async def test_codes_are_with_the_gateway_while_their_talker_goes_on(
    here: Place, monkeypatch: pytest.MonkeyPatch, route: list[str]
):
    monkeypatch.setattr(acks, "ACK_DELAY_SECONDS", 3600.0)
    release = asyncio.Event()

    async def send_codes(job: Job) -> None:
        await job.send("rows", {}, np.ones(2, np.float32))
        await job.send("codes", {"codes": [1, 2]})
        await release.wait()
        for name in ("rows", "codes"):
            job.close(name)

    for id in dict.fromkeys(route):
        await here.executor(id, {"talk": send_codes, "read": read_streams})
    reader = make_call("read", rows=make_ref(0, "rows"), codes=make_ref(0, "codes"))
    request = here.office.send(make_invocation([make_call("talk"), reader], route, [(1, "y")], retained=RETAINED))

    [chunk] = await here.office.until(Chunk, request)
    release.set()
    await here.office.done(request)

    assert (chunk.output, chunk.data) == ("codes", {"codes": [1, 2]})
    assert "rows" not in {each.output for each in here.office.of(Chunk, request)}
