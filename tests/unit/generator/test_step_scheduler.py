"""Sharing steps among images of one shape, and the device among all."""

import random
from collections import Counter

import pytest

from omnibus_generator.step_loop import StepScheduler, StepSize

SMALL, LARGE = "small", "large"
SIZES = {SMALL: StepSize(2, 16), LARGE: StepSize(2, 256)}


def make_scheduler(pictures: int = 16, tokens: int = 1 << 20) -> StepScheduler[str]:
    return StepScheduler(pictures, tokens)


def join_keys(scheduler: StepScheduler[str], *keys: str, shape: str = SMALL, size: StepSize | None = None) -> None:
    for key in keys:
        scheduler.join(key, shape, size or SIZES[shape])


def test_nobody_has_no_turn():
    assert make_scheduler().next_batch() == []


def test_who_comes_joins_the_next_step_and_who_leaves_is_not_in_it():
    scheduler = make_scheduler()
    join_keys(scheduler, "a")
    assert scheduler.next_batch() == ["a"]

    join_keys(scheduler, "b", "c")
    assert scheduler.next_batch() == ["a", "b", "c"]

    scheduler.remove_key("a")
    assert scheduler.next_batch() == ["b", "c"]
    assert list(scheduler) == ["b", "c"]


def test_leaving_twice_or_unknown_is_harmless():
    scheduler = make_scheduler()
    join_keys(scheduler, "a", "b")

    scheduler.remove_key("a")
    scheduler.remove_key("a")
    scheduler.remove_key("z")

    assert (scheduler.next_batch(), len(scheduler)) == (["b"], 1)


def test_one_step_is_of_one_shape():
    scheduler = make_scheduler()
    join_keys(scheduler, "a", "b")
    join_keys(scheduler, "A", shape=LARGE)

    steps = [scheduler.next_batch() for _ in range(20)]

    assert {tuple(step) for step in steps} == {("a", "b"), ("A",)}


def test_of_too_many_pictures_the_first_go_first_until_they_are_done():
    scheduler = make_scheduler(pictures=2)
    join_keys(scheduler, "a", "b", "c")

    assert scheduler.next_batch() == scheduler.next_batch() == ["a", "b"]
    scheduler.remove_key("b")
    assert scheduler.next_batch() == ["a", "c"]


def test_a_step_holds_so_many_positions_but_one_picture_always_goes():
    scheduler = make_scheduler(tokens=100)
    join_keys(scheduler, "a", size=StepSize(2, 40))
    join_keys(scheduler, "b", size=StepSize(1, 20))
    join_keys(scheduler, "c", size=StepSize(1, 20))
    assert scheduler.next_batch() == ["a", "b"]

    scheduler = make_scheduler(tokens=100)
    join_keys(scheduler, "huge", size=StepSize(2, 4096))
    join_keys(scheduler, "b", size=StepSize(1, 1))
    assert scheduler.next_batch() == ["huge"]


def count_positions(scheduler: StepScheduler[str], steps: int, sizes: dict[str, StepSize]) -> Counter[str]:
    """Return the positions that each image had after ``steps`` steps."""
    had: Counter[str] = Counter()
    for _ in range(steps):
        for key in scheduler.next_batch():
            had[key] += sizes[key].cost
    return had


@pytest.mark.parametrize("seed", range(20))
def test_every_picture_has_the_same_share_whatever_its_size(seed: int):
    chance = random.Random(seed)
    scheduler, sizes, largest = make_scheduler(), {}, 0
    for shape in range(chance.randint(1, 4)):
        size = StepSize(2, chance.choice([16, 64, 100, 256]))
        largest = max(largest, size.cost)
        for number in range(chance.randint(1, 5)):
            sizes[f"{shape}.{number}"] = size
            join_keys(scheduler, f"{shape}.{number}", shape=str(shape), size=size)

    had = count_positions(scheduler, 500, sizes)

    assert max(had.values()) - min(had[key] for key in sizes) <= largest


def test_a_small_picture_is_done_long_before_a_large_one_that_came_first():
    scheduler = make_scheduler()
    join_keys(scheduler, "A", shape=LARGE)
    for _ in range(5):
        scheduler.next_batch()
    join_keys(scheduler, "a")

    steps = [scheduler.next_batch() for _ in range(18)]

    assert steps.count(["a"]) >= 16
    assert ["A"] in steps


def test_a_shape_that_comes_back_has_nothing_saved():
    scheduler = make_scheduler()
    join_keys(scheduler, "a")
    join_keys(scheduler, "b", shape="other", size=SIZES[SMALL])
    scheduler.remove_key("b")
    for _ in range(1000):
        scheduler.next_batch()

    join_keys(scheduler, "b", shape="other", size=SIZES[SMALL])
    steps = [scheduler.next_batch() for _ in range(10)]

    assert steps.count(["a"]) >= 4


@pytest.mark.parametrize("seed", range(10))
def test_nobody_is_forgotten_while_others_come_and_go(seed: int):
    chance = random.Random(seed)
    scheduler, left, came, wait_counts = make_scheduler(pictures=3, tokens=600), {}, 0, Counter()
    for _ in range(600):
        if came < 60 and chance.random() < 0.3:
            shape = chance.choice([SMALL, LARGE])
            join_keys(scheduler, f"{came}", shape=shape)
            left[f"{came}"] = chance.randint(1, 8)
            came += 1
        for key in scheduler.next_batch():
            left[key] -= 1
            if not left[key]:
                scheduler.remove_key(key)
        wait_counts.update(list(scheduler))

    assert came == 60
    assert (len(scheduler), scheduler.next_batch()) == (0, [])
    assert not any(left.values())
