"""Documents and messages of every released wire version, read for ever.

``tests/golden/v<n>/`` holds what builds of wire version n wrote: recorded invocations (``invocation_*``)
and one message of each kind (``reply_*``, ``edge_*``, ``end``, ``status``, ``plan_event``). They are
never edited, for they stand for what lies in somebody's record stream.

A change that only adds a field with a default keeps the version and these files pass as they are. A
change that they do not survive needs a new version: raise ``omnibus.graph.WIRE_VERSION``, add ``v<n+1>/``
with a file of each kind (``nats stream get OMNIBUS_INVOCATIONS`` gives an invocation, ``nats sub
'omnibus.>'`` the rest), and add to ``REFUSED`` what the new build no longer reads, or a reader for it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import messages
from omnibus.errors import ProtocolError
from omnibus.graph import WIRE_VERSION, refs

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(GOLDEN.rglob("*.json"))
INVOCATIONS = [path for path in FILES if path.name.startswith("invocation_")]

#: Beginning of a file's name to what reads it and what writes it.
KINDS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "invocation": (graph.decode, graph.encode),
    "reply": (messages.decode_replies, lambda found: next(messages.frames([*map(messages.encode, found)], 1 << 16))),
    "edge": (messages.decode_edges, lambda found: next(messages.frames([*map(messages.encode, found)], 1 << 16))),
    "end": (messages.decode_end, messages.encode),
    "status": (messages.decode_status, messages.encode),
    "plan": (messages.decode_plan_event, messages.encode),
}
#: Versions that this build refuses by name.
REFUSED: set[str] = set()


def named(path: Path) -> str:
    return str(path.relative_to(GOLDEN).with_suffix(""))


def kind(path: Path) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    return KINDS[path.stem.partition("_")[0]]


def test_every_kind_of_message_is_kept_in_the_current_version():
    found = {path.stem for path in FILES if path.parent.name == f"v{WIRE_VERSION}"}

    replies = {f"reply_{tag}" for tag in ("chunk", "rows", "accepted", "busy", "done", "failed")}
    edges = {f"edge_{tag}" for tag in ("chunk", "done", "end")}
    assert found == {"invocation_vl_image", "invocation_omni_speech", "end", "status", "plan_event"} | replies | edges


@pytest.mark.parametrize("path", FILES, ids=named)
def test_what_was_written_once_is_read_for_ever(path: Path):
    decode, _ = kind(path)

    if path.parent.name in REFUSED:
        with pytest.raises(ProtocolError, match=path.parent.name.removeprefix("v")):
            decode(path.read_bytes())
    else:
        assert decode(path.read_bytes())


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name not in REFUSED], ids=named)
def test_nothing_that_was_written_is_lost_when_it_is_read(path: Path):
    decode, encode = kind(path)
    written = json.loads(path.read_bytes())

    again = json.loads(encode(decode(path.read_bytes())))

    # A newer build may say more than was said then, never less and nothing else.
    assert contains(again, written)


def contains(whole: Any, part: Any) -> bool:
    """Whether ``whole`` says everything that ``part`` says."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


@pytest.mark.parametrize("path", INVOCATIONS, ids=named)
def test_a_recorded_graph_still_hangs_together(path: Path):
    recorded = graph.decode(path.read_bytes())

    for node in recorded.nodes:
        assert set(node.uses) == {found for value in node.inputs.values() for found in refs(value)}
    consumed = {(node, output) for node in range(len(recorded.nodes)) for output in recorded.consumers(node)}
    needed = {index for index, _ in consumed | set(recorded.outputs)}
    assert needed == set(range(len(recorded.nodes)))


@pytest.mark.parametrize("path", INVOCATIONS, ids=named)
def test_a_recorded_call_still_has_its_digest(path: Path):
    """Records are compared by these digests: an equal call must never get another one."""
    for node in graph.decode(path.read_bytes()).nodes:
        assert graph.digest(node.task, node.inputs) == node.digest
