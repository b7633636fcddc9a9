"""Every gateway serves every app, despite failures of others and the store."""

import asyncio
from pathlib import Path

import pytest

from omnibus.errors import NotFound, StageUnavailable
from omnibus.up import infra
from tests.unit.bus.servers import run_owned_server
from tests.unit.gateway.apps.estate import (
    ECHO,
    AppCluster,
    AppGateway,
    find_worker_pids,
    format_source,
    start_app_cluster,
)
from tests.unit.gateway.house import VL, read_error_body
from tests.unit.sidecar.node import wait_until

#: Loads when it may.
SLOW = """
    import time
    from pathlib import Path

    while not Path("{go}").exists():
        time.sleep(0.01)


    async def serve(request):
        return "at last"
"""


async def test_other_gateways_follow(cluster: AppCluster, gate: AppGateway):
    other = cluster.gateway()
    cluster.write("echo", ECHO, by="one")

    await gate.register("echo")
    await other.serves("echo", 1)
    assert (await other.invoke("echo", {"text": "hi"}))["by"] == "one"

    cluster.write("echo", ECHO, by="two")
    await other.update("echo")
    await gate.serves("echo", 2)
    assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "two"

    await gate.ask("DELETE", "/v1/apps/echo")
    await wait_until(lambda: other.apps.registry.worker_view("echo") is None)
    await other.invoke("echo", {"text": "hi"}, status=404)
    await wait_until(lambda: not find_worker_pids())


async def test_a_restarted_gateway_serves_what_was_registered(cluster: AppCluster, gate: AppGateway):
    for name in ("echo", "other"):
        cluster.write(name, ECHO, by=name)
        await gate.register(name)
    await cluster.leave(gate)
    assert not find_worker_pids()

    fresh = cluster.gateway()

    await fresh.serves("echo", 1)
    await fresh.serves("other", 1)
    assert (await fresh.invoke("other", {"text": "hi"}))["by"] == "other"
    assert [app["name"] for app in (await fresh.ask("GET", "/v1/apps")).json()["data"]] == ["echo", "other"]


async def test_a_gateway_is_not_ready_before_its_apps_have_started(
    cluster: AppCluster, gate: AppGateway, tmp_path: Path
):
    go = tmp_path / "go"
    go.touch()
    cluster.write("slow", SLOW, go=str(go))
    await gate.register("slow")
    go.unlink()

    fresh = cluster.gateway()

    await wait_until(lambda: fresh.apps.registry.worker_view("slow") is not None)
    assert (await fresh.http.get("/readyz")).json()["apps"] == ["slow"]
    response = await fresh.http.post("/v1/apps/slow/invoke", json=1)
    assert (response.status_code, read_error_body(response)["code"], read_error_body(response)["stage"]) == (
        503,
        "stage_unavailable",
        "slow",
    )
    go.touch()
    await fresh.serves("slow", 1)
    assert "apps" not in (await fresh.http.get("/readyz")).json()


async def test_registering_one_app_does_not_delay_another(cluster: AppCluster, gate: AppGateway, tmp_path: Path):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")
    go = tmp_path / "go"
    cluster.write("slow", SLOW, go=str(go))

    registering = asyncio.ensure_future(gate.register("slow"))
    await wait_until(lambda: len(find_worker_pids()) == 2)

    for _ in range(20):
        assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "one"
    cluster.write("echo", ECHO, by="two")
    assert (await gate.update("echo"))["version"] == 2
    cluster.write("third", ECHO, by="third")
    await gate.register("third")
    assert not registering.done()
    go.touch()
    await registering
    assert await gate.invoke("slow", 1) == "at last"


async def test_a_version_that_is_broken_here_leaves_the_old_one_and_says_so(cluster: AppCluster, gate: AppGateway):
    other = cluster.gateway(apps_dir="")  # may not load from directories
    upload = {"source": {"upload": format_source(ECHO, by="one"), "name": "echo"}}
    response = await gate.ask("POST", "/v1/apps", upload)
    assert response.status_code == 201, response.text
    await other.serves("echo", 1)
    cluster.write("echo", ECHO, by="two")

    await gate.update("echo", "echo")

    await wait_until(lambda: other.apps.registry.worker_view("echo").problem is not None)
    view = (await other.ask("GET", "/v1/apps/echo")).json()
    assert view["version"] == 2
    assert (view["worker"]["state"], view["worker"]["version"]) == ("ready", 1)
    assert view["worker"]["problem"]["version"] == 2
    assert "OMNIBUS_GATEWAY_APPS_DIR" in view["worker"]["problem"]["message"]
    assert (await other.invoke("echo", {"text": "hi"}))["by"] == "one"
    assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "two"

    await gate.ask("PUT", "/v1/apps/echo", upload)

    await other.serves("echo", 3)
    assert "problem" not in (await other.ask("GET", "/v1/apps/echo")).json()["worker"]


async def test_an_app_that_never_came_up_here_says_why(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")
    other = cluster.gateway(apps_dir="")

    await wait_until(lambda: other.apps.registry.worker_view("echo") is not None)
    await wait_until(lambda: other.apps.registry.worker_view("echo").state == "broken")

    assert "apps" not in (await other.http.get("/readyz")).json()
    with pytest.raises(StageUnavailable, match="broken at this gateway: .*OMNIBUS_GATEWAY_APPS_DIR"):
        other.apps.registry.worker("echo")
    with pytest.raises(NotFound, match="registered apps: echo"):
        other.apps.registry.worker("none")


async def test_an_upload_is_served_by_every_gateway_and_leaves_with_its_app(cluster: AppCluster, gate: AppGateway):
    other = cluster.gateway()
    response = await gate.ask("POST", "/v1/apps", {"source": {"upload": format_source(ECHO, by="one"), "name": "echo"}})

    assert response.status_code == 201, response.text
    digest = response.json()["source"]["sha256"]
    await other.serves("echo", 1)
    assert (await other.invoke("echo", {"text": "hi"}))["by"] == "one"
    again = await gate.ask("POST", "/v1/apps", {"source": {"upload": format_source(ECHO, by="one"), "name": "echo"}})
    assert (again.status_code, again.json()["version"]) == (200, 1)
    await gate.ask("DELETE", "/v1/apps/echo")
    with pytest.raises(NotFound):
        await gate.store.source(digest)


async def test_a_worker_that_dies_comes_back(cluster: AppCluster, gate: AppGateway):
    cluster.write("fragile", "import os\nasync def serve(request):\n    os._exit(1) if request == 'die' else None\n")
    await gate.register("fragile")

    response = await gate.http.post("/v1/apps/fragile/invoke", json="die")

    assert (response.status_code, read_error_body(response)["code"]) == (500, "app_failed")
    await gate.serves("fragile", 1)
    assert await gate.invoke("fragile", "live") is None


async def test_a_gateway_that_has_not_read_the_apps_yet_asks_to_try_again(tmp_path: Path):
    async with (
        run_owned_server(infra.prepare_valkey(tmp_path)) as valkey,
        start_app_cluster(tmp_path, valkey.server.url) as cluster,
    ):
        gate = cluster.gateway()
        cluster.write("echo", ECHO, by="one")
        await gate.register("echo")
        valkey.kill()
        cluster.home.serve(VL)
        fresh = cluster.gateway()  # it cannot read what is registered

        chat = {"model": "loud", "messages": [{"role": "user", "content": "hi"}]}
        early = [
            await fresh.http.post("/v1/apps/echo/invoke", json={}),
            await fresh.http.post("/v1/chat/completions", json=chat),
            await fresh.http.get("/v1/models"),
            await fresh.http.get("/v1/models/loud"),
            await fresh.ask("GET", "/v1/apps"),
            await fresh.ask("GET", "/v1/apps/echo"),
        ]
        model_response = await fresh.http.get(f"/v1/models/{VL}")
        await valkey.start()
        await fresh.serves("echo", 1)
        later = [await fresh.http.post("/v1/apps/other/invoke", json={}), await fresh.http.get("/v1/models/loud")]

        assert [(each.status_code, read_error_body(each)["code"]) for each in early] == [(503, "stage_unavailable")] * 6
        assert all(int(each.headers["retry-after"]) > 0 for each in early)
        assert model_response.status_code == 200
        assert [each.status_code for each in later] == [404, 404]
        assert (await fresh.http.get("/v1/models")).status_code == 200


async def test_without_a_store_the_apps_stay(tmp_path: Path):
    async with (
        run_owned_server(infra.prepare_valkey(tmp_path)) as valkey,
        start_app_cluster(tmp_path, valkey.server.url) as cluster,
    ):
        gate = cluster.gateway()
        cluster.write("echo", ECHO, by="one")
        await gate.register("echo")

        valkey.kill()

        assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "one"
        assert len((await gate.ask("GET", "/v1/apps")).json()["data"]) == 1
        for method, path in (("PUT", "/v1/apps/echo"), ("DELETE", "/v1/apps/echo")):
            response = await gate.ask(method, path)
            assert (response.status_code, read_error_body(response)["code"]) == (503, "store_unavailable")
        assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "one"
        await valkey.start()
        fresh = cluster.gateway()
        await fresh.serves("echo", 1)  # the store was empty: the gateway that knew has told it again
        assert len(find_worker_pids()) == 2
