"""A client that disconnects cancels only the work on its request."""

import asyncio
from typing import Any

import pytest

from omnibus_gateway.http.exchange import ClientLeft, ConnectedClient
from omnibus_gateway.http.server import ON_LEFT


async def stay_connected() -> dict[str, Any]:
    """Return the events of a client that stays connected."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_client_that_leaves_cancels_the_work_alone():
    scope: dict[str, Any] = {ON_LEFT: None}
    with pytest.raises(ClientLeft):
        async with ConnectedClient(scope, stay_connected):
            asyncio.get_running_loop().call_soon(scope[ON_LEFT])
            await asyncio.Event().wait()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert scope[ON_LEFT] is None
    await asyncio.sleep(0)  # later awaits are not cancelled


async def test_a_client_that_leaves_before_a_deadline_inside_has_left():
    scope: dict[str, Any] = {ON_LEFT: None}
    with pytest.raises(ClientLeft):
        async with ConnectedClient(scope, stay_connected), asyncio.timeout(0):
            scope[ON_LEFT]()
            await asyncio.Event().wait()


async def test_a_deadline_inside_is_no_client_that_leaves():
    with pytest.raises(TimeoutError):
        async with ConnectedClient({ON_LEFT: None}, stay_connected), asyncio.timeout(0):
            await asyncio.Event().wait()


async def test_a_task_that_is_cancelled_by_others_as_well_stays_cancelled():
    scope: dict[str, Any] = {ON_LEFT: None}

    async def serve_client() -> None:
        async with ConnectedClient(scope, stay_connected):
            await asyncio.Event().wait()

    task = asyncio.create_task(serve_client())
    await asyncio.sleep(0)
    scope[ON_LEFT]()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_that_fails_while_its_client_leaves_fails_as_itself():
    scope: dict[str, Any] = {ON_LEFT: None}
    with pytest.raises(KeyError):
        async with ConnectedClient(scope, stay_connected):
            scope[ON_LEFT]()
            try:
                await asyncio.Event().wait()
            finally:
                raise KeyError("of the work")

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
