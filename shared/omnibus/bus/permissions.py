"""Permissions on the bus: one user per service, the subjects that it may use, and a server's configuration of them.

A user may publish and subscribe to what is listed and nothing else. Each has a prefix of inboxes of its own, so that no
service hears what another one asked for; who answers a request may publish to the inboxes of those who ask it. That is
listed like everything else: the server's ``allow_responses`` would let a user publish to the reply subject of any
message that it receives, also of one that it sent to itself.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from omnibus.bus import subjects
from omnibus.bus.subjects import ROOT

#: Streams that gateways see to: the record, and inputs that crashed or failed an engine.
STREAMS = (subjects.INVOCATIONS.name, subjects.DEADLETTERS.name)
#: What a gateway may do with its streams. It removes nothing: retention does.
_STREAM_CALLS = ("INFO", "CREATE", "UPDATE", "MSG.GET")
_API = "$JS.API"
_EXECUTORS = ("encoder", "llm", "generator")


class Permissions(NamedTuple):
    """Subjects that a user may publish and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def inbox(user: str) -> str:
    """The prefix of a user's inboxes; without a user the usual one."""
    return f"_INBOX.{subjects.token(user)}" if user else "_INBOX"


def permissions(models: Mapping[str, Sequence[str]] | None = None) -> dict[str, Permissions]:
    """Return the permissions by user: services on the bus, and ``operator`` for people and their tools.

    ``models`` maps a model to its unit tasks: then there is a user ``model_user(model)`` for each besides, for
    executors of that model. It receives work for those tasks and no other.
    """
    return {
        "gateway": _gateway(),
        "planner": _planner(),
        **{user: _executor(user) for user in _EXECUTORS},
        **{model_user(model): _executor(model_user(model), tasks) for model, tasks in (models or {}).items()},
        "operator": _operator(),
    }


def model_user(model: str) -> str:
    """The user of executors that run components of ``model`` alone."""
    return f"model-{subjects.token(model)}"


def _gateway() -> Permissions:
    says = (subjects.CENSUS, subjects.GATEWAY, subjects.LOAD, subjects.CLAIM)
    hears = (subjects.EXECUTOR, subjects.GONE, subjects.PLAN, *says)
    return Permissions(
        (
            f"{ROOT}.task.*.*",
            subjects.edge("*"),
            subjects.end("*"),
            subjects.RECORDS,
            subjects.REPLAY,  # for who asks over HTTP
            *map(subjects.event, says),
            subjects.DEAD,
            *(f"{_API}.STREAM.{call}.{stream}" for stream in STREAMS for call in _STREAM_CALLS),
            *(f"{_API}.DIRECT.GET.{stream}{tail}" for stream in STREAMS for tail in ("", ".>")),
            *_answers("gateway", "operator"),  # who may ask for a replay
        ),
        (
            f"{ROOT}.reply.>",
            subjects.REPLAY,
            *map(subjects.event, hears),
            subjects.DEAD,  # what another gateway refuses
            f"{inbox('gateway')}.>",
        ),
    )


def _planner() -> Permissions:
    return Permissions(
        (
            subjects.event(subjects.PLAN),
            subjects.event(subjects.CENSUS),
            f"{_API}.STREAM.LIST",
            *(f"{_API}.STREAM.INFO.{stream}" for stream in STREAMS),
            *(f"{_API}.CONSUMER.LIST.{stream}" for stream in STREAMS),
        ),
        (
            *map(subjects.event, (subjects.EXECUTOR, subjects.GONE, subjects.GATEWAY, subjects.LOAD)),
            f"{inbox('planner')}.>",
        ),
    )


def _executor(user: str, tasks: Sequence[str] = ()) -> Permissions:
    """Executors feed each other and answer gateways.

    A user of a service hears all tasks, since what its executors run is decided by plans; ``tasks`` narrows it. Ids of
    executors are made when they start, so that edges cannot be listed by executor.
    """
    hears = [f"{subjects.task(task)}{tail}" for task in tasks for tail in ("", ".*")] or [f"{ROOT}.task.>"]
    return Permissions(
        (subjects.edge("*"), subjects.reply("*"), subjects.event(subjects.EXECUTOR), *_answers("operator")),
        (
            *hears,
            f"{ROOT}.edge.>",
            subjects.event(subjects.CENSUS),
            "$SRV.>",
            f"{inbox(user)}.>",
        ),
    )


def _answers(*users: str) -> tuple[str, ...]:
    """Subjects to publish to for answering what ``users`` ask."""
    return tuple(f"{inbox(user)}.>" for user in users)


def _operator() -> Permissions:
    """Looks at everything, asks by hand, and sees to the streams. It takes no service's part."""
    return Permissions(
        (
            f"{ROOT}.task.*",
            subjects.REPLAY,
            subjects.event(subjects.CENSUS),
            subjects.event(subjects.GONE),
            "$SRV.>",
            f"{_API}.>",
            "$JS.ACK.>",
        ),
        (f"{ROOT}.>", "$SRV.>", f"{inbox('operator')}.>", "_INBOX.>"),
    )


def variable(user: str) -> str:
    """The environment variable in which the server finds a user's password, or its bcrypt hash in quotes."""
    return f"OMNIBUS_NATS_{user.upper().replace('-', '_')}_PASSWORD"


def config(
    passwords: Mapping[str, str] | None = None,
    port: int = 0,
    store: str = "",
    tls: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A configuration for ``nats-server -c``.

    ``passwords`` by user, plain or bcrypt; where one is not named, the server reads it from ``variable(user)``. With
    ``port`` and ``store`` (a directory) it is a whole configuration, else one to be given beside ``-js``. ``tls`` is a
    directory with ``tls.crt`` and ``tls.key``; ``models`` as for ``permissions``.
    """
    return "\n".join([*_server(port, store, tls), *_users(passwords or {}, permissions(models))]) + "\n"


def _server(port: int, store: str, tls: str) -> Iterator[str]:
    if port:
        yield f"port: {port}"
    if store:
        yield f"jetstream {{ store_dir: {json.dumps(store)} }}"
    if tls:
        yield f"tls {{ cert_file: {json.dumps(f'{tls}/tls.crt')}, key_file: {json.dumps(f'{tls}/tls.key')} }}"


def _users(passwords: Mapping[str, str], users: Mapping[str, Permissions]) -> Iterator[str]:
    yield "authorization {"
    yield "  users: ["
    for user, may in users.items():
        password = json.dumps(passwords[user]) if user in passwords else f"${variable(user)}"
        yield "    {"
        yield f"      user: {user}"
        yield f"      password: {password}"
        yield "      permissions: {"
        yield f"        publish: {{ allow: {json.dumps(may.publish)} }}"
        yield f"        subscribe: {{ allow: {json.dumps(may.subscribe)} }}"
        yield "      }"
        yield "    }"
    yield "  ]"
    yield "}"
