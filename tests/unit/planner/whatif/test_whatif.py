"""The answer of ``omnibus whatif``, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnibus.cli.main import main
from omnibus.errors import OmnibusError
from omnibus.plan import ModelPlan, Plan, encode_plan
from omnibus.profile import encode_profile
from omnibus_planner.whatif.__main__ import answer_question
from omnibus_planner.whatif.question import WhatIfQuestion
from tests.unit.planner.optimize import testbed

TRACE = "t_s,num_images,image_tokens,text_tokens,output_tokens,has_audio\n" + "".join(
    f"{at},{at % 2},{at % 2 * 300},20,10,{int(at == 3)}\n" for at in range(40)
)


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    """A model planned for eight GPUs. It needs 0.2 s of a GPU for an image and 0.3 s for a text."""
    (tmp_path / "vl.json").write_bytes(encode_profile(testbed.profile(model="vl")))
    models = {
        "gpus": {"H100": {"count": 8, "memory_gb": 80, "price": 2.5}},
        "models": {
            "vl": {"family": "qwen2_5_vl", "checkpoint": "/vl", "planned": {"profile": "vl.json", "goals": {"done": 9}}}
        },
    }
    path = tmp_path / "models.json"
    path.write_text(json.dumps(models))
    return path


async def answer(declared: Path, **options: Any) -> dict[str, Any]:
    question = WhatIfQuestion(models=str(declared), json=True, **{"seconds": 60.0, **options})
    found = json.loads(await answer_question(question))
    assert isinstance(found, dict)
    return found


async def test_the_plan_of_the_declarations_is_simulated_at_its_own_rate(declared: Path):
    found = await answer(declared, rate="0.5x")

    assert found["plan"] == "planned now for 8 H100"
    assert found["throughput"] == pytest.approx(found["rate"], rel=0.1)
    assert found["cost"] == {"H100": 20.0}
    assert found["breaks"]["rate"] == pytest.approx(2 * found["rate"], rel=0.25)
    assert {each["kind"] for each in found["types"]} == {testbed.SEEN, testbed.TEXT}
    assert found["types"][0]["attained"] == {"done": 1.0}


async def test_other_gpus_are_planned_anew_and_cost_as_declared(declared: Path):
    found = await answer(declared, gpus="4 H100", rate="2")

    assert found["plan"] == "planned now for 4 H100"
    assert sum(each["gpus"] for each in found["options"]) <= 4
    assert found["rate"] == pytest.approx(2.0, rel=0.3)


async def test_a_trace_comes_at_its_times_and_faster(declared: Path, tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)

    once, twice = [await answer(declared, trace=str(path), rate=rate, seconds=0.0) for rate in ("", "2x")]

    assert once["requests"] == twice["requests"] == 40
    assert twice["rate"] == pytest.approx(2 * once["rate"], rel=0.1)
    assert sum(each["came"] for each in once["types"] if each["kind"] == testbed.SEEN) == pytest.approx(17, abs=1)


async def test_a_workload_comes_by_its_shares(declared: Path, tmp_path: Path):
    path = tmp_path / "work.json"
    seen = {"messages": [{"role": "user", "content": [{"image": [448, 448]}, {"words": 20}]}]}
    text = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 8}
    path.write_text(json.dumps({"requests": [{"share": 0.25, "body": seen}, {"share": 0.75, "body": text}]}))

    found = await answer(declared, workload=str(path), rate="8", seconds=300.0)

    came = {each["kind"]: each["came"] for each in found["types"]}
    assert came[testbed.SEEN] / sum(came.values()) == pytest.approx(0.25, abs=0.04)


@pytest.fixture(scope="module")
def planned() -> ModelPlan:
    """A plan of the declared model."""
    return testbed.planner().plan().models["q"]


@pytest.fixture
def plan_file(tmp_path: Path, planned: ModelPlan) -> Path:
    """The plan as ``omnibus plan show --json`` writes it."""
    path = tmp_path / "plan.json"
    body = encode_plan(Plan(7, 1, 0.0, {"vl": planned}))
    path.write_text(json.dumps({"plan": json.loads(body), "staged": None}))
    return path


async def test_a_plan_of_a_file_is_simulated_as_it_is(declared: Path, plan_file: Path, planned: ModelPlan):
    found = await answer(declared, plan=str(plan_file), rate="1")

    assert found["plan"].startswith("epoch 7 of ")
    assert {each["option"] for each in found["options"]} == set(planned.options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trace": "none.csv"}, "--trace none.csv cannot be read"),
        ({"trace": "a.csv", "workload": "b.json"}, "one of --trace, --workload and --from"),
        ({"plan": "none.json"}, "--plan none.json cannot be read"),
        ({"gpus": "2 L40S"}, "fits no GPU at hand"),
        ({"rate": "0x"}, "--rate"),
    ],
)
async def test_a_question_that_cannot_be_answered_says_what_to_change(
    declared: Path, plan_file: Path, options: dict[str, str], said: str
):
    usual = {} if "gpus" in options else {"plan": str(plan_file)}  # a question with a plan makes none

    with pytest.raises(OmnibusError, match=said):
        await answer(declared, **{**usual, **options})


def test_a_trace_without_times_is_said_to_lack_them(
    declared: Path, plan_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    path = tmp_path / "sizes.csv"
    path.write_text("text_tokens\n5\n")

    code = main(["whatif", "--models", str(declared), "--plan", str(plan_file), "--trace", str(path)])

    assert code == 1
    assert "must have column t_s" in capfd.readouterr().err
