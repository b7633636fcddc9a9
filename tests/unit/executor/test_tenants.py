"""Several tenants at one engine: order, reserved slots, and steps with few sequences."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.bus.messages import TENANT_HEADER
from omnibus.executor.due_queue import Due, DueQueue
from omnibus.executor.scheduler import Schedule, StepBudget
from omnibus.executor.step_turns import StepTurns
from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare, read_tenant
from omnibus_generator.step_loop import StepScheduler, StepSize

HEAVY, LIGHT = TenantShare("heavy"), TenantShare("light")


def make_schedule(slots: int = 2, spare: int = 1, share: int = 64) -> Schedule[str]:
    return Schedule(slots, StepBudget(share, share), spare=spare)


def test_a_spare_slot_is_for_a_tenant_that_has_none():
    schedule = make_schedule()
    for number in range(4):
        schedule.add_prompt(f"heavy {number}", 10, 0.0, tenant=HEAVY)
    assert schedule.admit_waiting() == ["heavy 0", "heavy 1"]

    schedule.add_prompt("light 0", 10, 1.0, tenant=LIGHT)
    schedule.add_prompt("light 1", 10, 1.0, tenant=LIGHT)

    assert schedule.admit_waiting() == ["light 0"]
    assert schedule.waiting == 3


def test_without_tenants_there_are_no_more_slots_than_announced():
    schedule = make_schedule()
    for number in range(4):
        schedule.add_prompt(f"{number}", 10, 0.0)

    assert schedule.admit_waiting() == ["0", "1"]


def test_a_short_prompt_does_not_wait_for_the_long_ones_of_another_tenant():
    schedule = make_schedule(slots=8, share=100)
    for number in range(6):
        schedule.add_prompt(f"heavy {number}", 1000, 0.0, tenant=HEAVY)
    schedule.admit_waiting()
    schedule.next_step()
    schedule.add_prompt("light", 50, 1.0, tenant=LIGHT)
    schedule.admit_waiting()

    assert schedule.next_step().prefill[0] == ("light", 50)


def test_media_of_tenants_take_turns():
    schedule = make_schedule()
    schedule.kinds["image"] = StepBudget(2, 2, 2)
    for number in range(4):
        schedule.add_media(f"heavy {number}", 1, 0.0, "image", HEAVY)
    schedule.next_step()
    schedule.add_media("light", 1, 1.0, "image", LIGHT)

    assert schedule.next_step().media == ["light", "heavy 2"]


def test_a_queue_of_one_tenant_is_in_the_order_of_due_times():
    order = TenantOrder()
    queue: DueQueue[str] = DueQueue(order)
    for number, at in enumerate((3.0, 1.0, 2.0)):
        queue.push(Due(at, number, str(at), 1))

    assert [due.key for due in iter(queue.pop, None)] == ["1.0", "2.0", "3.0"]


pieces = st.lists(st.floats(0.1, 5.0), min_size=60, max_size=60)


@given(pieces, pieces, st.sampled_from([1.0, 2.0, 4.0]))
@settings(deadline=None, max_examples=60)
def test_what_two_tenants_with_work_get_differs_at_most_by_a_piece_of_each(mine, others, weight):
    order = TenantOrder()
    first, second = TenantShare("a", weight), TenantShare("b", 1.0)
    waiting = {first: list(mine), second: list(others)}
    given_so_far: Counter[TenantShare] = Counter()

    while all(waiting.values()):
        share = min(waiting, key=order.rank)
        size = waiting[share].pop()
        order.charge(share, size)
        given_so_far[share] += size

        ahead = abs(given_so_far[first] / first.weight - given_so_far[second] / second.weight)
        assert ahead <= max(mine) / first.weight + max(others) / second.weight + 1e-9


def test_a_tenant_that_comes_back_has_saved_nothing_up():
    order = TenantOrder()
    order.charge(LIGHT, 1.0)
    for _ in range(100):
        order.charge(HEAVY, 1.0)

    order.charge(LIGHT, 2.0)

    assert order.rank(LIGHT) > order.rank(HEAVY)


def play_steps(turns: StepTurns, tenants: list[str], count: int, cost: float = 0.01) -> dict[str, float]:
    """Return the seconds of ``count`` steps by tenant; a step takes ``cost`` for each of its sequences."""
    seconds = {"all": 0.0, "few": 0.0}
    for _ in range(count):
        selection = turns.choose(tenants)
        step = [tenant for tenant in tenants if selection is None or tenant in selection]
        turns.observe(cost * len(step))
        seconds["all" if selection is None else "few"] += cost * len(step)
    return seconds


def test_a_tenant_with_few_sequences_takes_steps_of_its_own_for_half_of_the_time_at_most():
    turns = StepTurns()
    play_steps(turns, ["heavy"] * 16, 5)

    burst = play_steps(turns, ["heavy"] * 16 + ["light"], 16)
    play_steps(turns, ["heavy"] * 16 + ["light"], 200)
    seconds = play_steps(turns, ["heavy"] * 16 + ["light"], 200)

    assert burst == {"all": 0.0, "few": pytest.approx(0.16)}  # the rest of its half in five steps of others
    assert 0.4 * seconds["all"] <= seconds["few"] <= seconds["all"] + 0.17  # a step of all


def test_a_tenant_that_comes_back_has_kept_few_steps():
    turns = StepTurns()
    play_steps(turns, ["heavy"] * 16, 1000)

    seconds = play_steps(turns, ["heavy"] * 16 + ["light"], 1000)

    assert seconds["few"] <= seconds["all"] + 9 * 0.17


def test_steps_that_take_as_long_for_many_are_taken_together():
    turns = StepTurns()
    for _ in range(20):
        turns.choose(["heavy"] * 16 + ["light"])
        turns.observe(0.01)  # a device with room to spare

    assert turns.choose(["heavy"] * 16 + ["light"]) is None


def test_many_tenants_with_a_sequence_each_share_their_steps():
    turns = StepTurns()
    play_steps(turns, [f"t{number}" for number in range(16)], 5)

    assert turns.choose([f"t{number}" for number in range(16)]) is None


def test_pictures_of_a_tenant_with_few_are_in_the_next_step():
    steps: StepScheduler[str] = StepScheduler(pictures=4, tokens=1000)
    for number in range(8):
        steps.join(f"heavy {number}", "square", StepSize(1, 10), "heavy")
    steps.join("light", "square", StepSize(1, 10), "light")

    assert steps.next_batch() == ["heavy 0", "light", "heavy 1", "heavy 2"]


def test_tenants_whose_pictures_have_other_shapes_share_the_device():
    steps: StepScheduler[str] = StepScheduler(pictures=16, tokens=1000)
    for number in range(10):
        steps.join(f"heavy {number}", "square", StepSize(1, 10), "heavy")
    steps.join("light", "wide", StepSize(1, 10), "light")

    cost = Counter[str]()
    for _ in range(110):
        for key in steps.next_batch():
            cost[key.split()[0]] += 10

    assert abs(cost["light"] - cost["heavy"]) <= 100  # the cost of one step


def test_a_message_names_its_tenant_and_what_it_cannot_be_read_as_names_none():
    assert read_tenant({TENANT_HEADER: "0.5 alice batch"}) == TenantShare("alice batch", 0.5)
    for header in ("", "alice", "x alice"):
        assert read_tenant({TENANT_HEADER: header}) == NO_TENANT
    assert read_tenant(None) == NO_TENANT
