"""Usage by tenant: ``omnibus usage`` prints the sums over its requests' records."""

import time
from pathlib import Path

import msgspec
import pytest

from omnibus.cli.usage import usage_table
from omnibus.metrics import render_exposition
from omnibus.plan import PriceList
from omnibus.recording.usage_sums import sum_usage
from tests.unit.gateway.auth.test_middleware import start_gated_gateway
from tests.unit.gateway.house import TEXT, read_chat_answer
from tests.unit.gateway.pricing.test_usage import PRICE, THOUGHT, costly_think


async def test_usage_is_summed_by_tenant(tmp_path: Path):
    began = time.time()
    async with start_gated_gateway(tmp_path) as gate:
        home = gate.home
        home.serve(TEXT)
        home.router.plan = msgspec.structs.replace(home.router.plan, prices=PriceList("EUR", {"cpu": PRICE}))
        await home.executor(TEXT, "L", "thinker", thinker=costly_think)
        for key in ("a", "b", "b"):
            response = await gate.ask(key)
            read_chat_answer(response)
            await home.ended(response.headers["x-request-id"])

        sums = await sum_usage(home.bus, began)
        later = await sum_usage(home.bus, time.time() + 60)

    money = THOUGHT * PRICE / 3600
    assert [(one.tenant, one.requests, one.gpu_seconds) for one in sums] == [("b", 2, 2 * THOUGHT), ("a", 1, THOUGHT)]
    assert [one.money for one in sums] == pytest.approx([2 * money, money])
    assert later == []
    assert f'omnibus_tenant_cost_total{{currency="EUR",tenant="b"}} {2 * money}'.encode() in render_exposition()
    assert usage_table(sums)[1].split() == ["b", TEXT, "2", "4.000", "0", "B", "0.004000", "EUR"]
