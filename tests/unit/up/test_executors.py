"""Executors follow the plan: new ones start, removed ones drain and end, the rest is unchanged."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnibus.plan import DeploymentOption, ModelPlan, Plan
from omnibus.process.spec import ProcessSpec
from omnibus.settings import ServiceSettings, read_settings
from omnibus.up import executors as executor_specs
from omnibus.up.executors import process_specs
from tests.unit.up.house import SupervisorHouse, make_model, make_plan
from tests.unit.up.programs import DRAINS, SLEEPS, WITHIN, all_gone


def read_environment(spec: ProcessSpec) -> dict[str, str]:
    prefix = "OMNIBUS_EXECUTOR_"
    return {name.removeprefix(prefix): value for name, value in spec.env.items() if name.startswith(prefix)}


# The processes of a plan


def test_each_replica_of_each_option_is_a_process():
    specs = process_specs(make_plan(1, E=1, L=3, none=0), env={})

    assert list(specs) == ["m/E", "m/L", "m/L/1", "m/L/2"]
    assert [read_environment(spec)["ID"] for spec in specs.values()] == ["m-E-0", "m-L-0", "m-L-1", "m-L-2"]
    assert all(spec.argv[-2:] == ("-m", "omnibus_llm") for spec in specs.values())


def test_another_replica_changes_nothing_in_those_that_there_are():
    one, three = process_specs(make_plan(1, L=1), env={}), process_specs(make_plan(2, L=3), env={})

    assert one.items() < three.items()


def test_a_process_is_told_who_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_EXECUTOR_NICE", "4")
    options = {"EL": DeploymentOption(("vision", "thinker"), "llm")}
    tasks = {"vision": "encode-m-vision", "thinker": "think-m-thinker"}
    new_plan = Plan(1, 0, 0.0, {"m": make_model(options, context=900, tasks=tasks)})

    assert read_environment(process_specs(new_plan, env={})["m/EL"]) == {
        "ID": "m-EL-0", "MODEL": "m", "FAMILY": "f", "CHECKPOINT": "/m", "CONTEXT": "900", "OPTION": "EL",
        "COMPONENTS": "vision,thinker", "TASKS": "encode-m-vision,think-m-thinker", "ORIGIN": new_plan.models["m"].option_origin("EL"),
        "NICE": "4",
    }  # fmt: skip


def test_without_names_of_unit_tasks_the_executor_names_them_itself():
    assert "TASKS" not in read_environment(process_specs(make_plan(1, L=1), env={})["m/L"])


def test_the_environment_of_all_prevails_but_over_the_engine_of_an_option():
    options = {
        "own": DeploymentOption(("spell",), "generator", engine="a:b"),
        "usual": DeploymentOption(("thinker",), "llm"),
    }
    new_plan = Plan(1, 0, 0.0, {"m": make_model(options)})

    specs = process_specs(new_plan, env={"OMNIBUS_EXECUTOR_ENGINE": "c:d", "OMNIBUS_EXECUTOR_CONTEXT": "7"})

    assert [read_environment(spec)["ENGINE"] for spec in specs.values()] == ["a:b", "c:d"]
    assert [read_environment(spec)["CONTEXT"] for spec in specs.values()] == ["7", "7"]


def test_an_option_of_several_gpus_and_of_its_own_batch_says_so_whatever_all_are_told(monkeypatch: pytest.MonkeyPatch):
    options = {
        "L": DeploymentOption(("thinker",), "llm", gpus=1),
        "L-tp2": DeploymentOption(("thinker",), "llm", gpus=2),
        "L-pp2": DeploymentOption(("thinker",), "llm", gpus=4, vllm={"pipeline_parallel": 2}),
        "L-own": DeploymentOption(("thinker",), "llm", gpus=2, vllm={"tensor_parallel": 1}),
        "L-b8": DeploymentOption(("thinker",), "llm", batch=8),
    }
    new_plan = Plan(1, 0, 0.0, {"m": make_model(options)})

    specs = process_specs(new_plan, env={"OMNIBUS_EXECUTOR_BATCH": "4"})
    degree_specs = process_specs(new_plan, env={"OMNIBUS_VLLM_TENSOR_PARALLEL": "1"})

    assert [specs[f"m/{name}"].env["OMNIBUS_EXECUTOR_BATCH"] for name in options] == ["4", "4", "4", "4", "8"]
    degrees = [specs[f"m/{name}"].env.get("OMNIBUS_VLLM_TENSOR_PARALLEL") for name in options]
    assert degrees == [None, "2", "2", "1", None]
    assert {each.env["OMNIBUS_VLLM_TENSOR_PARALLEL"] for each in degree_specs.values()} == {"1"}


def test_a_shared_option_starts_nothing_for_the_model_that_borrows_it():
    lender = make_model({"E": DeploymentOption(("vision",), "encoder")})
    borrower = make_model(
        {"m/E": DeploymentOption(("vision",), "encoder", 0, of="m/E"), "L": DeploymentOption(("thinker",), "llm")}
    )

    specs = process_specs(Plan(1, 0, 0.0, {"m": lender, "n": borrower}), env={})

    assert list(specs) == ["m/E", "n/L"]


@pytest.mark.skipif(sys.platform != "linux", reason="nurseries need Linux")
def test_the_fork_server_bears_what_has_the_usual_engine_and_nothing_else():
    options = {
        "own": DeploymentOption(("spell",), "generator", engine="a:b"),
        "usual": DeploymentOption(("thinker",), "llm"),
    }

    specs = process_specs(Plan(1, 0, 0.0, {"m": make_model(options)}), env={}, fork_server="/run/fork-server.sock")

    assert specs["m/usual"].fork_server == "/run/fork-server.sock"
    assert "fork-server" in specs["m/usual"].after
    assert specs["m/own"].argv[-2:] == ("-m", "omnibus_generator")
    assert "fork-server" not in specs["m/own"].after


def test_only_what_the_operator_declared_is_vital():
    options = {"o": DeploymentOption(("spell",), "generator")}

    specs = process_specs(
        Plan(1, 0, 0.0, {"declared": make_model(options), "brought": make_model(options, apps=("poet",))}), env={}
    )

    assert specs["declared/o"].vital
    assert not specs["brought/o"].vital


def test_a_process_is_not_killed_while_it_may_drain():
    assert process_specs(make_plan(1, L=1), env={"OMNIBUS_SERVICE_DRAIN": "30"})["m/L"].grace > 30


@pytest.mark.parametrize("service", ["gateway", "llm", "planner"])
def test_every_service_has_longer_to_end_than_it_drains_by_default(service: str):
    assert executor_specs.grace_seconds({}, service) >= ServiceSettings().drain_seconds(service) + 5


def test_a_gateway_drains_longer_than_others_unless_a_setting_says_how_long():
    default, custom_settings = ServiceSettings(), read_settings(ServiceSettings, {"OMNIBUS_SERVICE_DRAIN": "3"})

    assert default.drain_seconds("gateway") > default.drain_seconds("llm")
    assert custom_settings.drain_seconds("gateway") == custom_settings.drain_seconds("llm") == 3.0


# Following the plan


async def test_processes_follow_the_plan_and_unchanged_ones_are_left_alone(house: SupervisorHouse):
    await house.executors.start(make_plan(1, E=1, L=1), house.store)
    first = await house.until("m/E", "m/L")

    await house.store_plan(make_plan(2, E=1, L=3))
    more = await house.until("m/E", "m/L", "m/L/1", "m/L/2")
    await house.store_plan(make_plan(3, L=2, X=1))
    last = await house.until("m/L", "m/L/1", "m/X")

    assert more.items() > first.items()
    assert last.items() > {"m/L": first["m/L"], "m/L/1": more["m/L/1"]}.items()
    assert all_gone([first["m/E"], more["m/L/2"]])


async def test_what_the_plan_drops_is_no_crash_and_may_come_back(house: SupervisorHouse):
    await house.executors.start(make_plan(1, E=1, L=1), house.store)
    first = await house.until("m/E", "m/L")
    await house.store_plan(make_plan(2, L=1))
    await house.until("m/L")

    await house.store_plan(make_plan(3, E=1, L=1))
    again = await house.until("m/E", "m/L")

    assert again["m/L"] == first["m/L"]
    assert [(end.name, end.pid, end.wanted) for end in house.exits] == [("m/E", first["m/E"], True)]
    assert "restarting" not in house.lines.getvalue()


async def test_a_plan_without_executors_is_followed_too(house: SupervisorHouse):
    await house.executors.start(make_plan(1), house.store)

    await house.store_plan(make_plan(2, L=1))

    await house.until("m/L")


async def test_an_executor_whose_orders_change_is_replaced_by_one_beside_it(house: SupervisorHouse):
    await house.executors.start(make_plan(1, L=1), house.store)
    first = await house.until("m/L")

    other = {"m": replace_model(make_plan(2, L=1).models["m"], checkpoint="/other")}
    name = f"m/L@{other['m'].option_origin('L')[:4]}"
    await house.store_plan(Plan(2, 0, 2.0, other))
    second = await house.until(name)
    await house.store_plan(Plan(3, 0, 3.0, {**other, "n": make_plan(3, X=1).models["m"]}))
    await house.until(name, "n/X")

    assert read_environment(house.supervisor.specs[name])["CHECKPOINT"] == "/other"
    assert read_environment(house.supervisor.specs[name])["ID"] == name.replace("m/L@", "m-L-0-")
    assert all_gone(first.values())
    assert house.pids()[name] == second[name]


def replace_model(model: ModelPlan, **fields: Any) -> ModelPlan:
    values = {name: getattr(model, name) for name in model.__struct_fields__}
    return ModelPlan(**{**values, **fields})


@pytest.fixture
def open_gate(house: SupervisorHouse, tmp_path: Path) -> Callable[[], object]:
    """A function that ends the drain of the executor E; executors that drain later end at once."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    house.env["GATE"] = str(path)
    house.programs["m/E"] = DRAINS

    def open_pipe() -> None:
        path.write_text("")
        path.unlink()

    return open_pipe


async def test_others_start_while_one_drains_and_its_name_is_free_only_then(
    house: SupervisorHouse, open_gate: Callable[[], object]
):
    await house.executors.start(make_plan(1, E=1), house.store)
    first = await house.until("m/E")
    await house.up("m/E")

    await house.store_plan(make_plan(2, L=1))
    await house.lines.until("draining")
    await house.store_plan(make_plan(3, E=1, L=1, X=1))
    while_draining = await house.until("m/E", "m/L", "m/X")
    await asyncio.to_thread(open_gate)
    second = await house.until("m/E", "m/L", "m/X", but=tuple(first.values()))
    await house.up("m/E", times=2)

    assert while_draining["m/E"] == first["m/E"]
    assert second.items() > {"m/L": while_draining["m/L"], "m/X": while_draining["m/X"]}.items()
    assert [(end.name, end.code, end.wanted) for end in house.exits] == [("m/E", 0, True)]


async def test_one_that_drains_when_all_is_stopped_may_finish(house: SupervisorHouse, open_gate: Callable[[], object]):
    await house.executors.start(make_plan(1, E=1), house.store)
    await house.up("m/E")
    await house.store_plan(make_plan(2))
    await house.lines.until("draining")

    await house.executors.close()
    stopping = asyncio.create_task(house.supervisor.remove("m/E"))
    await asyncio.to_thread(open_gate)
    await asyncio.wait_for(stopping, WITHIN)

    assert [(end.name, end.code, end.wanted) for end in house.exits] == [("m/E", 0, True)]
    assert house.lines.getvalue().count("draining") == 1


async def test_what_an_app_brought_is_given_up_alone_and_tried_again_with_the_next_plan(house: SupervisorHouse):
    declared_model = make_plan(1, L=1).models["m"]
    app_model = make_model({"o": DeploymentOption(("spell",), "generator")}, apps=("poet",))
    house.programs["m/app/o"] = "raise SystemExit('no such poem')"

    await house.executors.start(Plan(1, 0, 1.0, {"m": declared_model, "m/app": app_model}), house.store)
    first = await house.until("m/L")  # between two runs at first, then given up
    await house.lines.until("given up")
    house.programs["m/app/o"] = SLEEPS
    await house.store_plan(Plan(2, 0, 2.0, {"m": declared_model, "m/app": app_model}))
    second = await house.until("m/L", "m/app/o")

    assert "no such poem" in house.lines.getvalue()
    assert second["m/L"] == first["m/L"]


async def test_a_store_that_lost_its_plan_stops_nothing(house: SupervisorHouse):
    await house.store_plan(make_plan(5, L=1))
    await house.executors.start(make_plan(5, L=1), house.store)
    first = await house.until("m/L")

    os.kill(house.supervisor.pids["valkey"], 9)
    await house.lines.until("valkey *| restarting")
    async with asyncio.timeout(WITHIN):
        while not await try_swap(house, make_plan(1, E=1, L=1)):
            await asyncio.sleep(0.05)
    again = await house.until("m/E", "m/L")

    assert again["m/L"] == first["m/L"]


async def try_swap(house: SupervisorHouse, plan: Plan) -> bool:
    with contextlib.suppress(Exception):
        await house.store_plan(plan)
        return True
    return False
