"""Edges that come before their invocation wait, for a while and in bounds."""

import pytest

from omnibus.bus.messages import Chunk
from omnibus.executor import early_edges
from omnibus.executor.early_edges import Early


def chunk(invocation: str, seq: int = 0) -> Chunk:
    return Chunk(invocation, 0, "y", seq, 0, {})


def test_what_waits_is_taken_once_and_in_order():
    waiting = Early()
    for message in (chunk("a", 0), chunk("b"), chunk("a", 1)):
        waiting.keep(message)

    taken = waiting.take("a")

    assert taken == [chunk("a", 0), chunk("a", 1)]
    assert waiting.take("a") == []
    assert len(waiting) == 1


def test_edges_of_too_many_invocations_are_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(early_edges, "LIMIT", 2)
    waiting = Early()

    for name in ("a", "b", "c", "a"):
        waiting.keep(chunk(name))

    assert [len(waiting.take(name)) for name in ("a", "b", "c")] == [2, 1, 0]


@pytest.mark.parametrize(("patience", "left"), [(10.0, 1), (-1.0, 0)])
def test_what_has_waited_too_long_is_forgotten(patience: float, left: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(early_edges, "EARLY", patience)
    waiting = Early()
    waiting.keep(chunk("a"))

    waiting.purge()

    assert len(waiting) == left
