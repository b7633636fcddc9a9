"""Schemas of clients: what cannot be used is refused soon, and nobody waits for long behind it."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnibus.errors import BadRequest
from services.gateway.tasks import schema_check
from services.gateway.tasks.schema_check import SchemaCheck

GOOD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
#: Less than ``CHECK_SECONDS``, within which a fast machine checks even the slow one.
IMPATIENT_SECONDS = 0.1
#: Takes a library a second or so.
SLOW: dict[str, Any] = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(4000)}}
#: Compiles soon, and has more properties than a row of the parser has room for.
WIDE: dict[str, Any] = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(700)}}
LOOKAHEAD: dict[str, Any] = {"type": "string", "pattern": "(?=a)b"}
HOSTILE: list[dict[str, Any]] = [
    SLOW,
    WIDE,
    {"type": "object", "properties": {"a": {"type": "array", "items": WIDE, "minItems": 1}}, "required": ["a"]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 100_000, "maxItems": 200_000},
    LOOKAHEAD,
    {"not": {"type": "string"}},
    {"$ref": "http://127.0.0.1:1/schema"},
    {"type": "string", "format": "nonsense"},
    {"enum": ["x" * 200_000]},
]


@pytest.fixture
async def check() -> AsyncIterator[SchemaCheck]:
    made = SchemaCheck()
    yield made
    await made.close()


async def test_hostile_schemas_are_refused_by_name_within_a_second(
    check: SchemaCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check.check_schema(GOOD, "p")  # starts the process

    with monkeypatch.context() as patch:
        patch.setattr(schema_check, "CHECK_SECONDS", IMPATIENT_SECONDS)
        for schema in HOSTILE:
            began = time.monotonic()
            with pytest.raises(BadRequest) as caught:
                await check.check_schema(schema, "response_format.json_schema.schema")
            # The bound is of the check itself; a busy machine needs time besides, also to start the next process.
            assert time.monotonic() - began < 10
            assert caught.value.param == "response_format.json_schema.schema"
    await check.check_schema(GOOD | {"title": "another"}, "p")


async def test_what_was_checked_is_known(check: SchemaCheck) -> None:
    await check.check_schema(GOOD, "p")
    with pytest.raises(BadRequest):
        await check.check_schema(LOOKAHEAD, "p")
    await check.close()

    await check.check_schema(GOOD, "p")
    with pytest.raises(BadRequest):
        await check.check_schema(LOOKAHEAD, "p")
    assert check._process is None


async def test_others_are_served_while_a_slow_one_is_checked(
    check: SchemaCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check.check_schema(GOOD, "p")
    monkeypatch.setattr(schema_check, "CHECK_SECONDS", IMPATIENT_SECONDS)
    slow = asyncio.ensure_future(check.check_schema(SLOW, "p"))
    ticks = 0
    while not slow.done():
        await asyncio.sleep(0.01)
        ticks += 1

    with pytest.raises(BadRequest, match="too long|too big|cannot be used"):
        await slow
    assert ticks > 3
