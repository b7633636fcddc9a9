"""Data of the operators' pages: executors, dead letters and settings, without secrets."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from omnibus.bus import Bus
from omnibus.errors import NotFound, ProtocolError
from omnibus.recording import dead_letters
from omnibus.recording.dead_letters import DeadLetter
from omnibus.reference.fields import area_variables
from omnibus.settings import BusSettings, GatewaySettings, ServiceSettings, SidecarSettings, StoreSettings
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable

#: Areas of settings that a gateway reads.
SETTING_AREAS = (GatewaySettings, ServiceSettings, BusSettings, StoreSettings, SidecarSettings)
#: Limit of the dead letters on a page.
MAX_LETTERS = 200


def describe_executors(members: ExecutorTable) -> list[dict[str, Any]]:
    """Return all known executors, ordered by model, option and id."""
    now = time.monotonic()
    entries = [member for status in members.statuses() if (member := members.get(status.id)) is not None]
    entries.sort(key=lambda each: (each.status.model, each.status.option, each.status.id))
    return [_executor_values(each, now) for each in entries]


def describe_executor(members: ExecutorTable, id: str) -> dict[str, Any]:
    """Return one executor. Raises ``NotFound``."""
    member = members.get(id)
    if member is None:
        raise NotFound(f"unknown executor {id[:80]!r}: it has ended, or has not reported to this gateway")
    return _executor_values(member, time.monotonic())


def _executor_values(member: ExecutorEntry, now: float) -> dict[str, Any]:
    status = member.status
    busy, jobs_done = _padded(status.busy, status.components), _padded(status.done, status.components)
    stages = zip(status.components, busy, jobs_done, strict=True)
    return {
        "id": status.id,
        "model": status.model,
        "option": status.option,
        "node": status.node,
        "pid": status.pid,
        "state": status.state,
        "health": member.health_state(now),
        "silent_seconds": round(now - member.seen, 3),
        "inflight": status.inflight,
        "credits": status.credits,
        "batch": status.slots,
        "outstanding_tokens": max(0.0, member.outstanding),
        "device": status.device,
        "memory_bytes": status.memory_bytes,
        "gpu_bytes": status.gpu_bytes,
        "reconnects": status.reconnects,
        "origin": status.origin,
        "stages": [
            {"component": name, "busy_seconds": busy_seconds, "jobs": jobs} for name, busy_seconds, jobs in stages
        ],
    }


def _padded(values: tuple[Any, ...], components: tuple[str, ...]) -> list[Any]:
    """Pad ``values`` by component with None for values not reported."""
    return [*values[: len(components)], *[None] * (len(components) - len(values))]


async def list_letters(bus: Bus, limit: int, before: int) -> dict[str, Any]:
    """Return a page of dead letters, newest first; ``next`` is the ``before`` of the next page, null on the last one.

    Letters of another version are skipped, so a page may have fewer than ``limit``.
    """
    messages = await dead_letters.list_dead_letters(bus, limit, before)
    below = messages[-1].number if messages else 0
    letters = [_letter_values(letter) for letter in _decoded(each.data for each in messages)]
    return {"data": letters, "next": below if len(messages) == limit and below > 1 else None}


async def show_letter(bus: Bus, id: str) -> dict[str, Any]:
    """Return one dead letter with its attempts. Raises ``NotFound``."""
    letter = await dead_letters.read_dead_letter(bus, id)
    return {**_letter_values(letter), "moves": msgspec.to_builtins(letter.moves), "refused": list(letter.refused)}


def _decoded(bodies: Iterator[bytes]) -> Iterator[DeadLetter]:
    for body in bodies:
        try:
            yield dead_letters.decode_dead_letter(body)
        except ProtocolError:
            continue


def _letter_values(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.inv,
        "at": letter.at,
        "created": letter.created,
        "model": letter.model,
        "app": letter.app,
        "type": letter.type,
        "path": letter.path,
        "reason": letter.reason,
        "component": letter.component,
        "attempts": letter.attempts,
        "executors_lost": list(letter.lost),
        "replay_of": letter.replay_of,
        "problem": msgspec.to_builtins(letter.problem),
    }


def describe_settings(environ: Callable[[], dict[str, str]] = lambda: dict(os.environ)) -> list[dict[str, Any]]:
    """Return all settings of a gateway with defaults and values. Secrets are shown as ``(set)``."""
    environment = environ()
    return [
        {"area": area.area, **variable._asdict()}
        for area in SETTING_AREAS
        for variable in area_variables(area, environment)
    ]
