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


async def wait_for_letter(system: System, id: str, within: float = 20.0) -> DeadLetter:
    async with asyncio.timeout(within), system.bus() as bus:
        while not await bus.read_records(f"omnibus.event.deadletter.*.{id}", dead_letters.DEADLETTERS):
            await asyncio.sleep(0.05)
        return await dead_letters.read_dead_letter(bus, id)


async def run_deadletters(system: System, *arguments: str) -> tuple[int | None, str]:
    process = system.command("deadletters", *arguments)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    return process.returncode, output


async def invoke_app(system: System, text: str) -> Any:
    async with system.http() as http:
        return await http.post("/v1/apps/brittle/invoke", json={"text": text})


async def wait_until_served(system: System, within: float = 60.0) -> None:
    """Wait until the app answers again, after the supervisor restarted dead processes."""
    async with asyncio.timeout(within):
        while (await invoke_app(system, "hello")).status_code != 200:
            await asyncio.sleep(0.1)


async def test_an_input_that_kills_executors_is_given_up_and_kept(traced_system: System):
    await wait_until_served(traced_system)

    answer = await invoke_app(traced_system, "poison")
    dead_letter = await wait_for_letter(traced_system, answer.headers["x-request-id"])

    # There is no other executor, unless a new one was there first.
    assert (answer.status_code, answer.json()["error"]["code"]) in ((503, "stage_unavailable"), (422, "bad_input"))
    assert (dead_letter.reason, dead_letter.component) == ("crashed", "again")
    assert 1 <= len(dead_letter.lost) == dead_letter.attempts <= MAX_ATTEMPTS
    assert "poison" not in str(dead_letter)
    await wait_until_served(traced_system)


async def test_an_input_that_breaks_an_engine_is_listed_shown_and_tried_again(traced_system: System):
    await wait_until_served(traced_system)
    answer = await invoke_app(traced_system, "defect")
    id = answer.headers["x-request-id"]
    dead_letter = await wait_for_letter(traced_system, id)

    assert (answer.status_code, dead_letter.reason, dead_letter.problem.code) == (502, "failed", "stage_failed")
    code, output = await run_deadletters(traced_system, "--json")
    assert code == 0
    assert json.loads(output)[0]["inv"] == id
    code, output = await run_deadletters(traced_system, "show", id)
    assert code == 0
    assert "reason  failed again on " in output
    code, output = await run_deadletters(traced_system, "retry", id)
    assert code == 1
    assert f"replaying {id} as " in output
    assert "failed: stage_failed" in output


async def test_what_succeeds_at_last_is_no_dead_letter_any_more(traced_system: System):
    """The same engine accepts the stored input, which is valid, on retry."""
    await wait_until_served(traced_system)
    fine = (await invoke_app(traced_system, "hello")).headers["x-request-id"]
    broken_id = (await invoke_app(traced_system, "defect")).headers["x-request-id"]
    dead_letter = await wait_for_letter(traced_system, broken_id)
    async with traced_system.bus() as bus:
        record = await dead_letters.find_record(bus, fine)
        copied_letter = DeadLetter(
            **{name: getattr(dead_letter, name) for name in dead_letter.__struct_fields__} | {"inv": fine}
        )
        assert record.ended is not None
        body = dead_letters.encode_dead_letter(copied_letter, limit=60_000)
        bus.publish_record(dead_letters.subjects.dead_letter_subject(dead_letter.app, fine), body, f"{fine}.dead")
    await wait_for_letter(traced_system, fine)

    code, output = await run_deadletters(traced_system, "retry", fine)

    assert (code, output.splitlines()[-1]) == (0, f"the dead letter {fine} is removed")
    code, output = await run_deadletters(traced_system, "show", fine)
    assert code == 1
    code, _ = await run_deadletters(traced_system, "remove", broken_id)
    assert code == 0
