"""Scores of plans by epoch, and learned seconds of executors by model.

They are measured while serving.
"""

import logging
from contextlib import suppress

from omnibus import plan_score
from omnibus.errors import ProtocolError
from omnibus.plan_score import LearnedSeconds, PlanScore
from omnibus.store.connection import StoreConnection

log = logging.getLogger(__name__)

_SCORES, _LEARNED = "plan:scores", "profiles:learned"


class ScoreStore(StoreConnection):
    """Scores and learned seconds. Those that this build cannot read count as missing."""

    async def put_plan_score(self, score: PlanScore) -> None:
        """Store ``score`` for its epoch; drop those of epochs no longer in the history."""
        key, oldest = self._redis_key(_SCORES), score.epoch - max(1, self._settings.history)
        await self._run_command(self._redis.hset(key, str(score.epoch), plan_score.encode(score)))
        old = [each for each in await self._run_command(self._redis.hkeys(key)) if int(each) < oldest]
        if old:
            await self._run_command(self._redis.hdel(key, *old))

    async def plan_score(self, epoch: int) -> PlanScore | None:
        """Return the last score of the plan of ``epoch``, or None."""
        body = await self._run_command(self._redis.hget(self._redis_key(_SCORES), str(epoch)))
        with suppress(ProtocolError):
            return plan_score.decode_score(body) if body is not None else None
        return None

    async def put_learned_seconds(self, model: str, seconds: LearnedSeconds) -> None:
        """Store ``seconds`` for ``model``, in place of earlier values."""
        await self._run_command(self._redis.hset(self._redis_key(_LEARNED), model, plan_score.encode(seconds)))

    async def learned_seconds(self) -> dict[str, LearnedSeconds]:
        """Return the learned seconds by model."""
        seconds_by_model = {}
        for model, body in (await self._run_command(self._redis.hgetall(self._redis_key(_LEARNED)))).items():
            with suppress(ProtocolError):
                seconds_by_model[model.decode(errors="replace")] = plan_score.decode_learned(body)
        return seconds_by_model
