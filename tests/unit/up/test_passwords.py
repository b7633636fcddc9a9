"""Servers of `omnibus up` with a password of the run: another user of the machine is rejected and reads nothing."""

import json
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import nats
import pytest
import redis

from omnibus.up import infra
from omnibus.up.infra import InfraServer
from omnibus.up.ports import LOOPBACK
from omnibus.up.runs import RunDirectory

WORD = "A-word_of-the-run"
NOBODY = 65534
SECONDS = 10.0


def as_nobody(function: Callable[..., str], *arguments: Any) -> str:
    """Return the result of ``function`` in a separate process. If this one is root, that one runs as another user."""
    context = multiprocessing.get_context("fork")
    parent_pipe, its = context.Pipe()
    process = context.Process(target=_run_as_nobody, args=(its, function, arguments))
    process.start()
    try:
        assert parent_pipe.poll(SECONDS), "no answer"
        return str(parent_pipe.recv())
    finally:
        process.join(SECONDS)


def _run_as_nobody(answer: Connection, function: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    answer.send(function(*arguments))


def send_lines(port: int, *lines: bytes) -> str:
    """Return all that the server answers to ``lines`` until it is silent."""
    with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
        connection.sendall(b"\r\n".join([*lines, b""]))
        data = b""
        try:
            while more := connection.recv(4096):
                data += more
        except TimeoutError:
            pass
    return data.decode()


def read_file(path: str) -> str:
    try:
        return Path(path).read_text()
    except PermissionError:
        return "refused"


@pytest.fixture(scope="module")
def servers(run_server) -> Iterator[tuple[InfraServer, InfraServer]]:
    with ExitStack() as stack:
        run = stack.enter_context(RunDirectory())
        bus, store = infra.prepare_nats(run.path, password=WORD), infra.prepare_valkey(run.path, password=WORD)
        stack.enter_context(run_server(bus))
        stack.enter_context(run_server(store))
        yield bus, store


async def test_the_url_of_the_run_opens_both_servers(servers: tuple[InfraServer, InfraServer]):
    bus, store = servers

    client = await nats.connect(bus.url)
    assert client.is_connected
    await client.close()
    with redis.Redis.from_url(store.url) as own:
        assert own.ping()


def test_another_user_is_served_by_neither(servers: tuple[InfraServer, InfraServer]):
    bus, store = servers

    bus_answer = as_nobody(send_lines, bus.ports[0], b'CONNECT {"verbose":false}', b"SUB omnibus.> 1", b"PING")
    guess_answer = as_nobody(send_lines, bus.ports[0], b'CONNECT {"user":"omnibus","pass":"guessed"}', b"PING")
    store_answer = as_nobody(
        send_lines, store.ports[0], b"SET omnibus:app:evil {}", b"AUTH guessed", b"GET omnibus:plan"
    )

    assert "Authorization Violation" in bus_answer
    assert "PONG" not in bus_answer
    assert "Authorization Violation" in guess_answer
    assert "PONG" not in guess_answer
    assert store_answer.count("-NOAUTH") == 2
    assert "-WRONGPASS" in store_answer


@pytest.mark.skipif(os.getuid() != 0, reason="starts a process of another user")
def test_another_user_cannot_read_the_passwords(servers: tuple[InfraServer, InfraServer]):
    for server, name in zip(servers, ("nats.conf", "valkey.conf"), strict=True):
        path = Path(str(server.spec.cwd)) / name
        assert WORD in path.read_text()
        assert as_nobody(read_file, str(path)) == "refused"


def test_passwords_are_in_private_files_and_in_no_argument(servers: tuple[InfraServer, InfraServer]):
    for server, name in zip(servers, ("nats.conf", "valkey.conf"), strict=True):
        path = Path(str(server.spec.cwd)) / name
        assert path.stat().st_mode & 0o777 == 0o600
        assert not [argument for argument in server.spec.argv if WORD in argument]


def test_the_server_writes_its_password_into_no_log(servers: tuple[InfraServer, InfraServer]):
    assert WORD not in (Path(str(servers[0].spec.cwd)) / "server.log").read_text()


def test_a_file_that_others_could_read_is_not_written_into(tmp_path: Path, run_server):
    path = tmp_path / "nats" / "nats.conf"
    path.parent.mkdir()
    path.write_text("")
    path.chmod(0o666)

    infra.prepare_nats(tmp_path, password=WORD)

    assert path.stat().st_mode & 0o777 == 0o600
    assert json.dumps(WORD) in path.read_text()
