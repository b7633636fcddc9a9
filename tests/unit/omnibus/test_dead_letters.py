"""Dead letters: the failures that cause one, its size limit, and retries."""

from typing import Any

import pytest

from omnibus import graph
from omnibus.bus import subjects
from omnibus.errors import (
    AppFailed,
    BadMedia,
    BadRequest,
    DeadlineExceeded,
    NotFound,
    OmnibusError,
    Overloaded,
    ProblemDetails,
    ProtocolError,
    StageFailed,
    StageUnavailable,
)
from omnibus.recording import dead_letters
from omnibus.recording.dead_letters import DeadLetter
from omnibus.recording.records import Moved
from tests.memory_bus import MemoryBus
from tests.unit.cli.documents import INVOCATION, make_invocation


def make_moves(*reasons: str) -> list[Moved]:
    return [Moved(attempt, 1.0, reason, f"x-{attempt}") for attempt, reason in enumerate(reasons)]


@pytest.mark.parametrize(
    ("failure", "node", "moves", "attempt", "why"),
    [
        (StageFailed("x", executor="e"), 1, [], 0, "failed"),
        (ProtocolError("x", executor="e"), 1, make_moves("gap"), 1, "failed"),
        (StageUnavailable("x"), -1, make_moves("gone"), 0, "crashed"),
        (StageUnavailable("x", executor="e"), 0, make_moves("unavailable"), 0, "crashed"),
        (StageUnavailable("x"), -1, make_moves("busy", "gone", "gone"), 2, "crashed"),
        (StageUnavailable("x"), -1, make_moves("gone", "busy"), 1, ""),
        (StageUnavailable("x"), -1, make_moves("silent"), 0, ""),
        (BadMedia("x", executor="e"), 0, [], 0, ""),
        (Overloaded("x", executor="e"), 0, [], 0, ""),
        (DeadlineExceeded("x", executor="e"), 0, [], 0, ""),
        (StageFailed("x"), -1, [], 0, ""),
        (AppFailed("x"), -1, [], 0, ""),
        (None, -1, [], 0, ""),
    ],
)
def test_engines_that_crash_or_fail_make_dead_letters_and_clients_do_not(
    failure: OmnibusError | None, node: int, moves: list[Moved], attempt: int, why: str
):
    assert dead_letters.dead_letter_reason(failure, node, moves, attempt) == why


def make_letter(**changes: Any) -> DeadLetter:
    fields = {
        "v": 1, "inv": "g-0-1", "reason": "failed", "at": 2.0, "created": 1.0, "app": "chat", "model": "m", "type": "t",
        "path": "E>L", "problem": ProblemDetails("stage_failed", "it broke"),
    }  # fmt: skip
    return DeadLetter(**{**fields, **changes})


def test_a_letter_is_read_as_it_was_written():
    one = make_letter(
        lost=("a", "b"), node=2, component="thinker", moves=tuple(make_moves("gone")), invocation=make_invocation()
    )

    assert dead_letters.decode_dead_letter(dead_letters.encode_dead_letter(one, limit=10_000)) == one


def test_what_does_not_fit_is_left_out():
    whole, small = (
        make_letter(invocation=make_invocation()),
        make_letter(invocation=make_invocation(nodes=INVOCATION["nodes"][:1], outputs=[], options=["E"], route=["e"])),
    )

    assert dead_letters.decode_dead_letter(dead_letters.encode_dead_letter(whole, small, limit=10_000)) == whole
    assert dead_letters.decode_dead_letter(dead_letters.encode_dead_letter(whole, small, limit=900)) == small
    assert dead_letters.decode_dead_letter(dead_letters.encode_dead_letter(whole, small, limit=100)) == make_letter()


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"v":2}', dead_letters.encode_dead_letter(make_letter(v=2), limit=10_000)]
)
def test_what_is_no_letter_of_this_version_is_refused(body: bytes):
    with pytest.raises(ProtocolError, match="dead letter"):
        dead_letters.decode_dead_letter(body)


async def store_letters(*letters: DeadLetter) -> MemoryBus:
    bus = MemoryBus()
    await bus.open_records(60.0, 1 << 20, subjects.DEADLETTERS)
    for each in letters:
        bus.publish_record(
            subjects.dead_letter_subject(each.app, each.inv),
            dead_letters.encode_dead_letter(each, limit=10_000),
            f"{each.inv}.{each.at}",
        )
    return bus


async def test_the_latest_come_first_and_the_last_of_one_is_read():
    bus = await store_letters(make_letter(), make_letter(inv="g-0-2"), make_letter(at=3.0))

    assert [
        dead_letters.decode_dead_letter(each.data).inv for each in await dead_letters.list_dead_letters(bus, 2)
    ] == ["g-0-1", "g-0-2"]
    assert (await dead_letters.read_dead_letter(bus, "g-0-1")).at == 3.0


@pytest.mark.parametrize("id", ["g-0-9", "*", ">", "a.b", ""])
async def test_a_letter_that_is_not_there_is_not_found(id: str):
    with pytest.raises(NotFound):
        await dead_letters.read_dead_letter(await store_letters(make_letter()), id)


async def test_a_letter_with_its_inputs_needs_no_record():
    assert (
        await dead_letters.resolve_invocation(MemoryBus(), make_letter(invocation=make_invocation()))
        == make_invocation()
    )


def digest_changes() -> dict[str, Any]:
    """Return changes of an invocation that keep only digests of its inputs."""
    node = {**INVOCATION["nodes"][0], "inputs": {"prompt": {"$digest": "ab", "nbytes": 3}}}
    return {"nodes": [node, *INVOCATION["nodes"][1:]]}


async def test_else_the_record_is_what_runs_again():
    bus = await store_letters()
    bus.publish_record(subjects.record_subject("chat", "g-0-1"), graph.encode_invocation(make_invocation()), "g-0-1.0")

    assert (
        await dead_letters.resolve_invocation(bus, make_letter(invocation=make_invocation(**digest_changes())))
        == make_invocation()
    )
    assert await dead_letters.resolve_invocation(bus, make_letter()) == make_invocation()


async def test_without_inputs_anywhere_it_says_which_setting_keeps_them():
    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_DEADLETTERS=full"):
        await dead_letters.resolve_invocation(await store_letters(), make_letter())

    bus = await store_letters()
    bus.publish_record(
        subjects.record_subject("chat", "g-0-1"),
        graph.encode_invocation(make_invocation(**digest_changes())),
        "g-0-1.0",
    )
    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_RECORD=full"):
        await dead_letters.resolve_invocation(bus, make_letter())


async def test_a_removed_letter_is_gone():
    bus = await store_letters(make_letter(), make_letter(inv="g-0-2"))

    await dead_letters.delete_dead_letter(bus, make_letter())

    assert [
        dead_letters.decode_dead_letter(each.data).inv for each in await dead_letters.list_dead_letters(bus, 9)
    ] == ["g-0-2"]
