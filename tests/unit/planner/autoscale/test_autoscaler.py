"""Planned models follow the load in the gateways' reports."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import profile
from omnibus.bus import subjects
from omnibus.bus.memory import MemoryBus
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

SETTINGS = PlannerSettings(window=10.0, hold=20.0, cooldown=30.0, least=20, ready=100.0)
SEEN, TEXT = "vision+thinker", "thinker"
TOKENS = 100.0
GPUS = 8
LOOK = 5.0  # seconds


def measured() -> ModelProfile:
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


class House:
    """A planner's ``Autoscaler``, gateways that report load, and a test clock."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.now = 0.0
        self.missed = 0  # requests of each second that miss their goals; the others meet them
        self.bus = MemoryBus()
        self.changes = PlanRollout(store, SETTINGS, ReadyExecutors(), lambda plan: None)
        self.planning = PlanningJob(store, str(directory / "models.json"))
        self.wanted: list[tuple[PlanningResult, str]] = []
        self.follow = Autoscaler(SETTINGS, self.changes, self.planning, self._want, lambda: self.now)
        (directory / "vl.json").write_bytes(profile.encode_profile(measured()))

    def _want(self, reason: str) -> None:
        self.wanted.append((self.planning.planned, reason))

    async def declare(self, **asked: Any) -> None:
        model = DeclaredModel("qwen2_5_vl", "/m", planned=PlannedModel("vl.json", **asked))
        self.planning.set_declarations(Declarations({"vl": model}, {"cpu": GpuType(GPUS)}), {})
        before = self.changes.plan.models if self.changes.plan is not None else {}
        self.current((await self.planning.plan(before, self.follow.last_load)).models)

    def current(self, models: dict[str, ModelPlan]) -> None:
        epoch = self.changes.plan.epoch + 1 if self.changes.plan is not None else 1
        self.changes.plan = Plan(epoch, 0, 0.0, models)

    async def second(self, seen: int, text: int, tokens: float = TOKENS, gateway: str = "g") -> None:
        """Advance one second with ``seen`` and ``text`` requests of each type."""
        self.now += 1.0
        seconds = _load(seen, tokens), _load(text, tokens)
        met = msgspec.structs.replace(seconds[1], met=seen + text - self.missed, missed=self.missed)
        models = {"vl": {SEEN: seconds[0], TEXT: met}} if seen + text else {}
        event = LoadEvent(gateway, 1, 1.0, 0, models)
        self.bus.publish(subjects.event_subject(subjects.LOAD), msgspec.json.encode(event))
        await asyncio.sleep(0)
        if not self.now % LOOK:
            await self.follow.check_load()

    async def run(self, seconds: int, seen: int, text: int, tokens: float = TOKENS) -> list[tuple[PlanningResult, str]]:
        """Return the plans wanted in ``seconds`` of this load."""
        before = len(self.wanted)
        for _ in range(seconds):
            await self.second(seen, text, tokens)
        return self.wanted[before:]


def _load(count: int, tokens: float) -> LoadCounts:
    return LoadCounts(came=count, done=count, quantities={"completion_tokens": count * tokens})


def replicas(planned: PlanningResult) -> dict[str, int]:
    return {name: option.replicas for name, option in planned.models["vl"].options.items()}


def resized(models: dict[str, ModelPlan], **replicas: int) -> dict[str, ModelPlan]:
    options = {
        name: msgspec.structs.replace(option, replicas=replicas[name]) for name, option in models["vl"].options.items()
    }
    return {"vl": msgspec.structs.replace(models["vl"], options=options)}


@pytest.fixture
async def house(valkey_url: str, tmp_path: Path) -> AsyncIterator[House]:
    store = Store(StoreSettings(url=valkey_url))
    house = House(tmp_path, store)
    await house.follow.listen(house.bus)
    yield house
    await store.close()


async def test_another_mix_is_planned_for_with_a_reason_and_the_load_that_it_was(house: House):
    await house.declare()
    assert await house.run(40, 16, 4) == []

    ((planned, reason),) = await house.run(40, 4, 16)

    assert reason == "load: vl 20 req/s, 20 % vision+thinker (was 80 %)"
    assert replicas(planned) == {"E": 2, "L": 6}
    assert planned.capacity["vl"] == pytest.approx(60.0)
    assert planned.explain["planned"]["deployments"][0]["alternatives"]
    plan = Plan(2, 0, 0.0, planned.models, explain=planned.explain)
    assert recorded_load(plan)["vl"].shares == {SEEN: pytest.approx(0.2), TEXT: pytest.approx(0.8)}


async def test_a_change_of_several_steps_is_under_way_until_the_last_one(house: House):
    await house.declare()
    await house.run(40, 16, 4)
    ((planned, _),) = await house.run(40, 4, 16)
    first, second = (resized(planned.models, E=2, L=count) for count in (4, 5))

    steps = []
    for models in (first, second, planned.models):
        steps += await house.run(int(SETTINGS.ready) - 10, 16, 4)
        house.current(models)
    later = await house.run(55, 16, 4)

    assert steps == []
    assert [replicas(each) for each, _ in later] == [{"E": 4, "L": 4}]


async def test_nothing_is_decided_while_executors_of_the_last_decision_start(house: House):
    await house.declare()
    await house.run(40, 16, 4)
    ((planned, _),) = await house.run(40, 4, 16)

    starting = await house.run(40, 16, 4)
    house.current(planned.models)
    first = await house.run(25, 16, 4)
    later = await house.run(30, 16, 4)

    assert starting == first == []
    assert [replicas(each) for each, _ in later] == [{"E": 4, "L": 4}]


async def test_a_change_that_was_put_off_is_not_waited_for_longer_than_executors_may_take(house: House):
    await house.declare()
    await house.run(40, 16, 4)
    await house.run(40, 4, 16)

    wanted = await house.run(int(SETTINGS.ready + SETTINGS.cooldown + SETTINGS.hold), 20, 0)

    assert len(wanted) == 0  # 4 + 4 are the best for images alone as well, and they run
    assert len(await house.run(100, 4, 16)) == 1


async def test_longer_answers_at_the_same_rate_are_planned_for(house: House):
    await house.declare(goal="gpus", rate=10.0, headroom=0.2, mix={SEEN: 0.5, TEXT: 0.5})
    assert await house.run(40, 5, 5) == []

    ((planned, reason),) = await house.run(10, 5, 5, tokens=300)

    assert reason.removeprefix("burst: ").startswith("load: vl 1")
    assert reason.endswith("completion_tokens (were 100)")
    assert replicas(planned)["L"] > 2


async def test_more_requests_are_planned_for_at_once_and_fewer_after_long(house: House):
    await house.declare(goal="gpus", rate=10.0, headroom=0.2)
    await house.run(40, 5, 5)

    ((up, reason),) = await house.run(10, 10, 10)
    house.current(up.models)
    await house.run(20, 10, 10)
    down = await house.run(80, 2, 2)

    assert reason.removeprefix("burst: ").startswith("load: vl ")
    assert "(was 10)" in reason
    assert [sum(replicas(each).values()) for each, _ in (*[(up, "")], *down)] == [5, 2]


async def test_goals_that_are_missed_at_a_rate_that_should_be_served_get_more_executors(house: House):
    await house.declare(goal="gpus", rate=10.0, headroom=0.2)
    assert await house.run(60, 5, 5) == []

    house.missed = 2
    wanted = await house.run(60, 5, 5)

    assert wanted[0][1].startswith("goals of vl: for 1.")
    assert sum(replicas(wanted[0][0]).values()) > 3


async def test_models_that_do_not_adapt_are_left_alone(house: House):
    await house.declare(adapt=False)

    assert await house.run(100, 1, 19) == []


async def test_a_gateway_that_starts_again_changes_nothing(house: House):
    await house.declare(goal="gpus", rate=20.0)
    await house.run(60, 16, 4)

    for _ in range(5):
        await house.second(0, 0)
    for _ in range(60):
        await house.second(16, 4, gateway="another")

    assert house.wanted == []


async def test_declared_anew_it_is_planned_for_the_load_as_it_is(house: House):
    await house.declare(goal="gpus", rate=10.0, headroom=0.2)
    ((up, _),) = await house.run(20, 15, 5)
    house.current(up.models)

    await house.declare(goal="gpus", rate=10.0, headroom=0.15)

    assert replicas(house.planning.planned) == replicas(up)
    assert await house.run(100, 15, 5) == []


async def test_a_planner_that_starts_goes_on_from_the_load_that_the_plan_was_made_for(house: House):
    await house.declare()
    await house.run(40, 16, 4)
    ((planned, _),) = await house.run(40, 4, 16)

    later = Autoscaler(SETTINGS, house.changes, house.planning, lambda reason: None)
    later.restore_load(Plan(2, 0, 0.0, planned.models, explain=planned.explain))
    known = dict(later.last_load)
    again = await house.planning.plan(planned.models, known)
    await house.declare(adapt=False)

    assert known["vl"].shares == {SEEN: pytest.approx(0.2), TEXT: pytest.approx(0.8)}
    assert again.models == planned.models
    assert later.last_load == {}


async def test_what_is_said_in_another_language_is_passed_over(house: House):
    await house.declare()

    house.bus.publish(subjects.event_subject(subjects.LOAD), b"?")
    await asyncio.sleep(0)

    assert await house.run(40, 16, 4) == []


async def test_a_plan_of_another_kind_remembers_no_load():
    models: dict[str, ModelPlan] = {}

    assert recorded_load(None) == recorded_load(Plan(1, 0, 0.0, models)) == {}
    assert recorded_load(Plan(1, 0, 0.0, models, explain={"load": {"vl": {"rate": "many"}}})) == {}


# Bursts


async def images(house: House, seconds: int, tokens: float, *, done: bool = True, refused: int = 0) -> None:
    """Report 4 requests a second with images of ``tokens``, known on arrival; with ``done`` they end as well."""
    for _ in range(seconds):
        house.now += 1.0
        estimated = {"image_tokens": 4 * tokens}
        load = LoadCounts(came=4 - refused, refused=refused, estimated=estimated)
        if done:
            counted = {"image_tokens": 4 * tokens * 1.25, "completion_tokens": 4 * TOKENS}
            load = msgspec.structs.replace(load, done=4, quantities=counted, estimated_done=estimated)
        event = LoadEvent("g", 1, 1.0, 0, {"vl": {SEEN: load}})
        house.bus.publish(subjects.event_subject(subjects.LOAD), msgspec.json.encode(event))
        await asyncio.sleep(0)
        await house.follow.check_load()


@pytest.fixture
async def burst(house: House, tmp_path: Path) -> House:
    """A house planned for 4 requests per second with images. They have 250 tokens; an encoder serves 10 a second."""
    about = measured()
    sizes = {"image_tokens": 250.0, "completion_tokens": TOKENS}
    found = msgspec.structs.replace(
        about,
        types={SEEN: TypeProfile(("vision", "thinker"), 1.0, sizes)},
        lines={**about.lines, "vision": CostLine(0.0, {"image_tokens": 0.1 / 250})},
    )
    (tmp_path / "vl.json").write_bytes(profile.encode_profile(found))
    await house.declare(goal="gpus", rate=4.0)
    await images(house, 40, 200.0)
    return house


async def test_images_ten_times_as_large_have_more_encoders_within_five_seconds_though_none_has_been_encoded(
    burst: House,
):
    assert burst.wanted == []
    began = burst.now

    while not burst.wanted and burst.now < began + 30:
        await images(burst, 1, 2000.0, done=False)

    assert burst.now - began <= 5
    planned, reason = burst.wanted[-1]
    assert replicas(planned)["E"] > 1
    assert reason.startswith("burst: load: vl ")


async def test_the_first_two_seconds_of_a_burst_are_enough_to_plan_for_all_of_it(burst: House):
    await images(burst, 2, 2000.0, done=False)

    ((planned, _),) = burst.wanted
    assert replicas(planned)["E"] >= 4  # 4 req/s x 1 s of an encoder
    assert planned.explain["forecast"]["vl"]["rate"] > 4.0  # and for those that come until executors are there


async def test_plans_that_take_long_to_solve_are_rare_and_hold_up_no_burst(
    burst: House, monkeypatch: pytest.MonkeyPatch
):
    solved = list[float]()

    def solve_slowly(*asked: Any) -> PlanCandidates:
        solved.append(burst.now)
        return solve_for_load(*asked)._replace(seconds=60.0)

    monkeypatch.setattr(autoscaler, "solve_for_load", solve_slowly)
    await images(burst, 20, 200.0)
    assert len(solved) == 1

    began = burst.now
    await images(burst, 2, 2000.0, done=False)

    assert solved[1:] == [began + 2]
    assert len(burst.wanted) == 1


async def test_a_burst_is_followed_step_by_step_until_it_is_met(burst: House):
    for _ in range(4):
        await images(burst, 6, 2000.0, done=False)
        burst.current(burst.planning.planned.models)

    assert replicas(burst.planning.planned)["E"] >= 4  # 4 req/s x 1 s of an encoder


async def test_what_is_refused_has_more_executors_at_once(burst: House):
    began = burst.now

    while not burst.wanted and burst.now < began + 30:
        await images(burst, 1, 200.0, refused=2)

    assert burst.now - began <= 5


async def test_the_load_that_was_planned_for_is_no_burst(burst: House):
    await images(burst, 120, 200.0)

    assert burst.wanted == []


async def test_a_rate_that_grows_is_planned_for_as_it_will_be_with_the_error_of_such_forecasts(house: House):
    await house.declare(goal="gpus", rate=4.0, mix={SEEN: 0.5, TEXT: 0.5})
    for rate in range(4, 30):
        for _ in range(10):
            found = await house.run(1, rate, rate)
            for planned, _ in found:
                house.current(planned.models)
            if found and "forecast" in found[-1][0].explain and found[-1][1].startswith("load"):
                break
        else:
            continue
        break
    else:
        pytest.fail("no plan went by a forecast")

    [(planned, _)] = found
    forecast = planned.explain["forecast"]["vl"]
    assert 2 * rate < forecast["rate"] <= 2 * (rate + 5)
    assert forecast["error"] < 0.1
    assert recorded_load(Plan(2, 0, 0.0, planned.models, explain=planned.explain))["vl"].rate == forecast["rate"]
