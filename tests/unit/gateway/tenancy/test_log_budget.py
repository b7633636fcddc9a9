"""A tenant's budget of event bytes, and sessions that exceed it."""

import pytest

from omnibus.bus import subjects
from omnibus.errors import Overloaded
from omnibus.recording.sessions import SessionEntries, SessionEntry, read_session
from omnibus.settings import BusSettings
from omnibus_gateway.realtime.event_sender import SessionLog
from omnibus_gateway.tenancy.tenant import LogBudget, Tenant, acting_as
from tests.memory_bus import MemoryBus


@pytest.mark.parametrize("gateways", [1, 2])
def test_a_tenant_writes_no_more_events_than_its_share(gateways: int):
    now = [0.0]
    budget = LogBudget(4000, 100, 0.25, lambda: gateways, lambda: now[0])

    for _ in range(10 // gateways):
        budget.check_room("ann")
        budget.count("ann", 100)

    with pytest.raises(Overloaded) as caught:
        budget.check_room("ann")
    assert 0 < caught.value.retry_after < 20
    budget.check_room("bob")
    budget.check_room("")  # without keys
    now[0] += 10
    budget.check_room("ann")


async def test_a_session_that_has_written_its_share_goes_on_and_cannot_be_resumed_behind_that():
    bus = MemoryBus(BusSettings())
    await bus.open_records(60.0, 1 << 20, subjects.RESPONSES)
    with acting_as(Tenant("ann")):
        log = SessionLog(bus, "sess_1", budget=LogBudget(100, 100, 1.0))
        for number in range(20):
            await log.append([SessionEntry(at=float(number))])

    session_log: SessionEntries = await read_session(bus, "sess_1")
    assert 0 < len(session_log.entries) < 20
    await bus.drain()
