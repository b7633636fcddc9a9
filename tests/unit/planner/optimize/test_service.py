"""Planned models in the planner service, next to static models and apps. Store and bus are real."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import profile as profiles
from omnibus.cells import cell_shares
from omnibus.cli.format.plan import plan_lines
from omnibus.errors import BadRequest
from omnibus.families import catalog
from omnibus.plan import Plan
from omnibus.profile import ModelProfile
from tests.unit.planner.apps import make_app, make_task
from tests.unit.planner.optimize.testbed import EL, E, L, count_replicas, make_option, make_profile
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar.node import wait_until

VL = {"family": "qwen2_5_vl", "checkpoint": "/q"}
GPUS = {"H100": {"count": 8, "memory_gb": 80}}
APART = make_profile({"E": E, "L": L})


def declare_models(
    town: PlannerSystem, static: bool = True, gpus: dict[str, Any] | None = None, **planned: dict[str, Any]
) -> None:
    """Declare the static model m, and planned ones with their requirements."""
    models: dict[str, Any] = {"m": catalog.model_declaration("qwen2_5_vl", "/m")} if static else {}
    for name, requirements in planned.items():
        models[name] = {**VL, **requirements.pop("model", {}), "planned": requirements}
    town.models.write_text(json.dumps({"gpus": GPUS if gpus is None else gpus, "models": models}))


def write_profile(town: PlannerSystem, model_profile: ModelProfile, file: str = "q.json") -> Path:
    path = town.models.parent / file
    path.write_bytes(profiles.encode_profile(model_profile))
    return path


async def read_problems(town: PlannerSystem) -> dict[str, str]:
    return {source: problem.message for source, problem in (await town.store.plan_problems()).items()}


async def wait_for_problem(town: PlannerSystem, source: str, text: str) -> None:
    """Wait until ``source`` reports a problem that contains ``text``."""

    async def is_reported() -> bool:
        return text in (await read_problems(town)).get(source, "")

    await wait_until(is_reported)


def list_models(plan: Plan) -> list[str]:
    return list(plan.models)


async def test_a_planned_model_stands_beside_static_ones_and_those_of_apps(system: PlannerSystem):
    write_profile(system, APART)
    declare_models(system, q={"profile": "q.json"})
    await system.store.put_app(make_app("poem", make_task("spell")), 0)

    async with system.planner():
        plan = await system.current(1)

    assert list_models(plan) == ["m", "q", "spell"]
    assert count_replicas(plan.models["q"]) == {"E": 2, "L": 5}
    assert plan.explain["planned"]["models"]["q"]["capacity"] > 0
    assert await read_problems(system) == {}


async def test_the_profile_of_the_store_is_used_when_no_file_is_named(system: PlannerSystem):
    await system.store.put_profile(APART)
    declare_models(system, q={})

    async with system.planner():
        plan = await system.current(1)

    assert count_replicas(plan.models["q"]) == {"E": 2, "L": 5}


async def test_a_profile_that_comes_later_is_planned_by(system: PlannerSystem):
    declare_models(system, q={})

    async with system.planner():
        assert list_models(await system.current(1)) == ["m"]
        assert (await read_problems(system))["model q"] == (
            "model q: the store has no profile of it: write one with `omnibus profile`, or name its file"
        )
        await system.store.put_profile(APART)

        plan = await system.until(lambda plan: list_models(plan) == ["m", "q"])
        await wait_until(lambda: system.announced[-1] == plan.epoch)
        assert await read_problems(system) == {}
    assert plan.reason == "profile of q changed"


async def test_a_file_that_is_measured_again_is_planned_by(system: PlannerSystem):
    write_profile(system, APART)
    declare_models(system, q={"profile": "q.json"})

    async with system.planner():
        await system.current(1)
        write_profile(
            system, make_profile({"E": E, "L": make_option("thinker", ("thinker", 0.06), service="llm", gpu="H100")})
        )

        plan = await system.until(lambda plan: count_replicas(plan.models["q"]) == {"E": 5, "L": 3})

    assert plan.reason == "profiles changed"


async def test_while_executors_make_room_requests_go_the_best_paths_over_those_that_are_left(system: PlannerSystem):
    write_profile(system, APART)
    declare_models(system, q={"profile": "q.json"})

    async with system.planner():
        await system.current(1)
        write_profile(
            system, make_profile({"E": E, "L": make_option("thinker", ("thinker", 0.06), service="llm", gpu="H100")})
        )
        await system.until(lambda plan: count_replicas(plan.models["q"]) == {"E": 5, "L": 3})
    step = await system.store.plan(2)

    assert step is not None
    assert (count_replicas(step.models["q"]), step.reason) == (
        {"E": 2, "L": 3},
        "profiles changed: makes room for 3 q/E",
    )
    capacity = step.explain["planned"]["models"]["q"]["capacity"]
    assert capacity == pytest.approx(2 / (0.6 * 0.2))
    assert sum(path.rate for paths in step.models["q"].types.values() for path in paths) == pytest.approx(capacity)


#: Requirements and profile; the source and text of the problem.
FAULTS: dict[str, tuple[dict[str, Any], bytes | None, str, str]] = {
    "no file": ({"profile": "q.json"}, None, "model q", "q.json cannot be read: No such file or directory"),
    "no JSON": ({"profile": "q.json"}, b"{", "model q", "q.json is not a profile ("),
    "NaN": ({"profile": "q.json"}, profiles.encode_profile(make_profile()).replace(b"0.2,", b"NaN,"), "model q", "q.json is not a profile"),
    "infinite": ({"profile": "q.json"}, profiles.encode_profile(make_profile()).replace(b"0.2,", b"1e999,"), "model q", "q.json"),
    "component not measured": (
        {"profile": "q.json"}, profiles.encode_profile(make_profile({"L": L})), "model q", "no option of its profile runs component vision",
    ),
    "fits no GPU": (
        {"profile": "q.json"},
        profiles.encode_profile(make_profile({"EL": msgspec.structs.replace(EL, memory_gb=100.0)})),
        "model q",
        "fits no GPU at hand (EL: it takes 100 GB; 1 x H100 has 80 GB)",
    ),
    "rate": ({"profile": "q.json", "goal": "gpus", "rate": 1e6}, profiles.encode_profile(make_profile()), "planned models", "8 GPUs of type H100 cannot serve"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "body", "source", "fault"), FAULTS.values(), ids=FAULTS.keys())
async def test_what_cannot_be_planned_is_said_and_static_models_are_served(
    system: PlannerSystem,
    options: dict[str, Any],
    body: bytes | None,
    source: str,
    fault: str,
    caplog: pytest.LogCaptureFixture,
):
    if body is not None:
        (system.models.parent / "q.json").write_bytes(body)
    declare_models(system, q=dict(options))

    async with system.planner():
        plan = await system.current(1)
        await wait_for_problem(system, source, fault)

    assert list_models(plan) == ["m"]
    assert fault in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_fault_of_one_model_leaves_the_others_alone(system: PlannerSystem):
    write_profile(system, APART)
    declare_models(system, q={"profile": "q.json"}, r={"profile": "none.json"})

    async with system.planner():
        plan = await system.current(1)

        assert list(await read_problems(system)) == ["model r"]
    assert list_models(plan) == ["m", "q"]


async def test_a_profile_that_becomes_bad_leaves_its_model_as_it_was(system: PlannerSystem):
    path = write_profile(system, APART)
    declare_models(system, q={"profile": "q.json"})

    async with system.planner():
        first = await system.current(1)
        path.write_text("{")
        await wait_for_problem(system, "model q", "is not a profile")

        assert await system.store.plan() == first


async def test_a_planner_that_starts_without_a_profile_leaves_its_model_as_it_was(system: PlannerSystem):
    path = write_profile(system, APART)
    declare_models(system, q={"profile": "q.json"})
    async with system.planner():
        first = await system.current(1)
    path.unlink()

    async with system.planner():
        await wait_for_problem(system, "model q", "cannot be read")

        assert await system.store.plan() == first


async def test_a_problem_is_taken_back_once_it_is_none(system: PlannerSystem):
    declare_models(system, q={"profile": "q.json"})
    async with system.planner():
        await wait_for_problem(system, "model q", "cannot be read")
    write_profile(system, APART)

    async with system.planner():
        await system.until(lambda plan: "q" in plan.models)

        assert await read_problems(system) == {}


async def test_other_declarations_are_planned_by(system: PlannerSystem):
    write_profile(system, APART)
    declare_models(system, q={"profile": "q.json"})

    async with system.planner():
        await system.current(1)
        declare_models(system, q={"profile": "q.json"}, gpus={"H100": {"count": 2}})

        plan = await system.until(lambda plan: count_replicas(plan.models["q"]) == {"E": 1, "L": 1})
        declare_models(system)
        last = await system.until(lambda plan: "q" not in plan.models)

    assert plan.reason == "declarations changed"
    assert list_models(last) == ["m"]
    assert last.explain == {}


async def test_a_name_that_a_static_model_has_on_the_bus_is_not_taken_again(system: PlannerSystem):
    write_profile(system, APART)
    declare_models(system, **{"m.": {"profile": "q.json"}, "m_": {"profile": "q.json"}})

    async with system.planner():
        plan = await system.current(1)
        await wait_for_problem(system, "planned models", "on the bus: rename one")

    assert list_models(plan) == ["m"]


async def test_models_that_share_are_planned_together(system: PlannerSystem):
    write_profile(system, APART)
    fields = {"profile": "q.json", "goal": "gpus", "rate": 2.0, "mix": {"vision+thinker": 1.0}, "headroom": 0.0}
    declare_models(system, a={**fields}, b={**fields, "model": {"shares": {"vision": "a"}}})

    async with system.planner():
        plan = await system.current(1)

    assert count_replicas(plan.models["a"]) == {"E": 1, "L": 1}
    assert plan.models["b"].options["a/E"].of == "a/E"


async def test_a_model_in_cells_is_planned_once_and_deployed_by_cell(system: PlannerSystem):
    write_profile(system, APART)
    declare_models(system, static=False, gpus={"H100": {"count": 7}}, q={"profile": "q.json", "cells": 4})

    async with system.planner():
        plan = await system.current(1)
    async with system.planner():  # another one finds them as they are
        again = await system.current(1)

    model_plan = plan.models["q"]
    assert len(cell_shares(model_plan)) > 1
    assert all(
        len({model_plan.options[name].cell for name in path.options.values()}) == 1
        for path in model_plan.types["thinker"]
    )
    assert again == plan


async def test_planned_and_static_models_share_nothing(system: PlannerSystem):
    declare_models(system, q={"profile": "q.json", "model": {"shares": {"vision": "m"}}})

    with pytest.raises(BadRequest, match="model q: shares with m: plan both of them, or none"):
        async with system.planner():
            pass


async def test_a_planned_epoch_can_be_shown(system: PlannerSystem):
    write_profile(system, APART)
    declare_models(system, q={"profile": "q.json"})
    async with system.planner():
        plan = await system.current(1)

    lines = "\n".join(plan_lines(plan, None))

    assert "q: most requests within the GPUs" in lines
    assert "GPUs: H100 7 of 8" in lines
