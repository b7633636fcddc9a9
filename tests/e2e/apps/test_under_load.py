"""An app's requests succeed despite changes of other apps and crashes.

Other apps are added and removed, and gateways and stores die.
"""

import asyncio
import json

import pytest

from tests.e2e.apps import texts
from tests.e2e.apps.estate import AppSystem, wait_until

pytestmark = pytest.mark.e2e

ROUNDS = 2  # through either gateway


async def test_an_app_that_comes_changes_and_goes_all_the_time_disturbs_nobody(app_system: AppSystem):
    async with (
        app_system.app("steady", texts.SHOUT, cls="Steady"),
        app_system.send_repeatedly("steady", "hi") as answers,
    ):
        for round in range(ROUNDS):
            count = answers.total()
            app_system.write("restless", texts.SHOUT, cls="Restless", by=f" {round}")
            await app_system.register("restless", gateway=round % 2)
            await app_system.wait_for_version("restless", 1)
            assert await app_system.invoke_json("restless", "ho") == f"HO! {round}"
            app_system.write(
                "restless", texts.SHOUT, cls="Restless", by=" changed", fields=f"mark='{'?' * (round + 1)}'"
            )
            await app_system.update("restless", gateway=(round + 1) % 2)
            await app_system.wait_for_version("restless", 2)
            assert await app_system.invoke_json("restless", "ho") == f"HO{'?' * (round + 1)} changed"
            await app_system.unregister("restless", gateway=round % 2)
            await app_system.wait_for_version("restless", 0)
            assert answers.total() > count

    assert set(answers) == {'"HI!"'}


async def test_a_gateway_that_is_killed_forgets_nothing_and_the_other_serves_on(app_system: AppSystem):
    async with (
        app_system.app("shouting", texts.SHOUT, cls="Remembered"),
        app_system.app("plain", texts.PLAIN, by="one"),
    ):
        first = app_system.system.gateway(0)
        workers = app_system.workers(0)

        first.kill()
        while_away = [await app_system.invoke_json("plain", {}, gateway=1) for _ in range(10)]
        await app_system.system.becomes_ready()
        await app_system.wait_for_version("plain", 1)
        await app_system.wait_for_version("shouting", 1)

        assert while_away == ["one"] * 10
        assert [await app_system.invoke_json("shouting", "hi", gateway) for gateway in (0, 1)] == ["HI!", "HI!"]
        assert app_system.system.gateway(0).pid != first.pid
        await wait_until(lambda: not any(worker.is_running() for worker in workers))


async def test_apps_outlive_the_store_and_what_is_served_is_served_without_it(app_system: AppSystem):
    async with app_system.app("shouting", texts.SHOUT, cls="Outlives"), app_system.app("plain", texts.PLAIN, by="one"):
        store = app_system.system.server("valkey-server")
        async with app_system.send_repeatedly("shouting", "hi") as answers:
            store.kill()

            async def is_back() -> bool:
                return (await app_system.ask("PUT", "/v1/apps/plain")).status_code == 200

            await wait_until(is_back)
            count = answers.total()
            await wait_until(lambda: answers.total() > count)
        app_state = await app_system.show("shouting")

        assert set(answers) == {'"HI!"'}
        assert app_state is not None
        assert app_state["version"] == 1
        await app_system.wait_for_version("plain", (await app_system.show("plain"))["version"])
        assert [await app_system.invoke_json("plain", {}, gateway) for gateway in (0, 1)] == ["one", "one"]


async def test_control_without_a_store_says_so_and_calls_go_on(app_system: AppSystem):
    async with app_system.app("plain", texts.PLAIN, by="one"):
        store = app_system.system.server("valkey-server")
        store.suspend()
        try:
            response, reply = await asyncio.gather(
                app_system.ask("PUT", "/v1/apps/plain"), app_system.invoke_json("plain", {})
            )
        finally:
            store.resume()

        assert (response.status_code, response.json()["error"]["code"]) == (503, "store_unavailable")
        assert reply == "one"


async def test_both_gateways_know_the_same(app_system: AppSystem):
    async with app_system.app("shouting", texts.SHOUT, cls="Same"), app_system.app("plain", texts.PLAIN, by="one"):
        listings = [(await app_system.ask("GET", "/v1/apps", gateway=gateway)).json()["data"] for gateway in (0, 1)]
        documents = []
        for gateway in (0, 1):
            async with app_system.system.http(gateway) as http:
                documents.append((await http.get("/openapi.json")).json())

    assert listings[0] == listings[1]
    assert documents[0] == documents[1]
    assert {"/v1/apps/plain/invoke", "/v1/apps/shouting/invoke"} <= set(documents[0]["paths"])
    assert json.dumps(listings[0]).count('"ready"') == 2
