"""An input kills a real process: it becomes a dead letter that can be retried.

Few processes are lost, and other inputs are served.
"""

import asyncio
import json
from typing import Any

import pytest

from omnibus.recording import dead_letters
from omnibus.recording.dead_letters import DeadLetter
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from tests.e2e.system import System

pytestmark = pytest.mark.e2e


async def letter(system: System, id: str, within: float = 20.0) -> DeadLetter:
    async with asyncio.timeout(within), system.bus() as bus:
        while not await bus.read_records(f"omnibus.event.deadletter.*.{id}", dead_letters.DEADLETTERS):
            await asyncio.sleep(0.05)
        return await dead_letters.read_dead_letter(bus, id)


async def omnibus(system: System, *arguments: str) -> tuple[int | None, str]:
    process = system.command("deadletters", *arguments)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    return process.returncode, output


async def asked(system: System, text: str) -> Any:
    async with system.http() as http:
        return await http.post("/v1/apps/brittle/invoke", json={"text": text})


async def served(system: System, within: float = 60.0) -> None:
    """Wait until the app answers again, after the supervisor restarted dead processes."""
    async with asyncio.timeout(within):
        while (await asked(system, "hello")).status_code != 200:
            await asyncio.sleep(0.1)


async def test_an_input_that_kills_executors_is_given_up_and_kept(seen: System):
    await served(seen)

    answer = await asked(seen, "poison")
    found = await letter(seen, answer.headers["x-request-id"])

    # There is no other executor, unless a new one was there first.
    assert (answer.status_code, answer.json()["error"]["code"]) in ((503, "stage_unavailable"), (422, "bad_input"))
    assert (found.reason, found.component) == ("crashed", "again")
    assert 1 <= len(found.lost) == found.attempts <= MAX_ATTEMPTS
    assert "poison" not in str(found)
    await served(seen)


async def test_an_input_that_breaks_an_engine_is_listed_shown_and_tried_again(seen: System):
    await served(seen)
    answer = await asked(seen, "defect")
    id = answer.headers["x-request-id"]
    found = await letter(seen, id)

    assert (answer.status_code, found.reason, found.problem.code) == (502, "failed", "stage_failed")
    code, output = await omnibus(seen, "--json")
    assert code == 0
    assert json.loads(output)[0]["inv"] == id
    code, output = await omnibus(seen, "show", id)
    assert code == 0
    assert "reason  failed again on " in output
    code, output = await omnibus(seen, "retry", id)
    assert code == 1
    assert f"replaying {id} as " in output
    assert "failed: stage_failed" in output


async def test_what_succeeds_at_last_is_no_dead_letter_any_more(seen: System):
    """The same engine accepts the stored input, which is valid, on retry."""
    await served(seen)
    fine = (await asked(seen, "hello")).headers["x-request-id"]
    broken = (await asked(seen, "defect")).headers["x-request-id"]
    found = await letter(seen, broken)
    async with seen.bus() as bus:
        recorded = await dead_letters.find_record(bus, fine)
        kept = DeadLetter(**{name: getattr(found, name) for name in found.__struct_fields__} | {"inv": fine})
        assert recorded.ended is not None
        body = dead_letters.encode_dead_letter(kept, limit=60_000)
        bus.publish_record(dead_letters.subjects.dead_letter_subject(found.app, fine), body, f"{fine}.dead")
    await letter(seen, fine)

    code, output = await omnibus(seen, "retry", fine)

    assert (code, output.splitlines()[-1]) == (0, f"the dead letter {fine} is removed")
    code, output = await omnibus(seen, "show", fine)
    assert code == 1
    code, _ = await omnibus(seen, "remove", broken)
    assert code == 0
