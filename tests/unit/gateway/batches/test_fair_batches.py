"""Batches of several tenants take turns, regardless of arrival order and number."""

from pathlib import Path

import openai
import pytest

from omnibus.store import Store
from omnibus_gateway.batches import service
from omnibus_gateway.batches import service as turn
from tests.unit.gateway.auth.keyed import PatientThinker, keyed_gateways
from tests.unit.gateway.auth.test_keys_of_work import submit_batch, wait_for_document
from tests.unit.sidecar.node import wait_until


async def test_a_batch_of_one_tenant_does_not_wait_for_all_of_anothers(tmp_path: Path, valkey_url: str):
    """One tenant's four batches wait at a gateway with two slots; the other tenant's batch is next."""
    thinker = PatientThinker()
    async with keyed_gateways(tmp_path, valkey_url, thinker=thinker) as [gate]:
        await gate.create_key("ann")
        await gate.create_key("bob")
        many = [await submit_batch(gate, "ann", "one") for _ in range(4)]
        other = await submit_batch(gate, "bob", "one")
        gate.home.table.batches.startup()

        await wait_until(lambda: thinker.begun == 2)
        own_statuses = [(await gate.call(*each)).json()["status"] for each in _build_get_calls("ann", many)]
        other_status = (await gate.call("bob", "GET", f"/v1/batches/{other}")).json()["status"]
        thinker.gate.set()
        for key, id in (("bob", other), *(("ann", each) for each in many)):
            assert (await wait_for_document(gate, key, f"/v1/batches/{id}", "completed", "failed"))[
                "status"
            ] == "completed"

    assert other_status == "in_progress"
    assert own_statuses.count("in_progress") == 1


async def test_a_long_batch_makes_room_and_goes_on_where_it_was(
    tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(turn, "TURN_SECONDS", 0.0)
    job_waits, answers = Store.job_waits, list[bool]()

    async def job_waits_noted(store: Store, kind: str, tenant: str) -> bool:
        answers.append(await job_waits(store, kind, tenant))
        return answers[-1]

    monkeypatch.setattr(Store, "job_waits", job_waits_noted)
    thinker = PatientThinker()
    async with keyed_gateways(tmp_path, valkey_url, thinker=thinker, batch_parallel=1) as [gate]:
        await gate.create_key("ann")
        await gate.create_key("bob")
        gate.home.table.batches.startup()
        words = [f"w{number}" for number in range(6)]
        long = [await submit_batch(gate, "ann", *words) for _ in range(2)]
        await wait_until(lambda: thinker.begun == 2)  # both places are taken

        other = await submit_batch(gate, "bob", "one")
        await wait_until(lambda: any(answers))  # a long batch sees that another one waits
        thinker.gate.set()
        await wait_for_document(gate, "bob", f"/v1/batches/{other}", "completed", "failed")
        whole = [await wait_for_document(gate, "ann", f"/v1/batches/{id}", "completed", "failed") for id in long]

    assert "one" not in thinker.questions[-1], "the other batch did not wait for the end of both long ones"
    assert any("one" in question for question in thinker.questions)
    assert [each["request_counts"]["completed"] for each in whole] == [6, 6]
    assert thinker.begun == 13, "no line was sent twice"


def _build_get_calls(key: str, ids: list[str]) -> list[tuple[str, str, str]]:
    return [(key, "GET", f"/v1/batches/{id}") for id in ids]


async def test_a_tenant_has_its_share_of_batches(tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "MAX_OPEN", 4)
    async with keyed_gateways(tmp_path, valkey_url, tenant_share=0.5) as [gate]:
        await gate.create_key("ann")
        await gate.create_key("bob")
        for _ in range(2):
            await submit_batch(gate, "ann", "one")

        with pytest.raises(openai.RateLimitError, match="as one tenant may have"):
            await submit_batch(gate, "ann", "one")
        await submit_batch(gate, "bob", "one")
