"""Connection to Redis or Valkey. Only this module and ``servers`` use redis-py.

Connection reserved for frequent sequential commands of one kind.

Taking a connection from redis-py's pool and returning it costs as much as the command.

Clients of one Redis or Valkey server, or of Sentinel's primary.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

from omnibus.concurrency import keep_cancellation
from omnibus.errors import BadRequest, StoreFull, StoreUnavailable
from omnibus.settings import StoreSettings
from omnibus.store.batches import CommandBatches
from omnibus.store.seal import Seal
from omnibus.urls import redact_url


class OwnConnection:
    """Keeps one connection of the redis-py ``client``'s pool after its first use."""

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None  # None while it is in use

    async def run_command(self, *arguments: Any) -> Any:
        """Return the answer to a command. Raises redis-py's errors; the next command then reconnects."""
        connection, self._connection = self._connection, None
        if connection is None:
            connection = await self._pool.get_connection()
        try:
            await connection.send_packed_command(connection.pack_command(*arguments), check_health=False)
            answer = await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)
            raise
        if self._connection is None:
            self._connection = connection
        else:  # of a concurrent command
            await self._pool.release(connection)
        return answer


_SENTINEL_PORT = 26379
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_TLS_SCHEMES = ("rediss", "rediss+sentinel")
#: More than commands and followers of channels need together: commands wait for a connection in ``connection``.
_MAX_CONNECTIONS = 256


class RedisServers:
    """Client for the servers of ``settings.url``. Raises ``BadRequest`` for an invalid URL."""

    def __init__(self, settings: StoreSettings) -> None:
        self._sentinel: Sentinel | None = None
        scheme = settings.url.partition("://")[0]
        options = {
            "socket_timeout": settings.timeout,
            "socket_connect_timeout": settings.timeout,
            "health_check_interval": 10,
            "max_connections": _MAX_CONNECTIONS,
            # A command whose answer is lost may have run, so it is not retried automatically.
            "retry": Retry(NoBackoff(), 0),
            # With them, redis-py takes closed connections for open. Our servers do not send them.
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
            **_tls_arguments(settings, scheme),
        }
        if scheme in _SENTINEL_SCHEMES:
            self.client = self._follow_sentinels(settings, options)
        else:
            self.client = redis.Redis.from_url(settings.url, **options)

    def _follow_sentinels(self, settings: StoreSettings, options: dict[str, Any]) -> redis.Redis:
        """Return a client of the primary.

        Each new connection looks up the primary at the sentinels. A connection to a demoted server is closed.
        """
        url = urlsplit(settings.url)
        credentials, _, hosts = url.netloc.rpartition("@")
        service, _, number = url.path.strip("/").partition("/")
        try:
            addresses = [_parse_address(host) for host in hosts.split(",")]
            database = int(number or 0)
        except ValueError:
            raise BadRequest(_describe_form(settings.url)) from None
        if not service:
            raise BadRequest(_describe_form(settings.url))
        user, _, password = (unquote(part) for part in credentials.partition(":"))
        if url.scheme in _TLS_SCHEMES:
            options["ssl"] = True
        # Do not wait for an unavailable sentinel: query the next one.
        asking = {**options, "socket_connect_timeout": settings.timeout / 2}
        self._sentinel = Sentinel(addresses, sentinel_kwargs=asking)
        return self._sentinel.master_for(
            service, db=database, username=user or None, password=password or None, **options
        )

    async def close(self) -> None:
        await self.client.aclose()
        for sentinel in self._sentinel.sentinels if self._sentinel is not None else ():
            await sentinel.aclose()


def describe_error(error: Exception) -> str:
    """Return redis-py's message, without its list of sentinel clients."""
    return str(error).partition(" : <")[0]


def _parse_address(text: str) -> tuple[str, int]:
    """Parse host and port, such as ``[::1]:26379``. Raises ``ValueError``."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return parts.hostname, parts.port or _SENTINEL_PORT


def _describe_form(url: str) -> str:
    return (
        f"OMNIBUS_STORE_URL={redact_url(url)} names no servers: with Sentinel it has the form "
        "redis+sentinel://user:password@host:26379,host2:26379/mymaster/0"
    )


def _tls_arguments(settings: StoreSettings, scheme: str) -> dict[str, Any]:
    """Return the TLS arguments. Raises ``BadRequest`` for TLS files with a URL without TLS."""
    file_settings = {
        "ssl_ca_certs": settings.tls_ca,
        "ssl_certfile": settings.tls_cert,
        "ssl_keyfile": settings.tls_key,
    }
    tls_files = {name: path for name, path in file_settings.items() if path}
    if tls_files and scheme not in _TLS_SCHEMES:
        raise BadRequest("OMNIBUS_STORE_TLS_CA is set, so OMNIBUS_STORE_URL must begin with rediss://")
    return tls_files


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
