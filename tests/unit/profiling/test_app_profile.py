"""What the measured loads of apps say about their components."""

from typing import Any

import pytest

from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import StageUnavailable
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus.profile import decode_profile, encode_profile
from omnibus.profiling.app_profile import AppLoad, AppMeasurement, MeasuredPart, build_apps_profile, find_parts
from omnibus.profiling.client import TimedAnswer
from omnibus.profiling.load_generator import LoadRequest, LoadResult
from omnibus.profiling.workload import Workload, WorkloadRequest


def make_request(app: str, share: float = 0.5) -> WorkloadRequest:
    return WorkloadRequest(share, app, (), (), b"{}", b"{}", 2.0, "requests[0]")


def make_load(app: str, at_once: int, rate: float, **processor: float) -> AppLoad:
    answers = [(LoadRequest(make_request(app)), TimedAnswer(done=at_once / rate))]
    engine = {name: seconds / 2 for name, seconds in processor.items()}
    return AppLoad(LoadResult(at_once, rate, answers), processor, engine)


class FixedMonitor:
    """The statuses of executors that have ended by now, so that their memory is unknown."""

    def find_status(self, executor: str) -> ExecutorStatus:
        return make_status(executor, "m", "c")


def make_status(executor: str, model: str, component: str) -> ExecutorStatus:
    return ExecutorStatus(executor, model, component, (component,), (component,), "n", "ready", 1, pid=0)


def make_profile(*measurements: AppMeasurement, threads: int = 1, **parts: str) -> Any:
    workload = Workload("one; two", tuple(make_request(each.app) for each in measurements))
    measured = {name: MeasuredPart(f"x-{name}", "m", name, service) for name, service in parts.items()}
    profile = build_apps_profile(FixedMonitor(), measured, {"lm": 3.0}, workload, measurements, threads)  # type: ignore[arg-type]
    return decode_profile(encode_profile(profile))


def test_seconds_are_those_of_the_load_that_served_most_and_the_curve_has_all():
    chat = AppMeasurement(
        "chat", [make_load("chat", 1, 1.0, lm=1.0, voice=0.5), make_load("chat", 4, 2.0, lm=0.4, voice=0.5)], {}
    )
    read = AppMeasurement("read", [make_load("read", 1, 1.0, lm=2.0)], {"prompt_tokens": 9.0})

    profile = make_profile(chat, read, lm="llm", voice="generator")

    assert {work.type: work.seconds for work in profile.options["lm"].work} == {"lm+voice": 0.4, "lm": 2.0}
    assert [(point.at_once, 1 / point.rate) for point in profile.options["lm"].curve] == [(1, 1.5), (4, 0.4)]
    assert profile.types["lm"].quantities == {"prompt_tokens": 9.0}
    assert {kind: each.share for kind, each in profile.types.items()} == {"lm+voice": 0.5, "lm": 0.5}
    assert (profile.options["lm"].service, profile.options["lm"].start_s) == ("llm", 3.0)
    assert profile.workload == "one; two"


def test_apps_that_call_the_same_components_are_one_request_type():
    one, two = (AppMeasurement(app, [make_load(app, 1, 1.0, lm=seconds)], {}) for app, seconds in (("a", 1), ("b", 3)))

    profile = make_profile(one, two, lm="llm")

    assert {kind: each.share for kind, each in profile.types.items()} == {"lm": 1.0}
    assert [work.seconds for work in profile.options["lm"].work] == [2.0]


def test_a_place_has_the_cores_of_one_engine():
    profile = make_profile(AppMeasurement("a", [make_load("a", 1, 1.0, lm=2.0)], {}), threads=4, lm="llm")

    assert profile.options["lm"].work[0].seconds == 0.5


def test_a_component_that_no_request_reached_is_left_out_and_without_any_there_is_no_profile():
    measurement = AppMeasurement("a", [make_load("a", 1, 1.0, lm=1.0)], {})

    assert make_profile(measurement, lm="llm", unused="llm").components == ("lm",)
    with pytest.raises(StageUnavailable, match="no app could be measured"):
        make_profile(lm="llm")


def test_components_are_own_tasks_and_models_of_one_component():
    def plan_model(*components: str, apps: tuple[str, ...] = ()) -> ModelPlan:
        options = {part: DeploymentOption((part,), "llm") for part in components}
        path = Path("all", {part: part for part in components}, 1.0)
        tasks = {part: f"task-{part}" for part in components}
        return ModelPlan("f", "", components, {}, options, {"+".join(components): (path,)}, tasks=tasks, apps=apps)

    plan = Plan(
        1, 0, 0.0, {"lm": plan_model("thinker"), "vl": plan_model("a", "b"), "own": plan_model("hear", apps=("x",))}
    )
    statuses = [make_status("1", "lm", "thinker"), make_status("2", "own", "hear"), make_status("3", "vl", "a")]

    parts = find_parts(plan, ["task-hear", "task-thinker", "task-a"], statuses)

    assert {name: part.executor for name, part in parts.items()} == {"task-hear": "2", "lm": "1"}
    with pytest.raises(StageUnavailable, match="task-hear has no executor"):
        find_parts(plan, ["task-hear"], [])
