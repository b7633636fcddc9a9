"""Planning errors name the model, the fault and the remedy."""

import math
from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.profile import KeyValues
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType, TailLatencyGoals, TypeLatencyGoals, check_gpus
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.solve.problem import Infeasible
from tests.unit.planner.optimize.testbed import (
    EIGHT,
    EL,
    MIXED,
    SEEN,
    E,
    L,
    make_goals,
    make_model,
    make_option,
    make_planner,
    make_profile,
    make_types,
)

DECLARED: dict[str, Any] = {"family": "qwen2_5_vl", "checkpoint": "/q"}

#: Faults of declarations, and their messages.
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "goal": ({"goal": "speed"}, "planned goal is 'speed'; there is throughput and gpus"),
    "no rate": ({"goal": "gpus"}, "planned goal 'gpus' needs a rate in req/s above 0"),
    "negative rate": ({"rate": -1.0}, r"planned rate is -1\.0: it must be a finite number, 0 or more"),
    "NaN rate": ({"rate": math.nan}, "planned rate is nan"),
    "infinite headroom": ({"headroom": math.inf}, "planned headroom is inf"),
    "empty mix": ({"mix": {}}, "planned mix 0 gives no request type a share"),
    "mix of zeros": ({"mix": {SEEN: 0.0}}, "planned mix 0 gives no request type a share"),
    "NaN share": ({"mix": {SEEN: math.nan}}, r"planned the share of vision\+thinker is nan"),
    "one of the mixes": ({"mixes": ({SEEN: 1.0}, {SEEN: -1.0})}, r"planned the share of vision\+thinker is -1\.0"),
    "negative goal": ({"goals": make_goals(token=-0.1)}, r"planned goals\.token is -0\.1"),
    "goal of a type": (
        {"goals": TailLatencyGoals(types={"vision": TypeLatencyGoals(done=math.nan)})},
        r"planned goals\.types\.vision\.done is nan",
    ),
    "unknown type": (
        {"goals": TailLatencyGoals(types={"image": TypeLatencyGoals(done=1.0)})},
        "planned goals.types names 'image': give components, joined by '\\+', of vision, thinker",
    ),
    "no options": ({"options": ()}, "planned options is an empty list"),
    "options word": ({"options": "some"}, "planned options is 'some': give a list of options, or 'all'"),
    "cells": ({"cells": 1000}, "planned cells is 1000: it must be 0 to 256 GPUs"),
    "cells of mixes": ({"cells": 2, "mixes": ({SEEN: 1.0},)}, "planned cells cannot be planned for several mixes"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "fault"), ASKED.values(), ids=ASKED.keys())
def test_a_fault_of_a_declaration_names_the_model_and_the_field(options: dict[str, Any], fault: str):
    with pytest.raises(BadRequest, match=f"^model q: {fault}"):
        make_model(**options)


@pytest.mark.parametrize("field", ["options", "paths"])
def test_a_planned_model_has_no_deployment_of_its_own(field: str):
    value = {"options": {"L": {"components": ["thinker"], "service": "llm"}}, "paths": [{"options": ["L"]}]}[field]
    declared_model = msgspec.convert({**DECLARED, field: value, "planned": {}}, declarations_file.DeclaredModel)

    with pytest.raises(BadRequest, match=f"model q: is planned, so it cannot have '{field}'"):
        declarations_file.build_static_plans({"q": declared_model})


@pytest.mark.parametrize(
    ("gpus", "nodes", "fault"),
    [
        ({"H100": GpuType(-1)}, {}, "gpus: there are -1 of type 'H100'"),
        ({"H100": GpuType(1, memory_gb=math.nan)}, {}, "gpus: memory_gb of 'H100' is nan"),
        ({"H100": GpuType(1)}, {"n": DeclaredNode(-1, "H100")}, "nodes: n has -1 GPUs"),
        ({"H100": GpuType(1)}, {"n": DeclaredNode(1, "A100")}, "nodes: n has GPUs of type 'A100'; 'gpus' names H100"),
    ],
)
def test_a_fault_of_the_gpus_is_named(gpus: dict[str, GpuType], nodes: dict[str, DeclaredNode], fault: str):
    with pytest.raises(BadRequest, match=f"^{fault}"):
        check_gpus(gpus, nodes)


def test_with_a_currency_each_type_has_a_price():
    with pytest.raises(BadRequest, match="^gpus: 'H100' has no price; with a currency each type has one"):
        check_gpus({"H100": GpuType(1), "L40": GpuType(1, price=0.0)}, {}, "EUR")


OMNI = {"family": "qwen2_5_omni", "components": ("vision", "audio", "thinker")}

#: Faults of profile, GPUs, requirements and declarations, and their errors.
MEASURED: dict[str, tuple[dict[str, Any], type[BadRequest], str]] = {
    "component that nobody measured": (
        {"declaration": OMNI}, BadRequest, "has audio, which its profile does not know: measure it with `omnibus profile`",
    ),
    "component without option": (
        {"model_profile": make_profile({"L": L})}, BadRequest, "no option of its profile runs component vision: measure one with `omnibus profile`",
    ),
    "component left out": (
        {"options": ("L",)}, BadRequest, "planned options leave out all that run vision",
    ),
    "option unknown": ({"options": ("X", "L")}, BadRequest, "planned options name X; the profile has E, EL, L"),
    "no options": ({"model_profile": make_profile({})}, BadRequest, "has a profile without options: measure some"),
    "names alike": (
        {"model_profile": make_profile({"E": E, "L@x": L, "L_x": L})}, BadRequest, "options 'L@x' and 'L_x' of its profile are both called 'L_x'",
    ),
    "mix of strangers": (
        {"mix": {"audio+thinker": 1.0}}, BadRequest, r"planned mix names 'audio\+thinker', which is no request type: join components",
    ),
    "nobody asks": (
        {"model_profile": make_profile(types=make_types(vision_thinker=0.0))}, BadRequest, "its profile gives no request type a share",
    ),
    "GPU type not at hand": (
        {"gpus": {"L40": GpuType(8)}}, Infeasible, r"component vision fits no GPU at hand \(E: it takes GPUs of type H100; there is L40; EL: ",
    ),
    "memory": (
        {"model_profile": make_profile({"E": E, "L": make_option("thinker", ("thinker", 0.3), gpu="H100", memory_gb=90.0)})},
        Infeasible, r"component thinker fits no GPU at hand \(L: it takes 90 GB; 1 x H100 has 80 GB\): measure it with a higher",
    ),
    "weights": (
        {"model_profile": make_profile({"E": E, "L": make_option("thinker", ("thinker", 0.3), gpu="H100", weights_gb=75.0)})},
        Infeasible, r"its weights take 75 GB; 1 x H100 has 80 GB, of which 90% are for weights",
    ),
    "no room for keys and values": (
        {"model_profile": make_profile({"E": E, "L": make_option("thinker", ("thinker", 0.3), gpu="H100", weights_gb=30.0)}, kv=KeyValues("thinker", 1e-4, 24.0))},
        Infeasible, "its weights take 30 of 24 GB, and leave none for keys and values",
    ),
    "GPU type not told": (
        {"model_profile": make_profile({"E": E, "L": make_option("thinker", ("thinker", 0.3))}), "gpus": {"H100": GpuType(8), "L40": GpuType(8)}},
        BadRequest, "option L does not say its GPU type, and there is H100, L40: add 'gpu' to its profile",
    ),
    "order in a circle": (
        {"model_profile": make_profile(order=(("vision", "thinker"), ("thinker", "vision")))}, BadRequest, "the order has a cycle among thinker, vision",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "fault"), MEASURED.values(), ids=MEASURED.keys())
def test_a_profile_that_does_not_do_is_told_with_the_model(
    arguments: dict[str, Any], kind: type[BadRequest], fault: str
):
    with pytest.raises(kind, match=f"^model q: .*{fault}"):
        make_planner(**arguments)


def test_a_rate_beyond_the_gpus_is_infeasible():
    with pytest.raises(Infeasible, match=r"8 GPUs of type H100 cannot serve"):
        make_planner(goal="gpus", rate=1000.0).plan()


def test_gpus_that_hold_no_deployment_are_told():
    two = make_profile({"E": E, "L": L})

    with pytest.raises(
        Infeasible, match="1 GPUs of type H100 cannot hold an executor for each component that requests use"
    ):
        make_planner(two, {"H100": GpuType(1)}).plan()


def test_throughput_needs_to_know_the_gpus():
    with pytest.raises(BadRequest, match="the goal 'throughput' needs GPUs: declare 'gpus' by type, or 'nodes'"):
        make_planner(gpus={})


def test_a_rate_may_be_planned_for_without_a_limit():
    assert make_planner(gpus={}, goal="gpus", rate=100.0, headroom=0.0).plan().capacity["q"] >= 100 - 1e-4


def test_a_model_without_profile_is_named():
    with pytest.raises(BadRequest, match="model q has no profile: write one with `omnibus profile`"):
        Planner({"q": make_model()}, {}, EIGHT, {})


def test_what_is_left_out_is_told_with_the_reason():
    big = make_option(SEEN, (SEEN, 0.1), gpu="H100", memory_gb=200.0)

    result = make_planner(make_profile({"E": E, "L": L, "EL": big}, types=MIXED)).plan()

    assert "EL" not in result.models["q"].options
    assert result.explain["planned"]["models"]["q"]["left"] == {"EL": "it takes 200 GB; 1 x H100 has 80 GB"}
    assert EL.components == big.components


def test_cells_of_several_gpu_types_are_refused():
    slow = make_option("thinker", ("thinker", 0.6), gpu="L40")
    model_profile = make_profile({"E": E, "L": L, "L40": slow})

    with pytest.raises(BadRequest, match="model q: cells need options on GPUs of one type"):
        make_planner(model_profile, {"H100": GpuType(4), "L40": GpuType(4)}, cells=2).plan()
