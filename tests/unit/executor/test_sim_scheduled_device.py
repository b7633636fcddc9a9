"""A simulated executor with goals uses the real schedule for its steps."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.sim import ComponentLoad, TypeDemand, predict_performance
from omnibus.executor.sim.device import CombinedTurn, Device, DeviceTurn, Lane, SimSequence, SimWork
from omnibus.executor.sim.distributions import Curve
from omnibus.executor.sim.engine import with_goals
from omnibus.executor.sim.scheduled_device import StagedDevice
from omnibus.executor.step_budget import NO_GOALS, StepGoals
from tests.unit.executor.simulated import ALL, make_chat_job, make_media_job, make_profile, open_bench

GOALS = StepGoals(ttft=4.0, tbt=0.5)
PROMPT, STEP = Curve(per_token=0.001, base=0.01), Curve(base=0.1)
PICTURE = Curve(per_item=0.1)
LONG = 2000  # tokens


class DeviceRun:
    """A device, and the start and content of each turn."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.at = 0.0
        self.turns: list[DeviceTurn | CombinedTurn] = []

    def run_turns(self, turns: int = 1000) -> None:
        """Run ``turns`` turns, or until no work is left."""
        for _ in range(turns):
            turn = self.device.next_turn(self.at)
            if turn is None:
                return
            self.turns.append(turn)
            self.at += turn.seconds
            self.device.finish_turn(turn, self.at, len(turn.ends))


def collect_times(work: SimWork) -> list[float]:
    """Return a list that collects the event times of ``work``."""
    times: list[float] = []
    work.told = times.append
    return times


def make_run(device: Device, slots: int = 4) -> tuple[DeviceRun, Lane]:
    return DeviceRun(device), device.add_lane(PROMPT, STEP, slots)


def measure_gap(device: Device) -> float:
    """Return the longest gap between tokens while a long prompt arrives."""
    run, lane = make_run(device)
    talking = SimSequence(1, limit=40)
    times = collect_times(talking)
    lane.queue_work(talking, 0.0)
    run.run_turns(4)
    lane.queue_work(SimSequence(LONG, limit=2), run.at)
    run.run_turns()
    return max(after - before for before, after in pairwise(times))


def test_a_long_prompt_stops_those_who_decode_unless_there_are_goals():
    assert measure_gap(Device()) > LONG * 0.001
    assert measure_gap(StagedDevice(1.0, GOALS)) <= GOALS.tbt


def test_what_one_step_takes_follows_from_the_goals():
    run, lane = make_run(StagedDevice(1.0, GOALS))
    lane.queue_work(SimSequence(LONG, limit=1), 0.0)

    run.run_turns()

    # No sequence decodes, so the prompt gets half of the time to the first token.
    assert [size for turn in run.turns for _, size in turn.works] == [1990, 10]


@pytest.mark.parametrize("slots", [4, 64])
def test_slots_that_are_free_take_no_time_from_prompts(slots: int):
    run = DeviceRun(StagedDevice(1.0, GOALS))
    lane = run.device.add_lane(PROMPT, Curve(base=0.1, per_item=0.02), slots)
    lane.queue_work(SimSequence(1, limit=40), 0.0)
    run.run_turns(2)
    lane.queue_work(SimSequence(LONG, limit=1), run.at)
    run.run_turns(1)

    # 0.5 s less 0.12 for one sequence and 0.01 for a pass.
    assert [size for _, size in run.turns[-1].works][1] == 370


def test_media_are_encoded_beside_the_others_as_far_as_the_goals_allow():
    run, lane = make_run(StagedDevice(1.0, GOALS))
    reads = run.device.add_lane(PICTURE, None, 16, reads=True, usual=10)
    talking = SimSequence(1, limit=20)
    times = collect_times(talking)
    lane.queue_work(talking, 0.0)
    run.run_turns(2)
    for _ in range(10):
        reads.queue_work(SimWork(10), run.at)
    run.run_turns()

    assert reads.passes == {4: 2, 2: 1}  # 0.5 s less the step's 0.1
    assert max(after - before for before, after in pairwise(times)) <= GOALS.tbt + 1e-9


def test_who_leaves_frees_its_slot_wherever_it_is():
    run, lane = make_run(StagedDevice(1.0, GOALS), slots=1)
    reads = run.device.add_lane(PICTURE, None, 16, reads=True, usual=10)
    works = [SimSequence(5, limit=5), SimSequence(5, limit=5), SimSequence(5, limit=5)]
    picture = SimWork(10)
    for work in works:
        lane.queue_work(work, 0.0)
    reads.queue_work(picture, 0.0)
    run.run_turns(1)
    for removed_work in (works[0], works[1], picture):
        (lane if removed_work in works else reads).remove_work(removed_work, run.at)
    run.run_turns()

    assert works[2].is_finished
    assert (lane.used, len(lane.waiting), len(reads.waiting)) == (0, 0, 0)
    assert run.device.next_turn(run.at) is None


def test_works_that_come_later_than_now_do_not_go_now():
    run, lane = make_run(StagedDevice(1.0, GOALS))
    lane.queue_work(SimSequence(5, limit=1), 1.0)

    assert run.device.next_turn(0.5) is None
    assert run.device.next_turn(1.0) is not None


def test_steps_that_nobody_hears_of_are_one_turn():
    run, lane = make_run(StagedDevice(1.0, GOALS))
    quiet = SimSequence(5, limit=100, first=50, every=50)
    lane.queue_work(quiet, 0.0)

    run.run_turns()

    assert [len(turn.ends) for turn in run.turns] == [1, 49, 50]
    assert quiet.is_finished


@pytest.mark.parametrize("apart", [False, True])
def test_halves_take_as_long_as_the_whole(apart: bool):
    parts: dict[str, Any] = {
        "whole": {"kind": "think", "slots": 4, "batch": {"base": 1.0}, "step": {"base": 0.5}, "steps": 5},
        "first": {"kind": "prefill", "slots": 4, "batch": {"base": 1.0}},
        "second": {"kind": "decode", "slots": 4, "step": {"base": 0.5}, "steps": 4},
    }
    loads = {"first": ComponentLoad(10), "second": ComponentLoad(10)} if apart else {"whole": ComponentLoad(10)}
    option_profile = make_profile(parts, options={"O": {"ttft": 8.0, "tbt": 4.0}})

    prediction = predict_performance(option_profile, "O", {"all": TypeDemand(1.0, loads)}, inflight=1, requests=20)

    assert prediction.throughput == pytest.approx(1 / 3.0)
    assert prediction.seconds["all"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("components", "goal_settings", "expected_goals"),
    [
        ("vision,thinker", {"ttft": 8.0, "tbt": 4.0}, StepGoals(8.0, 4.0)),
        ("vision,thinker", {}, NO_GOALS),
        ("thinker,talker", {"tbt": 4.0}, NO_GOALS),
    ],
)
def test_a_simulated_executor_has_the_goals_of_its_settings(
    components: str, goal_settings: dict[str, float], expected_goals: StepGoals
):
    executor_settings = ExecutorSettings(option="O", components=components, **goal_settings)

    assert with_goals(make_profile(ALL).find_option("O"), executor_settings).goals == expected_goals
    # Goals in the profile take precedence.
    own = make_profile(ALL, options={"O": {"tbt": 1.0}}).find_option("O")
    assert with_goals(own, executor_settings).goals == StepGoals(0.0, 1.0)


async def test_runners_serve_with_goals_what_they_serve_without():
    jobs = [make_chat_job(f"question {n}") for n in range(6)]
    async with open_bench(make_profile(options={"O": {"ttft": 8.0, "tbt": 4.0}})) as here, asyncio.timeout(30):
        await here.run("vision", *(make_media_job(bytes([n]) * 64) for n in range(3)))
        await here.run("thinker", *jobs)
        assert here["thinker"].stats()["used"] == here["thinker"].stats()["waiting"] == 0
    same = [make_chat_job(f"question {n}") for n in range(6)]
    async with open_bench(make_profile()) as other:
        await other.run("thinker", *same)

    assert [job.text for job in jobs] == [job.text for job in same]


def test_goals_are_for_encoders_and_language_models():
    option_profile = make_profile(ALL, options={"O": {"tbt": 1.0}})

    with pytest.raises(BadRequest, match="`ttft` and `tbt` are for encode, think, prefill, decode, not for talker"):
        predict_performance(option_profile, "O", {"all": TypeDemand(1.0, {"talker": ComponentLoad(2)})})
