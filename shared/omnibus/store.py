"""The store on Redis or Valkey. The only module that knows redis-py.

Keys, under ``<prefix>:``: ``plan:epoch`` (current number), ``plan:<n>`` (plan document),
``plan:history`` (sorted set of epochs); channel ``plan`` announces a swap. The swap is one function
on the server: it refuses an epoch that is not newer, so two planners cannot cross.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import redis.asyncio as redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from omnibus import plan as plans
from omnibus.errors import StoreUnavailable
from omnibus.plan import Plan
from omnibus.settings import StoreSettings, public

log = logging.getLogger(__name__)

#: Seconds between two looks at the current epoch when nothing is announced.
REREAD = 5.0

_LIBRARY = """#!lua name=omnibus
redis.register_function('omnibus_swap_plan', function(keys, args)
  local current = tonumber(redis.call('GET', keys[1]) or '0')
  local epoch = tonumber(args[1])
  if epoch <= current then return redis.error_reply('STALE ' .. current) end
  redis.call('SET', keys[2], args[2])
  redis.call('ZADD', keys[3], epoch, args[1])
  redis.call('SET', keys[1], args[1])
  redis.call('PUBLISH', keys[4], args[1])
  return epoch
end)
"""


class StaleEpoch(StoreUnavailable):
    """Another planner wrote a newer plan. ``current`` is its epoch."""

    code = "stale_epoch"

    def __init__(self, current: int) -> None:
        super().__init__(f"epoch {current} is already current: read it and plan again")
        self.current = current


class Store:
    """A connection to the store. Every call is bounded by ``settings.timeout`` seconds."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._redis = redis.Redis.from_url(
            settings.url,
            socket_timeout=settings.timeout,
            socket_connect_timeout=settings.timeout,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 2),
            health_check_interval=10,
        )

    def _key(self, name: str) -> str:
        return f"{self._settings.prefix}:{name}"

    async def open(self) -> None:
        """Load the server-side functions; raises ``StoreUnavailable``."""
        await self._call(self._redis.function_load(_LIBRARY, replace=True))

    async def epoch(self) -> int:
        """The current epoch, 0 before the first plan."""
        return int(await self._call(self._redis.get(self._key("plan:epoch"))) or 0)

    async def plan(self, epoch: int = 0) -> Plan | None:
        """The current plan, or that of ``epoch``; None when there is none."""
        number = epoch or await self.epoch()
        body = await self._call(self._redis.get(self._key(f"plan:{number}"))) if number else None
        return plans.decode(body) if body else None

    async def swap_plan(self, plan: Plan) -> None:
        """Make ``plan`` current in one atomic step. Raises ``StaleEpoch`` unless it is the newest."""
        keys = [self._key(name) for name in ("plan:epoch", f"plan:{plan.epoch}", "plan:history", "plan")]
        body = plans.encode(plan).decode()
        await self.open()  # a restarted server has forgotten its functions
        try:
            await self._call(self._redis.fcall("omnibus_swap_plan", len(keys), *keys, str(plan.epoch), body))
        except ResponseError as error:
            raise StaleEpoch(int(str(error).split()[-1])) from error

    async def swaps(self) -> AsyncIterator[int]:
        """Epochs as they become current; 0 when the store has lost its plan. Reconnects by itself.

        Notifications may be lost while the store restarts, so the number is read again every
        ``REREAD`` seconds as well.
        """
        last = -1
        while True:
            try:
                async with self._redis.pubsub() as channel:
                    await channel.subscribe(self._key("plan"))
                    while True:
                        epoch = await self.epoch()
                        _heed_cancellation()
                        if epoch != last:
                            last = epoch
                            yield epoch
                        await channel.get_message(ignore_subscribe_messages=True, timeout=REREAD)
            except (RedisError, OSError, StoreUnavailable) as error:
                log.warning("store: %s; reading the plan again when it is back", error)
                await asyncio.sleep(0.5)

    async def ping(self) -> bool:
        try:
            await self._call(self._redis.ping())
        except StoreUnavailable:
            return False
        return True

    async def close(self) -> None:
        await self._redis.aclose()

    async def _call(self, command: Any) -> Any:
        try:
            return await command
        except ResponseError as error:
            if str(error).startswith("STALE"):
                raise
            raise StoreUnavailable(f"the store at {public(self._settings.url)} refuses: {error}") from error
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"no store at {public(self._settings.url)}: {error}") from error


def _heed_cancellation() -> None:
    """redis-py sends with ``asyncio.wait_for``, which in Python 3.11 loses a cancellation that comes in the
    same turn as its result. Whoever cancelled would wait for ever."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
