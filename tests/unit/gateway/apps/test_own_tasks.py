"""Apps with their own unit tasks can be called throughout an update."""

import asyncio
import time

import msgspec
import pytest

from omnibus.app_record import base_app_name
from omnibus.executor.status import ExecutorIdentity
from omnibus.plan import ModelPlan
from omnibus.store import Store
from omnibus_gateway.apps.pending_versions import RECORD_GRACE_SECONDS
from tests.unit.gateway.apps.estate import ECHO, SHOUT, AppCluster, AppGateway, find_worker_pids
from tests.unit.gateway.house import VL, read_error_body
from tests.unit.sidecar.node import wait_until


async def list_set_aside(store: Store) -> list[tuple[str, int, str]]:
    """Return the records set aside: app, version, state."""
    records = [record for record in (await store.apps()).values() if record.name != base_app_name(record.name)]
    return [(base_app_name(record.name), record.version, record.state) for record in records]


async def test_an_app_is_registered_once_its_own_tasks_have_executors(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.plan_apps()
    cluster.write("shout_a", SHOUT, cls="Shout", fields="")

    app = await gate.register("shout_a")

    assert app["tasks"] == [{"name": "shout", "kind": "shout", "model": "", "component": "shout", "own": True}]
    assert await gate.invoke("shout_a", "hi") == "HI!"
    assert await list_set_aside(gate.store) == []
    [task] = [task for task in (await gate.ask("GET", "/v1/tasks")).json()["data"] if task["own"]]
    assert (task["users"], [each["state"] for each in task["executors"]]) == (["shout_a"], ["ok"])
    assert [model["id"] for model in (await gate.http.get("/v1/models")).json()["data"]] == [VL]


async def test_without_executors_the_app_is_taken_back_and_the_task_is_named(cluster: AppCluster):
    cluster.home.serve(VL)
    cluster.write("shout_b", SHOUT, cls="Shout", fields="")

    for within in (1.5, 6.0, 24.0):  # a busy machine may need most of it to load the app
        gate = cluster.gateway(app_ready=within)
        response = await gate.ask("POST", "/v1/apps", {"source": {"module": "shout_b", "directory": "."}})
        if "did not load" not in read_error_body(response)["message"]:
            break

    assert (response.status_code, read_error_body(response)["code"]) == (504, "deadline_exceeded")
    assert "'shout_b' is not registered" in read_error_body(response)["message"]
    assert "no plan has the unit task shout" in read_error_body(response)["message"]
    assert await gate.store.apps() == {}
    assert not find_worker_pids()


async def test_the_error_that_ends_its_executor_is_in_the_rejection(
    cluster: AppCluster, monkeypatch: pytest.MonkeyPatch
):
    cluster.home.serve(VL)

    async def end_executors(models: dict[str, ModelPlan]) -> None:
        for name, model in models.items():
            identity = ExecutorIdentity("x", name, *model.options, "n", {}, 1)
            status = identity.make_status("gone", 0, 0)
            fault = "ModuleNotFoundError: No module named 'librosa'"
            cluster.home.router.members.handle_status(msgspec.structs.replace(status, fault=fault))

    monkeypatch.setattr(cluster, "_staff", end_executors)
    cluster.plan_apps()
    cluster.write("shout_x", SHOUT, cls="Shout", fields="")
    gate = cluster.gateway(app_ready=6.0)

    response = await gate.ask("POST", "/v1/apps", {"source": {"module": "shout_x", "directory": "."}})

    assert (
        "shout has no executor: its executor ended with ModuleNotFoundError: No module named 'librosa'"
        in read_error_body(response)["message"]
    )


async def test_the_old_version_can_be_called_at_every_moment_of_an_update(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.plan_apps()
    cluster.write("shout_c", SHOUT, cls="Shout", fields="")
    await gate.register("shout_c")
    cluster.write("shout_c", SHOUT, cls="Shout", fields="mark='?'")

    updating = asyncio.ensure_future(gate.update("shout_c"))
    answers = []
    while not updating.done():
        answers.append(await gate.invoke("shout_c", "hi"))

    assert (await updating)["version"] == 2
    assert set(answers) <= {"HI!", "HI?"}
    assert answers[0] == "HI!"
    assert await gate.invoke("shout_c", "hi") == "HI?"
    assert await list_set_aside(gate.store) == [("shout_c", 1, "draining")]  # its running requests may need its tasks


async def test_tasks_of_an_old_version_leave_when_its_time_is_over(cluster: AppCluster):
    cluster.home.serve(VL)
    cluster.plan_apps()
    gate = cluster.gateway(app_drain=0.1)
    cluster.write("shout_d", SHOUT, cls="Shout", fields="")
    await gate.register("shout_d")

    await gate.ask("DELETE", "/v1/apps/shout_d")

    assert await list_set_aside(gate.store) == [("shout_d", 1, "draining")]
    assert "shout" in {task["name"] for task in (await gate.ask("GET", "/v1/tasks")).json()["data"]}

    async def is_empty() -> bool:
        return not await list_set_aside(gate.store)

    await wait_until(is_empty)
    await wait_until(lambda: "shout" not in cluster.home.router.plan.task_owners())


async def test_equal_tasks_of_two_apps_are_one(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.plan_apps()
    (cluster.directory / "shared_shout.py").write_text("")
    cluster.write("shared_shout", SHOUT, cls="Shout", fields="")
    for name in ("first", "second"):
        cluster.write(name, "from shared_shout import TASK, Words, serve\n")
        await gate.register(name)

    [task] = [task for task in (await gate.ask("GET", "/v1/tasks")).json()["data"] if task["own"]]
    assert (task["name"], task["users"], len(task["executors"])) == ("shout", ["first", "second"], 1)
    await gate.ask("DELETE", "/v1/apps/first")
    assert await gate.invoke("second", "hi") == "HI!"


async def test_another_task_of_the_same_name_is_a_conflict_that_names_the_app(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.plan_apps()
    for name in ("shout_e", "shout_f"):
        cluster.write(name, SHOUT, cls="Shout", fields="")
    await gate.register("shout_e")

    response = await gate.ask("POST", "/v1/apps", {"source": {"module": "shout_f", "directory": "."}})

    assert (response.status_code, read_error_body(response)["code"]) == (409, "conflict")
    assert "the app 'shout_e' brings another unit task shout" in read_error_body(response)["message"]
    assert set(await gate.store.apps()) == {"shout_e"}


async def test_a_task_of_the_plan_keeps_its_name(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.write("shout_g", SHOUT, cls="Shout", fields=f"model='{VL}', component='thinker'")
    cluster.write("think_g", SHOUT, cls="Think", fields=f"model='{VL}', component='thinker'")

    response = await gate.ask("POST", "/v1/apps", {"source": {"module": "think_g", "directory": "."}})

    assert (response.status_code, read_error_body(response)["code"]) == (409, "conflict")
    assert f"think-{VL}-thinker is the model {VL!r}'s already" in read_error_body(response)["message"]


async def test_an_upload_may_not_bring_its_own_tasks(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.write("shout_h", SHOUT, cls="Shout", fields="")
    text = (cluster.directory / "shout_h.py").read_text()

    response = await gate.ask("POST", "/v1/apps", {"source": {"upload": text, "name": "shout_h"}})

    assert (response.status_code, read_error_body(response)["code"]) == (400, "bad_request")
    assert "own unit tasks" in read_error_body(response)["message"]


async def test_two_gateways_that_change_one_app_do_not_cross(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.plan_apps()
    other = cluster.gateway()
    cluster.write("shout_i", SHOUT, cls="Shout", fields="")
    await gate.register("shout_i")
    await other.serves("shout_i", 1)

    responses = await asyncio.gather(*(each.ask("PUT", "/v1/apps/shout_i") for each in (gate, other)))

    statuses = sorted(response.status_code for response in responses)
    assert statuses in ([200, 200], [200, 409])
    version = 1 + statuses.count(200)
    for each in (gate, other):
        await each.serves("shout_i", version)


async def test_a_gateway_with_an_app_of_its_own_tasks_is_ready_without_their_executors(
    cluster: AppCluster, gate: AppGateway
):
    await cluster.home.all_of(VL)
    cluster.plan_apps()
    cluster.write("shout_j", SHOUT, cls="Shout", fields="")
    await gate.register("shout_j")

    (shouting,) = (each for id, each in cluster.home.place.executors.items() if id.startswith("shout-shout-"))
    await shouting.drain(1.0)

    assert (await gate.http.get("/readyz")).status_code == 200
    response = await gate.http.post("/v1/apps/shout_j/invoke", json="hi")
    assert (response.status_code, read_error_body(response)["stage"]) == (503, "shout")


async def test_an_app_without_own_tasks_leaves_nothing_aside(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")
    await gate.update("echo")
    await gate.ask("DELETE", "/v1/apps/echo")

    assert await gate.store.apps() == {}


async def test_an_app_may_come_again_while_its_last_requests_finish(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(VL)
    cluster.plan_apps()
    cluster.write("shout_k", SHOUT, cls="Shout", fields="")

    for _ in range(3):
        assert (await gate.register("shout_k"))["version"] == 1
        assert await gate.invoke("shout_k", "hi") == "HI!"
        assert (await gate.ask("DELETE", "/v1/apps/shout_k")).status_code == 200

    assert await list_set_aside(gate.store) == [("shout_k", 1, "draining")] * 3


async def test_what_a_gateway_that_died_left_aside_is_removed_by_the_others(cluster: AppCluster, gate: AppGateway):
    cluster.write("echo", ECHO, by="one")
    await gate.register("echo")
    [record] = (await gate.store.apps()).values()
    limits = {
        "starting": cluster.settings.app_drain + cluster.settings.app_ready,
        "draining": cluster.settings.app_drain,
    }
    for state, seconds in limits.items():
        old = time.time() - seconds - RECORD_GRACE_SECONDS - 1
        left = msgspec.structs.replace(record, name=f"gone@{state}", state=state, updated=old)
        await gate.store.put_app(left, 0)
    young = msgspec.structs.replace(record, name="busy@1", state="starting", updated=time.time())
    await gate.store.put_app(young, 0)

    async def are_removed() -> bool:
        return set(await gate.store.apps()) == {"echo", "busy@1"}

    await wait_until(are_removed)
    assert [app["name"] for app in (await gate.ask("GET", "/v1/apps")).json()["data"]] == ["echo"]
