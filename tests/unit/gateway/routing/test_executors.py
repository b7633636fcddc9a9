"""Executors eligible for work: ready, recently heard and making progress."""

from random import Random

import msgspec
import pytest

from omnibus.bus.messages import ExecutorStatus
from omnibus_gateway.routing import executors as module
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable


class ExecutorClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ExecutorClock:
    fake_clock = ExecutorClock()
    monkeypatch.setattr(module.time, "monotonic", fake_clock.monotonic)
    return fake_clock


def make_status(id: str = "e-0", option: str = "E", **changes) -> ExecutorStatus:
    usual = ExecutorStatus(id, "m", option, ("vision",), ("encode-m-vision",), "n1", "ready", 8)
    return msgspec.structs.replace(usual, **changes)


def list_fitting(members: ExecutorTable, option: str = "E", **more) -> list[str]:
    return [member.status.id for member in members.fit_executors("m", option, **more)]


def test_an_executor_is_known_from_its_own_word(clock: ExecutorClock):
    members = ExecutorTable()

    assert members.handle_status(make_status()) is False

    assert list_fitting(members) == ["e-0"]
    assert members.get("e-0") is not None
    assert [each.id for each in members.statuses()] == ["e-0"]


def test_model_option_and_exclusion_are_respected(clock: ExecutorClock):
    members = ExecutorTable()
    for each in (make_status("a"), make_status("b"), make_status("c", "L"), make_status("d", model="other")):
        members.handle_status(each)

    assert list_fitting(members) == ["a", "b"]
    assert list_fitting(members, exclude=frozenset({"a"})) == ["b"]
    assert list_fitting(members, "L") == ["c"]
    assert list_fitting(members, "X") == []


def test_a_silent_executor_gets_nothing_until_it_speaks_again(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status())

    clock.now += module.EXECUTOR_SUSPECT_SECONDS - 0.01
    assert (list_fitting(members), list(members.silent_executors())) == (["e-0"], [])
    clock.now += 0.01
    members.handle_status(make_status("e-1"))
    assert (list_fitting(members), list(members.silent_executors())) == (["e-1"], ["e-0"])

    members.handle_status(make_status())
    assert (list_fitting(members), list(members.silent_executors())) == (["e-0", "e-1"], [])


def test_a_silent_executor_that_has_no_other_beside_it_is_the_last_resort_for_a_while(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status())

    clock.now += module.EXECUTOR_LAST_RESORT_SECONDS - 0.01
    assert (list_fitting(members), list(members.silent_executors())) == (["e-0"], ["e-0"])
    clock.now += 0.01
    assert list_fitting(members) == []


def test_a_draining_executor_is_known_but_gets_nothing(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status())

    assert members.handle_status(make_status(state="draining")) is False

    assert list_fitting(members) == []
    assert members.get("e-0") is not None


def test_an_executor_that_leaves_is_told_once(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status())

    assert members.handle_status(make_status(state="gone")) is True
    assert members.handle_status(make_status(state="gone")) is False
    assert members.get("e-0") is None


def test_outstanding_work_survives_a_heartbeat(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status())
    member = members.get("e-0")
    assert member is not None
    member.outstanding = 70

    members.handle_status(make_status(inflight=3))

    assert members.get("e-0") is member
    assert (member.outstanding, member.status.inflight) == (70, 3)


def test_work_without_a_step_is_stuck(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status(inflight=1, steps=5))
    member = members.get("e-0")
    assert member is not None

    clock.now += module.STUCK_AFTER_SECONDS + 0.01
    members.handle_status(make_status(inflight=1, steps=5))
    assert member.is_stuck(clock.now)

    members.handle_status(make_status(inflight=1, steps=6))
    assert not member.is_stuck(clock.now)


def test_idleness_is_not_being_stuck(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status(steps=5))
    member = members.get("e-0")
    assert member is not None

    clock.now += module.STUCK_AFTER_SECONDS * 2
    members.handle_status(make_status(steps=5))
    members.handle_status(make_status(steps=5, inflight=1))

    assert not member.is_stuck(clock.now)


def test_stages_say_which_components_can_make_progress(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status("e-0", components=("vision",)))
    members.handle_status(make_status("l-0", "L", components=("thinker",), inflight=1))
    members.handle_status(make_status("x-0", "X", components=("vocoder",), model="other"))

    assert members.stage_states("m") == {"vision": "ok", "thinker": "ok"}
    clock.now += module.STUCK_AFTER_SECONDS + 1
    members.handle_status(make_status("l-0", "L", components=("thinker",), inflight=1))
    assert members.stage_states("m") == {"vision": "silent", "thinker": "stuck"}


def test_one_good_executor_makes_a_stage_good(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status("old"))
    clock.now += 10
    members.handle_status(make_status("new"))

    assert members.stage_states("m") == {"vision": "ok"}
    assert members.stage_states("unknown") == {}


def test_an_executor_that_comes_back_as_another_is_another(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status("a"))
    before = members.get("a")

    members.handle_status(make_status("a", "L"))

    assert (list_fitting(members, "E"), list_fitting(members, "L")) == ([], ["a"])
    assert members.get("a") is not before
    members.remove("a")
    assert (list_fitting(members, "L"), members.get("a")) == ([], None)


def least_loaded(members: ExecutorTable, exclude: frozenset[str] = frozenset(), turn: int = 0) -> ExecutorEntry | None:
    """Return the fit executor of option E with the least work; None without any."""
    loads = members.work_by_executor(members.serving_executors("m", "E", exclude), turn)
    return members.get(min(loads, key=loads.__getitem__)) if loads else None


def test_the_least_loaded_is_found_among_the_fit(clock: ExecutorClock):
    members = ExecutorTable()
    assert least_loaded(members) is None
    for id in "abc":
        members.handle_status(make_status(id, state="draining" if id == "c" else "ready"))
        members.get(id).charge_work({"a": 5, "b": 9, "c": 0}[id])  # type: ignore[union-attr]

    assert least_loaded(members) is members.get("a")
    assert least_loaded(members, frozenset({"a"})) is members.get("b")
    assert least_loaded(members, frozenset({"a", "b"})) is None


@pytest.mark.parametrize("turn", [0, 1, 2, 3_000_000_000])
def test_equals_take_turns_from_where_the_gateway_begins(clock: ExecutorClock, turn: int):
    members = ExecutorTable()
    for id in "abc":
        members.handle_status(make_status(id))

    choices = [least_loaded(members, turn=turn) for _ in range(6)]

    assert [member.status.id for member in choices if member] == ["abc"[(turn + number) % 3] for number in range(6)]


def test_work_of_others_weighs_as_much_as_ones_own(clock: ExecutorClock):
    members = ExecutorTable()
    members.handle_status(make_status("a"))
    members.handle_status(make_status("b", inflight=3))
    a = members.get("a")
    assert a is not None

    for _ in range(2):
        a.charge_work(100)
    assert least_loaded(members) is a
    for _ in range(2):
        a.charge_work(100)
    assert least_loaded(members) is members.get("b")


def test_an_options_state_is_that_of_its_best_executor(clock: ExecutorClock):
    members = ExecutorTable()
    assert members.option_state("m", "E") == ""
    members.handle_status(make_status("a"))
    clock.now += 10
    assert members.option_state("m", "E") == "silent"
    members.handle_status(make_status("b"))
    assert members.option_state("m", "E") == "ok"


@pytest.mark.parametrize("seed", range(20))
def test_the_least_loaded_is_the_same_with_and_without_all_loads(clock: ExecutorClock, seed: int):
    """This includes ties, and other gateways' work below and above the tolerance."""
    chance, tables = Random(seed), (ExecutorTable(), ExecutorTable())
    for number in range(chance.randint(2, 6)):
        inflight, work = chance.choice((0, 1, 8, 60)), chance.choice((0, 0, 3, 40))
        for members in tables:
            members.handle_status(make_status(f"e{number}", inflight=inflight))
            members.get(f"e{number}").charge_work(work)  # type: ignore[union-attr]

    for turn in range(8):
        every = least_loaded(tables[0], turn=turn)
        assert every is not None
        assert tables[1].least_loaded(tables[1].serving_executors("m", "E"), turn) == every.status.id
