"""Connection to Redis or Valkey. Only this module and ``servers`` use redis-py."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from omnibus.concurrency import keep_cancellation
from omnibus.errors import StoreFull, StoreUnavailable
from omnibus.settings import StoreSettings
from omnibus.store.batches import CommandBatches
from omnibus.store.own_connection import OwnConnection
from omnibus.store.seal import Seal
from omnibus.store.servers import RedisServers, describe_error
from omnibus.urls import redact_url

log = logging.getLogger(__name__)

#: Seconds between two reads of the store without an announcement.
REREAD_SECONDS = 5.0
#: Seconds between two attempts to reach an unavailable store.
RETRY_PAUSE_SECONDS = 0.5
#: Commands that have a connection at the same time; others wait. Followers of channels have further connections.
MAX_COMMANDS = 64

_LIBRARY = "".join(Path(__file__).with_name(f"{name}.lua").read_text() for name in ("functions", "tenant_limits"))
#: Error of a server that was restarted, or whose functions are of another build.
_UNKNOWN_FUNCTION = "Function not found"
#: Error of a server that has reached its ``maxmemory``, for commands of a transaction.
_OUT_OF_MEMORY = "command not allowed when used memory > 'maxmemory'"
#: First words of the errors that the functions on the server return.
_REFUSALS = ("STALE", "LED", "TAKEN", "ORPHAN", "FULL")

T = TypeVar("T")


class FunctionRefused(Exception):
    """A function on the server rejected a call: ``reason`` is its word, ``what`` the rest."""

    def __init__(self, answer: str) -> None:
        super().__init__(answer)
        self.reason, _, self.what = answer.partition(" ")


class StoreConnection:
    """Commands, functions and announcements, on which the subclasses build."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._seal = Seal(settings.secret)
        self._servers = RedisServers(settings)
        self._redis = self._servers.client
        self._batches = CommandBatches(self._redis)
        self._own = OwnConnection(self._redis)
        self._connections = asyncio.Semaphore(MAX_COMMANDS)

    async def open(self) -> None:
        """Load the server-side functions. Raises ``StoreUnavailable``."""
        await self._run_command(self._redis.function_load(_LIBRARY, replace=True))

    async def ping(self) -> bool:
        try:
            await self._run_command(self._redis.ping())
        except StoreUnavailable:
            return False
        return True

    async def close(self) -> None:
        await self._servers.close()

    def _redis_key(self, name: str) -> str:
        return f"{self._settings.prefix}:{name}"

    async def _run_function(self, function: str, keys: Sequence[str], *arguments: str | bytes) -> Any:
        """Run one of our functions on the server. Raises ``FunctionRefused`` and ``StoreUnavailable``."""
        with suppress(StoreFull):  # a server without memory cannot load the library, but still runs a loaded one
            await self.open()  # a restarted server has lost its functions
        return await self._run_command(self._redis.fcall(function, len(keys), *map(self._redis_key, keys), *arguments))

    async def _run_known_function(self, function: str, keys: Sequence[str], *arguments: Any) -> Any:
        """Like ``_run_function`` for frequent calls: loads functions only if the server lacks them."""
        call = partial(self._redis.fcall, function, len(keys), *map(self._redis_key, keys), *arguments)
        try:
            return await self._run_command(call())
        except StoreUnavailable as error:
            if not (isinstance(error.__cause__, ResponseError) and _UNKNOWN_FUNCTION in str(error.__cause__)):
                raise
        await self.open()
        return await self._run_command(call())

    async def _run_batched(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Run a command in a batch with those of other requests; raises as ``_run_command``.

        All of them share one connection.
        """
        return await self._finish_command(self._batches.run_command(name, *arguments, **options))

    async def _run_repeatable(self, *command: Any) -> Any:
        """Run a frequent, idempotent command; raises as ``_run_command``."""
        try:
            return await self._finish_command(self._own.run_command(*command))
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, LostConnection):
                raise
        # The server closed an idle connection, or was restarted: the pool checks its connections before use.
        return await self._run_command(self._redis.execute_command(*command))

    async def _run_command(self, command: Any) -> Any:
        """Return the answer to ``command``, a coroutine, once a connection is free.

        Raises ``FunctionRefused``, and ``StoreUnavailable``, also if no connection becomes free in time.
        """
        try:
            await self._wait_connection()
        except BaseException:
            command.close()  # it was not started
            raise
        try:
            return await self._finish_command(command)
        finally:
            self._connections.release()

    async def _wait_connection(self) -> None:
        """Wait until a connection is free, or raise ``StoreUnavailable``.

        It waits for as long as a command may take. redis-py has pools that wait, but none for Sentinel.
        """
        if not self._connections.locked():  # the usual case: no timer is needed
            await self._connections.acquire()
            return
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._connections.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"{MAX_COMMANDS} commands wait for the store at {redact_url(self._settings.url)}, and none was "
                f"answered within {self._settings.timeout:g} s"
            ) from None

    async def _finish_command(self, command: Any) -> Any:
        try:
            return await keep_cancellation(command)
        except ResponseError as error:
            if str(error).startswith(_REFUSALS):
                raise FunctionRefused(str(error)) from error
            if isinstance(error, OutOfMemoryError) or _OUT_OF_MEMORY in str(error):
                raise StoreFull(
                    f"the store at {redact_url(self._settings.url)} has reached its maxmemory: delete responses, "
                    "conversations or jobs, wait until some expire, or give it more"
                ) from error
            raise StoreUnavailable(f"the store at {redact_url(self._settings.url)} returned: {error}") from error
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"no store at {redact_url(self._settings.url)}: {describe_error(error)}") from error

    async def _follow_channel(self, channel: str, read: Callable[[], Awaitable[T]]) -> AsyncIterator[T]:
        """Yield the result of ``read``, at once and after each change. Reconnects automatically.

        Announcements may be lost while the store restarts, so ``read`` also runs every ``REREAD_SECONDS``.
        """
        has_value = False
        last: Any = None
        while True:
            try:
                async with self._redis.pubsub() as announcements:
                    await keep_cancellation(announcements.subscribe(self._redis_key(channel)))
                    while True:
                        value = await read()
                        if not has_value or value != last:
                            has_value, last = True, value
                            yield value
                        wait_seconds = REREAD_SECONDS
                        # One read for all announcements that arrived meanwhile.
                        while await keep_cancellation(
                            announcements.get_message(ignore_subscribe_messages=True, timeout=wait_seconds)
                        ):
                            wait_seconds = 0.0
            except (RedisError, OSError, StoreUnavailable) as error:
                log.warning("the store is unavailable (%s): retrying to read %s", describe_error(error), channel)
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
