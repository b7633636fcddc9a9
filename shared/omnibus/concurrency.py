"""Concurrent calls that raise their first error, and never lose a cancellation."""

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

#: Attempts to cancel a call that does not end, and seconds between them.
_CANCELLATIONS, _CANCELLATION_SECONDS = 50, 0.1


async def keep_cancellation(call: Awaitable[T]) -> T:
    """Return the result of ``call``, or raise a cancellation that ``call`` dropped.

    Libraries await with ``asyncio.wait_for``. Up to Python 3.11, it may return a result or an error instead of
    a cancellation that arrives in the same turn of the loop. The canceller would then wait forever. If it was a
    timeout, the next await of the task would have no limit.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        return await call
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


async def finish_within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``call``, or raise ``TimeoutError`` after ``seconds``.

    ``asyncio.timeout`` cancels once. A call that retries in a loop may drop that one cancellation (see
    ``keep_cancellation``) and run forever. Here it is cancelled until it ends.
    """
    task = asyncio.ensure_future(call)
    try:
        done_tasks, _ = await asyncio.wait([task], timeout=seconds)
        if done_tasks:
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
    """Return the results of ``calls``, in order. The first error cancels the others.

    It is raised unchanged. ``asyncio.TaskGroup`` would create a reference cycle between the group of errors, the error
    and its task. Such a cycle stays until the garbage collector runs, which is rare. It keeps alive all objects of the
    failed call, such as the 32 MiB of a file that is too large.
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
