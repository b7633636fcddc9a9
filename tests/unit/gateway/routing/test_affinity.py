"""The choice of an encoder's replica for an item."""

import random
from collections import Counter

import pytest

from omnibus_gateway.routing.replicas import (
    MAX_EXCESS_ITEMS,
    AffinityItem,
    ChosenReplica,
    ConversationAffinity,
    EncoderAffinity,
    pick_replica,
)

IDLE = dict.fromkeys("abcd", 0.0)


def make_keys(count: int) -> list[str]:
    return [f"{number:016x}" for number in range(count)]


def pick_first(key: str, *executors: str) -> str:
    """Return the executor for a new item when all are idle."""
    return pick_replica(dict.fromkeys(executors, 0.0), AffinityItem(key, 100)).executor


def test_idle_replicas_share_new_items_evenly_and_every_gateway_agrees():
    counts = Counter(pick_first(key, *"abcd") for key in make_keys(4000))
    again = Counter(pick_first(key, *"dcba") for key in make_keys(4000))

    assert counts == again
    assert all(abs(count - 1000) < 120 for count in counts.values())


def test_when_a_replica_leaves_only_its_own_items_move():
    before = {key: pick_first(key, *"abcd") for key in make_keys(500)}
    after = {key: pick_first(key, *"abc") for key in make_keys(500)}

    assert {key for key in before if before[key] != after[key]} == {key for key in before if before[key] == "d"}


def test_a_new_item_goes_to_a_replica_with_the_least_work():
    loads = {"a": 300.0, "b": 140.0, "c": 100.0}

    executors = {pick_replica(loads, AffinityItem(key, 100)).executor for key in make_keys(100)}

    assert executors == {"b", "c"}


def test_a_known_item_goes_where_it_is_known_and_counts_for_little():
    loads = {"a": 0.0, "b": MAX_EXCESS_ITEMS * 100, "c": 10.0}

    assert pick_replica(loads, AffinityItem("k", 100), known_executor="b") == ChosenReplica("b", 100 / 16)


def test_a_replica_that_is_far_behind_or_gone_is_known_for_nothing():
    loads = {"a": 0.0, "b": MAX_EXCESS_ITEMS * 100 + 1}

    assert pick_replica(loads, AffinityItem("k", 100), known_executor="b") == ChosenReplica("a", 100)
    assert pick_replica(loads, AffinityItem("k", 100), known_executor="gone") == ChosenReplica("a", 100)


def test_what_begins_as_something_known_goes_there_unless_that_has_more_to_do():
    spread = EncoderAffinity()
    [first_choice] = spread.assign_items(dict(IDLE), [AffinityItem("first", 100, "alike")])
    busy = {**IDLE, first_choice.executor: 60.0}

    longer = [spread.assign_items(dict(IDLE), [AffinityItem(key, 100, "alike")])[0] for key in make_keys(50)]
    [moved_choice] = spread.assign_items(busy, [AffinityItem("last", 100, "alike")])
    [next_choice] = spread.assign_items(dict(IDLE), [AffinityItem("behind it", 100, "alike")])

    assert {each.executor for each in longer} == {first_choice.executor}
    assert {each.work for each in longer} == {100}  # most of it may be new
    assert next_choice.executor == moved_choice.executor != first_choice.executor


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_requests_items_use_all_replicas(count: int):
    for begin in range(0, 200, count):
        spread = EncoderAffinity()
        items = [AffinityItem(f"{number:016x}", 256) for number in range(begin, begin + count)]

        assert (
            len({choice.executor for choice in spread.assign_items(dict.fromkeys("abcd"[:count], 0.0), items)}) == count
        )


def test_equal_items_of_one_request_stay_together():
    choices = EncoderAffinity().assign_items(dict(IDLE), [AffinityItem("same", 100)] * 5)

    assert len({each.executor for each in choices}) == 1
    assert sum(each.work for each in choices) == 100 + 4 * 100 / 16


def test_items_without_a_key_go_to_the_least_first_come_first():
    loads = {"c": 0.0, "a": 0.0, "b": 50.0}

    choices = EncoderAffinity().assign_items(
        loads, [AffinityItem("", 100), AffinityItem("", 30), AffinityItem("", 10), AffinityItem("", 10)]
    )

    assert [each.executor for each in choices] == ["c", "a", "a", "a"]
    assert loads == {"c": 100.0, "a": 50.0, "b": 50.0}


def test_what_was_sent_long_ago_is_forgotten():
    spread = EncoderAffinity(capacity=2)
    for key in ("x", "y", "x", "z"):
        spread.assign_items({"a": 0.0}, [AffinityItem(key, 100)])

    hits = [
        spread.assign_items({"a": 0.0, "b": 0.0}, [AffinityItem(key, 100)])[0].work < 100 for key in ("x", "z", "y")
    ]

    assert hits == [True, True, False]


@pytest.mark.parametrize("seed", range(20))
def test_random_items_never_go_to_a_replica_that_is_far_behind(seed: int):
    dice = random.Random(seed)
    spread = EncoderAffinity(capacity=50)
    loads = {str(number): 0.0 for number in range(dice.randint(1, 6))}
    for _ in range(500):
        item = AffinityItem(dice.choice(["", *make_keys(80)]), dice.choice([1, 50, 1000]))
        before = dict(loads)

        [item_choice] = spread.assign_items(loads, [item])

        assert before[item_choice.executor] <= min(before.values()) + MAX_EXCESS_ITEMS * item.work
        assert loads == {**before, item_choice.executor: before[item_choice.executor] + item_choice.work}
        for id in loads:
            loads[id] = max(0.0, loads[id] - dice.random() * 300)


def test_a_conversation_goes_where_it_was_unless_that_executor_has_more_to_do():
    affinity = ConversationAffinity()
    first = affinity.choose_executor(IDLE, "talk", 100)

    assert affinity.choose_executor({**IDLE, first: 100.0}, "talk", 100) == first
    other = affinity.choose_executor({**IDLE, first: 101.0}, "talk", 100)
    assert other != first
    assert affinity.choose_executor(IDLE, "talk", 100) == other  # its last prompt is cached there now


def test_new_conversations_are_spread_over_those_with_the_least_work_and_gateways_agree():
    affinity, again = ConversationAffinity(), ConversationAffinity()
    executors = [affinity.choose_executor(IDLE, key, 100) for key in make_keys(400)]

    assert min(Counter(executors).values()) > 60
    assert [again.choose_executor(dict.fromkeys("dcba", 0.0), key, 100) for key in make_keys(400)] == executors
    assert affinity.choose_executor({"a": 5.0, "b": 0.0, "c": 0.0}, "new", 100, preferred_ids=("a", "c")) == "c"


def test_conversations_that_are_over_are_forgotten():
    affinity = ConversationAffinity(capacity=2)
    first = affinity.choose_executor({"a": 0.0}, "one", 1)
    for key in ("two", "three"):
        affinity.choose_executor({"a": 0.0}, key, 1)

    assert first == "a"
    assert affinity.choose_executor({"b": 0.0, "a": 0.5}, "one", 1) == "b"
