"""A frozen worker's requests end in time and it is replaced; a computing one keeps running."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from omnibus.errors import AppFailed, DeadlineExceeded
from omnibus.task import ChatInput
from tests.unit.gateway.apps.workers import CALM, ECHO, Abacus, run_worker, wait_until_true, write_app

ECHO_SLOWLY = "async def serve(request):\n    await asyncio.sleep(request)\n    return request\n"
CHATS = """
async def serve(request: ChatInput) -> ChatOutput:
    await asyncio.sleep(60)
"""
#: A worker that neither answers nor computes for half a second is frozen.
WATCHED = replace(CALM, ping=0.1, answer_within=0.5)


async def test_a_call_of_a_frozen_worker_ends_at_its_deadline_and_not_when_the_worker_is_killed(tmp_path):
    async with run_worker(write_app(tmp_path, "async def serve(request):\n    await asyncio.sleep(60)\n")) as host:
        runs = [Abacus(0.5) for _ in range(3)]
        calls = [asyncio.ensure_future(host.invoke(run, b"1").read_answer()) for run in runs]
        pid = host.pid

        os.kill(pid, signal.SIGSTOP)
        finished_calls, _ = await asyncio.wait(calls, timeout=CALM.cancel_within / 2)

        assert len(finished_calls) == 3
        assert all(isinstance(call.exception(), DeadlineExceeded) for call in finished_calls)
        assert [run.status for run in runs] == ["expired"] * 3
        assert host.pid == pid  # it is still given time to end them
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("streams", [True, False])
async def test_what_streams_from_a_frozen_worker_ends_at_the_deadline_after_what_came(tmp_path, streams):
    text = """
    async def serve(request) -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(60)
    """
    async with run_worker(write_app(tmp_path, text if streams else CHATS)) as host:
        run = Abacus(1.0)
        call = host.invoke(run, b"1") if streams else host.invoke_chat(run, ChatInput(messages=[]))
        if streams:
            parts = call.read_parts()
            assert await anext(parts) == b"1"
            os.kill(host.pid, signal.SIGSTOP)
            with pytest.raises(DeadlineExceeded):
                await anext(parts)
        else:
            os.kill(host.pid, signal.SIGSTOP)
            with pytest.raises(DeadlineExceeded):
                await call.wait_for_outputs()

        assert run.status == "expired"
        os.kill(host.pid, signal.SIGKILL)


async def test_a_worker_that_is_frozen_is_replaced_before_its_requests_expire(tmp_path):
    async with run_worker(write_app(tmp_path, ECHO_SLOWLY), rules=WATCHED) as host:
        pid = host.pid
        call = asyncio.ensure_future(host.invoke(Abacus(), b"60").read_answer())
        os.kill(pid, signal.SIGSTOP)

        with pytest.raises(AppFailed, match="it was frozen: no answer within 0.5 s"):
            await call
        await wait_until_true(lambda: host.is_ready and host.pid != pid)

        assert await host.invoke(Abacus(), b"0").read_answer() == b"0"


async def test_an_idle_worker_that_is_frozen_is_replaced_as_well(tmp_path):
    async with run_worker(write_app(tmp_path, ECHO), rules=WATCHED) as host:
        pid = host.pid
        os.kill(pid, signal.SIGSTOP)

        await wait_until_true(lambda: host.is_ready and host.pid not in (0, pid))


async def test_a_worker_that_computes_in_its_loop_is_not_taken_for_frozen(tmp_path):
    text = """
    async def serve(request):
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            pass
        return "done"
    """
    async with run_worker(write_app(tmp_path, text), rules=WATCHED) as host:
        pid = host.pid

        assert await host.invoke(Abacus(), b"1").read_answer() == b'"done"'
        assert host.pid == pid
