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
from tests.unit.cli.watched import TYPE, MonitorClock, make_event, make_model, make_plan, make_status, show_rows


@pytest.fixture
def clock() -> MonitorClock:
    return MonitorClock()


@pytest.fixture
def system_state(clock: MonitorClock) -> SystemState:
    state = SystemState(clock)
    state.plan, state.stand = make_plan(), PlanState(3, 0, 0, 0)
    return state


# State


def test_rates_are_per_second_and_times_are_means(system_state: SystemState, clock: MonitorClock):
    for _ in range(5):
        clock.now += 1.0
        system_state.handle_load(
            make_event(t=LoadCounts(3, 2, 1, 1, {"completion_tokens": 50.0}, first=0.5, total=3.0))
        )

    [totals] = system_state.type_totals().values()

    assert (totals.came, totals.done) == (pytest.approx(4.0), pytest.approx(2.0))
    assert (totals.failed, totals.refused) == (5, 5)
    assert (totals.first, totals.total) == (pytest.approx(0.25), pytest.approx(1.5))
    assert totals.quantities == {"completion_tokens": pytest.approx(50.0)}


def test_what_failed_stays_known_when_all_is_silent(system_state: SystemState, clock: MonitorClock):
    system_state.handle_load(make_event(t=LoadCounts(came=1, failed=1)))
    clock.now += RATE_WINDOW_SECONDS * 3

    [totals] = system_state.type_totals().values()

    assert (totals.came, totals.failed, totals.first) == (0.0, 1, None)


def test_types_together_have_the_mean_of_all_that_was_done(system_state: SystemState):
    system_state.handle_load(
        make_event(t=LoadCounts(1, 1, first=1.0, total=4.0), u=LoadCounts(3, 3, first=1.0, total=2.0))
    )

    whole = sum_totals(system_state.type_totals().values())

    assert (whole.came, whole.done, whole.first, whole.total) == (4.0, 4.0, 0.5, 1.5)


def test_how_busy_executors_are_follows_from_their_heartbeats(system_state: SystemState, clock: MonitorClock):
    for beat in range(10):
        system_state.handle_executor(make_status("a", busy=beat * 0.25, done=beat, inflight=2))
        system_state.handle_executor(make_status("b", busy=beat * 0.5, done=beat, inflight=1))
        clock.now += 0.5

    [_, option] = system_state.option_states()

    assert (option.kind.option, option.up, option.wanted, option.inflight) == ("L", 2, 1, 3)
    assert option.busy == pytest.approx(0.75)
    assert option.jobs == pytest.approx(4.0)


def test_components_that_compute_side_by_side_count_as_one_executor(system_state: SystemState, clock: MonitorClock):
    for beat in range(3):
        heartbeat = make_status("a", busy=beat)
        system_state.handle_executor(
            msgspec.structs.replace(heartbeat, components=("x", "y"), busy=(beat, beat), done=(0, 0))
        )
        clock.now += 1.0

    assert system_state.option_states()[1].busy == 1.0


def test_an_executor_that_never_says_how_busy_it_is_counts_as_unknown(system_state: SystemState, clock: MonitorClock):
    for _ in range(3):
        system_state.handle_executor(msgspec.structs.replace(make_status("a"), busy=(), done=(), origin=""))
        clock.now += 1.0

    [_, option] = system_state.option_states()

    assert (option.up, option.busy, option.jobs) == (1, None, None)


def test_who_is_silent_or_gone_is_not_up(system_state: SystemState, clock: MonitorClock):
    system_state.handle_executor(make_status("a"))
    system_state.handle_executor(make_status("b"))
    system_state.handle_executor(make_status("c"))
    system_state.handle_executor(make_status("b", state="gone"))
    system_state.handle_gone("c")
    before = system_state.option_states()[1].up
    clock.now += 10.0

    assert before == 1
    assert system_state.option_states()[1].up == 0


def test_an_executor_that_leaves_is_not_up_but_there(system_state: SystemState):
    system_state.handle_executor(make_status("a", state="draining"))
    system_state.handle_executor(make_status("b"))

    assert show_rows(system_state)["m/L"][:2] == ["1", "1+1"]


def test_gateways_that_do_not_answer_are_forgotten_with_what_they_had_in_flight(
    system_state: SystemState, clock: MonitorClock
):
    system_state.handle_load(make_event("a", 4))
    system_state.handle_load(make_event("b", 2))
    system_state.handle_gateway(GatewayStatus("b", 3, 1.0, "gone"))
    system_state.handle_gateway(GatewayStatus("c", 2, 1.0))
    before = (system_state.gateways, system_state.inflight)
    clock.now += GATEWAY_FORGOTTEN_SECONDS + 1

    assert before == ({"a": 3, "c": 2}, 4)
    assert (system_state.gateways, system_state.inflight) == ({}, 0)


SOLVED = {"planned": {"models": {"m": {"types": {TYPE: {"rate": 2.5}}}}}}


def test_only_rates_that_the_solver_found_are_planned():
    assert planned_rates(None) == {}
    assert planned_rates(make_plan()) == {}
    assert planned_rates(make_plan(explain=SOLVED)) == {("m", TYPE): 2.5}


# Display


def test_a_model_is_shown_with_its_types_below(system_state: SystemState):
    system_state.handle_load(
        make_event(**{TYPE: LoadCounts(4, 2, 0, 0, {"prompt_tokens": 200.0, "completion_tokens": 90.0}, 0.2, 3.0)})
    )

    table = show_rows(system_state)

    assert table["REQUESTS"] == ["req/s", "done/s", "failed", "first", "total", "tok in/s", "out/s"]
    assert table["m"] == table[TYPE] == ["4.00", "2.00", "0", "100 ms", "1.50 s", "200", "90"]


def test_columns_that_matter_come_when_there_is_something_in_them(system_state: SystemState):
    system_state.plan = make_plan(explain=SOLVED)
    system_state.handle_load(
        make_event(**{"": LoadCounts(refused=2), TYPE: LoadCounts(1, 1, quantities={"speech_seconds": 1.5})})
    )

    table = show_rows(system_state)

    heads = ["req/s", "planned", "done/s", "failed", "refused", "first", "total", "tok in/s", "out/s", "speech"]
    assert table["REQUESTS"] == heads
    assert table["m"][:2] == ["3.00", "2.50"]
    assert table["(refused early)"][4] == "2"
    assert table[TYPE][-1] == "1.5x"


def test_planned_types_are_shown_before_anybody_asks(system_state: SystemState):
    system_state.plan = make_plan(explain=SOLVED)

    assert show_rows(system_state)[TYPE][:3] == ["0.00", "2.50", "0.00"]


def test_the_head_says_where_the_plan_stands(system_state: SystemState):
    system_state.staged, system_state.stand = make_plan(4, thinkers=2), PlanState(3, 4, 2, 1)
    system_state.problems = {"planner": PlanProblem(time.time(), "no room")}
    system_state.handle_executor(make_status("a"))
    system_state.handle_executor(make_status("e", "E"))
    system_state.handle_gateway(GatewayStatus("g", 2, 1.0))

    table = show_rows(system_state, "the store, for 3 s: the plan is the last one known")

    assert table["plan"] == ["epoch 3, made 5 min ago"]
    assert table["staged"] == ["epoch 4 (load), waits for 1 of m/L"]
    assert table["pinned"] == ["epoch 2, until `omnibus plan resume`"]
    [problem] = table["problem"]
    assert re.fullmatch(r"planner, \d+ s ago: no room", problem)
    assert table["now"][0].startswith("1 gateway, 0 requests in flight, 1 gateway at another epoch; ")
    assert table["away"] == ["the store, for 3 s: the plan is the last one known"]
    assert table["m/L"][:2] == ["1>2", "1"]


def test_executors_of_two_origins_are_told_apart(system_state: SystemState):
    system_state.handle_executor(make_status("a"))
    system_state.handle_executor(make_status("b", origin="feedfeedfeedfeed"))

    assert show_rows(system_state)[f"m/L@{make_model().option_origin('L')[:4]}"][:2] == ["1", "1"]
    assert show_rows(system_state)["m/L@feed"][:2] == ["0", "1"]


def test_long_types_are_cut_so_that_each_part_is_still_there(system_state: SystemState):
    name = "vision+audio+thinker+talker+vocoder"
    system_state.handle_load(make_event(**{name: LoadCounts(1, 1, quantities={"speech_seconds": 1.0})}))

    lines = list(top_format.top_lines(system_state, (), 90))

    assert max(map(len, lines)) <= 90
    assert any(line.startswith("  visi+audi+thin+talk+voco") for line in lines)


def test_nothing_at_all_can_be_shown(clock: MonitorClock):
    lines = list(top_format.top_lines(SystemState(clock), ()))

    assert lines[0] == "plan     none yet"
    assert json.loads(json.dumps(state_values(SystemState(clock), ())))["executors"] == []


def test_programs_get_the_same(system_state: SystemState):
    system_state.handle_load(make_event(**{TYPE: LoadCounts(2, 1, first=0.5, total=0.5)}))
    system_state.handle_executor(make_status("a", inflight=1))

    values = json.loads(json.dumps(state_values(system_state, ["the bus"])))

    assert (values["epoch"], values["reason"], values["away"]) == (3, "load", ["the bus"])
    assert values["models"]["m"][TYPE]["came"] == 2.0
    assert values["executors"][1]["option"] == "L"
    assert values["executors"][1]["inflight"] == 1


def test_a_screen_is_drawn_in_place_and_not_beyond_its_edges():
    screen = top._fit_to_screen([f"line {number} {'x' * 50}" for number in range(30)], os.terminal_size((20, 10)))

    lines = screen.removeprefix("\x1b[H").removesuffix("\x1b[J").split("\x1b[K\n")[:-1]
    assert len(lines) == 9
    assert max(map(len, lines)) == 20
    assert lines[-1] == "... 22 more lines"
