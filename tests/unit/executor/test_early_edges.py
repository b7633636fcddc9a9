"""Edges that arrive before their invocation wait, within limits."""

import pytest

from omnibus.bus.messages import Chunk
from omnibus.executor import edges as early_edges
from omnibus.executor.edges import EarlyMessages


def make_chunk(invocation: str, seq: int = 0) -> Chunk:
    return Chunk(invocation, 0, "y", seq, 0, {})


def test_what_waits_is_taken_once_and_in_order():
    waiting = EarlyMessages()
    for message in (make_chunk("a", 0), make_chunk("b"), make_chunk("a", 1)):
        waiting.add_message(message)

    messages = waiting.take_messages("a")

    assert messages == [make_chunk("a", 0), make_chunk("a", 1)]
    assert waiting.take_messages("a") == []
    assert len(waiting) == 1


def test_edges_of_too_many_invocations_are_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(early_edges, "MAX_WAITING_INVOCATIONS", 2)
    waiting = EarlyMessages()

    for name in ("a", "b", "c", "a"):
        waiting.add_message(make_chunk(name))

    assert [len(waiting.take_messages(name)) for name in ("a", "b", "c")] == [2, 1, 0]


@pytest.mark.parametrize(("patience", "left"), [(10.0, 1), (-1.0, 0)])
def test_what_has_waited_too_long_is_forgotten(patience: float, left: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(early_edges, "EDGE_WAIT_SECONDS", patience)
    waiting = EarlyMessages()
    waiting.add_message(make_chunk("a"))

    waiting.drop_expired()

    assert len(waiting) == left
