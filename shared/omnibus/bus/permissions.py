"""Permissions on the bus: one user per service, its subjects, and a server's configuration of them.

A user may publish and subscribe only to the listed subjects. Each user has a separate prefix of inboxes, so that
services cannot read each other's replies. A responder may publish to the inboxes of its clients, which are also listed.
The server's ``allow_responses`` is not used. With it, a user could publish to the reply subject of any message that it
receives, even if it sent the message itself.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from omnibus.bus import subjects
from omnibus.bus.subjects import ROOT

#: Streams that gateways manage: the record, inputs that crashed or failed an engine, events of stored responses.
STREAMS = (subjects.INVOCATIONS.name, subjects.DEADLETTERS.name, subjects.RESPONSES.name)
#: Calls that gateways may use for their streams. They cannot remove messages: retention does that.
_STREAM_CALLS = ("INFO", "CREATE", "UPDATE", "MSG.GET")
#: Files that only gateways fetch from each other.
_MEDIA = (subjects.MEDIA, subjects.media_subject("*"))
#: Events of stored responses, and their gateways.
_RESPONSES = (subjects.RESPONSE_EVENTS, subjects.holder_subject("*"))
_API = "$JS.API"
_EXECUTORS = ("encoder", "llm", "generator")
#: User of a machine that joined with a file: of its agent, sidecar and executors.
NODE_USER = "node"


class Permissions(NamedTuple):
    """Subjects that a user may publish and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def inbox_prefix(user: str) -> str:
    """Return the prefix of a user's inboxes; without a user, the default one."""
    return f"_INBOX.{subjects.subject_token(user)}" if user else "_INBOX"


def permissions_by_user(
    models: Mapping[str, Sequence[str]] | None = None, nodes: bool = False
) -> dict[str, Permissions]:
    """Return the permissions by user: services on the bus, and ``operator`` for people and their tools.

    ``models`` maps a model to its unit tasks. Each then also has a user ``model_user(model)``, for executors of that
    model, which receives work only for those tasks. With ``nodes``, machines of ``omnibus node`` have a user.
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
        **({NODE_USER: node_permissions()} if nodes else {}),
        "operator": _operator_permissions(),
    }


def model_user(model: str) -> str:
    """Return the user of executors that run only components of ``model``."""
    return f"model-{subjects.subject_token(model)}"


def _gateway_permissions() -> Permissions:
    says = (subjects.CENSUS, subjects.GATEWAY, subjects.LOAD, subjects.CLAIM, subjects.DIGEST, subjects.RELAY)
    hears = (subjects.EXECUTOR, subjects.NODE, subjects.NODE_BEAT, subjects.GONE, subjects.PLAN, *says)
    return Permissions(
        (
            f"{ROOT}.task.*.*",
            subjects.edge_subject("*"),
            f"{ROOT}.node.*",
            subjects.end_subject("*"),
            subjects.RECORDS,
            subjects.REPLAY,  # for HTTP clients
            *_MEDIA,
            *_RESPONSES,
            *map(subjects.event_subject, says),
            _census_answers(subjects.GATEWAY),
            subjects.DEAD,
            *(f"{_API}.STREAM.{call}.{stream}" for stream in STREAMS for call in _STREAM_CALLS),
            *(f"{_API}.DIRECT.GET.{stream}{tail}" for stream in STREAMS for tail in ("", ".>")),
            *_reply_subjects("gateway", "operator"),  # both may request a replay; only gateways request media
        ),
        (
            f"{ROOT}.reply.>",
            subjects.REPLAY,
            *_MEDIA,
            *_RESPONSES,
            *map(subjects.event_subject, hears),
            _census_answers("*"),
            subjects.heartbeat_subject("*"),
            subjects.DEAD,  # inputs that another gateway rejects
            f"{inbox_prefix('gateway')}.>",
        ),
    )


def _planner_permissions() -> Permissions:
    return Permissions(
        (
            subjects.event_subject(subjects.PLAN),
            subjects.event_subject(subjects.CENSUS),
            f"{ROOT}.agent.*",
            f"{_API}.STREAM.LIST",
            *(f"{_API}.STREAM.INFO.{stream}" for stream in STREAMS),
            *(f"{_API}.CONSUMER.LIST.{stream}" for stream in STREAMS),
        ),
        (
            *map(
                subjects.event_subject,
                (subjects.EXECUTOR, subjects.GONE, subjects.GATEWAY, subjects.LOAD, subjects.AGENT),
            ),
            subjects.event_subject(subjects.DIGEST),
            _census_answers("*"),
            subjects.heartbeat_subject("*"),
            f"{inbox_prefix('planner')}.>",
        ),
    )


def node_permissions() -> Permissions:
    """Return permissions for the agent, the sidecar and the executors of one machine."""
    sidecar, executors = _sidecar_permissions(), _executor_permissions(NODE_USER)
    events = map(subjects.event_subject, (subjects.AGENT, subjects.GONE))
    drain = f"{ROOT}.agent.*.drain"  # published to find another agent with the same name
    return Permissions(
        (*executors.publish, *sidecar.publish, *events, drain, *_reply_subjects(NODE_USER)),
        (*executors.subscribe, *sidecar.subscribe[:-1], f"{ROOT}.agent.*", drain),
    )


def _sidecar_permissions() -> Permissions:
    """Return permissions for other sidecars' statuses and ends of invocations."""
    return Permissions(
        (
            *map(subjects.event_subject, (subjects.NODE, subjects.NODE_BEAT, subjects.CENSUS)),
            _census_answers(subjects.NODE),
        ),
        (
            *map(subjects.event_subject, (subjects.NODE, subjects.CENSUS)),
            _census_answers(subjects.NODE),
            f"{ROOT}.node.*",
            f"{inbox_prefix('sidecar')}.>",
        ),
    )


def _executor_permissions(user: str, tasks: Sequence[str] = ()) -> Permissions:
    """Return permissions to feed other executors and answer gateways.

    A user of a service receives all tasks, since plans decide which ones its executors run; ``tasks`` restricts it. Ids
    of executors are made when they start, so edges cannot be listed by executor.
    """
    hears = [f"{subjects.task_subject(task)}{tail}" for task in tasks for tail in ("", ".*")] or [f"{ROOT}.task.>"]
    return Permissions(
        (
            subjects.edge_subject("*"),
            subjects.reply_subject("*"),
            subjects.event_subject(subjects.EXECUTOR),
            _census_answers(subjects.EXECUTOR),
            subjects.heartbeat_subject("*"),
            *_reply_subjects("operator"),
        ),
        (
            *hears,
            f"{ROOT}.edge.>",
            subjects.event_subject(subjects.CENSUS),
            subjects.event_subject(subjects.RELAY),
            "$SRV.>",
            f"{inbox_prefix(user)}.>",
        ),
    )


def _census_answers(kind: str) -> str:
    """Return the subjects for answers of processes of ``kind`` to censuses."""
    return f"{subjects.census_subject('*')}.{kind}"


def _reply_subjects(*users: str) -> tuple[str, ...]:
    """Return the subjects for replies to requests of ``users``."""
    return tuple(f"{inbox_prefix(user)}.>" for user in users)


def _operator_permissions() -> Permissions:
    """Return operator permissions: read everything, publish task requests, manage streams.

    An operator cannot act as a service.
    """
    return Permissions(
        (
            f"{ROOT}.task.*",
            subjects.REPLAY,
            subjects.event_subject(subjects.CENSUS),
            subjects.event_subject(subjects.GONE),
            f"{ROOT}.agent.*.drain",
            "$SRV.>",
            f"{_API}.>",
            "$JS.ACK.>",
        ),
        (f"{ROOT}.>", "$SRV.>", f"{inbox_prefix('operator')}.>", "_INBOX.>"),
    )


def password_variable(user: str) -> str:
    """Return the environment variable with a user's password for the server.

    The value may be a bcrypt hash in quotes.
    """
    return f"OMNIBUS_NATS_{user.upper().replace('-', '_')}_PASSWORD"


def server_config(
    passwords: Mapping[str, str] | None = None,
    port: int = 0,
    store: str = "",
    tls: str = "",
    models: Mapping[str, Sequence[str]] | None = None,
    nodes: bool = False,
) -> str:
    """Return a configuration for ``nats-server -c``.

    ``passwords`` are by user, plain or bcrypt; the server reads a missing one from ``password_variable(user)``. With
    ``port`` and ``store`` (a directory), it is a whole configuration, otherwise one to use with ``-js``. ``tls`` is a
    directory with ``tls.crt`` and ``tls.key``; ``models`` and ``nodes`` as for ``permissions_by_user``.
    """
    users = permissions_by_user(models, nodes)
    return "\n".join([*_server_lines(port, store, tls), *_user_lines(passwords or {}, users)]) + "\n"


def local_users(user: str, password: str, node_password: str = "") -> str:
    """Return the users of a server of ``omnibus up``: ``user`` may do everything, ``NODE_USER`` the work of a node.

    Without ``node_password``, there is only the former.
    """
    node = list(_user_lines({NODE_USER: node_password}, {NODE_USER: node_permissions()}))[2:-2]
    users = ["    {", f"      user: {user}", f"      password: {json.dumps(password)}", "    }"]
    return "\n".join(["authorization {", "  users: [", *users, *(node if node_password else []), "  ]", "}"]) + "\n"


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
