"""A sidecar that is missing, silent, or restarted."""

import asyncio
import signal

import numpy as np
import pytest

from omnibus.errors import NodeUnreachable, ProtocolError, Retryable, StaleHandle
from omnibus.tensors import client as client_module
from omnibus.tensors.client import TensorClient
from tests.unit.sidecar.node import connect_client, make_deadline, read_line, run_sidecar, start_process, wait_until
from tests.unit.sidecar.peers.pair import two_nodes
from tests.unit.tensors.pairs import HALF


async def test_without_a_sidecar_connecting_fails_typed(tmp_path):
    with pytest.raises(Retryable, match="is it running"):
        await connect_client(tmp_path)


async def test_a_sidecar_of_another_node_is_refused(tmp_path):
    async with run_sidecar(tmp_path):
        with pytest.raises(ProtocolError, match="serves node 'n1'"):
            await TensorClient.connect(str(tmp_path / "s"), "client", "n2")


async def test_a_silent_sidecar_cannot_hold_a_client(tmp_path):
    left = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    async with await asyncio.start_unix_server(stay_silent, str(tmp_path / "s")):
        with pytest.raises(Retryable):
            await connect_client(tmp_path, timeout=0.1)
        await asyncio.wait_for(left.wait(), 20)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_sidecar_of_several_that_is_lost_is_a_node_that_others_may_take_the_place_of(tmp_path, waits):
    async with two_nodes(tmp_path) as (a, _), await a.client() as client:
        taken = await client.allocate(HALF, invocation="i", deadline=make_deadline())
        call = client.allocate(a.sidecar.settings.size - HALF, invocation="i", deadline=make_deadline(), wait=30)
        waiting = asyncio.create_task(call) if waits else None
        if waits:
            await wait_until(lambda: a.counters["waiting"] == 1)

        await a.sidecar.stop()
        await wait_until(lambda: not client.connected)

        with pytest.raises(NodeUnreachable) as caught:
            await (waiting or call)
        assert caught.value.node == "a"
        del taken


async def test_the_only_sidecar_that_is_lost_is_no_node_that_others_may_take_the_place_of(tmp_path):
    async with run_sidecar(tmp_path) as sidecar, await connect_client(tmp_path) as client:
        await sidecar.stop()
        await wait_until(lambda: not client.connected)

        with pytest.raises(Retryable) as caught:
            await client.stats()
        assert not isinstance(caught.value, NodeUnreachable)


async def test_a_restarted_sidecar_is_found_again_and_old_handles_are_stale(tmp_path):
    async with run_sidecar(tmp_path) as sidecar, await connect_client(tmp_path) as client:
        old = await client.put(np.arange(9), invocation="i", deadline=make_deadline())
        held_array = client.view(old)
        await client.allocate(HALF, invocation="i", deadline=make_deadline())
        waiting = asyncio.create_task(client.allocate(HALF, invocation="i", deadline=make_deadline(), wait=30))
        await wait_until(lambda: sidecar.snapshot()["waiting"] == 1)

        await sidecar.stop()

        with pytest.raises(Retryable):
            await waiting
        await wait_until(lambda: not client.connected)
        with pytest.raises(Retryable):
            client.view(old)
        with pytest.raises(Retryable):
            await client.wait_ready(0.01)
        with pytest.raises(Retryable):
            await client.stats()
        client.release(old)
        client.end_invocation("i")

        async with run_sidecar(tmp_path):
            await client.wait_ready(20)
            new = await client.put(np.arange(9), invocation="i", deadline=make_deadline())
            assert (new.offset, new.arena) == (old.offset, old.arena)
            assert new.generation > old.generation
            with pytest.raises(StaleHandle):
                client.view(old)
            assert held_array.sum() == 36
            assert client.view(new).sum() == 36


async def test_closing_stops_the_search_for_a_lost_sidecar(tmp_path):
    async with run_sidecar(tmp_path) as sidecar:
        client = await connect_client(tmp_path)
        await sidecar.stop()
        await wait_until(lambda: not client.connected)

    await client.close()

    async with run_sidecar(tmp_path) as sidecar:
        await asyncio.sleep(0.1)
        assert sidecar.snapshot()["clients"] == 0


async def test_a_sidecar_process_that_is_killed_is_replaced_under_the_same_names(tmp_path):
    async with start_process("sidecar", tmp_path) as first:
        assert first.stdout is not None
        assert await first.stdout.readline() == b"ready\n"
        client = await connect_client(tmp_path)
        old = await client.put(np.arange(9), invocation="i", deadline=make_deadline())
        first.kill()
        await first.wait()  # the arena's lock goes with the process, not with its sockets
        await wait_until(lambda: not client.connected)

        async with run_sidecar(tmp_path), client:
            await client.wait_ready(20)
            await client.put(np.arange(9), invocation="i", deadline=make_deadline())
            with pytest.raises(StaleHandle):
                client.view(old)


async def test_who_knows_that_the_sidecar_is_silent_does_not_wait_for_it_again(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_SECONDS", 1.0)
    async with start_process("sidecar", tmp_path) as sidecar:
        await read_line(sidecar)
        client = await connect_client(tmp_path)
        handle = await client.put(np.arange(9), invocation="i", deadline=make_deadline())
        sidecar.send_signal(signal.SIGSTOP)

        patient = asyncio.create_task(client.allocate(10, invocation="i", deadline=make_deadline(), wait=100.0))
        await asyncio.sleep(0)
        with pytest.raises(Retryable, match="did not answer"):
            await client.allocate(10, invocation="i", deadline=make_deadline(), wait=0.0)
        async with asyncio.timeout(20):
            with pytest.raises(Retryable, match="did not answer"):
                await patient
        for _ in range(50):  # at once: each of them would take more than a second
            async with asyncio.timeout(0.5):
                with pytest.raises(Retryable, match="did not answer"):
                    await client.allocate(10, invocation="i", deadline=make_deadline())
        assert client.view(handle).sum() == 36  # existing memory needs no sidecar

        sidecar.send_signal(signal.SIGCONT)
        await wait_until(lambda: _has_answer(client))
        client.end_invocation("i")
        assert (await client.stats())["blocks"] == 0
        await client.close()


async def _has_answer(client: TensorClient) -> bool:
    try:
        return bool(await client.stats())
    except Retryable:
        return False
