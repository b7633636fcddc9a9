"""Users of a real NATS server with generated permissions, with and without TLS."""

import asyncio
import logging
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from omnibus.bus import permissions, subjects
from omnibus.bus.nats import NatsBus
from omnibus.errors import BadRequest, BusUnavailable, NotFound
from omnibus.settings import BusSettings
from omnibus.up import infra
from omnibus.up import infra as binaries
from tests import certificates

USERS = permissions.permissions_by_user()
PASSWORDS = {user: f"word-of-{user}" for user in USERS}
SECONDS = 5.0
REFUSED_WITHIN = 2.0
#: All roles but the gateway, since gateways read each other's files.
OTHERS = ("planner", "encoder", "llm", "generator", "sidecar", "operator")


@pytest.fixture(scope="module")
def guarded_url(tmp_path_factory: pytest.TempPathFactory, run_server) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("guarded")
    config = directory / "nats.conf"
    config.write_text(permissions.server_config(PASSWORDS))
    server = infra.prepare_nats(directory, config=config)
    with run_server(server):
        yield server.url


@asynccontextmanager
async def connect_user(url: str, user: str, **more) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(BusSettings(url=url, user=user, password=PASSWORDS[user], **more), user)
    try:
        yield bus
    finally:
        await bus.drain()


async def can_reach(url: str, sender: str, hearer: str, subject: str) -> bool:
    """Return True if a message that ``sender`` publishes reaches ``hearer``."""
    arrival = asyncio.Event()
    async with connect_user(url, sender) as one, connect_user(url, hearer) as other:
        await other.subscribe(subject, lambda _: arrival.set())
        one.publish(subject, b"{}")
        await one._flush_connection(5)
        await other._flush_connection(5)
        return arrival.is_set()


async def test_nobody_comes_in_without_a_password(guarded_url: str):
    for client, settings in (
        ("connections without a user", BusSettings(url=guarded_url, connect_timeout=REFUSED_WITHIN)),
        (
            "user 'gateway'",
            BusSettings(url=guarded_url, user="gateway", password="guessed", connect_timeout=REFUSED_WITHIN),
        ),
    ):
        with pytest.raises(BusUnavailable, match=f"refuses {client}: check OMNIBUS_BUS_USER"):
            await NatsBus.connect(settings, "stranger")


@pytest.mark.parametrize(
    ("sender", "hearer", "subject"),
    [
        ("gateway", "llm", "omnibus.task.think-m-thinker.l-0"),
        ("gateway", "encoder", "omnibus.edge.e-0"),
        ("gateway", "operator", "omnibus.end.g-0-1"),
        ("gateway", "planner", "omnibus.event.load"),
        ("gateway", "gateway", "omnibus.event.gateway"),
        ("encoder", "llm", "omnibus.edge.l-0"),
        ("llm", "generator", "omnibus.edge.v-0"),
        ("llm", "gateway", "omnibus.reply.g"),
        ("generator", "gateway", "omnibus.event.executor"),
        ("planner", "llm", "omnibus.event.census"),
        ("sidecar", "gateway", "omnibus.event.node"),
        ("sidecar", "sidecar", "omnibus.event.census"),
        ("gateway", "sidecar", "omnibus.node.n1"),
        ("operator", "gateway", "omnibus.replay"),
        ("gateway", "gateway", "omnibus.media"),
        ("gateway", "gateway", "omnibus.media.g"),
        ("gateway", "gateway", "_INBOX.gateway.x"),
    ],
)
async def test_what_the_contract_says_passes(guarded_url: str, sender: str, hearer: str, subject: str):
    assert await can_reach(guarded_url, sender, hearer, subject)


@pytest.mark.parametrize(
    ("sender", "hearer", "subject"),
    [
        ("llm", "encoder", "omnibus.task.encode-m-vision.e-0"),  # executors send no work
        ("encoder", "operator", "omnibus.inv.chat.g-0-1"),  # nor write the history
        ("generator", "gateway", "omnibus.replay"),
        ("llm", "planner", "omnibus.event.load"),
        ("llm", "gateway", "omnibus.event.gone"),
        ("planner", "llm", "omnibus.task.think-m-thinker.l-0"),
        ("planner", "llm", "omnibus.edge.l-0"),
        ("gateway", "gateway", "omnibus.reply.other"),  # clients do not answer
        ("gateway", "operator", "omnibus.event.plan"),
        ("sidecar", "sidecar", "omnibus.node.n1"),
        ("operator", "gateway", "omnibus.reply.g"),
        *((user, "gateway", subject) for user in OTHERS for subject in ("omnibus.media", "omnibus.media.g")),
        *((user, "gateway", "_INBOX.gateway.x") for user in OTHERS),  # nor forge a file
    ],
)
async def test_who_publishes_to_anothers_subject_is_refused_and_it_is_seen(
    guarded_url: str, sender: str, hearer: str, subject: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)

    assert not await can_reach(guarded_url, sender, hearer, subject)

    assert [
        text
        for text in caplog.messages
        if "permissions violation for publish" in text.lower() and subject.lower() in text
    ]


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("llm", "omnibus.inv.>"),
        ("llm", "omnibus.reply.>"),
        ("encoder", "_INBOX.>"),
        ("encoder", "_INBOX.gateway.>"),
        ("planner", "omnibus.task.>"),
        ("planner", ">"),
        ("gateway", "omnibus.task.>"),
        ("gateway", "omnibus.inv.>"),
        *((user, "omnibus.media.>") for user in ("planner", "encoder", "sidecar")),
    ],
)
async def test_who_listens_to_what_is_not_its_own_is_refused_and_it_is_seen(
    guarded_url: str, user: str, subject: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)

    async with connect_user(guarded_url, user) as bus:
        await bus.subscribe(subject, lambda _: None)
        await bus._flush_connection(5)

    assert [text for text in caplog.messages if "permissions violation for subscription" in text.lower()]


async def test_answers_go_to_who_asked_and_to_nobody_else(guarded_url: str):
    async def answer_twice(_):
        yield b"one"
        yield b"two"

    async with connect_user(guarded_url, "gateway") as gateway, connect_user(guarded_url, "operator") as operator:
        await gateway.add_responder(subjects.REPLAY, answer_twice, queue="gateways")
        parts = [part async for part in operator.request_stream(subjects.REPLAY, b"{}", SECONDS)]

    assert parts == [b"one", b"two"]


async def test_a_gateway_keeps_the_record_and_an_operator_reads_it(guarded_url: str):
    async with connect_user(guarded_url, "gateway") as gateway, connect_user(guarded_url, "operator") as operator:
        await gateway.open_records(60.0, 1 << 20)
        await gateway.open_records(60.0, 1 << 20)
        gateway.publish_record("omnibus.inv.chat.g-0-1", b"{}", "g-0-1")
        async with asyncio.timeout(SECONDS):
            while not await gateway.read_records("omnibus.inv.*.g-0-1"):
                pass
        assert [record.data for record in await operator.read_records("omnibus.inv.*.g-0-1")] == [b"{}"]


async def test_executors_are_services_that_an_operator_can_ask(guarded_url: str):
    async def echo_data(delivery):
        yield delivery.data

    async with connect_user(guarded_url, "llm") as llm, connect_user(guarded_url, "operator") as operator:
        await llm.register_service("omnibus-L", {}, {"think": ("omnibus.task.think-m-thinker", echo_data)})

        assert await operator.request("$SRV.PING", b"", SECONDS)
        assert await operator.request("omnibus.task.think-m-thinker", b"hello", SECONDS) == b"hello"
        with pytest.raises(NotFound):
            await operator.request("omnibus.task.nobody", b"", SECONDS)


# The configuration


def test_no_user_may_answer_where_it_pleases():
    assert "allow_responses" not in permissions.server_config(PASSWORDS, models={"m": ["think-m-thinker"]})


def test_passwords_come_from_the_environment_unless_they_are_given():
    text = permissions.server_config({"gateway": "secret"})

    assert 'password: "secret"' in text
    assert "password: $OMNIBUS_NATS_PLANNER_PASSWORD" in text
    assert "OMNIBUS_NATS_GATEWAY_PASSWORD" not in text


@pytest.mark.parametrize("bare", [True, False])
def test_a_server_takes_the_configuration(tmp_path: Path, bare: bool):
    config = tmp_path / "nats.conf"
    whole = {} if bare else {"port": 4222, "store": str(tmp_path), "tls": str(certificates.DIRECTORY)}
    config.write_text(permissions.server_config(**whole))
    server = binaries.find_binary(binaries.NATS)
    environ = {permissions.password_variable(user): f"word-{user}" for user in USERS}

    command = [server, "-t", "-c", config]
    process = subprocess.run(command, env=environ, check=False, capture_output=True, text=True, timeout=20)

    assert process.returncode == 0, process.stderr
    missing = subprocess.run(command, env={}, check=False, capture_output=True, text=True, timeout=20)
    assert missing.returncode != 0  # no access without a password


def test_nobody_may_everything():
    for user, may in USERS.items():
        assert not {">", "*", "*.>"} & {*may.publish, *may.subscribe}, user
        inboxes = [subject for subject in may.subscribe if subject.startswith("_INBOX")]
        assert user == "operator" or inboxes == [f"_INBOX.{user}.>"]


# TLS


@pytest.fixture(scope="module")
def tls_url(tmp_path_factory: pytest.TempPathFactory, run_server) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("tls")
    config = directory / "nats.conf"
    config.write_text(permissions.server_config(PASSWORDS, tls=str(certificates.DIRECTORY)))
    server = infra.prepare_nats(directory, config=config)
    with run_server(server):
        yield server.url


async def test_the_bus_speaks_tls_with_a_server_that_its_authority_signed(tls_url: str):
    async with connect_user(tls_url, "planner", tls_ca=str(certificates.CA)) as bus:
        assert bus.connected


async def test_a_server_of_another_authority_is_not_believed(tls_url: str):
    with pytest.raises(BusUnavailable, match="not trusted: check OMNIBUS_BUS_TLS_CA"):
        async with connect_user(tls_url, "planner", tls_ca=str(certificates.OTHER_CA), connect_timeout=REFUSED_WITHIN):
            pass


async def test_without_an_authority_a_server_that_wants_tls_is_not_believed_either(tls_url: str):
    with pytest.raises(BusUnavailable, match="not trusted: check OMNIBUS_BUS_TLS_CA"):
        async with connect_user(tls_url, "planner", connect_timeout=REFUSED_WITHIN):
            pass


async def test_an_authority_that_cannot_be_read_is_named(tls_url: str, tmp_path: Path):
    with pytest.raises(BadRequest, match="OMNIBUS_BUS_TLS_CA"):
        async with connect_user(tls_url, "planner", tls_ca=str(tmp_path / "nothing")):
            pass
