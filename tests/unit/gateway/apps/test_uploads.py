"""Uploaded code can compute and call tasks. Anything else raises in it, and its worker survives."""

import os
import socket
from pathlib import Path

import msgspec
import pytest

from omnibus.app.sandbox import NICE_INCREMENT
from omnibus.app_record import AppSource
from omnibus.errors import BadRequest
from omnibus_gateway.apps.worker_supervisor import WorkerSupervisor
from tests.unit.gateway.apps.workers import Abacus, run_worker

UPLOAD = AppSource("upload", "sent_app", sha256="ab")

#: Each attempt is an expression over ``what``, its target.
TRIES = """
import ctypes, mmap, resource, signal, socket, subprocess, threading

def connect(kind, address):
    with socket.socket(kind) as made:
        made.connect(address)

def read(path):
    with open(path, "rb") as file:
        return len(file.read())

def write(path):
    with open(path, "wb") as file:
        return file.write(b"x")

def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        return made.sendto(b"x", address)

ATTEMPTS = {
    "tcp": lambda what: connect(socket.AF_INET, tuple(what)),
    "udp": lambda what: send(tuple(what)),
    "unix": lambda what: connect(socket.AF_UNIX, what),
    "resolve": lambda what: socket.getaddrinfo("localhost.localdomain.example", 80),
    "read": read,
    "list": os.listdir,
    "write": write,
    "mkdir": os.mkdir,
    "remove": os.remove,
    "chmod": lambda what: os.chmod(what, 0o777),
    "here": lambda what: write(what),
    "run": lambda what: subprocess.run(["/bin/true"]),
    "shell": lambda what: subprocess.check_output("true", shell=True),
    "fork": lambda what: os.fork(),
    "kill": lambda what: os.kill(what, 0),
    "environ": lambda what: os.environ["OMNIBUS_STORE_URL"],
    "memory": lambda what: len(bytearray(what)),
    "first": lambda what: os.nice(-1),
    "raise": lambda what: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    "mount": lambda what: 1 / (ctypes.CDLL(None).mount(None, b"/", None, 0, None) + 1),
    "raw": lambda what: 1 / (ctypes.CDLL(None).socket(2, 1, 0) + 1),
}

async def serve(request: dict):
    if request["try"] == "fine":
        return [await (await SPELL(Words(text="ab"))).letters, os.getuid(), os.getcwd(), dict(os.environ)]
    try:
        return {"got": repr(ATTEMPTS[request["try"]](request["what"]))}
    except Exception as error:
        return {"raised": type(error).__name__}
"""


async def try_operation(host, name: str, argument=None) -> bytes:
    return await host.invoke(Abacus(), msgspec.json.encode({"try": name, "what": argument})).read_answer()


async def test_uploaded_code_is_confined_and_says_by_what():
    async with run_worker(UPLOAD, TRIES) as host:
        assert {"limits", "privileges", "read-only", "calls"} <= set(host.description.restricted)

        answer = await try_operation(host, "fine")

    assert answer.startswith(b'["ab",')
    assert answer.endswith(b'"/",{}]')


async def test_uploaded_code_reaches_neither_bus_nor_store(tmp_path, valkey_url, nats_url):
    ports = [int(url.rpartition(":")[2].partition("/")[0]) for url in (valkey_url, nats_url)]
    for port in ports:
        socket.create_connection(("127.0.0.1", port), 5).close()

    async with run_worker(UPLOAD, TRIES) as host:
        pid = host.pid
        for port in ports:
            for kind in ("tcp", "udp"):
                assert await try_operation(host, kind, ["127.0.0.1", port]) == b'{"raised":"PermissionError"}'
        assert host.pid == pid


async def test_uploaded_code_reaches_no_socket_in_the_file_system(tmp_path):
    path = tmp_path / "sidecar.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o777)

        async with run_worker(UPLOAD, TRIES) as host:
            assert await try_operation(host, "unix", str(path)) == b'{"raised":"PermissionError"}'


async def test_uploaded_code_reads_no_file_of_others(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    public = tmp_path / "public"
    public.write_text("x")
    public.chmod(0o644)

    async with run_worker(UPLOAD, TRIES) as host:
        pid = host.pid
        files = [
            secret,
            public,
            Path("/etc/passwd"),
            Path(__file__),
            Path(f"/proc/{os.getpid()}/environ"),
            Path("/proc/self/environ"),
        ]
        for path in files:
            assert await try_operation(host, "read", str(path)) == b'{"raised":"PermissionError"}', path
        for path in (tmp_path, Path("/"), Path("/proc"), Path.home()):
            assert await try_operation(host, "list", str(path)) == b'{"raised":"PermissionError"}', path
        assert host.pid == pid


async def test_uploaded_code_changes_no_file(tmp_path):
    tmp_path.chmod(0o777)
    kept_file = tmp_path / "kept"
    kept_file.write_text("as it was")
    kept_file.chmod(0o666)

    async with run_worker(UPLOAD, TRIES) as host:
        for name, path in {
            "write": tmp_path / "new",
            "here": Path("here"),
            "mkdir": tmp_path / "directory",
            "remove": kept_file,
            "chmod": kept_file,
        }.items():
            assert await try_operation(host, name, str(path)) == b'{"raised":"PermissionError"}', name
        for path in (kept_file, Path("/dev/shm/omnibus-test"), Path("/tmp/omnibus-test")):
            assert await try_operation(host, "write", str(path)) == b'{"raised":"PermissionError"}', path

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept_file.read_text() == "as it was"
    assert kept_file.stat().st_mode & 0o777 == 0o666


async def test_uploaded_code_starts_no_process_and_reaches_none():
    async with run_worker(UPLOAD, TRIES) as host:
        for name in ("run", "shell", "fork"):
            assert await try_operation(host, name) == b'{"raised":"PermissionError"}', name
        for pid in (os.getpid(), 1, 0, -1):
            assert await try_operation(host, "kill", pid) == b'{"raised":"PermissionError"}', pid


async def test_uploaded_code_does_not_see_the_gateways_environment(monkeypatch):
    monkeypatch.setenv("OMNIBUS_STORE_URL", "redis://:s3cret@h")

    async with run_worker(UPLOAD, TRIES) as host:
        assert await try_operation(host, "environ") == b'{"raised":"KeyError"}'


async def test_uploaded_code_computes_after_its_gateway_and_cannot_change_that():
    async with run_worker(UPLOAD, TRIES) as host:
        assert os.getpriority(os.PRIO_PROCESS, host.pid) >= NICE_INCREMENT
        assert await try_operation(host, "first") == b'{"raised":"PermissionError"}'


async def test_uploaded_code_is_bounded_in_memory_and_cannot_lift_its_bounds():
    async with run_worker(UPLOAD, TRIES) as host:
        pid = host.pid

        assert await try_operation(host, "memory", 1 << 36) == b'{"raised":"MemoryError"}'
        assert await try_operation(host, "raise") == b'{"raised":"ValueError"}'
        assert await try_operation(host, "mount") == b'{"raised":"ZeroDivisionError"}'
        assert await try_operation(host, "raw") == b'{"raised":"ZeroDivisionError"}'
        assert host.pid == pid


async def test_an_upload_that_fails_while_it_is_loaded_was_confined_already(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    host = WorkerSupervisor(UPLOAD, f"open({str(secret)!r})\n")
    with pytest.raises(BadRequest, match="sent_app cannot be imported: PermissionError.* .sent_app.py, line 1."):
        await host.start()
    await host.stop()
