"""An app's requests succeed despite changes of other apps and crashes.

Other apps are added and removed, and gateways and stores die.
"""

import asyncio
import json

import pytest

from tests.e2e.apps import texts
from tests.e2e.apps.estate import Estate, until

pytestmark = pytest.mark.e2e

ROUNDS = 2  # through either gateway


async def test_an_app_that_comes_changes_and_goes_all_the_time_disturbs_nobody(land: Estate):
    async with land.app("steady", texts.SHOUT, cls="Steady"), land.busy("steady", "hi") as answers:
        for round in range(ROUNDS):
            seen = answers.total()
            land.write("restless", texts.SHOUT, cls="Restless", by=f" {round}")
            await land.register("restless", gateway=round % 2)
            await land.everywhere("restless", 1)
            assert await land.said("restless", "ho") == f"HO! {round}"
            land.write("restless", texts.SHOUT, cls="Restless", by=" changed", fields=f"mark='{'?' * (round + 1)}'")
            await land.update("restless", gateway=(round + 1) % 2)
            await land.everywhere("restless", 2)
            assert await land.said("restless", "ho") == f"HO{'?' * (round + 1)} changed"
            await land.unregister("restless", gateway=round % 2)
            await land.everywhere("restless", 0)
            assert answers.total() > seen

    assert set(answers) == {'"HI!"'}


async def test_a_gateway_that_is_killed_forgets_nothing_and_the_other_serves_on(land: Estate):
    async with land.app("shouting", texts.SHOUT, cls="Remembered"), land.app("plain", texts.PLAIN, by="one"):
        first = land.system.gateway(0)
        workers = land.workers(0)

        first.kill()
        while_away = [await land.said("plain", {}, gateway=1) for _ in range(10)]
        await land.system.becomes_ready()
        await land.everywhere("plain", 1)
        await land.everywhere("shouting", 1)

        assert while_away == ["one"] * 10
        assert [await land.said("shouting", "hi", gateway) for gateway in (0, 1)] == ["HI!", "HI!"]
        assert land.system.gateway(0).pid != first.pid
        await until(lambda: not any(worker.is_running() for worker in workers))


async def test_apps_outlive_the_store_and_what_is_served_is_served_without_it(land: Estate):
    async with land.app("shouting", texts.SHOUT, cls="Outlives"), land.app("plain", texts.PLAIN, by="one"):
        store = land.system.server("valkey-server")
        async with land.busy("shouting", "hi") as answers:
            store.kill()

            async def back() -> bool:
                return (await land.ask("PUT", "/v1/apps/plain")).status_code == 200

            await until(back)
            seen = answers.total()
            await until(lambda: answers.total() > seen)
        shown = await land.show("shouting")

        assert set(answers) == {'"HI!"'}
        assert shown is not None
        assert shown["version"] == 1
        await land.everywhere("plain", (await land.show("plain"))["version"])
        assert [await land.said("plain", {}, gateway) for gateway in (0, 1)] == ["one", "one"]


async def test_control_without_a_store_says_so_and_calls_go_on(land: Estate):
    async with land.app("plain", texts.PLAIN, by="one"):
        store = land.system.server("valkey-server")
        store.suspend()
        try:
            refused, said = await asyncio.gather(land.ask("PUT", "/v1/apps/plain"), land.said("plain", {}))
        finally:
            store.resume()

        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert said == "one"


async def test_both_gateways_know_the_same(land: Estate):
    async with land.app("shouting", texts.SHOUT, cls="Same"), land.app("plain", texts.PLAIN, by="one"):
        listed = [(await land.ask("GET", "/v1/apps", gateway=gateway)).json()["data"] for gateway in (0, 1)]
        documents = []
        for gateway in (0, 1):
            async with land.system.http(gateway) as http:
                documents.append((await http.get("/openapi.json")).json())

    assert listed[0] == listed[1]
    assert documents[0] == documents[1]
    assert {"/v1/apps/plain/invoke", "/v1/apps/shouting/invoke"} <= set(documents[0]["paths"])
    assert json.dumps(listed[0]).count('"ready"') == 2
