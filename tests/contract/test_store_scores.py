"""The store contract for plan scores and learned seconds, on a server."""

import redis.asyncio as redis

from omnibus.plan_score import LearnedOption, LearnedSeconds, OptionScore, PlanScore, TypeScore, score_value
from omnibus.store import Store


def make_score(epoch: int, at: float = 1.0) -> PlanScore:
    seconds = {"done": score_value(1.0, 1.2)}
    kind = TypeScore("vl", "thinker", 300, score_value(5.0, 4.0), seconds, seconds, {"done": score_value(1.0, 0.9)})
    return PlanScore(epoch, at, 60.0, 0.5, (kind,), (OptionScore("vl", "L", 300, score_value(0.5, 0.6)),))


async def test_the_last_score_of_an_epoch_is_kept_as_long_as_its_plan(store: Store, raw: redis.Redis):
    assert await store.plan_score(1) is None
    await store.put_plan_score(make_score(1))
    await store.put_plan_score(make_score(1, at=2.0))
    assert await store.plan_score(1) == make_score(1, at=2.0)

    await store.put_plan_score(make_score(100_000))

    assert await store.plan_score(1) is None
    assert await store.plan_score(100_000) == make_score(100_000)
    await raw.hset("test:plan:scores", "7", "{")
    assert await store.plan_score(7) is None


async def test_learned_seconds_are_kept_by_model_and_those_of_another_build_left_out(store: Store, raw: redis.Redis):
    seconds = LearnedSeconds("ab", {"E": LearnedOption(1.3, 900)})
    await store.put_learned_seconds("google/b", seconds)
    await raw.hset("test:profiles:learned", "c", "[")

    assert await store.learned_seconds() == {"google/b": seconds}
