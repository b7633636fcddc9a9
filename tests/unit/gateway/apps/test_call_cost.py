"""Cost of one app call: messages between gateway and worker, and garbage for the collector."""

from pathlib import Path

import pytest

from omnibus.app import protocol
from omnibus_gateway.apps import worker_process
from tests.unit.gateway.apps.workers import SPELLS, Abacus, run_worker, write_app
from tests.unit.gateway.test_request_cost import cyclic_garbage


async def test_a_call_takes_one_message_for_each_step_and_leaves_no_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    message_names: list[str] = []
    decode = worker_process.from_worker

    def record_message(body: bytes) -> protocol.FromWorker:
        message = decode(body)
        message_names.append(type(message).__name__)
        return message

    monkeypatch.setattr(worker_process, "from_worker", record_message)
    async with run_worker(write_app(tmp_path, SPELLS)) as host:
        await host.invoke(Abacus(), b'{"text": "ab"}').read_answer()
        message_names.clear()
        with cyclic_garbage() as left:
            answer = await host.invoke(Abacus(), b'{"text": "abc"}').read_answer()

    assert answer == b'{"letters":"abc","count":3}'
    # Each output is read once; its last items also contain the end.
    assert [name for name in message_names if name != "Pong"] == ["Submit", "Read", "Read", "ServeAnswer", "RequestEnd"]
    assert not left
