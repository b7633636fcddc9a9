"""Scores of plans by epoch, and seconds of executors as they were measured while they served, by model."""

import logging
from contextlib import suppress

from omnibus import plan_score
from omnibus.errors import ProtocolError
from omnibus.plan_score import LearnedSeconds, PlanScore
from omnibus.store.connection import StoreConnection

log = logging.getLogger(__name__)

_SCORES, _LEARNED = "plan:scores", "profiles:learned"


class ScoreStore(StoreConnection):
    """Scores and learned seconds. One that this build cannot read is as if it were not there."""

    async def put_plan_score(self, score: PlanScore) -> None:
        """Keep ``score`` as that of its epoch; those of epochs that the history no longer has are dropped."""
        key, oldest = self._redis_key(_SCORES), score.epoch - max(1, self._settings.history)
        await self._run_command(self._redis.hset(key, str(score.epoch), plan_score.encode(score)))
        old = [each for each in await self._run_command(self._redis.hkeys(key)) if int(each) < oldest]
        if old:
            await self._run_command(self._redis.hdel(key, *old))

    async def plan_score(self, epoch: int) -> PlanScore | None:
        """The last score of the plan of ``epoch``; None when it has none yet."""
        body = await self._run_command(self._redis.hget(self._redis_key(_SCORES), str(epoch)))
        with suppress(ProtocolError):
            return plan_score.decode_score(body) if body is not None else None
        return None

    async def put_learned_seconds(self, model: str, learned: LearnedSeconds) -> None:
        """Keep ``learned`` for ``model``, in place of what was learned before."""
        await self._run_command(self._redis.hset(self._redis_key(_LEARNED), model, plan_score.encode(learned)))

    async def learned_seconds(self) -> dict[str, LearnedSeconds]:
        """Return what was learned, by model."""
        found = {}
        for model, body in (await self._run_command(self._redis.hgetall(self._redis_key(_LEARNED)))).items():
            with suppress(ProtocolError):
                found[model.decode(errors="replace")] = plan_score.decode_learned(body)
        return found
