"""Streams of JetStream: created or changed at a service's start, verified after a reconnect."""

import asyncio
import logging
import time
from collections.abc import Callable

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from omnibus.bus.subjects import StreamSpec
from omnibus.errors import Fatal

log = logging.getLogger(__name__)

#: Most attempts to verify the streams after a reconnect until the server answers, and seconds between them.
_MAX_VERIFY_ATTEMPTS, _VERIFY_PAUSE_SECONDS = 5, 2.0
#: Seconds between two attempts while the servers of a cluster elect a leader.
_ELECTION_PAUSE_SECONDS = 0.25
#: JetStream's code for a stream whose limit exceeds the rest of its storage.
_STORAGE_EXCEEDED_CODE = 10047
#: Codes for more replicas than servers: of a single server, and of a cluster that is too small.
_REPLICAS_CODES = (10074, 10005)
#: Codes of a cluster that has no leader at the moment, and of a stream whose servers are unreachable.
_TEMPORARY_CODES = (10008, 10118)


class StreamKeeper:
    """Creates streams with ``replicas`` copies; ``is_clustered`` returns whether there are several servers."""

    def __init__(self, js: JetStreamContext, replicas: int, is_clustered: Callable[[], bool]) -> None:
        self._js = js
        self._replicas = replicas
        self._is_clustered = is_clustered
        self._wanted: dict[str, tuple[StreamConfig, StreamSpec]] = {}

    async def open_stream(self, stream: StreamSpec, seconds: float, limit: int, patience: float) -> None:
        """Create ``stream``, or change it to ``limit`` bytes for ``seconds``.

        Waits at most ``patience`` seconds for servers of a cluster that elect a leader. Raises ``Fatal``.
        """
        stream_config = StreamConfig(
            name=stream.name,
            subjects=[stream.subjects],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            storage=StorageType.FILE,
            max_age=seconds,
            max_bytes=limit,
            duplicate_window=min(120.0, seconds),
            allow_direct=True,
            num_replicas=self._replicas,
        )
        try:
            await self._await_stream(stream_config, stream, patience)
        except (nats.errors.Error, TimeoutError) as error:
            raise Fatal(_describe_refusal(error, stream_config)) from error
        self._wanted[stream.name] = (stream_config, stream)

    async def _await_stream(self, stream_config: StreamConfig, stream: StreamSpec, patience: float) -> None:
        give_up = time.monotonic() + patience
        while True:
            try:
                await self._ensure_stream(stream_config, stream)
                return
            except (nats.errors.Error, TimeoutError) as error:
                if not self._is_clustered() or not _is_temporary(error) or time.monotonic() > give_up:
                    raise
            await asyncio.sleep(_ELECTION_PAUSE_SECONDS)

    async def _ensure_stream(self, stream_config: StreamConfig, stream: StreamSpec) -> None:
        try:
            info = await self._js.stream_info(stream.name)
        except nats.js.errors.NotFoundError:
            await self._js.add_stream(stream_config)
            return
        if list(info.config.subjects or []) != [stream.subjects]:
            raise Fatal(
                f"stream {stream.name} has the subjects {info.config.subjects}, but "
                f"Omnibus needs {stream.subjects}: rename or delete it"
            )
        await self._js.update_stream(stream_config)

    async def verify_streams(self) -> None:
        """Restore the streams' configuration: a server that starts on a full disk reduces it."""
        for stream_config, stream in list(self._wanted.values()):
            for _ in range(_MAX_VERIFY_ATTEMPTS):
                try:
                    await self._ensure_stream(stream_config, stream)
                    break
                except Fatal as error:
                    log.error("%s", error)
                    break
                except (nats.errors.Error, TimeoutError) as error:
                    is_refusal = isinstance(error, nats.js.errors.APIError)
                    if is_refusal and not (self._is_clustered() and _is_temporary(error)):
                        _log_refusal(error, stream_config)
                        break
                    await asyncio.sleep(_VERIFY_PAUSE_SECONDS)  # it is still reading its streams, or elects a leader


def _describe_refusal(error: Exception, config: StreamConfig) -> str:
    code = _error_code(error)
    if code in _REPLICAS_CODES:
        return (
            f"there are not enough NATS servers with JetStream for {config.num_replicas} replicas of stream "
            f"{config.name} ({error}): lower OMNIBUS_BUS_REPLICAS, or start more servers"
        )
    if code == _STORAGE_EXCEEDED_CODE:
        return (
            f"JetStream has no room for the {config.max_bytes} bytes of stream {config.name}: raise max_file_store of "
            "the NATS server, or lower OMNIBUS_BUS_RECORD_BYTES, _RESPONSE_BYTES or _DEAD_BYTES"
        )
    return f"JetStream is not usable ({error}): start nats-server with -js"


def _log_refusal(error: Exception, config: StreamConfig) -> None:
    full = _error_code(error) == _STORAGE_EXCEEDED_CODE
    why = "has no room for it" if full else f"refuses it: {getattr(error, 'description', error)}"
    log.error("stream %s must have %s bytes, but NATS %s", config.name, config.max_bytes, why)


def _error_code(error: Exception) -> int | None:
    return error.err_code if isinstance(error, nats.js.errors.APIError) else None


def _is_temporary(error: Exception) -> bool:
    """Return whether JetStream may answer otherwise in a moment."""
    if isinstance(error, nats.js.errors.ServiceUnavailableError) and error.err_code is None:
        return True  # no subscriber
    code = _error_code(error)
    return code in _TEMPORARY_CODES if code is not None else not isinstance(error, nats.js.errors.APIError)
