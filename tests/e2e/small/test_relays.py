"""Three gateways: two of them relay heartbeats, and requests are served while a relay dies."""

import asyncio
from collections.abc import Iterator

import pytest

from omnibus.bus import subjects
from omnibus.bus.heartbeats import RELAY_ABSENT_SECONDS
from omnibus.bus.relays import StatusDigest, decode_digest
from tests.e2e.small.streams import MODEL, PATH, make_model, question_body
from tests.e2e.system import System, start_system

pytestmark = pytest.mark.e2e

GATEWAYS = 3


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("trio")
    settings = {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim", "OMNIBUS_EXECUTOR_CREDITS": "1024"}
    with start_system(directory, {MODEL: make_model(directory)}, "--gateways", str(GATEWAYS), **settings) as system:
        yield system


async def ask(system: System, index: int, number: int) -> int:
    async with system.http(index) as http:
        return (await http.post(PATH, json=question_body(number, max_tokens=3))).status_code


async def wait_for_digests(system: System, seconds: float = 30.0) -> list[StatusDigest]:
    """Return digests from two relays that together contain all executors."""
    digests: list[StatusDigest] = []
    heard = asyncio.Event()

    def add_digest(data: bytes) -> None:
        digests.append(decode_digest(data))
        heard.set()

    def are_complete() -> bool:
        ids = {each.id for digest in digests for each in (*digest.statuses, *digest.beats)}
        return len({digest.relay for digest in digests}) == 2 and ids >= system.executors

    async with asyncio.timeout(seconds), system.bus() as bus:
        stop = await bus.subscribe(subjects.event_subject(subjects.DIGEST), lambda delivery: add_digest(delivery.data))
        while not are_complete():
            heard.clear()
            await heard.wait()
        await stop()
    return digests


async def test_requests_are_served_while_a_relay_dies(trio: System):
    await trio.becomes_ready()
    relays = {digest.relay for digest in await wait_for_digests(trio)}
    assert [await ask(trio, index, index) for index in range(GATEWAYS)] == [200] * GATEWAYS

    trio.gateway(0).kill()
    answers = []
    for number in range(40):  # until executors have found the other relay
        answers.append(await ask(trio, 1 + number % 2, number))
        await asyncio.sleep(RELAY_ABSENT_SECONDS / 20)

    assert answers == [200] * 40
    await trio.becomes_ready()
    later = await wait_for_digests(trio)
    assert len({digest.relay for digest in later} | relays) >= 2
