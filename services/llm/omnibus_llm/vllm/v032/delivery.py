"""Delivery of a request's tokens of vLLM 0.32 without a task per token.

They are delivered in the turn of the event loop in which the engine core sends them.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from vllm.exceptions import VLLMClientError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError


async def deliver_outputs(llm: Any, consume: Callable[[Any], bool], *request: Any, **options: Any) -> None:
    """Send ``request`` to an ``AsyncLLM``, calling ``consume`` with each output.

    ``consume`` returns True for the last output that is needed. If the engine has not ended the request by then, or
    this is cancelled, the request is aborted. Raises as ``AsyncLLM.generate`` and ``consume`` do.
    """
    try:
        queue = await llm.add_request(*request, **options)
    except (EngineDeadError, VLLMClientError):
        raise
    except Exception as error:
        raise EngineGenerateError from error
    is_ended = False
    try:
        is_ended = await _Delivery(consume).read_queue(queue)
    finally:
        if not (is_ended or llm.errored):
            await llm.abort(queue.request_id, internal=True)


class _Delivery:
    """Takes outputs in place of a request's queue in vLLM.

    That queue wakes a task for each token of each request, which costs more than processing the token.
    """

    def __init__(self, consume: Callable[[Any], bool]) -> None:
        self._consume = consume
        self._over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def read_queue(self, queue: Any) -> bool:
        """Take all outputs of ``queue`` until the last one; returns True if the engine has ended the request."""
        output = queue.get_nowait()  # arrived while the request was added
        queue.put = self._put
        if output is not None:
            self._put(output)
        try:
            return await self._over
        finally:
            if self._over.done() and not self._over.cancelled():
                self._over.exception()  # retrieved, even if a cancellation arrived in the same turn

    def _put(self, output: Any) -> None:
        if self._over.done():
            return
        if isinstance(output, Exception):
            self._over.set_exception(_engine_error(output))
            return
        try:
            over = self._consume(output)
        except Exception as error:  # noqa: BLE001 - raised where the request is awaited
            self._over.set_exception(error)
            return
        if over or output.finished:
            self._over.set_result(output.finished)


def _engine_error(cause: Exception) -> Exception:
    """Return the error that ``AsyncLLM.generate`` would raise for ``cause``."""
    if isinstance(cause, EngineDeadError):
        return cause
    error = EngineGenerateError()
    error.__cause__ = cause
    return error
