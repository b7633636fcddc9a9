"""The servers that we start: reachable, on loopback only, on ports that outlive a restart."""

import os
import random
import socket
import sys
from pathlib import Path

import nats
import psutil
import pytest
import redis.asyncio as redis

from omnibus.up import infra
from omnibus.up.ports import LOOPBACK, free_ports, held_ports
from tests.unit.bus.servers import run_owned_server as owning


def can_listen(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except OSError:
            return False
    return True


def listening_addresses(pid: int) -> set[str]:
    connections = psutil.Process(pid).net_connections("inet")
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


async def test_nats_is_ready_with_jetstream_and_a_new_enough_version(nats_url):
    client = await nats.connect(nats_url)

    account = await client.jetstream().account_info()

    assert account.streams == 0
    assert client.connected_server_version.major == 2
    assert client.connected_server_version.minor >= 12
    await client.close()


@pytest.mark.parametrize(("machine", "own"), [(1, 1), (2, 1), (7, 1), (8, 2), (64, 16)])
def test_nats_computes_on_a_quarter_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: int, own: int
):
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(machine)))

    assert infra.prepare_nats(tmp_path).spec.env == {"GOMAXPROCS": str(own)}
    assert infra.prepare_nats(tmp_path, cores=3).spec.env == {"GOMAXPROCS": "3"}
    monkeypatch.setenv("GOMAXPROCS", "5")
    assert infra.prepare_nats(tmp_path, cores=3).spec.env == {}


async def test_a_durable_store_has_its_data_after_a_kill(tmp_path):
    async with owning(infra.prepare_valkey(tmp_path, durable=True)) as store_process:
        store = redis.from_url(store_process.server.url, decode_responses=True)
        await store.set("what", "is written")
        await store.aclose()

        store_process.kill()
        await store_process.start()

        store = redis.from_url(store_process.server.url, decode_responses=True)
        assert await store.get("what") == "is written"
        await store.aclose()


async def test_the_store_answers_and_writes_nothing_to_disk(valkey_url):
    store = redis.from_url(valkey_url, decode_responses=True)

    assert await store.ping()
    assert await store.config_get("save") == {"save": ""}
    assert await store.config_get("appendonly") == {"appendonly": "no"}
    await store.aclose()


def test_both_servers_listen_on_loopback_alone(tmp_path, run_server):
    for server in (infra.prepare_nats(tmp_path), infra.prepare_valkey(tmp_path)):
        with run_server(server) as process:
            assert listening_addresses(process.pid) == {LOOPBACK}


def test_the_ports_are_free_after_the_server_has_stopped(tmp_path, run_server):
    server = infra.prepare_nats(tmp_path)
    with run_server(server):
        assert not any(can_listen(port) for port in server.ports)

    assert all(can_listen(port) for port in server.ports)


async def test_a_chosen_port_is_kept(tmp_path):
    port, monitor = free_ports(2)

    server = infra.prepare_nats(tmp_path, port=port, monitor_port=monitor)

    assert server.url == f"nats://127.0.0.1:{port}"
    assert server.monitor == f"http://127.0.0.1:{monitor}"


def test_a_configuration_file_is_handed_to_nats(tmp_path, run_server):
    config = tmp_path / "nats.conf"
    config.write_text('authorization { token: "secret" }\n')
    server = infra.prepare_nats(tmp_path, config=config)

    with run_server(server), socket.create_connection((LOOPBACK, server.ports[0]), timeout=5) as connection:
        greeting = connection.recv(4096)

    assert b'"auth_required":true' in greeting


def test_free_ports_differ_and_are_below_the_ephemeral_range():
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert all(1024 <= port < 61_000 for port in ports)
    assert all(can_listen(port) for port in ports)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a socket that holds a port keeps servers away")


@on_linux
def test_held_ports_are_not_chosen_again(monkeypatch):
    with held_ports(2) as ports:
        monkeypatch.setattr(random, "sample", lambda population, count: ports)
        with pytest.raises(OSError, match="only 0 of 1 free ports"):
            free_ports(1)

    assert free_ports(2) == ports


@on_linux
def test_servers_listen_on_held_ports_again_and_again(run_server, tmp_path):
    with held_ports(3) as (port, monitor, store):
        for _ in range(2):
            with (
                run_server(infra.prepare_nats(tmp_path, port=port, monitor_port=monitor)),
                run_server(infra.prepare_valkey(tmp_path, port=store)),
            ):
                assert not any(can_listen(each) for each in (port, monitor, store))
