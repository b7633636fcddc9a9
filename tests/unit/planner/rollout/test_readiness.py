"""Changes of a plan: ready, awaited, or postponed."""

from collections.abc import Mapping

import msgspec

from omnibus.cluster.desired import ExecutorKind
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


def model(*tasks: str, replicas: int = 1, **options: DeploymentOption) -> ModelPlan:
    """Return a model that binds these tasks, with an additional option ``o``."""
    parts = tuple(tasks)
    own = {"o": DeploymentOption(parts, "llm", replicas), **options}
    return ModelPlan("f", "/m", parts, {}, own, {}, tasks={part: part for part in parts})


A, B, C = model("a"), model("b"), model("c")


def nobody(needs: Mapping[ExecutorKind, int]) -> dict[ExecutorKind, int]:
    return dict.fromkeys(needs, 0)


def named(found: list[PlanChange]) -> list[set[str]]:
    return [set(change.models) for change in found]


# Changes


def test_models_that_have_nothing_in_common_change_by_themselves():
    found = independent_changes({"a": A}, {"a": model("a", replicas=2), "b": B})

    assert named(found) == [{"a"}, {"b"}]
    assert [list(change.needs.values()) for change in found] == [[2], [1]]


def test_what_is_the_same_does_not_change():
    assert independent_changes({"a": A, "b": B}, {"b": B, "a": A}) == []


def test_a_model_that_goes_needs_nobody():
    (gone,) = independent_changes({"a": A, "b": B}, {"a": A})

    assert gone.models == {"b"}
    assert gone.needs == {}


def test_fewer_executors_need_nobody():
    (fewer,) = independent_changes({"a": model("a", replicas=3)}, {"a": A})

    assert fewer.needs == {}


def test_a_model_changes_together_with_the_one_that_lends_to_it():
    borrower = model("b", **{"a/o": DeploymentOption(("a",), "llm", 0, of="a/o")})
    more = msgspec.structs.replace(borrower, context=5)

    (both,) = independent_changes({"a": A, "b": borrower}, {"a": model("a", replicas=2), "b": more})

    assert both.models == {"a", "b"}
    assert {kind.model for kind in both.needs} == {"a", "b"}


def test_a_unit_task_goes_from_one_model_to_another_in_one_step():
    (moved,) = independent_changes({"a": model("x", "y")}, {"a": model("x"), "b": model("y")})

    assert moved.models == {"a", "b"}


def test_the_same_change_has_the_same_key_and_another_one_another():
    one, again, other = (
        independent_changes({"a": A}, {"a": model("a", replicas=count), **more})[0].key
        for count, more in ((2, {}), (2, {"b": B}), (3, {}))
    )

    assert one == again != other


def test_only_what_was_chosen_is_taken_over():
    before, after = {"a": A, "c": C}, {"b": B, "a": model("a", replicas=2)}
    first, second, third = independent_changes(before, after)

    assert merge_changes(before, after, [first, second, third]) == after
    assert merge_changes(before, after, [second]) == {"b": B, "a": A, "c": C}
    assert merge_changes(before, after, [third]) == {"a": A}
    assert merge_changes(before, after, []) == before


# Attempts


def test_a_change_is_awaited_then_put_off_then_tried_again_ever_more_seldom():
    trials, wanted = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})
    states, now = [], 0.0

    for _ in range(8):
        found = trials.classify_changes(wanted, nobody, now)
        states.append(("waiting" if found.waiting else "later", found.look - now))
        now = found.look

    assert states == [
        ("waiting", 10), ("later", 4), ("waiting", 10), ("later", 8), ("waiting", 10), ("later", 16), ("waiting", 10),
        ("later", 32),
    ]  # fmt: skip


def test_pauses_have_an_end():
    trials, wanted = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})
    now, longest = 0.0, 0.0

    for _ in range(40):
        found = trials.classify_changes(wanted, nobody, now)
        longest, now = max(longest, found.look - now), found.look

    assert longest == MAX_BACKOFF_SECONDS


def test_a_change_is_ready_whenever_its_executors_are():
    trials, wanted = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})
    for now in (0.0, PATIENCE):
        trials.classify_changes(wanted, nobody, now)

    found = trials.classify_changes(wanted, lambda _: {}, PATIENCE + 1)

    assert (found.ready, found.waiting, found.later) == (wanted, [], [])
    assert found.look == float("inf")
    assert found.faults == []


def test_executors_that_are_ready_must_have_been_asked_for_a_little():
    trials, wanted = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})

    first = trials.classify_changes(wanted, lambda _: {}, 7.0)
    then = trials.classify_changes(wanted, lambda _: {}, first.look)

    assert (first.ready, first.waiting, first.look) == ([], wanted, 7.0 + SETTLE_SECONDS)
    assert then.ready == wanted


def test_what_needs_nobody_is_ready_at_once():
    trials, wanted = Trials(PATIENCE, PAUSE), independent_changes({"a": A}, {})

    assert trials.classify_changes(wanted, nobody, 0.0).ready == wanted


def test_a_fault_says_which_executors_are_missing():
    trials, wanted = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": model("a", replicas=3)})

    trials.classify_changes(wanted, nobody, 0.0)
    found = trials.classify_changes(wanted, lambda needs: dict.fromkeys(needs, 1), PATIENCE)

    (fault,) = found.faults
    assert fault.startswith("a stays as it was: after 10 s 1 of 3 executors of a/o@")


def test_each_change_has_its_own_time():
    trials = Trials(PATIENCE, PAUSE)
    one, both = independent_changes({}, {"a": A}), independent_changes({}, {"a": A, "b": B})

    trials.classify_changes(one, nobody, 0.0)
    trials.classify_changes(both, nobody, 6.0)
    found = trials.classify_changes(both, nobody, 10.0)

    assert (named(found.later), named(found.waiting)) == ([{"a"}], [{"b"}])
    assert found.look == 14.0


def test_what_is_wanted_no_more_is_forgotten():
    trials, wanted = Trials(PATIENCE, PAUSE), independent_changes({}, {"a": A})
    for now in (0.0, PATIENCE):
        trials.classify_changes(wanted, nobody, now)

    trials.classify_changes([], nobody, PATIENCE)
    found = trials.classify_changes(wanted, nobody, PATIENCE)

    assert found.waiting == wanted
    assert found.look == 2 * PATIENCE
