"""Probes of services that send no event when they are ready. The caller sets the deadline."""

import asyncio
import json
import ssl
import urllib.error
import urllib.request

from omnibus.up.ports import LOOPBACK

_RETRY_PAUSE_SECONDS = 0.02  # seconds between two attempts
_ANSWER_TIMEOUT_SECONDS = 2.0  # seconds


async def wait_for_port(port: int) -> None:
    """Wait until a server accepts connections on a loopback port."""
    while True:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)


async def wait_for_socket(path: str) -> None:
    """Wait until a server accepts connections at a Unix socket."""
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)


def not_ready(url: str, tls_context: ssl.SSLContext | None = None) -> str:
    """Return the missing parts that ``/readyz`` of the gateway reports. Returns the error if the request to ``url``
    fails, and an empty text if the gateway is ready."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_ANSWER_TIMEOUT_SECONDS, context=tls_context):  # noqa: S310 our own
            return ""
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read()).get("missing"))
    except OSError as error:
        return f"the gateway does not answer ({error})"
