"""A bus that other machines reach: what it opens, and what a node may do on it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omnibus.bus import subjects
from omnibus.bus.nats import BusRefused, NatsBus
from omnibus.bus.permissions import NODE_USER
from omnibus.settings import BusSettings
from omnibus.up import infra
from omnibus.up.infra import BusAccess, InfraServer
from omnibus.up.join import JoinFile
from tests.conftest import run_infra_server

#: An address of this machine other than the one for its own services.
HOST = "127.0.0.2"
JOIN = JoinFile("nats://unused:1", "s" * 64)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InfraServer]:
    access = BusAccess(HOST, JOIN.bus_password)
    server = infra.prepare_nats(tmp_path_factory.mktemp("nats"), password="all", access=access)
    with run_infra_server(server):
        yield server


def node_settings(server: InfraServer, password: str = JOIN.bus_password) -> BusSettings:
    url = f"nats://{HOST}:{server.ports[0]}"
    return BusSettings(url=url, user=NODE_USER, password=password, connect_timeout=2)


def test_the_monitoring_stays_on_loopback(server: InfraServer) -> None:
    port = server.ports[1]

    assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{HOST}:{port}/healthz")


async def test_only_the_right_password_connects(server: InfraServer) -> None:
    for settings in (node_settings(server, "wrong"), BusSettings(url=f"nats://{HOST}:{server.ports[0]}")):
        with pytest.raises(BusRefused):
            await NatsBus.connect(settings, "forged")


async def test_a_node_does_the_work_of_a_node_alone(server: InfraServer) -> None:
    own = await NatsBus.connect(BusSettings(url=server.url), "test")
    node = await NatsBus.connect(node_settings(server), "node")
    heard: list[str] = []
    for subject in ("omnibus.>",):
        await own.subscribe(subject, lambda delivery: heard.append(delivery.subject))

    allowed = [
        subjects.event_subject(kind) for kind in (subjects.AGENT, subjects.EXECUTOR, subjects.GONE, subjects.NODE)
    ]
    for subject in (
        subjects.event_subject(subjects.PLAN),
        subjects.assignment_subject("n2"),
        subjects.task_subject("think", "e1"),
        subjects.end_subject("i"),
        subjects.record_subject("app", "i"),
        *allowed,
    ):
        node.publish(subject, b"{}")

    async with asyncio.timeout(5):
        while len(heard) < len(allowed):
            await asyncio.sleep(0.01)
    assert sorted(heard) == sorted(allowed)
    await node.drain()
    await own.drain()


def test_a_join_file_has_the_authority_of_the_bus(tmp_path: Path) -> None:
    settings = JoinFile(JOIN.bus, JOIN.secret, "PEM").bus_settings(str(tmp_path / "ca.pem"), 1.0)

    assert (settings.user, settings.password, settings.tls_ca) == ("node", JOIN.bus_password, str(tmp_path / "ca.pem"))
    assert JOIN.bus_settings("ca.pem", 1.0).tls_ca == ""
