"""Who may say and hear what on the bus: one user per service, its subjects, and a server's configuration of them.

A user may publish and subscribe to what is listed and nothing else; answers to what it was asked are allowed besides.
Each has a prefix of inboxes of its own, so that no service hears what another one asked for.
"""

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from omnibus.bus import subjects
from omnibus.bus.subjects import ROOT

#: Streams that gateways see to: the record, and inputs that crashed or failed an engine.
STREAMS = (subjects.RECORD_STREAM, "OMNIBUS_DEADLETTERS")
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


def permissions() -> dict[str, Permissions]:
    """What each user may, by its name: the services on the bus, and ``operator`` for people and their tools."""
    return {
        "gateway": _gateway(),
        "planner": _planner(),
        **{user: _executor(user) for user in _EXECUTORS},
        "operator": _operator(),
    }


def _gateway() -> Permissions:
    says = (subjects.CENSUS, subjects.GATEWAY, subjects.LOAD)
    hears = (subjects.EXECUTOR, subjects.GONE, subjects.CENSUS, subjects.GATEWAY, subjects.LOAD, subjects.PLAN)
    return Permissions(
        (
            f"{ROOT}.task.*.*",
            subjects.edge("*"),
            subjects.end("*"),
            subjects.RECORDS,
            subjects.REPLAY,  # for who asks over HTTP
            *map(subjects.event, says),
            f"{subjects.event('deadletter')}.>",
            *(f"{_API}.STREAM.{call}.{stream}" for stream in STREAMS for call in _STREAM_CALLS),
            *(f"{_API}.DIRECT.GET.{stream}{tail}" for stream in STREAMS for tail in ("", ".>")),
        ),
        (
            f"{ROOT}.reply.>",
            subjects.REPLAY,
            *map(subjects.event, hears),
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


def _executor(user: str) -> Permissions:
    """Executors feed each other and answer gateways. They are not told which they are before they start, so all
    executors of a service have one user, and hear what is sent to each of them."""
    return Permissions(
        (subjects.edge("*"), subjects.reply("*"), subjects.event(subjects.EXECUTOR)),
        (
            f"{ROOT}.task.>",
            f"{ROOT}.edge.>",
            subjects.event(subjects.CENSUS),
            "$SRV.>",
            f"{inbox(user)}.>",
        ),
    )


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
    return f"OMNIBUS_NATS_{user.upper()}_PASSWORD"


def config(passwords: Mapping[str, str] | None = None, port: int = 0, store: str = "", tls: str = "") -> str:
    """A configuration for ``nats-server -c``.

    ``passwords`` by user, plain or bcrypt; where one is not named, the server reads it from ``variable(user)``. With
    ``port`` and ``store`` (a directory) it is a whole configuration, else one to be given beside ``-js``. ``tls`` is a
    directory with ``tls.crt`` and ``tls.key``.
    """
    return "\n".join(_lines(passwords or {}, port, store, tls)) + "\n"


def _lines(passwords: Mapping[str, str], port: int, store: str, tls: str) -> Iterator[str]:
    if port:
        yield f"port: {port}"
    if store:
        yield f"jetstream {{ store_dir: {json.dumps(store)} }}"
    if tls:
        yield f"tls {{ cert_file: {json.dumps(f'{tls}/tls.crt')}, key_file: {json.dumps(f'{tls}/tls.key')} }}"
    yield "authorization {"
    yield "  users: ["
    for user, may in permissions().items():
        password = json.dumps(passwords[user]) if user in passwords else f"${variable(user)}"
        yield "    {"
        yield f"      user: {user}"
        yield f"      password: {password}"
        yield "      permissions: {"
        yield f"        publish: {{ allow: {json.dumps(may.publish)} }}"
        yield f"        subscribe: {{ allow: {json.dumps(may.subscribe)} }}"
        yield '        allow_responses: { max: -1, expires: "10m" }'
        yield "      }"
        yield "    }"
    yield "  ]"
    yield "}"
