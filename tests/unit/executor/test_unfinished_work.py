"""Computed work is reported even if it is stopped or fails."""

import asyncio

import pytest

from omnibus.bus.messages import Hop, NodeFailed
from omnibus.errors import StageFailed
from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Job
from tests.unit.executor.arithmetic import Place, make_call, make_invocation

SECONDS = 1.25


@pytest.mark.parametrize(("status", "attempt"), [("cancelled", 0), ("expired", 0), ("moved", 0)])
async def test_stopped_work_reports_what_it_had_computed(here: Place, status: str, attempt: int):
    start_event = asyncio.Event()

    async def compute_forever(job: Job) -> None:
        current_clock().seconds += SECONDS
        start_event.set()
        await asyncio.Event().wait()

    await here.executor("a", {"compute": compute_forever})
    request = here.office.send(make_invocation([make_call("compute")], ["a"], [(0, "y")]))
    await start_event.wait()

    here.office.end(request, status, attempt)

    [hop] = await here.office.until(Hop, request)
    assert (hop.attempt, hop.node, hop.computed) == (~attempt, 0, SECONDS)
    assert not here.office.of(NodeFailed, request)


async def test_failed_work_reports_what_it_had_computed_behind_the_failure(here: Place):
    async def fail_computed(job: Job) -> None:
        current_clock().seconds += SECONDS
        raise StageFailed("defect")

    await here.executor("a", {"fail": fail_computed})
    request = here.office.send(make_invocation([make_call("fail")], ["a"], [(0, "y")]))

    [hop] = await here.office.until(Hop, request)
    assert (hop.attempt, hop.computed) == (~0, SECONDS)
    assert [type(reply) for reply in here.office.replies if isinstance(reply, NodeFailed | Hop)] == [NodeFailed, Hop]
