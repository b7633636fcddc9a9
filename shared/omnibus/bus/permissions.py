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

#: Streams that gateways see to: the record, inputs that crashed or failed an engine, events of stored responses.
STREAMS = (subjects.INVOCATIONS.name, subjects.DEADLETTERS.name, subjects.RESPONSES.name)
#: What a gateway may do with its streams. It removes nothing: retention does.
_STREAM_CALLS = ("INFO", "CREATE", "UPDATE", "MSG.GET")
#: Files that gateways fetch from each other, and nobody else.
_MEDIA = (subjects.MEDIA, subjects.media_subject("*"))
#: Events of stored responses, and who makes them.
_RESPONSES = (subjects.RESPONSE_EVENTS, subjects.holder_subject("*"))
_API = "$JS.API"
_EXECUTORS = ("encoder", "llm", "generator")


class Permissions(NamedTuple):
    """Subjects that a user may publish and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def inbox_prefix(user: str) -> str:
    """The prefix of a user's inboxes; without a user the usual one."""
    return f"_INBOX.{subjects.subject_token(user)}" if user else "_INBOX"


def permissions_by_user(models: Mapping[str, Sequence[str]] | None = None) -> dict[str, Permissions]:
    """Return the permissions by user: services on the bus, and ``operator`` for people and their tools.

    ``models`` maps a model to its unit tasks: then there is a user ``model_user(model)`` for each besides, for
    executors of that model. It receives work for those tasks and no other.
    """
    return {
        "gateway": _gateway_permissions(),
        "planner": _planner_permissions(),
        "sidecar": _sidecar_permissions(),
        **{user: _executor_permissions(user) for user in _EXECUTORS},
        **{
            model_user(model): _executor_permissions(model_user(model), tasks)
            for model, tasks in (models or {}).items()
        },
        "operator": _operator_permissions(),
    }


def model_user(model: str) -> str:
    """The user of executors that run components of ``model`` alone."""
    return f"model-{subjects.subject_token(model)}"


def _gateway_permissions() -> Permissions:
    says = (subjects.CENSUS, subjects.GATEWAY, subjects.LOAD, subjects.CLAIM)
    hears = (subjects.EXECUTOR, subjects.NODE, subjects.GONE, subjects.PLAN, *says)
    return Permissions(
        (
            f"{ROOT}.task.*.*",
            subjects.edge_subject("*"),
            f"{ROOT}.node.*",
            subjects.end_subject("*"),
            subjects.RECORDS,
            subjects.REPLAY,  # for who asks over HTTP
            *_MEDIA,
            *_RESPONSES,
            *map(subjects.event_subject, says),
            subjects.DEAD,
            *(f"{_API}.STREAM.{call}.{stream}" for stream in STREAMS for call in _STREAM_CALLS),
            *(f"{_API}.DIRECT.GET.{stream}{tail}" for stream in STREAMS for tail in ("", ".>")),
            *_reply_subjects("gateway", "operator"),  # who may ask for a replay; only gateways ask for media
        ),
        (
            f"{ROOT}.reply.>",
            subjects.REPLAY,
            *_MEDIA,
            *_RESPONSES,
            *map(subjects.event_subject, hears),
            subjects.DEAD,  # what another gateway refuses
            f"{inbox_prefix('gateway')}.>",
        ),
    )


def _planner_permissions() -> Permissions:
    return Permissions(
        (
            subjects.event_subject(subjects.PLAN),
            subjects.event_subject(subjects.CENSUS),
            f"{_API}.STREAM.LIST",
            *(f"{_API}.STREAM.INFO.{stream}" for stream in STREAMS),
            *(f"{_API}.CONSUMER.LIST.{stream}" for stream in STREAMS),
        ),
        (
            *map(subjects.event_subject, (subjects.EXECUTOR, subjects.GONE, subjects.GATEWAY, subjects.LOAD)),
            f"{inbox_prefix('planner')}.>",
        ),
    )


def _sidecar_permissions() -> Permissions:
    """Sidecars know each other by their status, and hear which invocations are over."""
    return Permissions(
        tuple(map(subjects.event_subject, (subjects.NODE, subjects.CENSUS))),
        (
            *map(subjects.event_subject, (subjects.NODE, subjects.CENSUS)),
            f"{ROOT}.node.*",
            f"{inbox_prefix('sidecar')}.>",
        ),
    )


def _executor_permissions(user: str, tasks: Sequence[str] = ()) -> Permissions:
    """Executors feed each other and answer gateways.

    A user of a service hears all tasks, since what its executors run is decided by plans; ``tasks`` narrows it. Ids of
    executors are made when they start, so that edges cannot be listed by executor.
    """
    hears = [f"{subjects.task_subject(task)}{tail}" for task in tasks for tail in ("", ".*")] or [f"{ROOT}.task.>"]
    return Permissions(
        (
            subjects.edge_subject("*"),
            subjects.reply_subject("*"),
            subjects.event_subject(subjects.EXECUTOR),
            *_reply_subjects("operator"),
        ),
        (
            *hears,
            f"{ROOT}.edge.>",
            subjects.event_subject(subjects.CENSUS),
            "$SRV.>",
            f"{inbox_prefix(user)}.>",
        ),
    )


def _reply_subjects(*users: str) -> tuple[str, ...]:
    """Subjects to publish to for answering what ``users`` ask."""
    return tuple(f"{inbox_prefix(user)}.>" for user in users)


def _operator_permissions() -> Permissions:
    """Looks at everything, asks by hand, and sees to the streams. It takes no service's part."""
    return Permissions(
        (
            f"{ROOT}.task.*",
            subjects.REPLAY,
            subjects.event_subject(subjects.CENSUS),
            subjects.event_subject(subjects.GONE),
            "$SRV.>",
            f"{_API}.>",
            "$JS.ACK.>",
        ),
        (f"{ROOT}.>", "$SRV.>", f"{inbox_prefix('operator')}.>", "_INBOX.>"),
    )


def password_variable(user: str) -> str:
    """The environment variable in which the server finds a user's password, or its bcrypt hash in quotes."""
    return f"OMNIBUS_NATS_{user.upper().replace('-', '_')}_PASSWORD"


def server_config(
    passwords: Mapping[str, str] | None = None,
    port: int = 0,
    store: str = "",
    tls: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A configuration for ``nats-server -c``.

    ``passwords`` by user, plain or bcrypt; where one lacks, the server reads it from ``password_variable(user)``. With
    ``port`` and ``store`` (a directory) it is a whole configuration, else one to be given beside ``-js``. ``tls`` is a
    directory with ``tls.crt`` and ``tls.key``; ``models`` as for ``permissions_by_user``.
    """
    return (
        "\n".join([*_server_lines(port, store, tls), *_user_lines(passwords or {}, permissions_by_user(models))]) + "\n"
    )


def _server_lines(port: int, store: str, tls: str) -> Iterator[str]:
    if port:
        yield f"port: {port}"
    if store:
        yield f"jetstream {{ store_dir: {json.dumps(store)} }}"
    if tls:
        yield f"tls {{ cert_file: {json.dumps(f'{tls}/tls.crt')}, key_file: {json.dumps(f'{tls}/tls.key')} }}"


def _user_lines(passwords: Mapping[str, str], users: Mapping[str, Permissions]) -> Iterator[str]:
    yield "authorization {"
    yield "  users: ["
    for user, may in users.items():
        password = json.dumps(passwords[user]) if user in passwords else f"${password_variable(user)}"
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
