"""The shipped example keeps its plan under the load of its measurement.

It is started as a user would start it.
"""

import asyncio
import json
from collections import Counter
from itertools import count
from pathlib import Path

import httpx
import pytest

from omnibus.store import Store
from tests.e2e.planned.omni import MODEL, chat_body, kind_of
from tests.e2e.planned.settled import read_reasons
from tests.e2e.system import ROOT, start_system

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.nightly]

EXAMPLE = ROOT / "examples" / "simulated"
SHARES = (0.4, 0.2, 0.3, 0.1)  # of its workload
SECONDS, RATE = 600.0, 8.0


async def until_planned(store: Store) -> None:
    """Wait until the executors of the first plan serve."""
    async with asyncio.timeout(120):
        while True:
            plan, stand = await store.plan(), await store.plan_state()
            if plan is not None and MODEL in plan.models and not stand.staged:
                return
            await asyncio.sleep(0.2)


@pytest.mark.timeout(900)
async def test_ten_minutes_of_its_own_load_bring_no_other_plan(tmp_path: Path):
    document = json.loads((EXAMPLE / "models.json").read_text())
    model = document["models"][MODEL]
    model["checkpoint"] = str(EXAMPLE / model["checkpoint"])
    model["planned"]["profile"] = str(EXAMPLE / model["planned"]["profile"])
    statuses, numbers = Counter[int](), count()

    async def send_chat(http: httpx.AsyncClient) -> None:
        number = next(numbers)
        answer = await http.post("/v1/chat/completions", json=chat_body(kind_of(SHARES, number), number))
        statuses[answer.status_code] += 1

    settings = {"OMNIBUS_EXECUTOR_ENGINE": "omnibus_engines:sim", "OMNIBUS_GATEWAY_RECORD": "digest"}
    with start_system(tmp_path, {MODEL: model}, more={"gpus": document["gpus"]}, **settings) as system:
        limits = httpx.Limits(max_connections=None)
        async with system.store() as store, httpx.AsyncClient(base_url=system.url, timeout=120, limits=limits) as http:
            await until_planned(store)
            async with asyncio.TaskGroup() as group:
                for _ in range(int(SECONDS * RATE)):
                    group.create_task(send_chat(http))
                    await asyncio.sleep(1 / RATE)
            reasons = await read_reasons(store)

    assert set(statuses) == {200}
    assert reasons == []
