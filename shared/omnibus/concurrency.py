"""Concurrent calls whose first error is raised as it is, and calls that cannot lose a cancellation."""

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

#: How often a call is cancelled that does not end, and seconds between two cancellations.
_CANCELLATIONS, _CANCELLATION_SECONDS = 50, 0.1


async def keep_cancellation(call: Awaitable[T]) -> T:
    """Result of ``call``, unless this task was cancelled meanwhile: then that is raised, also if ``call`` dropped it.

    Libraries await with ``asyncio.wait_for``, which up to Python 3.11 returns its result, or raises its error, in the
    place of a cancellation that arrives in the same turn of the loop. Whoever cancelled then waits for an end that
    never comes, and the timeout that did so is over: what the task awaits next has no limit any more.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        return await call
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


async def finish_within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Result of ``call``, which has ``seconds``. Raises ``TimeoutError`` after that, whatever becomes of the call.

    ``asyncio.timeout`` cancels once. A call that tries again and again, and drops this one cancellation (as
    ``keep_cancellation`` says), goes on for ever; here it is cancelled until it ends.
    """
    task = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
        if done:
            return task.result()
        raise TimeoutError
    finally:
        await _cancel_until_done(task)


async def _cancel_until_done(task: asyncio.Task[Any]) -> None:
    for _ in range(_CANCELLATIONS):
        if task.done():
            break
        task.cancel()
        await asyncio.wait([task], timeout=_CANCELLATION_SECONDS)
    if task.done() and not task.cancelled():
        task.exception()  # now it is known, and not reported as never retrieved


async def gather_calls(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """Results of ``calls``, in their order. The first error cancels the others, and is raised as it is.

    Not by an ``asyncio.TaskGroup``: there the group of errors, the error and its task refer to each other. Such a
    circle stays until the garbage collector comes by, which is seldom, and with it all that was under way when the
    error was raised, as the 32 MiB of a file that is too large.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    error: BaseException | None = None
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        error = _first_error(tasks)
        if error is not None:
            raise error
        return [task.result() for task in tasks]
    finally:
        await _cancel_all(tasks)
        # The error's traceback refers to this frame, which must not refer to the error.
        tasks.clear()
        error = None


def _first_error(tasks: Sequence[asyncio.Task[T]]) -> BaseException | None:
    errors = (task.exception() for task in tasks if task.done() and not task.cancelled())
    return next((error for error in errors if error is not None), None)


async def _cancel_all(tasks: Sequence[asyncio.Task[T]]) -> None:
    for task in tasks:
        task.cancel()
    if not all(task.done() for task in tasks):
        await asyncio.wait(tasks)
    for task in tasks:
        task.cancelled() or task.exception()  # now it is known, and not reported as never retrieved
