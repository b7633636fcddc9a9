"""Who may get work: executors that are ready, were heard of lately and move."""

import msgspec
import pytest

from omnibus.bus.messages import ExecutorStatus
from services.gateway.routing import executors as module
from services.gateway.routing.executors import Members


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module.time, "monotonic", made.monotonic)
    return made


def status(id: str = "e-0", option: str = "E", **changes) -> ExecutorStatus:
    usual = ExecutorStatus(id, "m", option, ("vision",), ("encode-m-vision",), "n1", "ready", 8)
    return msgspec.structs.replace(usual, **changes)


def fit(members: Members, option: str = "E", **more) -> list[str]:
    return [member.status.id for member in members.fit("m", option, **more)]


def test_an_executor_is_known_from_its_own_word(clock: Clock):
    members = Members()

    assert members.heard(status()) is False

    assert fit(members) == ["e-0"]
    assert members.get("e-0") is not None
    assert [each.id for each in members.statuses()] == ["e-0"]


def test_model_option_and_exclusion_are_respected(clock: Clock):
    members = Members()
    for each in (status("a"), status("b"), status("c", "L"), status("d", model="other")):
        members.heard(each)

    assert fit(members) == ["a", "b"]
    assert fit(members, exclude=frozenset({"a"})) == ["b"]
    assert fit(members, "L") == ["c"]
    assert fit(members, "X") == []


def test_a_silent_executor_gets_nothing_until_it_speaks_again(clock: Clock):
    members = Members()
    members.heard(status())

    clock.now += module.SUSPECT - 0.01
    assert (fit(members), list(members.silent())) == (["e-0"], [])
    clock.now += 0.01
    members.heard(status("e-1"))
    assert (fit(members), list(members.silent())) == (["e-1"], ["e-0"])

    members.heard(status())
    assert (fit(members), list(members.silent())) == (["e-0", "e-1"], [])


def test_a_silent_executor_that_has_no_other_beside_it_is_the_last_resort_for_a_while(clock: Clock):
    members = Members()
    members.heard(status())

    clock.now += module.LAST_RESORT - 0.01
    assert (fit(members), list(members.silent())) == (["e-0"], ["e-0"])
    clock.now += 0.01
    assert fit(members) == []


def test_a_draining_executor_is_known_but_gets_nothing(clock: Clock):
    members = Members()
    members.heard(status())

    assert members.heard(status(state="draining")) is False

    assert fit(members) == []
    assert members.get("e-0") is not None


def test_an_executor_that_leaves_is_told_once(clock: Clock):
    members = Members()
    members.heard(status())

    assert members.heard(status(state="gone")) is True
    assert members.heard(status(state="gone")) is False
    assert members.get("e-0") is None


def test_outstanding_work_survives_a_heartbeat(clock: Clock):
    members = Members()
    members.heard(status())
    member = members.get("e-0")
    assert member is not None
    member.outstanding = 70

    members.heard(status(inflight=3))

    assert members.get("e-0") is member
    assert (member.outstanding, member.status.inflight) == (70, 3)


def test_work_without_a_step_is_stuck(clock: Clock):
    members = Members()
    members.heard(status(inflight=1, steps=5))
    member = members.get("e-0")
    assert member is not None

    clock.now += module.STUCK + 0.01
    members.heard(status(inflight=1, steps=5))
    assert member.stuck(clock.now)

    members.heard(status(inflight=1, steps=6))
    assert not member.stuck(clock.now)


def test_idleness_is_not_being_stuck(clock: Clock):
    members = Members()
    members.heard(status(steps=5))
    member = members.get("e-0")
    assert member is not None

    clock.now += module.STUCK * 2
    members.heard(status(steps=5))
    members.heard(status(steps=5, inflight=1))

    assert not member.stuck(clock.now)


def test_stages_say_which_components_can_make_progress(clock: Clock):
    members = Members()
    members.heard(status("e-0", components=("vision",)))
    members.heard(status("l-0", "L", components=("thinker",), inflight=1))
    members.heard(status("x-0", "X", components=("vocoder",), model="other"))

    assert members.stages("m") == {"vision": "ok", "thinker": "ok"}
    clock.now += module.STUCK + 1
    members.heard(status("l-0", "L", components=("thinker",), inflight=1))
    assert members.stages("m") == {"vision": "silent", "thinker": "stuck"}


def test_one_good_executor_makes_a_stage_good(clock: Clock):
    members = Members()
    members.heard(status("old"))
    clock.now += 10
    members.heard(status("new"))

    assert members.stages("m") == {"vision": "ok"}
    assert members.stages("unknown") == {}


def test_an_executor_that_comes_back_as_another_is_another(clock: Clock):
    members = Members()
    members.heard(status("a"))
    before = members.get("a")

    members.heard(status("a", "L"))

    assert (fit(members, "E"), fit(members, "L")) == ([], ["a"])
    assert members.get("a") is not before
    members.remove("a")
    assert (fit(members, "L"), members.get("a")) == ([], None)


def test_the_least_loaded_is_found_among_the_fit(clock: Clock):
    members = Members()
    assert members.least("m", "E") is None
    for id in "abc":
        members.heard(status(id, state="draining" if id == "c" else "ready"))
        members.get(id).charge({"a": 5, "b": 9, "c": 0}[id])  # type: ignore[union-attr]

    assert members.least("m", "E") is members.get("a")
    assert members.least("m", "E", frozenset({"a"})) is members.get("b")
    assert members.least("m", "E", frozenset({"a", "b"})) is None


@pytest.mark.parametrize("turn", [0, 1, 2, 3_000_000_000])
def test_equals_take_turns_from_where_the_gateway_begins(clock: Clock, turn: int):
    members = Members()
    for id in "abc":
        members.heard(status(id))

    found = [members.least("m", "E", turn=turn) for _ in range(6)]

    assert [member.status.id for member in found if member] == ["abc"[(turn + number) % 3] for number in range(6)]


def test_work_of_others_weighs_as_much_as_ones_own(clock: Clock):
    members = Members()
    members.heard(status("a"))
    members.heard(status("b", inflight=3))
    a = members.get("a")
    assert a is not None

    for _ in range(2):
        a.charge(100)
    assert members.least("m", "E") is a
    for _ in range(2):
        a.charge(100)
    assert members.least("m", "E") is members.get("b")


def test_an_options_state_is_that_of_its_best_executor(clock: Clock):
    members = Members()
    assert members.state("m", "E") == ""
    members.heard(status("a"))
    clock.now += 10
    assert members.state("m", "E") == "silent"
    members.heard(status("b"))
    assert members.state("m", "E") == "ok"
