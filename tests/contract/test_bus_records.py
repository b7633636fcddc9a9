"""The record half of the bus contract, run on the bus in one process and on a real NATS server."""

from itertools import count

import pytest

from omnibus.bus import Bus, Delivery, subjects
from omnibus.errors import TooLarge
from tests.contract.buses import LIMIT, Heard
from tests.unit.sidecar.node import until

_number = count()


@pytest.fixture
async def keeping(bus: Bus) -> Bus:
    await bus.open_records(60.0, 1 << 20)
    return bus


async def kept(bus: Bus, subject: str, count: int) -> list[Delivery]:
    """The records on ``subject`` once there are ``count``: they are stored without anybody waiting."""
    found: list[Delivery] = []

    async def there() -> bool:
        found[:] = await bus.records(subject)
        return len(found) >= count

    await until(there)
    return found


async def test_records_come_back_oldest_first_and_by_their_subject(keeping: Bus):
    one, two = (subjects.record("chat", f"i-{next(_number)}") for _ in range(2))
    for number in range(3):
        keeping.record(one, b"%d" % number, f"{one}.{number}")
        keeping.record(two, b"other", f"{two}.{number}")

    found = await kept(keeping, one, 3)

    assert [(delivery.subject, delivery.data) for delivery in found] == [(one, b"0"), (one, b"1"), (one, b"2")]


async def test_a_record_that_is_repeated_is_kept_once(keeping: Bus):
    subject = subjects.record("chat", f"i-{next(_number)}")
    for _ in range(3):
        keeping.record(subject, b"begin", f"{subject}.0")
    keeping.record(subject, b"end", f"{subject}.end")

    assert [delivery.data for delivery in await kept(keeping, subject, 2)] == [b"begin", b"end"]


async def test_records_are_found_without_knowing_their_app(keeping: Bus):
    invocation = f"i-{next(_number)}"
    keeping.record(subjects.record("my app", invocation), b"x", invocation)

    [found] = await kept(keeping, f"{subjects.ROOT}.inv.*.{invocation}", 1)

    assert found.subject == f"omnibus.inv.my_app.{invocation}"


async def test_what_was_never_recorded_is_an_empty_list(keeping: Bus):
    assert await keeping.records(subjects.record("chat", "never")) == []


async def test_records_can_be_watched_as_they_are_made(keeping: Bus):
    heard = Heard()
    await keeping.subscribe(subjects.RECORDS, heard)
    subject = subjects.record("chat", f"i-{next(_number)}")

    keeping.record(subject, b"x", subject)

    assert await heard.until(1) == [b"x"]


async def test_a_record_over_the_limit_is_refused_and_not_kept(keeping: Bus):
    subject = subjects.record("chat", f"i-{next(_number)}")

    with pytest.raises(TooLarge):
        keeping.record(subject, b"x" * (LIMIT + 1), subject)

    keeping.record(subject, b"small", f"{subject}.end")
    assert [delivery.data for delivery in await kept(keeping, subject, 1)] == [b"small"]


async def test_opening_the_records_again_loses_nothing(keeping: Bus):
    subject = subjects.record("chat", f"i-{next(_number)}")
    keeping.record(subject, b"x", subject)

    await keeping.open_records(120.0, 2 << 20)

    assert [delivery.data for delivery in await kept(keeping, subject, 1)] == [b"x"]
