"""Planned models follow the load in the gateways' reports."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import profile
from omnibus.bus import subjects
from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus.cluster.presence import ReadyExecutors
from omnibus.plan import ModelPlan, Plan
from omnibus.profile import CostLine, ModelProfile, OptionProfile, RoleCost, TypeProfile
from omnibus.settings import PlannerSettings, StoreSettings
from omnibus.store import Store
from omnibus_planner.autoscale import autoscaler
from omnibus_planner.autoscale.autoscaler import Autoscaler
from omnibus_planner.autoscale.candidates import PlanCandidates, solve_for_load
from omnibus_planner.autoscale.explanation import recorded_load
from omnibus_planner.declared.declarations_file import Declarations, DeclaredModel
from omnibus_planner.declared.planned_spec import GpuType, PlannedModel
from omnibus_planner.optimize import PlanningResult
from omnibus_planner.optimize.job import PlanningJob
from omnibus_planner.rollout.rollout import PlanRollout
from tests.memory_bus import MemoryBus

SETTINGS = PlannerSettings(window=10.0, hold=20.0, cooldown=30.0, least=20, ready=100.0)
SEEN, TEXT = "vision+thinker", "thinker"
TOKENS = 100.0
GPUS = 8
LOOK = 5.0  # seconds


def make_profile() -> ModelProfile:
    """Return a profile of an encoder with 10 images/s. Its thinker has 10 answers/s of ``TOKENS``."""
    words = {"completion_tokens": TOKENS}
    options = {
        "E": OptionProfile(("vision",), "encoder", gpu="cpu", start_s=2.0, work=(RoleCost(("vision",), 0.1),)),
        "L": OptionProfile(("thinker",), "llm", gpu="cpu", start_s=2.0, work=(RoleCost(("thinker",), 0.1),)),
    }
    return ModelProfile(
        "vl",
        "qwen2_5_vl",
        ("vision", "thinker"),
        {SEEN: TypeProfile(("vision", "thinker"), 0.8, words), TEXT: TypeProfile(("thinker",), 0.2, words)},
        options,
        order=(("vision", "thinker"),),
        lines={"thinker": CostLine(0.0, {"completion_tokens": 0.1 / TOKENS}), "vision": CostLine(0.1)},
    )


class AutoscalerRig:
    """A planner's ``Autoscaler``, gateways that report load, and a test clock."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.now = 0.0
        self.missed = 0  # requests of each second that miss their goals; the others meet them
        self.bus = MemoryBus()
        self.changes = PlanRollout(store, SETTINGS, ReadyExecutors(), lambda plan: None)
        self.planning = PlanningJob(store, str(directory / "models.json"))
        self.wanted: list[tuple[PlanningResult, str]] = []
        self.follow = Autoscaler(SETTINGS, self.changes, self.planning, self._record_plan, lambda: self.now)
        (directory / "vl.json").write_bytes(profile.encode_profile(make_profile()))

    def _record_plan(self, reason: str) -> None:
        self.wanted.append((self.planning.planned, reason))

    async def declare(self, **options: Any) -> None:
        model = DeclaredModel("qwen2_5_vl", "/m", planned=PlannedModel("vl.json", **options))
        self.planning.set_declarations(Declarations({"vl": model}, {"cpu": GpuType(GPUS)}), {})
        before = self.changes.plan.models if self.changes.plan is not None else {}
        self.current((await self.planning.plan(before, self.follow.last_load)).models)

    def current(self, models: dict[str, ModelPlan]) -> None:
        epoch = self.changes.plan.epoch + 1 if self.changes.plan is not None else 1
        self.changes.plan = Plan(epoch, 0, 0.0, models)

    async def second(self, seen_count: int, text: int, tokens: float = TOKENS, gateway: str = "g") -> None:
        """Advance one second with ``seen_count`` and ``text`` requests of each type."""
        self.now += 1.0
        seconds = _make_counts(seen_count, tokens), _make_counts(text, tokens)
        met = msgspec.structs.replace(seconds[1], met=seen_count + text - self.missed, missed=self.missed)
        models = {"vl": {SEEN: seconds[0], TEXT: met}} if seen_count + text else {}
        event = LoadEvent(gateway, 1, 1.0, 0, models)
        self.bus.publish(subjects.event_subject(subjects.LOAD), msgspec.json.encode(event))
        await asyncio.sleep(0)
        if not self.now % LOOK:
            await self.follow.check_load()

    async def run(
        self, seconds: int, seen_count: int, text: int, tokens: float = TOKENS
    ) -> list[tuple[PlanningResult, str]]:
        """Return the plans wanted in ``seconds`` of this load."""
        before = len(self.wanted)
        for _ in range(seconds):
            await self.second(seen_count, text, tokens)
        return self.wanted[before:]


def _make_counts(count: int, tokens: float) -> LoadCounts:
    return LoadCounts(came=count, done=count, quantities={"completion_tokens": count * tokens})


def count_replicas(result: PlanningResult) -> dict[str, int]:
    return {name: option.replicas for name, option in result.models["vl"].options.items()}


def resize_plan(models: dict[str, ModelPlan], **replicas: int) -> dict[str, ModelPlan]:
    options = {
        name: msgspec.structs.replace(option, replicas=replicas[name]) for name, option in models["vl"].options.items()
    }
    return {"vl": msgspec.structs.replace(models["vl"], options=options)}


@pytest.fixture
async def rig(valkey_url: str, tmp_path: Path) -> AsyncIterator[AutoscalerRig]:
    store = Store(StoreSettings(url=valkey_url))
    new_rig = AutoscalerRig(tmp_path, store)
    await new_rig.follow.listen(new_rig.bus)
    yield new_rig
    await store.close()


async def test_another_mix_is_planned_for_with_a_reason_and_the_load_that_it_was(rig: AutoscalerRig):
    await rig.declare()
    assert await rig.run(40, 16, 4) == []

    ((result, reason),) = await rig.run(40, 4, 16)

    assert reason == "load: vl 20 req/s, 20 % vision+thinker (was 80 %)"
    assert count_replicas(result) == {"E": 2, "L": 6}
    assert result.capacity["vl"] == pytest.approx(60.0)
    assert result.explain["planned"]["deployments"][0]["alternatives"]
    plan = Plan(2, 0, 0.0, result.models, explain=result.explain)
    assert recorded_load(plan)["vl"].shares == {SEEN: pytest.approx(0.2), TEXT: pytest.approx(0.8)}


async def test_a_change_of_several_steps_is_under_way_until_the_last_one(rig: AutoscalerRig):
    await rig.declare()
    await rig.run(40, 16, 4)
    ((result, _),) = await rig.run(40, 4, 16)
    first, second = (resize_plan(result.models, E=2, L=count) for count in (4, 5))

    steps = []
    for models in (first, second, result.models):
        steps += await rig.run(int(SETTINGS.ready) - 10, 16, 4)
        rig.current(models)
    later = await rig.run(55, 16, 4)

    assert steps == []
    assert [count_replicas(each) for each, _ in later] == [{"E": 4, "L": 4}]


async def test_nothing_is_decided_while_executors_of_the_last_decision_start(rig: AutoscalerRig):
    await rig.declare()
    await rig.run(40, 16, 4)
    ((result, _),) = await rig.run(40, 4, 16)

    starting = await rig.run(40, 16, 4)
    rig.current(result.models)
    first = await rig.run(25, 16, 4)
    later = await rig.run(30, 16, 4)

    assert starting == first == []
    assert [count_replicas(each) for each, _ in later] == [{"E": 4, "L": 4}]


async def test_a_change_that_was_put_off_is_not_waited_for_longer_than_executors_may_take(rig: AutoscalerRig):
    await rig.declare()
    await rig.run(40, 16, 4)
    await rig.run(40, 4, 16)

    plans = await rig.run(int(SETTINGS.ready + SETTINGS.cooldown + SETTINGS.hold), 20, 0)

    assert len(plans) == 0  # 4 + 4 are the best for images alone as well, and they run
    assert len(await rig.run(100, 4, 16)) == 1


async def test_longer_answers_at_the_same_rate_are_planned_for(rig: AutoscalerRig):
    await rig.declare(goal="gpus", rate=10.0, headroom=0.2, mix={SEEN: 0.5, TEXT: 0.5})
    assert await rig.run(40, 5, 5) == []

    ((result, reason),) = await rig.run(10, 5, 5, tokens=300)

    assert reason.removeprefix("burst: ").startswith("load: vl 1")
    assert reason.endswith("completion_tokens (were 100)")
    assert count_replicas(result)["L"] > 2


async def test_more_requests_are_planned_for_at_once_and_fewer_after_long(rig: AutoscalerRig):
    await rig.declare(goal="gpus", rate=10.0, headroom=0.2)
    await rig.run(40, 5, 5)

    ((up, reason),) = await rig.run(10, 10, 10)
    rig.current(up.models)
    await rig.run(20, 10, 10)
    down = await rig.run(80, 2, 2)

    assert reason.removeprefix("burst: ").startswith("load: vl ")
    assert "(was 10)" in reason
    assert [sum(count_replicas(each).values()) for each, _ in (*[(up, "")], *down)] == [5, 2]


async def test_goals_that_are_missed_at_a_rate_that_should_be_served_get_more_executors(rig: AutoscalerRig):
    await rig.declare(goal="gpus", rate=10.0, headroom=0.2)
    assert await rig.run(60, 5, 5) == []

    rig.missed = 2
    plans = await rig.run(60, 5, 5)

    assert plans[0][1].startswith("goals of vl: for 1.")
    assert sum(count_replicas(plans[0][0]).values()) > 3


async def test_models_that_do_not_adapt_are_left_alone(rig: AutoscalerRig):
    await rig.declare(adapt=False)

    assert await rig.run(100, 1, 19) == []


async def test_a_gateway_that_starts_again_changes_nothing(rig: AutoscalerRig):
    await rig.declare(goal="gpus", rate=20.0)
    await rig.run(60, 16, 4)

    for _ in range(5):
        await rig.second(0, 0)
    for _ in range(60):
        await rig.second(16, 4, gateway="another")

    assert rig.wanted == []


async def test_declared_anew_it_is_planned_for_the_load_as_it_is(rig: AutoscalerRig):
    await rig.declare(goal="gpus", rate=10.0, headroom=0.2)
    ((up, _),) = await rig.run(20, 15, 5)
    rig.current(up.models)

    await rig.declare(goal="gpus", rate=10.0, headroom=0.15)

    assert count_replicas(rig.planning.planned) == count_replicas(up)
    assert await rig.run(100, 15, 5) == []


async def test_a_planner_that_starts_goes_on_from_the_load_that_the_plan_was_made_for(rig: AutoscalerRig):
    await rig.declare()
    await rig.run(40, 16, 4)
    ((result, _),) = await rig.run(40, 4, 16)

    later = Autoscaler(SETTINGS, rig.changes, rig.planning, lambda reason: None)
    later.restore_load(Plan(2, 0, 0.0, result.models, explain=result.explain))
    loads = dict(later.last_load)
    again = await rig.planning.plan(result.models, loads)
    await rig.declare(adapt=False)

    assert loads["vl"].shares == {SEEN: pytest.approx(0.2), TEXT: pytest.approx(0.8)}
    assert again.models == result.models
    assert later.last_load == {}


async def test_what_is_said_in_another_language_is_passed_over(rig: AutoscalerRig):
    await rig.declare()

    rig.bus.publish(subjects.event_subject(subjects.LOAD), b"?")
    await asyncio.sleep(0)

    assert await rig.run(40, 16, 4) == []


async def test_a_plan_of_another_kind_remembers_no_load():
    models: dict[str, ModelPlan] = {}

    assert recorded_load(None) == recorded_load(Plan(1, 0, 0.0, models)) == {}
    assert recorded_load(Plan(1, 0, 0.0, models, explain={"load": {"vl": {"rate": "many"}}})) == {}


# Bursts


async def report_images(
    rig: AutoscalerRig, seconds: int, tokens: float, *, done: bool = True, refused_count: int = 0
) -> None:
    """Report 4 requests a second with images of ``tokens``, known on arrival; with ``done`` they end as well."""
    for _ in range(seconds):
        rig.now += 1.0
        estimate = {"image_tokens": 4 * tokens}
        load = LoadCounts(came=4 - refused_count, refused=refused_count, estimated=estimate)
        if done:
            counts = {"image_tokens": 4 * tokens * 1.25, "completion_tokens": 4 * TOKENS}
            load = msgspec.structs.replace(load, done=4, quantities=counts, estimated_done=estimate)
        event = LoadEvent("g", 1, 1.0, 0, {"vl": {SEEN: load}})
        rig.bus.publish(subjects.event_subject(subjects.LOAD), msgspec.json.encode(event))
        await asyncio.sleep(0)
        await rig.follow.check_load()


@pytest.fixture
async def burst_rig(rig: AutoscalerRig, tmp_path: Path) -> AutoscalerRig:
    """A house planned for 4 requests per second with images. They have 250 tokens; an encoder serves 10 a second."""
    about = make_profile()
    sizes = {"image_tokens": 250.0, "completion_tokens": TOKENS}
    changed_profile = msgspec.structs.replace(
        about,
        types={SEEN: TypeProfile(("vision", "thinker"), 1.0, sizes)},
        lines={**about.lines, "vision": CostLine(0.0, {"image_tokens": 0.1 / 250})},
    )
    (tmp_path / "vl.json").write_bytes(profile.encode_profile(changed_profile))
    await rig.declare(goal="gpus", rate=4.0)
    await report_images(rig, 40, 200.0)
    return rig


async def test_images_ten_times_as_large_have_more_encoders_within_five_seconds_though_none_has_been_encoded(
    burst_rig: AutoscalerRig,
):
    assert burst_rig.wanted == []
    began = burst_rig.now

    while not burst_rig.wanted and burst_rig.now < began + 30:
        await report_images(burst_rig, 1, 2000.0, done=False)

    assert burst_rig.now - began <= 5
    result, reason = burst_rig.wanted[-1]
    assert count_replicas(result)["E"] > 1
    assert reason.startswith("burst: load: vl ")


async def test_the_first_two_seconds_of_a_burst_are_enough_to_plan_for_all_of_it(burst_rig: AutoscalerRig):
    await report_images(burst_rig, 2, 2000.0, done=False)

    ((result, _),) = burst_rig.wanted
    assert count_replicas(result)["E"] >= 4  # 4 req/s x 1 s of an encoder
    assert result.explain["forecast"]["vl"]["rate"] > 4.0  # and for those that come until executors are there


async def test_plans_that_take_long_to_solve_are_rare_and_hold_up_no_burst(
    burst_rig: AutoscalerRig, monkeypatch: pytest.MonkeyPatch
):
    solve_times = list[float]()

    def solve_slowly(*asked: Any) -> PlanCandidates:
        solve_times.append(burst_rig.now)
        return solve_for_load(*asked)._replace(seconds=60.0)

    monkeypatch.setattr(autoscaler, "solve_for_load", solve_slowly)
    await report_images(burst_rig, 20, 200.0)
    assert len(solve_times) == 1

    began = burst_rig.now
    await report_images(burst_rig, 2, 2000.0, done=False)

    assert solve_times[1:] == [began + 2]
    assert len(burst_rig.wanted) == 1


async def test_a_burst_is_followed_step_by_step_until_it_is_met(burst_rig: AutoscalerRig):
    for _ in range(4):
        await report_images(burst_rig, 6, 2000.0, done=False)
        burst_rig.current(burst_rig.planning.planned.models)

    assert count_replicas(burst_rig.planning.planned)["E"] >= 4  # 4 req/s x 1 s of an encoder


async def test_what_is_refused_has_more_executors_at_once(burst_rig: AutoscalerRig):
    began = burst_rig.now

    while not burst_rig.wanted and burst_rig.now < began + 30:
        await report_images(burst_rig, 1, 200.0, refused_count=2)

    assert burst_rig.now - began <= 5


async def test_the_load_that_was_planned_for_is_no_burst(burst_rig: AutoscalerRig):
    await report_images(burst_rig, 120, 200.0)

    assert burst_rig.wanted == []


async def test_a_rate_that_grows_is_planned_for_as_it_will_be_with_the_error_of_such_forecasts(rig: AutoscalerRig):
    await rig.declare(goal="gpus", rate=4.0, mix={SEEN: 0.5, TEXT: 0.5})
    for rate in range(4, 30):
        for _ in range(10):
            plans = await rig.run(1, rate, rate)
            for result, _ in plans:
                rig.current(result.models)
            if plans and "forecast" in plans[-1][0].explain and plans[-1][1].startswith("load"):
                break
        else:
            continue
        break
    else:
        pytest.fail("no plan went by a forecast")

    [(result, _)] = plans
    forecast = result.explain["forecast"]["vl"]
    assert 2 * rate < forecast["rate"] <= 2 * (rate + 5)
    assert forecast["error"] < 0.1
    assert recorded_load(Plan(2, 0, 0.0, result.models, explain=result.explain))["vl"].rate == forecast["rate"]
