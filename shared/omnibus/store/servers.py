"""Clients of one Redis or Valkey server, or of Sentinel's primary."""

from typing import Any
from urllib.parse import unquote, urlsplit

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from omnibus.errors import BadRequest
from omnibus.settings import StoreSettings
from omnibus.urls import redact_url

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
