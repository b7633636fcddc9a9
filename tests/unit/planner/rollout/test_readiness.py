"""Changes of a plan: ready, awaited, or postponed."""

from collections.abc import Mapping

import msgspec

from omnibus.cluster.presence import ExecutorKind
from omnibus.plan import DeploymentOption, ModelPlan
from omnibus_planner.rollout.readiness import (
    MAX_BACKOFF_SECONDS,
    SETTLE_SECONDS,
    PlanChange,
    Trials,
    independent_changes,
    merge_changes,
)

PATIENCE, PAUSE = 10.0, 4.0


def make_model(*tasks: str, replicas: int = 1, **options: DeploymentOption) -> ModelPlan:
    """Return a model that binds these tasks, with an additional option ``o``."""
    parts = tuple(tasks)
    own = {"o": DeploymentOption(parts, "llm", replicas), **options}
    return ModelPlan("f", "/m", parts, {}, own, {}, tasks={part: part for part in parts})


A, B, C = make_model("a"), make_model("b"), make_model("c")


def find_missing(needs: Mapping[ExecutorKind, int]) -> dict[ExecutorKind, int]:
    return dict.fromkeys(needs, 0)


def list_models(changes: list[PlanChange]) -> list[set[str]]:
    return [set(change.models) for change in changes]


# Changes


def test_models_that_have_nothing_in_common_change_by_themselves():
    changes = independent_changes({"a": A}, {"a": make_model("a", replicas=2), "b": B})

    assert list_models(changes) == [{"a"}, {"b"}]
    assert [list(change.needs.values()) for change in changes] == [[2], [1]]


def test_what_is_the_same_does_not_change():
    assert independent_changes({"a": A, "b": B}, {"b": B, "a": A}) == []


def test_a_model_that_goes_needs_nobody():
    (change,) = independent_changes({"a": A, "b": B}, {"a": A})

    assert change.models == {"b"}
    assert change.needs == {}


def test_fewer_executors_need_nobody():
    (fewer,) = independent_changes({"a": make_model("a", replicas=3)}, {"a": A})

    assert fewer.needs == {}


def test_a_model_changes_together_with_the_one_that_lends_to_it():
    borrower = make_model("b", **{"a/o": DeploymentOption(("a",), "llm", 0, of="a/o")})
    more = msgspec.structs.replace(borrower, context=5)

    (joint_change,) = independent_changes({"a": A, "b": borrower}, {"a": make_model("a", replicas=2), "b": more})

    assert joint_change.models == {"a", "b"}
    assert {kind.model for kind in joint_change.needs} == {"a", "b"}


def test_a_unit_task_goes_from_one_model_to_another_in_one_step():
    (change,) = independent_changes({"a": make_model("x", "y")}, {"a": make_model("x"), "b": make_model("y")})

    assert change.models == {"a", "b"}


def test_the_same_change_has_the_same_key_and_another_one_another():
    one, again, other = (
        independent_changes({"a": A}, {"a": make_model("a", replicas=count), **more})[0].key
        for count, more in ((2, {}), (2, {"b": B}), (3, {}))
    )

    assert one == again != other


def test_only_what_was_chosen_is_taken_over():
    before, after = {"a": A, "c": C}, {"b": B, "a": make_model("a", replicas=2)}
    first, second, third = independent_changes(before, after)

    assert merge_changes(before, after, [first, second, third]) == after
    assert merge_changes(before, after, [second]) == {"b": B, "a": A, "c": C}
    assert merge_changes(before, after, [third]) == {"a": A}
    assert merge_changes(before, after, []) == before


# Attempts


def test_a_change_is_awaited_then_put_off_then_tried_again_ever_more_seldom():
    trials, changes = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})
    states, now = [], 0.0

    for _ in range(8):
        outcome = trials.classify_changes(changes, find_missing, now)
        states.append(("waiting" if outcome.waiting else "later", outcome.look - now))
        now = outcome.look

    assert states == [
        ("waiting", 10), ("later", 4), ("waiting", 10), ("later", 8), ("waiting", 10), ("later", 16), ("waiting", 10),
        ("later", 32),
    ]  # fmt: skip


def test_pauses_have_an_end():
    trials, changes = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})
    now, longest = 0.0, 0.0

    for _ in range(40):
        outcome = trials.classify_changes(changes, find_missing, now)
        longest, now = max(longest, outcome.look - now), outcome.look

    assert longest == MAX_BACKOFF_SECONDS


def test_a_change_is_ready_whenever_its_executors_are():
    trials, changes = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})
    for now in (0.0, PATIENCE):
        trials.classify_changes(changes, find_missing, now)

    outcome = trials.classify_changes(changes, lambda _: {}, PATIENCE + 1)

    assert (outcome.ready, outcome.waiting, outcome.later) == (changes, [], [])
    assert outcome.look == float("inf")
    assert outcome.faults == []


def test_executors_that_are_ready_must_have_been_asked_for_a_little():
    trials, changes = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})

    first = trials.classify_changes(changes, lambda _: {}, 7.0)
    then = trials.classify_changes(changes, lambda _: {}, first.look)

    assert (first.ready, first.waiting, first.look) == ([], changes, 7.0 + SETTLE_SECONDS)
    assert then.ready == changes


def test_what_needs_nobody_is_ready_at_once():
    trials, changes = Trials(PATIENCE, PAUSE), independent_changes({"a": A}, {})

    assert trials.classify_changes(changes, find_missing, 0.0).ready == changes


def test_a_fault_says_which_executors_are_missing():
    trials, changes = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": make_model("a", replicas=3)})

    trials.classify_changes(changes, find_missing, 0.0)
    outcome = trials.classify_changes(changes, lambda needs: dict.fromkeys(needs, 1), PATIENCE)

    (fault,) = outcome.faults
    assert fault.startswith("a stays as it was: after 10 s 1 of 3 executors of a/o@")


def test_each_change_has_its_own_time():
    trials = Trials(PATIENCE, PAUSE)
    one, two_changes = independent_changes({}, {"a": A}), independent_changes({}, {"a": A, "b": B})

    trials.classify_changes(one, find_missing, 0.0)
    trials.classify_changes(two_changes, find_missing, 6.0)
    outcome = trials.classify_changes(two_changes, find_missing, 10.0)

    assert (list_models(outcome.later), list_models(outcome.waiting)) == ([{"a"}], [{"b"}])
    assert outcome.look == 14.0


def test_what_is_wanted_no_more_is_forgotten():
    trials, changes = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})
    for now in (0.0, PATIENCE):
        trials.classify_changes(changes, find_missing, now)

    trials.classify_changes([], find_missing, PATIENCE)
    outcome = trials.classify_changes(changes, find_missing, PATIENCE)

    assert outcome.waiting == changes
    assert outcome.look == 2 * PATIENCE
