"""Reading records: finding the beginning and the end, and rejecting unreadable ones."""

import json
from typing import Any

import pytest

from omnibus.bus import Delivery, subjects
from omnibus.errors import NotFound, ProtocolError
from omnibus.recording import records
from tests.memory_bus import MemoryBus
from tests.unit.cli.documents import ENDED, INVOCATION, make_end, make_invocation


async def store_records(*documents: dict[str, Any]) -> MemoryBus:
    bus = MemoryBus()
    for number, document in enumerate(documents):
        bus.publish_record(subjects.record_subject("chat", "g-0-1"), json.dumps(document).encode(), str(number))
    return bus


async def test_a_record_is_read_with_its_end():
    assert await records.find_record(await store_records(INVOCATION, ENDED), "g-0-1") == (make_invocation(), make_end())
    assert await records.find_record(await store_records(INVOCATION), "g-0-1") == (make_invocation(), None)


async def test_the_first_beginning_and_the_last_end_count():
    bus = await store_records(INVOCATION, {**INVOCATION, "path": "EL"}, ENDED, {**ENDED, "status": "failed"})

    assert await records.find_record(bus, "g-0-1") == (make_invocation(), make_end(status="failed"))


@pytest.mark.parametrize("id", ["g-0-9", "", "*", ">", "a.b", "a b"])
async def test_an_unknown_invocation_is_not_found(id: str):
    with pytest.raises(NotFound):
        await records.find_record(await store_records(INVOCATION, ENDED), id)


def test_the_words_of_an_end_in_a_prompt_make_no_end():
    prompt = json.dumps({**INVOCATION, "replay_of": '"kind":"end"'}, separators=(",", ":")).encode()
    nested_body = b'{"id":"x","nodes":[{"kind":"end"}]}'

    assert not records.is_end(prompt)
    assert not records.is_end(nested_body)
    assert not records.is_end(b'"kind":"end"')
    assert records.is_end(json.dumps(ENDED, separators=(",", ":")).encode())
    assert records.is_end(b'{"inv":"x","kind":"end"}')


def test_an_end_of_another_version_is_refused_by_name():
    with pytest.raises(ProtocolError, match="not the end of an invocation"):
        records.parse_record(
            [Delivery("s", json.dumps(INVOCATION).encode()), Delivery("s", b'{"kind":"end","v":7}')], "g-0-1"
        )
