"""Deadlines at executors whose clock differs from the gateway's."""

import time

import pytest

from omnibus.bus.messages import NodeFailed
from omnibus.executor.runner import Job
from tests.unit.executor.arithmetic import Place, make_call, make_invocation, put_number, wait_forever
from tests.unit.sidecar.node import NODE

FAR = "another-node"


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0], ids=["behind", "ahead"])
async def test_a_gateway_with_another_clock_gives_as_much_time_as_it_means(here: Place, ahead: float):
    remaining_seconds: list[float] = []

    async def record_deadline(job: Job) -> None:
        remaining_seconds.append(job.deadline - time.time())
        await put_number(job)

    await here.executor("a", {"look": record_deadline})
    request = make_invocation(
        [make_call("look", x=1)], ["a"], [(0, "y")], within=30.0 + ahead,
        places=(NODE,), home=FAR, sent=time.time() + ahead,
    )  # fmt: skip

    await here.office.done(here.office.send(request))

    assert 25.0 < remaining_seconds[0] < 30.5


async def test_the_gateway_of_this_node_has_the_same_clock(here: Place):
    await here.executor("a", {"forever": wait_forever})
    request = make_invocation(
        [make_call("forever")], ["a"], [], within=-1.0, places=(NODE,), home=NODE, sent=time.time() - 3600
    )

    [node_failure] = await here.office.until(NodeFailed, here.office.send(request))

    assert node_failure.problem.code == "deadline_exceeded"
