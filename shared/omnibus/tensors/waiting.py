"""Start of a service whose sidecar may be unreachable for a moment."""

import asyncio
import logging
import time

from omnibus.errors import Retryable
from omnibus.tensors.client import TensorClient

log = logging.getLogger(__name__)

#: Longest wait of a service for its sidecar, after which its start fails.
SIDECAR_TIMEOUT_SECONDS = 45.0
_ANSWER_SECONDS = 5.0  # for one attempt
_PAUSE_SECONDS = 0.2
_REPORT_SECONDS = 5.0  # between two log lines


async def connect_when_ready(
    socket_path: str, owner: str, node: str, *, within: float = SIDECAR_TIMEOUT_SECONDS
) -> TensorClient:
    """Return a connected client, as ``TensorClient.connect``, once a sidecar answers.

    Raises ``Retryable`` if none does ``within`` seconds, and the ``ProtocolError`` of ``connect`` at once.
    """
    give_up, report = time.monotonic() + within, time.monotonic()
    while True:
        left = give_up - time.monotonic()
        try:
            return await TensorClient.connect(socket_path, owner, node, timeout=max(min(left, _ANSWER_SECONDS), 0.1))
        except Retryable as error:
            if left <= _PAUSE_SECONDS:
                raise
            if time.monotonic() >= report:
                log.warning("%s; waiting up to %.0f s more for it", error, left)
                report = time.monotonic() + _REPORT_SECONDS
        await asyncio.sleep(_PAUSE_SECONDS)
