"""Schemas of clients: unusable ones are rejected quickly, without blocking other requests."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnibus.errors import BadRequest, Overloaded
from omnibus_gateway.tasks import schema_check
from omnibus_gateway.tasks.schema_check import SchemaCheck
from omnibus_gateway.tenancy.tenant import Tenant, acting_as

GOOD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
#: Less than ``CHECK_SECONDS``, within which a fast machine checks even the slow one.
IMPATIENT_SECONDS = 0.1
#: Takes a library about a second.
SLOW: dict[str, Any] = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(4000)}}
#: Compiles quickly, and has more properties than a row of the parser can hold.
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
async def schema_checker() -> AsyncIterator[SchemaCheck]:
    checker = SchemaCheck()
    yield checker
    await checker.close()


async def test_hostile_schemas_are_refused_by_name_within_a_second(
    schema_checker: SchemaCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schema_checker.check_schema(GOOD, "p")  # starts the process

    with monkeypatch.context() as patch:
        patch.setattr(schema_check, "CHECK_SECONDS", IMPATIENT_SECONDS)
        for schema in HOSTILE:
            began = time.monotonic()
            with pytest.raises(BadRequest) as caught:
                await schema_checker.check_schema(schema, "response_format.json_schema.schema")
            # The check itself has a shorter limit; a busy machine also needs time to start the next process.
            assert time.monotonic() - began < 10
            assert caught.value.param == "response_format.json_schema.schema"
    await schema_checker.check_schema(GOOD | {"title": "another"}, "p")


async def test_what_was_checked_is_known(schema_checker: SchemaCheck) -> None:
    await schema_checker.check_schema(GOOD, "p")
    with pytest.raises(BadRequest):
        await schema_checker.check_schema(LOOKAHEAD, "p")
    await schema_checker.close()

    await schema_checker.check_schema(GOOD, "p")
    with pytest.raises(BadRequest):
        await schema_checker.check_schema(LOOKAHEAD, "p")
    assert schema_checker._process is None


async def test_others_are_served_while_a_slow_one_is_checked(
    schema_checker: SchemaCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schema_checker.check_schema(GOOD, "p")
    monkeypatch.setattr(schema_check, "CHECK_SECONDS", IMPATIENT_SECONDS)
    slow = asyncio.ensure_future(schema_checker.check_schema(SLOW, "p"))
    ticks = 0
    while not slow.done():
        await asyncio.sleep(0.01)
        ticks += 1

    with pytest.raises(BadRequest, match="too long|too big|cannot be used"):
        await slow
    assert ticks > 3


def make_schema(tenant: str, number: int) -> dict[str, Any]:
    return GOOD | {"title": f"{tenant} {number}"}


async def test_a_tenant_waits_for_one_check_of_another_one_however_many_that_has_waiting(
    schema_checker: SchemaCheck,
) -> None:
    order: list[str] = []

    async def check_for(tenant: str, number: int) -> None:
        with acting_as(Tenant(tenant)):
            await schema_checker.check_schema(make_schema(tenant, number), "p")
        order.append(tenant)

    async with asyncio.TaskGroup() as group:
        for number in range(schema_check.MAX_WAITING):
            group.create_task(check_for("heavy", number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in range(2):
            group.create_task(check_for("light", number))

    assert order[:4] == ["heavy", "light", "heavy", "light"]


async def test_what_a_tenant_has_waiting_is_bounded_and_others_come_in(schema_checker: SchemaCheck) -> None:
    async def check_for(tenant: str, number: int) -> None:
        with acting_as(Tenant(tenant)):
            await schema_checker.check_schema(make_schema(tenant, number), "p")

    count = schema_check.MAX_WAITING + 5
    heavy = [asyncio.create_task(check_for("heavy", number)) for number in range(count)]
    light = asyncio.create_task(check_for("light", 0))
    results = await asyncio.gather(*heavy, return_exceptions=True)
    await light

    refusals = [each for each in results if each is not None]
    assert len(refusals) == 4  # one is checked while the others wait
    assert all(isinstance(each, Overloaded) and each.retry_after > 0 for each in refusals)


async def test_the_same_schema_is_checked_once(schema_checker: SchemaCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars: list[str] = []
    ask = schema_checker._ask

    async def count_questions(process: asyncio.subprocess.Process, grammar: str) -> str:
        grammars.append(grammar)
        return await ask(process, grammar)

    monkeypatch.setattr(schema_checker, "_ask", count_questions)
    await asyncio.gather(*(schema_checker.check_schema(GOOD, "p") for _ in range(5)))

    assert len(grammars) == 1
