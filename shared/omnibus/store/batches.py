"""Pipelining of commands: those issued while others are in flight are sent together.

Sending each command alone would need one connection for each command in flight. Opening a connection takes longer than
the command.
"""

import asyncio
from typing import Any, NamedTuple

from omnibus.concurrency import keep_cancellation

MAX_COMMANDS = 256  # commands of one batch: others wait for all of their answers


class _Command(NamedTuple):
    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    answer: asyncio.Future[Any]


class CommandBatches:
    """Sends commands in order, without a transaction, through the redis-py ``client``."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: list[_Command] = []
        self._task: asyncio.Task[None] | None = None

    async def run_command(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return the answer to a command, named after the client's method.

        Raises redis-py's errors.
        A cancelled caller stops waiting, but the server may still run the command.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Command(name, arguments, options, answer))
        if self._task is None:
            self._task = loop.create_task(self._send_all())
        return await answer

    async def _send_all(self) -> None:
        batch: list[_Command] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_COMMANDS], self._waiting[MAX_COMMANDS:]
                await self._send_batch([each for each in batch if not each.answer.done()])
        finally:
            self._task = None
            for each in (*batch, *self._waiting):  # none, unless this task was cancelled
                each.answer.cancel()
            self._waiting = []

    async def _send_batch(self, batch: list[_Command]) -> None:
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for each in batch:
                    getattr(pipeline, each.name)(*each.arguments, **each.options)
                answers = await keep_cancellation(pipeline.execute(raise_on_error=False))
        except Exception as error:  # noqa: BLE001 the waiting caller raises it
            answers = [error] * len(batch)
        for each, answer in zip(batch, answers, strict=True):
            if each.answer.done():  # the caller was cancelled
                continue
            if isinstance(answer, Exception):
                each.answer.set_exception(answer)
            else:
                each.answer.set_result(answer)
