"""``omnibus top``: rates from its samples, and rows that fit the screen."""

import json
import os
import re
import time

import msgspec
import pytest

from omnibus.bus.heartbeats import GATEWAY_FORGOTTEN_SECONDS
from omnibus.bus.messages import GatewayStatus, LoadCounts
from omnibus.cli import top
from omnibus.cli.format import top as top_format
from omnibus.cluster.monitor import state_values
from omnibus.cluster.monitor.snapshot import (
    RATE_WINDOW_SECONDS,
    SystemState,
    planned_rates,
    sum_totals,
)
from omnibus.store import PlanProblem, PlanState
from tests.unit.cli.watched import TYPE, Clock, event, model, plan, shown, status


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen(clock: Clock) -> SystemState:
    made = SystemState(clock)
    made.plan, made.stand = plan(), PlanState(3, 0, 0, 0)
    return made


# State


def test_rates_are_per_second_and_times_are_means(seen: SystemState, clock: Clock):
    for _ in range(5):
        clock.now += 1.0
        seen.handle_load(event(t=LoadCounts(3, 2, 1, 1, {"completion_tokens": 50.0}, first=0.5, total=3.0)))

    [totals] = seen.type_totals().values()

    assert (totals.came, totals.done) == (pytest.approx(4.0), pytest.approx(2.0))
    assert (totals.failed, totals.refused) == (5, 5)
    assert (totals.first, totals.total) == (pytest.approx(0.25), pytest.approx(1.5))
    assert totals.quantities == {"completion_tokens": pytest.approx(50.0)}


def test_what_failed_stays_known_when_all_is_silent(seen: SystemState, clock: Clock):
    seen.handle_load(event(t=LoadCounts(came=1, failed=1)))
    clock.now += RATE_WINDOW_SECONDS * 3

    [totals] = seen.type_totals().values()

    assert (totals.came, totals.failed, totals.first) == (0.0, 1, None)


def test_types_together_have_the_mean_of_all_that_was_done(seen: SystemState):
    seen.handle_load(event(t=LoadCounts(1, 1, first=1.0, total=4.0), u=LoadCounts(3, 3, first=1.0, total=2.0)))

    whole = sum_totals(seen.type_totals().values())

    assert (whole.came, whole.done, whole.first, whole.total) == (4.0, 4.0, 0.5, 1.5)


def test_how_busy_executors_are_follows_from_their_heartbeats(seen: SystemState, clock: Clock):
    for beat in range(10):
        seen.handle_executor(status("a", busy=beat * 0.25, done=beat, inflight=2))
        seen.handle_executor(status("b", busy=beat * 0.5, done=beat, inflight=1))
        clock.now += 0.5

    [_, option] = seen.option_states()

    assert (option.kind.option, option.up, option.wanted, option.inflight) == ("L", 2, 1, 3)
    assert option.busy == pytest.approx(0.75)
    assert option.jobs == pytest.approx(4.0)


def test_components_that_compute_side_by_side_count_as_one_executor(seen: SystemState, clock: Clock):
    for beat in range(3):
        told = status("a", busy=beat)
        seen.handle_executor(msgspec.structs.replace(told, components=("x", "y"), busy=(beat, beat), done=(0, 0)))
        clock.now += 1.0

    assert seen.option_states()[1].busy == 1.0


def test_an_executor_that_never_says_how_busy_it_is_counts_as_unknown(seen: SystemState, clock: Clock):
    for _ in range(3):
        seen.handle_executor(msgspec.structs.replace(status("a"), busy=(), done=(), origin=""))
        clock.now += 1.0

    [_, option] = seen.option_states()

    assert (option.up, option.busy, option.jobs) == (1, None, None)


def test_who_is_silent_or_gone_is_not_up(seen: SystemState, clock: Clock):
    seen.handle_executor(status("a"))
    seen.handle_executor(status("b"))
    seen.handle_executor(status("c"))
    seen.handle_executor(status("b", state="gone"))
    seen.handle_gone("c")
    before = seen.option_states()[1].up
    clock.now += 10.0

    assert before == 1
    assert seen.option_states()[1].up == 0


def test_an_executor_that_leaves_is_not_up_but_there(seen: SystemState):
    seen.handle_executor(status("a", state="draining"))
    seen.handle_executor(status("b"))

    assert shown(seen)["m/L"][:2] == ["1", "1+1"]


def test_gateways_that_do_not_answer_are_forgotten_with_what_they_had_in_flight(seen: SystemState, clock: Clock):
    seen.handle_load(event("a", 4))
    seen.handle_load(event("b", 2))
    seen.handle_gateway(GatewayStatus("b", 3, 1.0, "gone"))
    seen.handle_gateway(GatewayStatus("c", 2, 1.0))
    before = (seen.gateways, seen.inflight)
    clock.now += GATEWAY_FORGOTTEN_SECONDS + 1

    assert before == ({"a": 3, "c": 2}, 4)
    assert (seen.gateways, seen.inflight) == ({}, 0)


SOLVED = {"planned": {"models": {"m": {"types": {TYPE: {"rate": 2.5}}}}}}


def test_only_rates_that_the_solver_found_are_planned():
    assert planned_rates(None) == {}
    assert planned_rates(plan()) == {}
    assert planned_rates(plan(explain=SOLVED)) == {("m", TYPE): 2.5}


# Display


def test_a_model_is_shown_with_its_types_below(seen: SystemState):
    seen.handle_load(
        event(**{TYPE: LoadCounts(4, 2, 0, 0, {"prompt_tokens": 200.0, "completion_tokens": 90.0}, 0.2, 3.0)})
    )

    table = shown(seen)

    assert table["REQUESTS"] == ["req/s", "done/s", "failed", "first", "total", "tok in/s", "out/s"]
    assert table["m"] == table[TYPE] == ["4.00", "2.00", "0", "100 ms", "1.50 s", "200", "90"]


def test_columns_that_matter_come_when_there_is_something_in_them(seen: SystemState):
    seen.plan = plan(explain=SOLVED)
    seen.handle_load(event(**{"": LoadCounts(refused=2), TYPE: LoadCounts(1, 1, quantities={"speech_seconds": 1.5})}))

    table = shown(seen)

    heads = ["req/s", "planned", "done/s", "failed", "refused", "first", "total", "tok in/s", "out/s", "speech"]
    assert table["REQUESTS"] == heads
    assert table["m"][:2] == ["3.00", "2.50"]
    assert table["(refused early)"][4] == "2"
    assert table[TYPE][-1] == "1.5x"


def test_planned_types_are_shown_before_anybody_asks(seen: SystemState):
    seen.plan = plan(explain=SOLVED)

    assert shown(seen)[TYPE][:3] == ["0.00", "2.50", "0.00"]


def test_the_head_says_where_the_plan_stands(seen: SystemState):
    seen.staged, seen.stand = plan(4, thinkers=2), PlanState(3, 4, 2, 1)
    seen.problems = {"planner": PlanProblem(time.time(), "no room")}
    seen.handle_executor(status("a"))
    seen.handle_executor(status("e", "E"))
    seen.handle_gateway(GatewayStatus("g", 2, 1.0))

    table = shown(seen, "the store, for 3 s: the plan is the last one known")

    assert table["plan"] == ["epoch 3, made 5 min ago"]
    assert table["staged"] == ["epoch 4 (load), waits for 1 of m/L"]
    assert table["pinned"] == ["epoch 2, until `omnibus plan resume`"]
    [problem] = table["problem"]
    assert re.fullmatch(r"planner, \d+ s ago: no room", problem)
    assert table["now"][0].startswith("1 gateway, 0 requests in flight, 1 gateway at another epoch; ")
    assert table["away"] == ["the store, for 3 s: the plan is the last one known"]
    assert table["m/L"][:2] == ["1>2", "1"]


def test_executors_of_two_origins_are_told_apart(seen: SystemState):
    seen.handle_executor(status("a"))
    seen.handle_executor(status("b", origin="feedfeedfeedfeed"))

    assert shown(seen)[f"m/L@{model().option_origin('L')[:4]}"][:2] == ["1", "1"]
    assert shown(seen)["m/L@feed"][:2] == ["0", "1"]


def test_long_types_are_cut_so_that_each_part_is_still_there(seen: SystemState):
    name = "vision+audio+thinker+talker+vocoder"
    seen.handle_load(event(**{name: LoadCounts(1, 1, quantities={"speech_seconds": 1.0})}))

    lines = list(top_format.top_lines(seen, (), 90))

    assert max(map(len, lines)) <= 90
    assert any(line.startswith("  visi+audi+thin+talk+voco") for line in lines)


def test_nothing_at_all_can_be_shown(clock: Clock):
    lines = list(top_format.top_lines(SystemState(clock), ()))

    assert lines[0] == "plan     none yet"
    assert json.loads(json.dumps(state_values(SystemState(clock), ())))["executors"] == []


def test_programs_get_the_same(seen: SystemState):
    seen.handle_load(event(**{TYPE: LoadCounts(2, 1, first=0.5, total=0.5)}))
    seen.handle_executor(status("a", inflight=1))

    known = json.loads(json.dumps(state_values(seen, ["the bus"])))

    assert (known["epoch"], known["reason"], known["away"]) == (3, "load", ["the bus"])
    assert known["models"]["m"][TYPE]["came"] == 2.0
    assert known["executors"][1]["option"] == "L"
    assert known["executors"][1]["inflight"] == 1


def test_a_screen_is_drawn_in_place_and_not_beyond_its_edges():
    drawn = top._fit_to_screen([f"line {number} {'x' * 50}" for number in range(30)], os.terminal_size((20, 10)))

    lines = drawn.removeprefix("\x1b[H").removesuffix("\x1b[J").split("\x1b[K\n")[:-1]
    assert len(lines) == 9
    assert max(map(len, lines)) == 20
    assert lines[-1] == "... 22 more lines"
