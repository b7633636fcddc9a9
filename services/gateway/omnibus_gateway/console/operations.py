"""Data of the operators' pages: executors, dead letters and settings, without secrets.

The pages also show the current and the staged plan, changes and history. Operators can replay and fork recorded
invocations, as streams of the output of ``omnibus replay``.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from omnibus import graph
from omnibus.bus import Bus, subjects
from omnibus.cluster.monitor.plan_diff import plan_differences
from omnibus.cluster.presence import replica_counts
from omnibus.errors import BadRequest, NotFound, OmnibusError, ProtocolError
from omnibus.families import catalog
from omnibus.graph import UNREADABLE, Invocation
from omnibus.plan import ModelPlan, Plan
from omnibus.recording import dead_letters, records
from omnibus.recording.dead_letters import DeadLetter
from omnibus.recording.steps import find_node, fork_invocation, start_headers
from omnibus.reference.fields import area_variables
from omnibus.settings import BusSettings, GatewaySettings, ServiceSettings, SidecarSettings, StoreSettings
from omnibus.store import PlanHistoryEntry, Store
from omnibus_gateway.core import ExecutorEntry, ExecutorTable

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


#: Limit of the past epochs.
MAX_PAST_EPOCHS = 30


async def describe_plans(store: Store) -> dict[str, Any]:
    """Return the plans as plain values. Raises ``StoreUnavailable``.

    ``changes`` are rows of subject, before and after. They lead to the staged plan, else from the previous plan to the
    current one.
    """
    stand, problems, past = await asyncio.gather(
        store.plan_state(), store.plan_problems(), store.plan_history(MAX_PAST_EPOCHS)
    )
    plan = await store.plan(stand.epoch) if stand.epoch else None
    next_plan = await store.staged_plan() if stand.staged else None
    score = await store.plan_score(stand.epoch) if stand.epoch else None
    return {
        "plan": msgspec.to_builtins(plan),
        "staged": msgspec.to_builtins(next_plan),
        "pin": stand.pin,
        "score": msgspec.to_builtins(score),
        "problems": msgspec.to_builtins(problems),
        "changes": _plan_changes(plan, next_plan, past),
        "history": [_summarize_epoch(each) for each in past],
        "models": describe_models(plan.models if plan is not None else {}),
    }


def describe_models(models: Mapping[str, ModelPlan]) -> dict[str, dict[str, Any]]:
    """Return the inputs, outputs, voices and apps of each model."""
    return {
        name: {**_describe_modalities(model), "voices": list(model.voices), "apps": list(model.apps)}
        for name, model in models.items()
    }


def _describe_modalities(model: ModelPlan) -> dict[str, list[str]]:
    try:
        family = catalog.find_family(model.family)
    except OmnibusError:  # an app's, or a plugin's that this gateway does not have
        return {"takes": ["text", *model.encoders], "gives": []}
    gives = catalog.output_kinds({**family, "components": model.components})
    if "text" not in gives and any(family["tasks"].get(part) in catalog.CHATTING for part in model.components):
        gives = ["text", *gives]
    return {"takes": catalog.input_kinds({**family, "encoders": model.encoders}), "gives": gives}


def _plan_changes(plan: Plan | None, next_plan: Plan | None, past: Sequence[PlanHistoryEntry]) -> list[list[str]]:
    if plan is None:
        return []
    if next_plan is not None:
        return list(plan_differences(plan, next_plan))
    before = next((each.plan for each in past if each.epoch < plan.epoch), None)
    return list(plan_differences(before, plan)) if before is not None else []


def _summarize_epoch(each: PlanHistoryEntry) -> dict[str, Any]:
    if each.plan is None:
        return {"epoch": each.epoch, "fault": each.fault}
    plan = each.plan
    executors = {f"{kind.model}/{kind.option}": count for kind, count in replica_counts(plan.models).items()}
    return {"epoch": each.epoch, "created": plan.created, "reason": plan.reason, "executors": executors}


#: Query parameters that a replay accepts.
REPLAY_PARAMS = ("from", "path", "route")
#: Seconds of silence after which a replay times out.
REPLAY_IDLE_SECONDS = 120.0
#: Limit of the bytes of a fork's body, which may replace a long text.
MAX_BODY_BYTES = 1 << 20


class ForkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fork. ``node`` is a number or component, ``changes`` are by input or ``INPUT.KEY``."""

    node: int | str
    changes: dict[str, Any] = {}
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None


class ConsoleReplays:
    """Runs recorded invocations again over ``bus``."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def stream_replay(self, id: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the output of ``omnibus replay``: where it runs, then the answer and the comparison.

        ``from``, ``path`` and ``route`` of ``query`` are the headers of ``omnibus_gateway.rerun.options``. Raises
        ``BadRequest`` for other parameters, and ``NotFound``.
        """
        headers = _replay_headers(query)
        record = await records.find_record(self._bus, id)
        async for part in self._run(record.invocation, headers):
            yield part

    async def stream_fork(self, id: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the output of ``omnibus fork`` for the JSON ``ForkRequest`` in ``body``.

        Stages before the changed one are replayed from stored outputs, if there are any. Raises ``BadRequest`` and
        ``NotFound``.
        """
        try:
            fork_request = msgspec.json.decode(body, type=ForkRequest)
        except UNREADABLE as error:
            raise BadRequest(f"invalid fork: {error}") from error
        record = await records.find_record(self._bus, id)
        node = find_node(record.invocation, str(fork_request.node))
        fork = fork_invocation(record.invocation, node, fork_request.changes, fork_request.seed)
        async for part in self._run(fork, start_headers(*record, node)):
            yield part

    async def _run(self, invocation: Invocation, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        body = graph.encode_invocation(invocation)
        async for part in self._bus.request_stream(subjects.REPLAY, body, REPLAY_IDLE_SECONDS, headers or None):
            yield part


def _replay_headers(query: Mapping[str, str]) -> dict[str, str]:
    """Raises ``BadRequest`` for unknown parameters and values that cannot be headers."""
    headers = {name: value for name, value in query.items() if value}
    for name, value in headers.items():
        if name not in REPLAY_PARAMS or not (value.isascii() and value.isprintable()):
            raise BadRequest(
                f"a replay accepts only {', '.join(REPLAY_PARAMS)}, with printable ASCII values", param=name[:80]
            )
    return {f"Omnibus-{name}": value for name, value in headers.items()}
