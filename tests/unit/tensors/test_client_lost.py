"""A sidecar that is not there, is silent, or goes away and comes back."""

import asyncio

import numpy as np
import pytest

from omnibus.errors import ProtocolError, Retryable, StaleHandle
from omnibus.tensors.client import TensorClient
from tests.unit.sidecar.node import connect, process, running, soon, until
from tests.unit.tensors.pairs import HALF


async def test_without_a_sidecar_connecting_fails_typed(tmp_path):
    with pytest.raises(Retryable, match="is it running"):
        await connect(tmp_path)


async def test_a_sidecar_of_another_node_is_refused(tmp_path):
    async with running(tmp_path):
        with pytest.raises(ProtocolError, match="serves node 'n1'"):
            await TensorClient.connect(str(tmp_path / "s"), "client", "n2")


async def test_a_silent_sidecar_cannot_hold_a_client(tmp_path):
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_unix_server(silent, str(tmp_path / "s")):
        with pytest.raises(Retryable):
            await connect(tmp_path, timeout=0.1)
        await asyncio.wait_for(left.wait(), 20)


async def test_a_restarted_sidecar_is_found_again_and_old_handles_are_stale(tmp_path):
    async with running(tmp_path) as sidecar, await connect(tmp_path) as client:
        old = await client.put(np.arange(9), invocation="i", deadline=soon())
        held = client.view(old)
        await client.allocate(HALF, invocation="i", deadline=soon())
        waiting = asyncio.create_task(client.allocate(HALF, invocation="i", deadline=soon(), wait=30))
        await until(lambda: sidecar.snapshot()["waiting"] == 1)

        await sidecar.stop()

        with pytest.raises(Retryable):
            await waiting
        await until(lambda: not client.connected)
        with pytest.raises(Retryable):
            client.view(old)
        with pytest.raises(Retryable):
            await client.ready(0.01)
        with pytest.raises(Retryable):
            await client.stats()
        client.release(old)
        client.end("i")

        async with running(tmp_path):
            await client.ready(20)
            new = await client.put(np.arange(9), invocation="i", deadline=soon())
            assert (new.offset, new.arena) == (old.offset, old.arena)
            assert new.generation > old.generation
            with pytest.raises(StaleHandle):
                client.view(old)
            assert held.sum() == 36
            assert client.view(new).sum() == 36


async def test_closing_stops_the_search_for_a_lost_sidecar(tmp_path):
    async with running(tmp_path) as sidecar:
        client = await connect(tmp_path)
        await sidecar.stop()
        await until(lambda: not client.connected)

    await client.close()

    async with running(tmp_path) as sidecar:
        await asyncio.sleep(0.1)
        assert sidecar.snapshot()["clients"] == 0


async def test_a_sidecar_process_that_is_killed_is_replaced_under_the_same_names(tmp_path):
    async with process("sidecar", tmp_path) as first:
        assert first.stdout is not None
        assert await first.stdout.readline() == b"ready\n"
        client = await connect(tmp_path)
        old = await client.put(np.arange(9), invocation="i", deadline=soon())
        first.kill()
        await first.wait()  # the arena's lock goes with the process, not with its sockets
        await until(lambda: not client.connected)

        async with running(tmp_path), client:
            await client.ready(20)
            await client.put(np.arange(9), invocation="i", deadline=soon())
            with pytest.raises(StaleHandle):
                client.view(old)
