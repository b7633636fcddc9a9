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
def models_file(tmp_path: Path) -> Path:
    """A model planned for eight GPUs. It needs 0.2 s of a GPU for an image and 0.3 s for a text."""
    (tmp_path / "vl.json").write_bytes(encode_profile(testbed.make_profile(model="vl")))
    models = {
        "gpus": {"H100": {"count": 8, "memory_gb": 80, "price": 2.5}},
        "models": {
            "vl": {"family": "qwen2_5_vl", "checkpoint": "/vl", "planned": {"profile": "vl.json", "goals": {"done": 9}}}
        },
    }
    path = tmp_path / "models.json"
    path.write_text(json.dumps(models))
    return path


async def ask_question(models_file: Path, **options: Any) -> dict[str, Any]:
    question = WhatIfQuestion(models=str(models_file), json=True, **{"seconds": 60.0, **options})
    body = json.loads(await answer_question(question))
    assert isinstance(body, dict)
    return body


async def test_the_plan_of_the_declarations_is_simulated_at_its_own_rate(models_file: Path):
    body = await ask_question(models_file, rate="0.5x")

    assert body["plan"] == "planned now for 8 H100"
    assert body["throughput"] == pytest.approx(body["rate"], rel=0.1)
    assert body["cost"] == {"H100": 20.0}
    assert body["breaks"]["rate"] == pytest.approx(2 * body["rate"], rel=0.25)
    assert {each["kind"] for each in body["types"]} == {testbed.SEEN, testbed.TEXT}
    assert body["types"][0]["attained"] == {"done": 1.0}


async def test_other_gpus_are_planned_anew_and_cost_as_declared(models_file: Path):
    body = await ask_question(models_file, gpus="4 H100", rate="2")

    assert body["plan"] == "planned now for 4 H100"
    assert sum(each["gpus"] for each in body["options"]) <= 4
    assert body["rate"] == pytest.approx(2.0, rel=0.3)


async def test_a_trace_comes_at_its_times_and_faster(models_file: Path, tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)

    once, twice = [await ask_question(models_file, trace=str(path), rate=rate, seconds=0.0) for rate in ("", "2x")]

    assert once["requests"] == twice["requests"] == 40
    assert twice["rate"] == pytest.approx(2 * once["rate"], rel=0.1)
    assert sum(each["came"] for each in once["types"] if each["kind"] == testbed.SEEN) == pytest.approx(17, abs=1)


async def test_a_workload_comes_by_its_shares(models_file: Path, tmp_path: Path):
    path = tmp_path / "work.json"
    image_body = {"messages": [{"role": "user", "content": [{"image": [448, 448]}, {"words": 20}]}]}
    text = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 8}
    path.write_text(json.dumps({"requests": [{"share": 0.25, "body": image_body}, {"share": 0.75, "body": text}]}))

    answer_body = await ask_question(models_file, workload=str(path), rate="8", seconds=300.0)

    came = {each["kind"]: each["came"] for each in answer_body["types"]}
    assert came[testbed.SEEN] / sum(came.values()) == pytest.approx(0.25, abs=0.04)


@pytest.fixture(scope="module")
def model_plan() -> ModelPlan:
    """A plan of the declared model."""
    return testbed.make_planner().plan().models["q"]


@pytest.fixture
def plan_file(tmp_path: Path, model_plan: ModelPlan) -> Path:
    """The plan as ``omnibus plan show --json`` writes it."""
    path = tmp_path / "plan.json"
    body = encode_plan(Plan(7, 1, 0.0, {"vl": model_plan}))
    path.write_text(json.dumps({"plan": json.loads(body), "staged": None}))
    return path


async def test_a_plan_of_a_file_is_simulated_as_it_is(models_file: Path, plan_file: Path, model_plan: ModelPlan):
    body = await ask_question(models_file, plan=str(plan_file), rate="1")

    assert body["plan"].startswith("epoch 7 of ")
    assert {each["option"] for each in body["options"]} == set(model_plan.options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace": "none.csv"}, "--trace none.csv cannot be read"),
        ({"trace": "a.csv", "workload": "b.json"}, "one of --trace, --workload and --from"),
        ({"plan": "none.json"}, "--plan none.json cannot be read"),
        ({"gpus": "2 L40S"}, "fits no GPU at hand"),
        ({"rate": "0x"}, "--rate"),
    ],
)
async def test_a_question_that_cannot_be_answered_says_what_to_change(
    models_file: Path, plan_file: Path, options: dict[str, str], message: str
):
    usual = {} if "gpus" in options else {"plan": str(plan_file)}  # a question with a plan makes none

    with pytest.raises(OmnibusError, match=message):
        await ask_question(models_file, **{**usual, **options})


def test_a_trace_without_times_is_said_to_lack_them(
    models_file: Path, plan_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    path = tmp_path / "sizes.csv"
    path.write_text("text_tokens\n5\n")

    code = main(["whatif", "--models", str(models_file), "--plan", str(plan_file), "--trace", str(path)])

    assert code == 1
    assert "must have column t_s" in capfd.readouterr().err
