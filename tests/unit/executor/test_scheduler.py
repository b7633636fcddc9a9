"""Steps decode all sequences, fill up within budgets, and starve none."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.executor.scheduler import Schedule, StepBudget
from omnibus.executor.step_budget import CostTable, StepCosts, StepGoals
from omnibus.executor.tenant_order import TenantShare

KIND = "image"


def make_schedule(slots: int = 2, beside: int = 8, alone: int = 16, *, items: int = 2, **how: float) -> Schedule[str]:
    schedule: Schedule[str] = Schedule(slots, StepBudget(beside, alone), **how)
    schedule.kinds = {KIND: StepBudget(10, 20, items), "sound": StepBudget(10, 20, items)}
    return schedule


def prefill_key(schedule: Schedule[str], key: str, tokens: int = 1) -> None:
    """Advance ``key`` to its decode phase."""
    schedule.add_prompt(key, tokens, 0.0)
    schedule.admit_waiting()
    while key not in schedule._held:
        schedule.next_step()
    schedule.start_decode(key)


def test_who_decodes_is_in_every_step_and_first():
    schedule = make_schedule()
    prefill_key(schedule, "a")
    schedule.add_prompt("b", 20, 1.0)
    schedule.admit_waiting()

    turns = [schedule.next_step() for _ in range(3)]

    assert [turn.decode for turn in turns] == [["a"]] * 3
    assert [turn.prefill for turn in turns] == [[("b", 8)], [("b", 8)], [("b", 4)]]


def test_a_sequence_that_is_not_ready_is_left_out_of_the_step():
    schedule = make_schedule()
    prefill_key(schedule, "a")
    prefill_key(schedule, "b")

    assert schedule.next_step(lambda key: key != "a").decode == ["b"]


def test_steps_without_decoding_sequences_have_a_budget_of_their_own():
    schedule = make_schedule()
    schedule.add_prompt("a", 20, 0.0)
    schedule.admit_waiting()

    assert schedule.next_step().prefill == [("a", 16)]


def test_a_step_is_filled_up_by_the_prompts_that_come_next():
    schedule = make_schedule(slots=3)
    for key, tokens in (("a", 6), ("b", 7), ("c", 9)):
        schedule.add_prompt(key, tokens, 0.0)
    schedule.admit_waiting()

    assert schedule.next_step().prefill == [("a", 6), ("b", 7), ("c", 3)]
    assert schedule.next_step().prefill == [("c", 6)]


def test_without_patience_the_order_is_that_of_arrival():
    schedule = make_schedule(slots=1)
    for at, (key, tokens) in enumerate((("long", 500), ("short", 1), ("other", 3))):
        schedule.add_prompt(key, tokens, float(at))

    assert admit_all(schedule) == ["long", "short", "other"]


def test_short_prompts_overtake_long_ones_but_not_those_that_have_waited_long_enough():
    schedule = make_schedule(slots=1, patience=1.0, whole=100)
    schedule.add_prompt("long", 100, 0.0)
    schedule.add_prompt("short", 10, 0.5)
    schedule.add_prompt("late", 10, 0.95)

    assert admit_all(schedule) == ["short", "long", "late"]


def admit_all(schedule: Schedule[str]) -> list[str]:
    """Return the order in which sequences get the one slot."""
    order = []
    while schedule.waiting:
        [key] = schedule.admit_waiting()
        order.append(key)
        schedule.remove_key(key)
    return order


def test_a_short_prompt_overtakes_a_long_one_in_the_middle_of_its_prefill():
    schedule = make_schedule(patience=1.0, whole=100)
    schedule.add_prompt("long", 100, 0.0)
    schedule.admit_waiting()
    schedule.next_step()
    schedule.add_prompt("short", 5, 0.1)
    schedule.admit_waiting()

    assert schedule.next_step().prefill == [("short", 5), ("long", 11)]


def test_a_prefilled_sequence_of_elsewhere_waits_for_a_slot_and_is_held_there():
    schedule = make_schedule(slots=1)
    schedule.add_prefilled("a", 0.0)
    schedule.add_prefilled("b", 0.0)

    assert schedule.admit_waiting() == ["a"]
    assert (schedule.has_slot("a"), schedule.has_slot("b"), schedule.next_step()) == (True, False, ([], [], []))
    schedule.start_decode("a")
    assert schedule.next_step().decode == ["a"]
    schedule.remove_key("a")
    assert schedule.admit_waiting() == ["b"]


def test_media_of_one_kind_go_together_within_items_and_tokens():
    schedule = make_schedule(items=3)
    for number, tokens in enumerate((9, 9, 9, 1, 50, 1)):
        schedule.add_media(f"i{number}", tokens, 0.0, KIND)
    schedule.add_media("s", 3, 0.0, "sound")

    batches = [schedule.next_step().media for _ in range(6)]

    assert batches == [["i0", "i1"], ["i2", "i3"], ["i4"], ["i5"], ["s"], []]


def test_media_do_not_run_ahead_of_a_full_language_model():
    schedule = make_schedule(slots=1)
    prefill_key(schedule, "a")
    schedule.add_prompt("b", 1, 1.0, since=0.5)
    schedule.add_media("older", 1, 1.0, KIND, since=0.4, continues=True)
    schedule.add_media("newer", 1, 1.0, KIND, since=0.6, continues=True)
    schedule.add_media("elsewhere", 1, 1.0, KIND, since=0.7)
    other = TenantShare("other")
    schedule.add_media("tenant", 1, 1.0, KIND, other, 0.8, continues=True)

    full = [schedule.next_step().media for _ in range(3)]
    schedule.remove_key("a")
    schedule.admit_waiting()

    assert full == [["older", "elsewhere"], ["tenant"], []]
    assert schedule.next_step().media == ["newer"]


def test_prompts_and_media_that_take_turns_on_one_device_have_half_each_only_while_both_have_work():
    mixed_schedule, alone = make_schedule(), make_schedule()
    for schedule in (mixed_schedule, alone):
        schedule.add_prompt("a", 40, 0.0)
        schedule.admit_waiting()
    mixed_schedule.add_media("i", 8, 0.0, KIND)
    mixed_schedule.add_media("j", 8, 0.0, KIND)

    assert mixed_schedule.next_step() == ([], [("a", 8)], ["i"])
    assert alone.next_step() == ([], [("a", 16)], [])


def test_prompts_and_media_that_run_side_by_side_have_all_of_their_budgets():
    schedule = make_schedule(split=False)
    schedule.add_prompt("a", 40, 0.0)
    schedule.admit_waiting()
    schedule.add_media("i", 8, 0.0, KIND)
    schedule.add_media("j", 8, 0.0, KIND)

    assert schedule.next_step() == ([], [("a", 16)], ["i", "j"])


# With costs, in tenths of a second: a step may take 10, a sequence 2, a token of a prompt 1, and of media half of one.


def make_costed(slots: int = 8, **how: bool) -> Schedule[str]:
    schedule: Schedule[str] = Schedule(slots, StepBudget(100, 100, costs=CostTable([(1, 0.1), (100, 10.0)])), **how)
    schedule.kinds = {KIND: StepBudget(100, 100, 9, costs=CostTable([(1, 0.05), (100, 5.0)]))}
    schedule.costs = StepCosts(StepGoals(ttft=2.0, tbt=1.0), CostTable([(1, 0.2), (2, 0.4)]))
    return schedule


def test_the_fewer_sequences_decode_the_more_of_a_prompt_is_in_their_step():
    schedule = make_costed()
    for key in ("a", "b", "c"):
        prefill_key(schedule, key)
    schedule.add_prompt("long", 60, 1.0)
    schedule.admit_waiting()

    sizes = []
    for finished_key in ("a", "b", "c", "long"):
        sizes += schedule.next_step().prefill
        schedule.remove_key(finished_key)

    assert sizes == [("long", 4), ("long", 6), ("long", 8), ("long", 10)]


def test_sequences_that_take_all_of_a_step_leave_the_least_share():
    schedule = make_costed()
    schedule.budget = schedule.budget._replace(least=3)
    for key in "abcdef":
        prefill_key(schedule, key)
    schedule.add_prompt("long", 60, 1.0)
    schedule.admit_waiting()

    assert schedule.next_step().prefill == [("long", 3)]


def test_prompts_have_the_time_that_media_leave():
    together, apart = make_costed(), make_costed(split=False)
    for schedule in (together, apart):
        prefill_key(schedule, "a")
        schedule.add_prompt("b", 60, 0.0)
        schedule.admit_waiting()
        for number in range(3):
            schedule.add_media(f"i{number}", 5, 0.0, KIND)

    # Of 8 tenths, media may take 4 and take 2.5.
    assert together.next_step() == (["a"], [("b", 5)], ["i0"])
    # On a device that runs both at once, each has all of them.
    assert apart.next_step() == (["a"], [("b", 8)], ["i0", "i1", "i2"])


def test_prompts_that_are_computed_one_by_one_cost_one_by_one():
    one_by_one, batched_schedule = make_costed(batched=False), make_costed(batched=True)
    for schedule in (one_by_one, batched_schedule):
        schedule.budget = schedule.budget._replace(costs=CostTable([(4, 0.4), (104, 10.4)]))
        prefill_key(schedule, "a", 4)
        for number in range(8):
            schedule.add_prompt(f"p{number}", 1, 0.0)
        schedule.admit_waiting()

    # A pass takes 0.4 s, however short its prompt is, and 0.8 s are left.
    assert one_by_one.next_step().prefill == [("p0", 1), ("p1", 1)]
    assert len(batched_schedule.next_step().prefill) == 7


@pytest.mark.parametrize("stage", ["waiting", "prefilling", "held", "decoding", "item", "unknown"])
def test_who_leaves_is_nowhere_any_more(stage: str):
    schedule = make_schedule()
    match stage:
        case "waiting" | "prefilling" | "held":
            schedule.add_prompt("a", 20 if stage == "prefilling" else 1, 0.0)
        case "decoding":
            prefill_key(schedule, "a")
        case "item":
            schedule.add_media("a", 3, 0.0, KIND)
    if stage in ("prefilling", "held"):
        schedule.admit_waiting()
        schedule.next_step()

    schedule.remove_key("a")
    schedule.remove_key("a")

    assert (list(schedule), schedule.used, schedule.waiting, schedule.media) == ([], 0, 0, 0)
    assert (schedule.admit_waiting(), bool(schedule.next_step())) == ([], False)


def test_work_without_size_is_refused():
    with pytest.raises(ValueError, match="size 0"):
        make_schedule().add_prompt("a", 0, 0.0)
    with pytest.raises(ValueError, match="size -1"):
        make_schedule().add_media("a", -1, 0.0, KIND)


# Properties of random executors, driven as an engine drives them.


@dataclass
class Driven:
    """A driver of a schedule: each sequence decodes ``answers`` tokens, one step takes one unit of time."""

    schedule: Schedule[str]
    answers: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    encoded: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)  # the step in which work was first done for it
    now: int = 0

    def step(self) -> None:
        schedule = self.schedule
        for key in schedule.admit_waiting():
            if key not in self.prompts:
                schedule.start_decode(key)
        decoding = list(schedule._decoding)
        has_both = bool(schedule._prefilling) and schedule._media.next_item() is not None
        turn = schedule.next_step()
        assert turn.decode == decoding
        self._check_budgets(turn.prefill, turn.media, bool(decoding), has_both)
        for key in turn.decode:
            self.answers[key] -= 1
            if not self.answers[key]:
                schedule.remove_key(key)
        for key, size in turn.prefill:
            self.done[key] += size
            assert self.done[key] <= self.prompts[key]
            if self.done[key] == self.prompts[key]:
                schedule.start_decode(key)
        for key in turn.media:
            self.encoded.append(key)
            schedule.remove_key(key)
        for key in (*turn.decode, *dict(turn.prefill), *turn.media):
            self.first.setdefault(key, self.now)
        self.now += 1

    def _check_budgets(self, prefill: list[tuple[str, int]], media: list[str], decodes: bool, both: bool) -> None:
        """Check that no budget is exceeded, or unused while work waits."""
        half = 2 if both and self.schedule.split else 1
        budget = self.schedule.budget
        limit = max(1, (budget.beside if decodes else budget.alone) // half)
        used_tokens = sum(size for _, size in prefill)
        assert used_tokens <= limit
        assert used_tokens == limit or not self.schedule._prefilling
        assert self.schedule.used <= self.schedule.slots
        whole = self.schedule.kinds[KIND]
        tokens = sum(self.sizes[key] for key in media)
        assert len(media) <= whole.items
        assert len(media) == 1 or tokens <= max(1, (whole.beside if decodes else whole.alone) // half)


WORK = st.lists(
    st.tuples(st.sampled_from(["prompt", "arrive", "item"]), st.integers(1, 60), st.integers(1, 9), st.integers(0, 3)),
    max_size=40,
)
BUDGETS = st.tuples(st.integers(1, 30), st.integers(1, 60), st.integers(1, 30), st.integers(1, 60), st.integers(1, 4))


@settings(deadline=None, max_examples=150)
@given(WORK, BUDGETS, st.integers(1, 5), st.sampled_from([0.0, 1.0, 7.5]), st.booleans())
def test_all_that_comes_is_done_once_and_within_budgets(
    work: list[tuple[str, int, int, int]],
    budgets: tuple[int, int, int, int, int],
    slots: int,
    patience: float,
    split: bool,
):
    schedule: Schedule[str] = Schedule(slots, StepBudget(*budgets[:2]), patience=patience, whole=60, split=split)
    schedule.kinds = {KIND: StepBudget(*budgets[2:])}
    driven = Driven(schedule)

    for key, event in zip(generate_names(), work, strict=False):
        add_work(driven, key, *event[:3])
        for _ in range(event[3]):
            driven.step()
    left = 1 + sum(driven.prompts.values()) + sum(driven.answers.values()) + len(driven.sizes)
    for _ in range(left):  # each step does something, so this many are enough
        driven.step()

    assert list(schedule) == []
    assert driven.done == Counter(driven.prompts)
    assert sorted(driven.encoded) == sorted(driven.sizes)
    assert not any(driven.answers.values())


def add_work(driven: Driven, key: str, kind: str, size: int, answer: int) -> None:
    if kind == "item":
        driven.sizes[key] = size
        driven.schedule.add_media(key, size, float(driven.now), KIND, continues=answer > 5)
        return
    driven.answers[key] = answer
    if kind == "arrive":
        driven.schedule.add_prefilled(key, float(driven.now))
    else:
        driven.prompts[key] = size
        driven.schedule.add_prompt(key, size, float(driven.now))


def generate_names() -> Iterator[str]:
    number = 0
    while True:
        yield f"w{number}"
        number += 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=60), st.integers(1, 3), st.sampled_from(["prompt", "item"]))
def test_a_stream_of_short_work_never_keeps_a_long_one_waiting_beyond_its_patience(
    shorts: list[int], slots: int, kind: str
):
    patience = 10
    schedule: Schedule[str] = Schedule(slots, StepBudget(8, 8), patience=float(patience), whole=60)
    schedule.kinds = {KIND: StepBudget(8, 8, 2)}
    driven = Driven(schedule)
    add_work(driven, "long", kind, 60, 1)

    # Each step receives more work than it can do, forever.
    while "long" not in driven.first:
        for number, size in enumerate(shorts):
            add_work(driven, f"{driven.now}-{number}", kind, size, 1)
        driven.step()
        assert driven.now <= 3 * len(shorts) * (patience + 2)

    before = [key for key, step in driven.first.items() if step < driven.first["long"]]
    assert [key for key in before if int(key.split("-")[0]) > patience] == []
