"""Spans of interdependent prompt tokens are never cut, and delay no others."""

from collections import defaultdict
from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.executor.scheduler import Schedule, StepBudget


def make_schedule(budget: int, slots: int = 3) -> Schedule[str]:
    return Schedule(slots, StepBudget(budget, budget))


def test_a_share_ends_where_a_span_begins_that_does_not_fit():
    schedule = make_schedule(10)
    schedule.add_prompt("a", 30, 0.0, [(6, 14), (14, 22)])
    schedule.admit_waiting()

    assert [schedule.next_step().prefill for _ in range(4)] == [[("a", 6)], [("a", 8)], [("a", 10)], [("a", 6)]]


def test_spans_that_fit_go_with_what_is_around_them():
    schedule = make_schedule(10)
    schedule.add_prompt("a", 14, 0.0, [(1, 4), (6, 10)])
    schedule.admit_waiting()

    assert [schedule.next_step().prefill for _ in range(2)] == [[("a", 10)], [("a", 4)]]


def test_a_span_that_is_larger_than_the_budget_goes_alone_and_whole():
    schedule = make_schedule(4)
    schedule.add_prompt("a", 20, 0.0, [(2, 18)])
    schedule.add_prompt("b", 3, 0.0)
    schedule.admit_waiting()

    turns = [schedule.next_step().prefill for _ in range(3)]

    # The rest of the first step fits a part of the other prompt.
    assert turns == [[("a", 2), ("b", 2)], [("a", 16)], [("a", 2), ("b", 1)]]


def test_who_comes_first_is_not_overtaken_for_ever_by_prompts_that_fit():
    schedule = make_schedule(8)
    schedule.add_prompt("first", 6, 0.0)
    schedule.add_prompt("spans", 7, 0.0, [(0, 7)])
    schedule.admit_waiting()

    assert schedule.next_step().prefill == [("first", 6)]
    schedule.add_prompt("late", 9, 0.0)
    schedule.admit_waiting()
    assert schedule.next_step().prefill == [("spans", 7), ("late", 1)]


#: Tokens of a prompt, piece by piece; every other piece is a span.
PIECES = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=5)


@settings(deadline=None, max_examples=200)
@given(st.lists(PIECES, min_size=1, max_size=4), st.integers(1, 12))
def test_whatever_the_spans_all_is_computed_once_and_none_is_cut(prompts: list[list[tuple[int, int]]], budget: int):
    schedule = make_schedule(budget, slots=2)
    spans: dict[str, list[tuple[int, int]]] = {}
    for number, pieces in enumerate(prompts):
        ends = list(accumulate(before + inside for before, inside in pieces))
        spans[f"p{number}"] = [(end - inside, end) for end, (_, inside) in zip(ends, pieces, strict=True)]
        schedule.add_prompt(f"p{number}", ends[-1], 0.0, spans[f"p{number}"])
    borders: dict[str, list[int]] = defaultdict(lambda: [0])

    while list(schedule):
        schedule.admit_waiting()
        shares = schedule.next_step().prefill
        assert shares
        for key, size in shares:
            borders[key].append(borders[key][-1] + size)
        over = sum(size for _, size in shares) > budget
        assert not over or (len(shares) == 1 and tuple(borders[shares[0][0]][-2:]) in spans[shares[0][0]])
        for key in list(schedule._held):
            schedule.remove_key(key)

    for key, own in spans.items():
        assert borders[key][-1] == own[-1][1]
        assert all(first < last for first, last in pairwise(borders[key]))
        assert not [border for border in borders[key] for begin, end in own if begin < border < end]
