"""Cost of one app call: messages between gateway and worker, and garbage for the collector."""

from pathlib import Path

import pytest

from omnibus.app import framing, protocol
from tests.unit.gateway.apps.workers import SPELLS, Abacus, hosted, written
from tests.unit.gateway.test_request_cost import cyclic_garbage


async def test_a_call_takes_one_message_for_each_step_and_leaves_no_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[str] = []
    decode = framing.from_worker

    def decoded(body: bytes) -> protocol.FromWorker:
        message = decode(body)
        sent.append(type(message).__name__)
        return message

    monkeypatch.setattr(framing, "from_worker", decoded)
    async with hosted(written(tmp_path, SPELLS)) as host:
        await host.invoke(Abacus(), b'{"text": "ab"}').read_answer()
        sent.clear()
        with cyclic_garbage() as left:
            answer = await host.invoke(Abacus(), b'{"text": "abc"}').read_answer()

    assert answer == b'{"letters":"abc","count":3}'
    # Each output is read once; its last items also contain the end.
    assert [name for name in sent if name != "Pong"] == ["Submit", "Read", "Read", "ServeAnswer", "RequestEnd"]
    assert not left
