"""The small system with bus users, TLS everywhere, and API keys.

TLS covers bus, store and gateway. Each service is a process with its own user and password. Executors are simulated.
"""

import asyncio
import os
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import redis

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.bus import permissions
from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import task_name
from omnibus.families import catalog
from omnibus.process.spec import PACKAGE_PATH
from omnibus.process.tuning import die_with_parent
from omnibus.settings import BusSettings
from omnibus.up import fork_client, infra
from omnibus.up.ports import free_ports
from omnibus.up.watchdog import find_forked_pid
from tests import certificates
from tests.conftest import run_infra_server as served
from tests.e2e import warm
from tests.tls_proxy import start_proxy

ROOT = Path(__file__).parents[3]
MODEL, FAMILY, NODE = "vl", "qwen2_5_vl", "safe"
ADMIN = "word-of-the-operator"
LIGHT, HEAVY = "omni-light", "omni-heavy"
PASSWORDS = {user: f"word-of-{user}" for user in permissions.permissions_by_user()}
#: Eight sequences at a time; a step costs about the same for one as for eight.
SLOTS, ANSWER, LONGEST = 8, 16, 32  # sequences; tokens
STEP = 0.03  # seconds
SIMULATED: dict[str, Any] = {
    "seed": 1,
    "default": {
        "startup": 0.1,
        "components": {
            "vision": {"slots": 4, "batch": {"points": [[1, 0.02], [4, 0.04]]}, "tokens": {"image": 64}, "width": 8},
            "thinker": {
                "slots": SLOTS,
                "chunk": 64,
                "batch": {"base": 0.002, "per_token": 1e-5},
                "step": {"base": STEP, "per_item": 1e-4},
                "steps": {"mean": ANSWER, "cv": 0.4, "most": LONGEST},
                "width": 8,
            },
        },
    },
}
_READY_WITHIN, _STOP_WITHIN = 90.0, 20.0  # seconds


class SecuredSystem:
    """The processes and the doors to them."""

    def __init__(self, directory: Path, bus: str, store: str) -> None:
        self.directory = directory
        (self.port,) = free_ports(1)
        self.bus_url = bus
        self.url = f"https://localhost:{self.port}"
        self.tls = ssl.create_default_context(cafile=str(certificates.CA))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: dict[str, Path] = {}
        self._env = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{PACKAGE_PATH}",
            "OMNIBUS_BUS_URL": bus,
            "OMNIBUS_BUS_TLS_CA": str(certificates.CA),
            "OMNIBUS_STORE_URL": store,
            "OMNIBUS_STORE_TLS_CA": str(certificates.CA),
            "OMNIBUS_SIDECAR_SOCKET": str(directory / "sidecar.sock"),
            "OMNIBUS_SIDECAR_NODE": f"{NODE}-{self.port}",
            "OMNIBUS_SIDECAR_ARENA_MIB": "32",
        }

    def start(self, name: str, service: str, **settings: str) -> None:
        """Start one service, as the bus user of its name."""
        self.logs[name] = self.directory / f"{name}.log"
        credentials = {"OMNIBUS_BUS_USER": service, "OMNIBUS_BUS_PASSWORD": PASSWORDS.get(service, "")}
        with self.logs[name].open("wb") as log:
            self._processes[name] = subprocess.Popen(
                fork_client.fork_server_command(warm.fork_server_socket(), f"omnibus_{service}"),
                env={**self._env, **credentials, **settings},
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),
            )

    def start_executor(self, option: str, service: str, *components: str) -> None:
        kinds = catalog.FAMILIES[FAMILY]["tasks"]
        self.start(
            option,
            service,
            OMNIBUS_EXECUTOR_MODEL=MODEL,
            OMNIBUS_EXECUTOR_FAMILY=FAMILY,
            OMNIBUS_EXECUTOR_CHECKPOINT=str(self.directory / "simulated.json"),
            OMNIBUS_EXECUTOR_ENGINE="omnibus_engines:sim",
            OMNIBUS_EXECUTOR_OPTION=option,
            OMNIBUS_EXECUTOR_COMPONENTS=",".join(components),
            OMNIBUS_EXECUTOR_TASKS=",".join(task_name(kinds[each], MODEL, each) for each in components),
            OMNIBUS_EXECUTOR_BATCH=str(SLOTS),
        )

    def read_logs(self) -> str:
        return "\n".join(f"--- {name}\n{path.read_text()[-4000:]}" for name, path in self.logs.items())

    def list_listeners(self) -> list[tuple[str, str]]:
        """Names of services, and the addresses that they listen on."""
        return [
            (name, door.laddr.ip)
            for name, process in self._processes.items()
            for door in psutil.Process(find_forked_pid(process.pid)).net_connections("inet")
            if door.status == psutil.CONN_LISTEN
        ]

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_STOP_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()

    async def wait_until_ready(self) -> None:
        async with asyncio.timeout(_READY_WITHIN), self.http() as http:
            while True:
                try:
                    if (await http.get("/readyz")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                dead = [name for name, process in self._processes.items() if process.poll() is not None]
                assert not dead, f"{dead} ended"
                await asyncio.sleep(0.1)

    def http(self, key: str = "") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.url, verify=self.tls, headers=headers, timeout=60, limits=limits)

    async def bus(self, user: str) -> NatsBus:
        settings = BusSettings(self.bus_url, user, PASSWORDS[user], str(certificates.CA))
        return await NatsBus.connect(settings, "test")


def chat_body(content: Any = "hello there", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": LONGEST, **more}


@contextmanager
def start_secured(directory: Path, **settings: str) -> Iterator[SecuredSystem]:
    """Start everything until the block ends; ``settings`` are the gateway's."""
    model = catalog.model_declaration(FAMILY, str(directory / "simulated.json"))
    model["options"] = {name: spec for name, spec in model["options"].items() if name in ("E", "L")}
    model["paths"] = [{"options": ["E", "L"], "share": 1}]
    (directory / "simulated.json").write_bytes(msgspec.json.encode(SIMULATED))
    (directory / "models.json").write_bytes(msgspec.json.encode({"models": {MODEL: model}}))
    (directory / "keys.json").write_bytes(msgspec.json.encode({"keys": [_make_record("light"), _make_record("heavy")]}))
    config = directory / "nats.conf"
    config.write_text(permissions.server_config(PASSWORDS, tls=str(certificates.DIRECTORY)))
    with ExitStack() as stack:
        nats, valkey = infra.prepare_nats(directory, config=config), infra.prepare_valkey(directory)
        stack.enter_context(served(nats))
        stack.enter_context(served(valkey))
        _restrict_user(valkey.url)
        port = stack.enter_context(start_proxy(valkey.ports[0]))
        new_system = SecuredSystem(directory, nats.url, f"rediss://omnibus:word-of-the-store@localhost:{port}/0")
        stack.callback(new_system.stop)
        try:
            _start_services(new_system, settings)
            yield new_system
        except BaseException:
            print(new_system.read_logs())
            raise


def _start_services(system: SecuredSystem, settings: Mapping[str, str]) -> None:
    system.start("sidecar", "sidecar")
    system.start("planner", "planner", OMNIBUS_PLANNER_MODELS=str(system.directory / "models.json"))
    system.start_executor("E", "encoder", "vision")
    system.start_executor("L", "llm", "thinker")
    usual = {
        "OMNIBUS_GATEWAY_PORT": str(system.port),
        "OMNIBUS_GATEWAY_TLS_CERT": str(certificates.CERTIFICATE),
        "OMNIBUS_GATEWAY_TLS_KEY": str(certificates.KEY),
        "OMNIBUS_GATEWAY_KEYS_FILE": str(system.directory / "keys.json"),
        "OMNIBUS_GATEWAY_KEYS": "true",
        "OMNIBUS_GATEWAY_ADMIN_TOKEN": ADMIN,
        "OMNIBUS_GATEWAY_MEDIA_DIR": str(system.directory / "media"),
    }
    system.start("gateway", "gateway", **{**usual, **settings})
    asyncio.run(system.wait_until_ready())


def _make_record(tenant: str) -> KeyRecord:
    return KeyRecord(api_key.hash_key(f"omni-{tenant}"), tenant)


def _restrict_user(url: str) -> None:
    """Restrict the store's only user to the commands and keys of Omnibus.

    Disables the default user.
    """
    with redis.Redis.from_url(url) as raw:
        may = ["~omnibus:*", "&omnibus:*", "+@all", "-@admin", "-@dangerous"]
        raw.execute_command("ACL", "SETUSER", "omnibus", "reset", "on", ">word-of-the-store", *may)
        raw.execute_command("ACL", "SETUSER", "default", "off")
