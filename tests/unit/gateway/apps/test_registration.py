"""The control routes: registering, updating and unregistering apps, and their conflicts."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus.app_record import encode_app_record
from tests.unit.gateway.apps.estate import (
    COUNT,
    ECHO,
    LOUD,
    PATIENT,
    AppCluster,
    AppGateway,
    find_worker_pids,
    format_source,
)
from tests.unit.gateway.house import VL, build_chat_body, read_chat_answer, read_error_body
from tests.unit.sidecar.node import wait_until


async def test_a_registered_app_is_shown_listed_and_served(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")

    app = await gate.register("echo")

    assert (app["object"], app["name"], app["version"], app["state"]) == ("app", "echo", 1, "active")
    assert app["source"] == {"kind": "directory", "module": "echo", "directory": "."}
    assert (app["doc"], app["route"], app["model"], app["streams"]) == ("Says it back.", "", "", False)
    assert app["request"]["properties"].keys() == {"text"}
    assert app["worker"] == {"state": "ready", "version": 1}
    assert (await gate.ask("GET", "/v1/apps/echo")).json() == app
    [brief] = (await gate.ask("GET", "/v1/apps")).json()["data"]
    assert {key: app[key] for key in brief if key != "tasks"} == {key: brief[key] for key in brief if key != "tasks"}
    assert await gate.invoke("echo", {"text": "hi"}) == {"text": "hi", "by": "one"}


async def test_the_same_app_again_is_the_same_version(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    first = await gate.register("echo")
    before = find_worker_pids()

    again = await gate.register("echo", status=200)

    assert again == first
    assert find_worker_pids() == before


async def test_another_app_of_the_same_name_is_a_conflict(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")
    cluster.write("echo", COUNT)

    response = await gate.ask("POST", "/v1/apps", {"source": {"module": "echo", "directory": "."}})

    assert (response.status_code, read_error_body(response)["code"]) == (409, "conflict")
    assert "PUT /v1/apps/echo" in read_error_body(response)["message"]
    assert await gate.invoke("echo", {"text": "hi"}) == {"text": "hi", "by": "one"}
    assert len(find_worker_pids()) == 1


# Updates


async def test_an_update_loads_the_code_anew(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    first = await gate.register("echo")
    cluster.write("echo", ECHO, by="two")

    second = await gate.update("echo")

    assert (second["version"], second["created"]) == (2, first["created"])
    assert second["updated"] > first["updated"]
    assert await gate.invoke("echo", {"text": "hi"}) == {"text": "hi", "by": "two"}
    await wait_until(lambda: len(find_worker_pids()) == 1)


async def test_an_update_may_come_from_elsewhere(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")
    cluster.write("better", 'from omnibus.app import App\napp = App(name="echo")\n' + format_source(ECHO, by="better"))

    second = await gate.update("echo", "better")

    assert (second["version"], second["source"]["module"]) == (2, "better")
    assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "better"


async def test_an_update_to_another_app_is_refused(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    cluster.write("other", ECHO, by="other")
    await gate.register("echo")

    response = await gate.ask("PUT", "/v1/apps/echo", {"source": {"module": "other", "directory": "."}})

    assert response.status_code == 400
    assert "the source has the app 'other'" in read_error_body(response)["message"]
    assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "one"


async def test_a_broken_update_leaves_the_old_version(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    first = await gate.register("echo")
    cluster.write("echo", "import nonsense\n")

    response = await gate.ask("PUT", "/v1/apps/echo")

    assert response.status_code == 400
    assert "No module named 'nonsense'" in read_error_body(response)["message"]
    assert (await gate.ask("GET", "/v1/apps/echo")).json() == first
    assert (await gate.invoke("echo", {"text": "hi"}))["by"] == "one"
    assert len(find_worker_pids()) == 1


async def test_an_app_that_is_not_there_cannot_be_updated(gate: AppGateway):
    response = await gate.ask("PUT", "/v1/apps/echo")

    assert (response.status_code, read_error_body(response)["code"]) == (404, "not_found")


async def start_request(
    cluster: AppCluster, gate: AppGateway, name: str
) -> tuple["asyncio.Task[httpx.Response]", Path]:
    """Start a request in ``name``. Returns it and the path whose creation lets it continue."""
    begin_path, go = cluster.directory / "begun", cluster.directory / "go"
    task = asyncio.ensure_future(
        gate.http.post(f"/v1/apps/{name}/invoke", json={"begun": str(begin_path), "go": str(go)})
    )
    await wait_until(begin_path.exists)
    return task, go


async def test_requests_in_flight_are_answered_by_the_version_that_began_them(cluster: AppCluster, gate: AppGateway):
    cluster.write("patient", PATIENT, by="one")
    await gate.register("patient")
    task, go = await start_request(cluster, gate, "patient")
    cluster.write("patient", PATIENT, by="two")

    await gate.update("patient")

    assert len(find_worker_pids()) == 2
    go.touch()
    assert (await task).json() == "one"
    assert (await asked_again(cluster, gate)).json() == "two"
    await wait_until(lambda: len(find_worker_pids()) == 1)


async def asked_again(cluster: AppCluster, gate: AppGateway) -> httpx.Response:
    paths = {"begun": str(cluster.directory / "begun"), "go": str(cluster.directory / "go")}
    return await gate.http.post("/v1/apps/patient/invoke", json=paths)


# The end


async def test_an_unregistered_app_finishes_what_it_began_and_takes_nothing_new(cluster: AppCluster, gate: AppGateway):
    cluster.write("patient", PATIENT, by="one")
    await gate.register("patient")
    task, go = await start_request(cluster, gate, "patient")

    response = await gate.ask("DELETE", "/v1/apps/patient")

    assert response.json() == {"object": "app.deleted", "name": "patient", "version": 1, "deleted": True}
    assert (await asked_again(cluster, gate)).status_code == 404
    go.touch()
    assert (await task).json() == "one"
    assert (await gate.ask("GET", "/v1/apps")).json()["data"] == []
    await wait_until(lambda: not find_worker_pids())


@pytest.mark.parametrize("name", ["echo", "echo@1", "a%20b", "x" * 300])
async def test_what_is_not_registered_cannot_be_unregistered(gate: AppGateway, name: str):
    response = await gate.ask("DELETE", f"/v1/apps/{name}")

    assert (response.status_code, read_error_body(response)["code"]) == (404, "not_found")


async def test_an_app_of_another_build_is_left_out_and_can_be_removed(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")
    [record] = gate.apps.registry.records.values()
    body = encode_app_record(record).replace(b'"echo"', b'"newer"').replace(b'"version"', b'"colour":"blue","version"')
    await gate.store._redis.hset("test:apps", "newer", body)
    await gate.store._redis.publish("test:apps", "newer")

    assert [app["name"] for app in (await gate.ask("GET", "/v1/apps")).json()["data"]] == ["echo"]
    assert (await gate.ask("DELETE", "/v1/apps/newer")).json()["version"] is None
    assert await gate.store._redis.hkeys("test:apps") == [b"echo"]


# Permissions


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/apps"), ("PUT", "/v1/apps/echo"), ("DELETE", "/v1/apps/echo")]
)
@pytest.mark.parametrize("token", ["", "open", "open-sesame-and-more"])
async def test_changes_need_the_token(gate: AppGateway, method: str, path: str, token: str):
    response = await gate.ask(method, path, {"source": {"module": "echo"}}, token=token)

    assert (response.status_code, read_error_body(response)["code"]) == (401, "unauthorized")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_the_token_is_a_bearers(gate: AppGateway):
    response = await gate.http.delete("/v1/apps/echo", headers={"authorization": "Basic open-sesame"})

    assert response.status_code == 401


async def test_anybody_may_look(gate: AppGateway):
    for path in ("/v1/apps", "/v1/tasks"):
        assert (await gate.ask("GET", path, token="")).status_code == 200
    assert (await gate.ask("GET", "/v1/apps/echo", token="")).status_code == 404


async def test_without_a_configured_token_nobody_may_change_anything(cluster: AppCluster):
    tokenless_gateway = cluster.gateway(admin_token="")

    response = await tokenless_gateway.ask("POST", "/v1/apps", {"source": {"module": "echo"}}, token="anything")

    assert (response.status_code, read_error_body(response)["code"]) == (403, "forbidden")
    assert "OMNIBUS_GATEWAY_ADMIN_TOKEN" in read_error_body(response)["message"]


async def test_a_request_over_the_limit_is_413_before_it_is_read(cluster: AppCluster, gate: AppGateway):
    headers = {"authorization": "Bearer open-sesame", "content-length": str(cluster.settings.app_body + 1)}

    response = await gate.http.post("/v1/apps", content=b"{}", headers=headers)

    assert (response.status_code, read_error_body(response)["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    ("method", "path"),
    [("PATCH", "/v1/apps"), ("POST", "/v1/apps/echo"), ("GET", "/v1/apps/echo/invoke"), ("POST", "/v1/tasks")],
)
async def test_another_method_is_405(gate: AppGateway, method: str, path: str):
    assert (await gate.ask(method, path)).status_code == 405


# Rejected registrations


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import nonsense", "No module named 'nonsense'"),
        ("x = 1", "no `serve`"),
        ("def serve(request): ...", "async def"),
        ("raise SystemExit(3)", "cannot be imported"),
        ("import os\nos._exit(3)", "exit code 3"),
    ],
)
async def test_a_module_that_is_no_app_is_refused_and_nothing_is_left(
    cluster: AppCluster, gate: AppGateway, text: str, fault: str
):
    cluster.write("broken", text)

    response = await gate.ask("POST", "/v1/apps", {"source": {"module": "broken", "directory": "."}})

    assert response.status_code == 400
    assert fault in read_error_body(response)["message"]
    assert (await gate.ask("GET", "/v1/apps")).json()["data"] == []
    assert not find_worker_pids()


async def test_an_app_needs_tasks_that_somebody_runs(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.write(
        "lost",
        """
        from omnibus.task import Think
        TASK = Think(model="nobody", component="thinker")
        async def serve(request): ...
        """,
    )

    response = await gate.ask("POST", "/v1/apps", {"source": {"module": "lost", "directory": "."}})

    assert response.status_code == 400
    assert "think-nobody-thinker" in read_error_body(response)["message"]
    assert VL in read_error_body(response)["message"]


async def test_an_app_with_tasks_waits_for_the_first_plan(cluster: AppCluster, gate: AppGateway):
    cluster.write("loud", LOUD, model="loud")

    response = await gate.ask("POST", "/v1/apps", {"source": {"module": "loud", "directory": "."}})

    assert (response.status_code, read_error_body(response)["stage"]) == (503, "planner")


@pytest.mark.parametrize(("name", "status"), [("chat", 409), ("Loud", 400), ("a.b", 400), ("a@b", 400), ("", 400)])
async def test_some_names_are_no_apps(cluster: AppCluster, gate: AppGateway, name: str, status: int):
    cluster.write("Loud", f"from omnibus.app import App\napp = App(name={name!r})\nasync def serve(request): ...\n")
    if not name:
        cluster.write("_", "async def serve(request): ...\n")

    module = "Loud" if name else "_"
    response = await gate.ask("POST", "/v1/apps", {"source": {"module": module, "directory": "."}})

    assert response.status_code == status, response.text
    assert not find_worker_pids()


@pytest.mark.parametrize("name", [VL, "poet"])
async def test_a_model_of_the_plan_and_its_adapters_keep_their_names(cluster: AppCluster, gate: AppGateway, name: str):
    cluster.home.serve(**{VL: {"family": "qwen2_5_vl", "checkpoint": "", "adapters": {"poet": "/poet"}}})
    cluster.write("loud", LOUD, model=name)

    response = await gate.ask("POST", "/v1/apps", {"source": {"module": "loud", "directory": "."}})

    assert (response.status_code, read_error_body(response)["code"]) == (409, "conflict")
    assert f"{name!r} is a model of the plan" in read_error_body(response)["message"]


async def test_of_two_apps_that_claim_one_model_one_gets_it(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    other = cluster.gateway()
    for name in ("loud", "louder"):
        cluster.write(name, LOUD, model="opera")

    bodies = [{"source": {"module": name, "directory": "."}} for name in ("loud", "louder")]
    responses = await asyncio.gather(gate.ask("POST", "/v1/apps", bodies[0]), other.ask("POST", "/v1/apps", bodies[1]))

    assert sorted(response.status_code for response in responses) == [201, 409]
    rejection = next(response for response in responses if response.status_code == 409)
    assert "already serves 'opera'" in read_error_body(rejection)["message"]
    await wait_until(lambda: len(find_worker_pids()) == 2)  # one at each gateway


async def test_of_two_gateways_that_register_one_app_both_have_it(cluster: AppCluster, gate: AppGateway):
    other = cluster.gateway()
    cluster.write("echo", ECHO, by="one")
    body = {"source": {"module": "echo", "directory": "."}}

    responses = await asyncio.gather(*(each.ask("POST", "/v1/apps", body) for each in (gate, other)))

    assert sorted(response.status_code for response in responses) == [200, 201]
    assert {response.json()["version"] for response in responses} == {1}
    for each in (gate, other):
        await each.serves("echo", 1)
    await wait_until(lambda: len(find_worker_pids()) == 2)


# Models and documents


async def test_an_app_that_is_a_model_is_listed_and_answers_chats(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("loud", LOUD, model="opera")

    await gate.register("loud")

    owners = {model["id"]: model["owned_by"] for model in (await gate.http.get("/v1/models")).json()["data"]}
    assert owners == {VL: "omnibus", "opera": "loud"}
    response = await gate.http.post("/v1/chat/completions", json=build_chat_body("opera", "hello there", seed=1))
    assert read_chat_answer(response).startswith("YOU SAID HELLO THERE")
    await gate.ask("DELETE", "/v1/apps/loud")
    assert (await gate.http.post("/v1/chat/completions", json=build_chat_body("opera", "hello"))).status_code == 404
    assert [model["id"] for model in (await gate.http.get("/v1/models")).json()["data"]] == [VL]


async def test_the_documentation_follows_the_apps(cluster: AppCluster, gate: AppGateway):
    path = "/v1/apps/echo/invoke"
    assert path not in (await gate.http.get("/openapi.json")).json()["paths"]
    cluster.write("echo", ECHO, by="one")

    await gate.register("echo")

    document = (await gate.http.get("/openapi.json")).json()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["text"]["type"] == "string"
    assert {"/v1/apps", "/v1/apps/{name}", "/v1/tasks", "/v1/chat/completions"} <= document["paths"].keys()
    await gate.ask("DELETE", "/v1/apps/echo")
    assert path not in (await gate.http.get("/openapi.json")).json()["paths"]


async def test_unit_tasks_are_listed_with_their_users_and_executors(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("loud", LOUD, model="opera")
    await gate.register("loud")

    tasks: list[dict[str, Any]] = (await gate.ask("GET", "/v1/tasks")).json()["data"]

    vision, thinker = tasks
    assert (vision["name"], vision["kind"], vision["component"]) == (f"encode-{VL}-vision", "encode", "vision")
    assert (thinker["name"], thinker["own"], thinker["model"]) == (f"think-{VL}-thinker", False, VL)
    assert thinker["users"] == vision["users"] == ["chat", "loud"]
    assert {each["id"]: each["state"] for each in thinker["executors"]} == {f"{VL}-L-0": "ok", f"{VL}-EL-0": "ok"}
    assert {each["option"] for each in vision["executors"]} == {"E", "EL"}
