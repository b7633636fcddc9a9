"""``omnibus plan`` on a real store and bus: showing, comparing, history and pinning."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import redis

from omnibus.bus import subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.bus.nats import NatsBus
from omnibus.cells import join_cells
from omnibus.cli import main
from omnibus.cli.format import plan as plan_format
from omnibus.cluster.presence import ExecutorKind
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus.plan_score import OptionScore, PlanScore, TypeScore, score_value
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import PlanProblem, Store

Say = Callable[..., str]


def make_model(thinkers: int = 1, share: float = 70, checkpoint: str = "/m", both: bool = True) -> ModelPlan:
    """Return the usual deployment of a vision model."""
    options = {
        "E": DeploymentOption(("vision",), "encoder"),
        "L": DeploymentOption(("thinker",), "llm", thinkers, gpus=1),
        **({"EL": DeploymentOption(("vision", "thinker"), "llm")} if both else {}),
    }
    apart = Path("E>L", {"vision": "E", "thinker": "L"}, share)
    together = Path("EL", {"vision": "EL", "thinker": "EL"}, 100 - share)
    paths = (apart, together) if both else (apart,)
    return ModelPlan("f", checkpoint, ("vision", "thinker"), {}, options, {"vision+thinker": paths})


def make_borrower() -> ModelPlan:
    options = {"m/E": DeploymentOption(("vision",), "encoder", 0, of="m/E"), "L": DeploymentOption(("thinker",), "llm")}
    return ModelPlan("f", "/n", ("vision", "thinker"), {}, options, {})


def make_plan(epoch: int, reason: str = "declared", **models: ModelPlan) -> Plan:
    return Plan(epoch, 0, time.time() - 300, models, reason=reason)


@pytest.fixture
def write_store(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write to the store, the default of commands. It is empty when a test begins."""
    for name in ("OMNIBUS_STORE_URL", "OMNIBUS_BUS_URL"):
        monkeypatch.delenv(name, raising=False)
    with redis.Redis.from_url(valkey_url) as raw:
        raw.flushall()

    def write_all(*works: Callable[[Store], Coroutine[Any, Any, Any]]) -> None:
        async def apply_works() -> None:
            store = Store(StoreSettings(url=valkey_url))
            for each in works:
                await each(store)
            await store.close()

        asyncio.run(apply_works())

    return write_all


def make_swap(plan: Plan) -> Callable[[Store], Coroutine[Any, Any, Any]]:
    return lambda store: store.swap_plan(plan)


@pytest.fixture
def run_plan(valkey_url: str, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run ``omnibus plan`` and return its output."""

    def run_command(*arguments: str, code: int = 0) -> str:
        assert main(["plan", *arguments, "--store", valkey_url]) == code
        output = capsys.readouterr()
        return output.err if code else output.out

    return run_command


def split_rows(text: str) -> list[list[str]]:
    """Return the cells of table rows."""
    return [re.split(r"  +", line.strip()) for line in text.splitlines() if "  " in line]


# show


def test_a_plan_is_shown_with_options_paths_and_reason(write_store: Callable[..., None], run_plan: Say):
    explain = {"throughput": {"vision+thinker": 12.34567}, "bottleneck": "L", "alternatives": [{"R": 1.0}, {"R": 2.0}]}
    explained_plan = msgspec.structs.replace(make_plan(1, "load", m=make_model(2), n=make_borrower()), explain=explain)
    write_store(make_swap(explained_plan))

    text = run_plan("show")

    assert ["plan", "epoch 1, made 5 min ago"] in split_rows(text)
    assert ["reason", "load"] in split_rows(text)
    assert ["m/L", "thinker", "llm", "1", "2", "?"] in split_rows(text)
    assert ["n/m/E", "vision", "that of m/E"] in split_rows(text)
    assert ["m", "vision+thinker", "E>L", "70.0%"] in split_rows(text)
    assert "throughput:\n  vision+thinker: 12.35\nbottleneck: L\nalternatives 1:\n  R: 1\n" in text


def test_the_score_of_a_plan_is_shown_with_the_error_of_each_figure(write_store: Callable[..., None], run_plan: Say):
    seconds = {"done": score_value(1.0, 1.25)}
    kind = TypeScore("m", "vision+thinker", 300, score_value(5.0, 4.0), seconds, {}, {"done": score_value(1.0, 0.9)})
    busy = OptionScore("m", "L", 321, score_value(0.5, 0.6))
    score = PlanScore(1, time.time(), 60.0, 0.5, (kind,), (busy,))
    explanation = {"planned": {"models": {"m": {"learned": {"L": {"factor": 1.2, "jobs": 321}}}}}}
    scored_plan = msgspec.structs.replace(make_plan(1, m=make_model()), explain=explanation)
    write_store(make_swap(scored_plan), lambda store: store.put_plan_score(score))

    text = run_plan("show")

    assert ["m", "vision+thinker", "req/s", "5", "4", "-20%"] in split_rows(text)
    assert ["done P50", "1 s", "1.25 s", "+25%"] in split_rows(text)
    assert ["within the goal of done", "100.0%", "90.0%", "-10%"] in split_rows(text)
    assert ["m/L", "50%", "60%", "321"] in split_rows(text)
    assert "L takes 1.2 times as long as profiled, as 321 jobs took while it served" in text
    assert json.loads(run_plan("show", "--json"))["score"]["types"][0]["p50"]["done"]["error"] == 0.25


# cells


def test_cells_are_shown_and_given_parts_of_their_shares(write_store: Callable[..., None], run_plan: Say):
    write_store(
        make_swap(make_plan(1, m=join_cells([make_model(2), make_model(1, 100, both=False)]), n=make_borrower()))
    )

    cells_text, drained_text, plan_text = run_plan("cells"), run_plan("cells", "m", "c2", "0"), run_plan("show")

    assert split_rows(cells_text)[1:] == [
        ["m", "c1", "1xE 2xL 1xEL", "50.0%", "1"],
        ["m", "c2", "1xE 1xL", "50.0%", "1"],
    ]
    assert split_rows(drained_text)[2] == split_rows(run_plan("cells", "m"))[2] == ["m", "c2", "1xE 1xL", "50.0%", "0"]
    assert ["m", "c2", "1xE 1xL", "50.0%", "0"] in split_rows(plan_text)
    assert ["m/L@c2", "thinker", "llm", "1", "1", "?"] in split_rows(plan_text)
    assert json.loads(run_plan("cells", "m", "c2", "0.5", "--json")) == {
        "m": {"c1": {"share": 0.5, "part": 1.0}, "c2": {"share": 0.5, "part": 0.5}}
    }
    assert split_rows(run_plan("cells", "m", "c2", "1"))[2][-1] == "1"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("n",), "model n has no cells in the plan; m has"),
        (("m", "c3", "0"), "model m has no cell c3; it has c1, c2"),
        (("m", "c2"), "give the part of its planned share"),
        (("m", "c2", "-1"), "give the part of its planned share"),
    ],
)
def test_what_is_no_cell_and_no_share_is_refused(
    write_store: Callable[..., None], run_plan: Say, arguments: tuple[str, ...], fault: str
):
    write_store(make_swap(make_plan(1, m=join_cells([make_model(), make_model()]), n=make_borrower())))

    assert fault in run_plan("cells", *arguments, code=1)


def test_a_plan_without_cells_says_so(write_store: Callable[..., None], run_plan: Say):
    write_store(make_swap(make_plan(1, m=make_model())))

    assert run_plan("cells") == "no model of the plan is in cells\n"


def test_what_is_staged_pinned_and_wrong_is_shown(write_store: Callable[..., None], run_plan: Say):
    problem = PlanProblem(time.time(), "no executors", time.time() + 90)
    write_store(
        make_swap(make_plan(1, m=make_model())),
        make_swap(make_plan(2, m=make_model(2))),
        lambda store: store.stage_plan(make_plan(3, "rollback to 1", m=make_model()), "me", 30.0),
        lambda store: store.pin_plan(1),
        lambda store: store.put_problem("planner", problem),
    )

    text = run_plan("show")
    old = run_plan("show", "1")

    assert "staged   epoch 3 (rollback to 1)" in text
    assert "pinned   epoch 1, until `omnibus plan resume`" in text
    assert re.search(r"problem  planner, \d+ s ago: no executors; again in [5-9]\d s", text)
    assert "epoch 1, made" in old
    assert "staged" not in old


def test_who_is_up_is_asked_on_the_bus(
    write_store: Callable[..., None], run_plan: Say, nats_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("omnibus.cli.plans.CENSUS_WAIT_SECONDS", 0.2)
    model_plan = make_model(2)
    write_store(make_swap(make_plan(1, m=model_plan)))
    monkeypatch.setattr(
        "omnibus.cli.plans.NatsBus", _make_crowd([ExecutorKind("m", "L", model_plan.option_origin("L"))] * 2)
    )

    text = run_plan("show", "--nats", nats_url)
    state = json.loads(run_plan("show", "--nats", nats_url, "--json"))

    assert ["m/L", "thinker", "llm", "1", "2", "2"] in split_rows(text)
    assert ["m/E", "vision", "encoder", "-", "1", "0"] in split_rows(text)
    assert {"model": "m", "option": "L", "origin": model_plan.option_origin("L"), "count": 2} in state["up"]
    assert state["plan"]["epoch"] == 1
    assert state["staged"] is None


def _make_crowd(kinds: list[ExecutorKind]) -> type:
    """Return a connection class on whose bus executors of ``kinds`` answer."""

    class CrowdedBus:
        @staticmethod
        async def connect(settings: BusSettings, name: str) -> NatsBus:
            bus = await NatsBus.connect(settings, name)

            def answer_census(_: object) -> None:
                for number, kind in enumerate(kinds):
                    status = ExecutorStatus(f"e{number}", *kind[:2], (), (), "n", "ready", 1, origin=kind.origin)
                    bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(status))

            await bus.subscribe(subjects.event_subject(subjects.CENSUS), answer_census)
            return bus

    return CrowdedBus


def test_without_a_plan_that_is_said(write_store: Callable[..., None], run_plan: Say):
    write_store()

    assert run_plan("show", code=1) == "omnibus: there is no plan yet\n"
    assert "no plan of epoch 7" in run_plan("show", "7", code=1)


def test_a_plan_of_another_build_is_said(write_store: Callable[..., None], run_plan: Say, valkey_url: str):
    write_store(make_swap(make_plan(1)))
    with redis.Redis.from_url(valkey_url) as raw:
        raw.set("omnibus:plan:1", '{"v": 9}')

    assert "cannot be read" in run_plan("show", code=1)


# diff


def test_a_difference_names_executors_shares_and_models(write_store: Callable[..., None], run_plan: Say):
    write_store(
        make_swap(make_plan(1, m=make_model(1), n=make_borrower())),
        make_swap(make_plan(2, m=make_model(3, 50, both=False))),
    )

    text = run_plan("diff")

    assert split_rows(text) == [
        ["WHAT", "EPOCH 1", "EPOCH 2"],
        ["executors of m/L", "1", "3"],
        ["executors of m/EL", "1", "-"],
        ["m: vision+thinker, E>L", "70.0%", "100.0%"],
        ["m: vision+thinker, EL", "30.0%", "-"],
        ["m/EL: what it does", make_model().option_origin("EL")[:4], "-"],
        ["model n", "served", "-"],
        ["executors of n/L", "1", "-"],
    ]


def test_other_orders_are_a_difference(write_store: Callable[..., None], run_plan: Say):
    write_store(make_swap(make_plan(1, m=make_model())), make_swap(make_plan(2, m=make_model(checkpoint="/other"))))

    changes = json.loads(run_plan("diff", "1", "2", "--json"))["changes"]

    assert {"what": "m checkpoint", "before": "/m", "after": "/other"} in changes
    assert {change["what"] for change in changes} == {
        "m checkpoint", "m/E: what it does", "m/L: what it does", "m/EL: what it does",
    }  # fmt: skip


def test_what_is_staged_is_compared_first(write_store: Callable[..., None], run_plan: Say):
    write_store(
        make_swap(make_plan(1, m=make_model())),
        make_swap(make_plan(2, m=make_model(2))),
        lambda store: store.stage_plan(make_plan(3, m=make_model(4)), "me", 30.0),
    )

    assert split_rows(run_plan("diff")) == [["WHAT", "EPOCH 2", "EPOCH 3"], ["executors of m/L", "2", "4"]]
    assert split_rows(run_plan("diff", "1")) == [["WHAT", "EPOCH 1", "EPOCH 2"], ["executors of m/L", "1", "2"]]


def test_plans_that_do_the_same_are_said_to(write_store: Callable[..., None], run_plan: Say):
    write_store(make_swap(make_plan(1, m=make_model())), make_swap(make_plan(2, "load", m=make_model())))

    assert run_plan("diff") == "epochs 1 and 2 do the same\n"


def test_a_first_plan_has_nothing_to_be_compared_with(write_store: Callable[..., None], run_plan: Say):
    write_store(make_swap(make_plan(1)))

    assert "no plan before epoch 1" in run_plan("diff", code=1)
    assert "name two at most" in run_plan("diff", "1", "2", "3", code=1)


# history, rollback and resume


def test_the_history_shows_why_and_which(write_store: Callable[..., None], run_plan: Say, valkey_url: str):
    write_store(
        make_swap(make_plan(1, m=make_model())),
        make_swap(make_plan(2, "app poem registered", m=make_model(2), n=make_borrower())),
        make_swap(make_plan(3, "load")),
        lambda store: store.pin_plan(2),
    )
    with redis.Redis.from_url(valkey_url) as raw:
        raw.set("omnibus:plan:1", "{")

    head, third, second, first = split_rows(run_plan("history"))

    assert head == ["EPOCH", "MADE", "EXECUTORS", "MODELS", "REASON"]
    assert third == ["3", "5 min ago", "0", "none", "current", "load"]
    assert second == ["2", "5 min ago", "5", "m, n", "pinned", "app poem registered"]
    assert first[:2] == ["1", "-"]
    assert "cannot be read" in first[-1]


def test_the_history_is_as_long_as_asked_and_json(write_store: Callable[..., None], run_plan: Say):
    write_store(*(make_swap(make_plan(epoch, m=make_model(epoch))) for epoch in (1, 2, 3)))

    history = json.loads(run_plan("history", "--limit", "2", "--json"))

    assert [each["epoch"] for each in history] == [3, 2]
    assert history[0]["executors"] == {"m/E": 1, "m/L": 3, "m/EL": 1}
    assert history[0]["reason"] == "declared"


def test_an_epoch_is_pinned_and_pinned_no_more(write_store: Callable[..., None], run_plan: Say):
    write_store(make_swap(make_plan(1)), make_swap(make_plan(2)))

    rollback_text = run_plan("rollback", "1")
    pin = json.loads(run_plan("show", "--json"))["pin"]
    resume_text = run_plan("resume")
    again = json.loads(run_plan("resume", "--json"))

    assert rollback_text.startswith("epoch 1 is pinned: the planner serves its models")
    assert pin == 1
    assert resume_text == "epoch 1 is no longer pinned: the planner plans again\n"
    assert again == {"pin": 0, "was": 0}
    assert "no plan of epoch 9" in run_plan("rollback", "9", code=1)


def test_a_store_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "show", "--store", "redis://127.0.0.1:1/0"]) == 1

    assert capsys.readouterr().err.startswith("omnibus: no store at redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s ago"), (119, "119 s ago"), (125, "2 min ago"), (7300, "2 h ago"), (200000, "2 d ago")],
)
def test_ages_are_rough(seconds: float, text: str):
    assert plan_format.age_text(time.time() - seconds) == text
