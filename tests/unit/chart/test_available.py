"""Highly available servers of chart and compose, with their real scripts."""

import asyncio
import base64
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
import yaml

from omnibus.bus.nats import NatsBus
from omnibus.errors import BusUnavailable, StoreUnavailable
from omnibus.plan import Plan
from omnibus.process.spec import ProcessSpec
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus.up import infra
from omnibus.up import infra as binaries
from omnibus.up.infra import InfraServer
from omnibus.up.ports import LOOPBACK, free_ports
from tests.contract import clusters
from tests.e2e.system import ROOT
from tests.kube.api import Object
from tests.unit.bus.servers import Owned
from tests.unit.chart.shapes import SHAPES, Renders, read_env, select_kind

_PASSWORD = "a-word"
_WITHIN_SECONDS = 40.0
_VALKEYS = 2
#: Milliseconds that each sentinel waits for the primary and for a failover: no third one stands for election when two find
#: the primary lost, and a vote that was split is repeated within seconds.
_WAITS = [(2300, 2000), (3000, 2000), (3700, 2000)]

#: The command of a server and its own variables.
Script = tuple[list[str], Mapping[str, str]]


def chart_scripts(objects: list[Object]) -> dict[str, Script]:
    """Scripts by the name under which other servers reach the server."""
    scripts: dict[str, Script] = {}
    for part in ("valkey", "sentinel"):
        spec = select_kind(objects, "StatefulSet")[f"om-{part}"]["spec"]
        for number in range(spec["replicas"]):
            command = spec["template"]["spec"]["containers"][0]["command"]
            name = f"om-{part}-{number}"
            scripts[f"{name}.om-{part}-nodes"] = (command, {"POD": name, "STORE_PASSWORD": _PASSWORD})
    return scripts


def compose_scripts() -> dict[str, Script]:
    layer = yaml.safe_load((ROOT / "deploy/compose/compose.ha.yaml").read_text())["services"]
    names = [name for name in layer if name.startswith(("valkey", "sentinel"))]
    return {
        name: (
            [word.replace("$$", "$") for word in layer[name]["command"]],
            {**layer[name]["environment"], "OMNIBUS_STORE_PASSWORD": _PASSWORD},
        )
        for name in names
    }


def prepare_servers(scripts: Mapping[str, Script], directory: Path) -> list[InfraServer]:
    """Return the servers on loopback, each with its own ports and directory."""
    bin = directory / "bin"
    bin.mkdir()
    (bin / "valkey-server").symlink_to(binaries.find_binary(binaries.VALKEY))
    ports = dict(zip(scripts, free_ports(len(scripts)), strict=True))
    return [_prepare_one(name, script, ports, directory) for name, script in scripts.items()]


def _prepare_one(name: str, script: Script, ports: Mapping[str, int], directory: Path) -> InfraServer:
    command, variables = script
    place = directory / name
    place.mkdir()
    text = command[-1].replace("dir /tmp\n", "dir /data\n").replace("/data", str(place))
    text = re.sub(r"(announce-ip) \S+", rf"\1 {LOOPBACK}", text)
    variables = {key: _localize_names(value, ports) for key, value in variables.items()}
    text = _localize_names(text, ports)
    own = f"port {ports[name]}\nbind {LOOPBACK}\n"
    text = (
        text.replace("port 26379\n", own)
        if "sentinel monitor" in text
        else text.replace('save ""\n', f'save ""\n{own}')
    )
    assert own in text
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    argv = ("env", f"PATH={path}", *(f"{key}={value}" for key, value in variables.items()), *command[:-1], text)
    ready = partial(infra.valkey_ready, ports[name], _PASSWORD if "valkey" in name else "")
    return InfraServer(ProcessSpec(name, argv, cwd=place, ready=ready), f"{LOOPBACK}:{ports[name]}", (ports[name],))


def _localize_names(text: str, ports: Mapping[str, int]) -> str:
    """Replace the names of servers with the usual port by local addresses."""
    for name, port in ports.items():
        text = text.replace(f"{name} 6379", f"{LOOPBACK} {port}")
    return text


@pytest.fixture(scope="module")
def objects(render_chart: Renders) -> list[Object]:
    return render_chart(SHAPES["available"])


@pytest.fixture(params=["chart", "compose"])
async def servers(request: pytest.FixtureRequest, objects: list[Object], tmp_path: Path) -> AsyncIterator[list[Owned]]:
    scripts = chart_scripts(objects) if request.param == "chart" else compose_scripts()
    async with clusters.running_all(prepare_servers(scripts, tmp_path)) as owned_servers:
        await until_true(partial(sentinels_agree, owned_servers))
        yield owned_servers


def test_the_page_shows_what_the_chart_and_the_layer_start():
    page = clusters.read_snippet("port 26379")

    assert "down-after-milliseconds omnibus 2300\nsentinel failover-timeout omnibus 2000\n" in page


async def until_true(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_WITHIN_SECONDS):
        while not await holds():
            await asyncio.sleep(0.1)


def port_of(server: Owned) -> int:
    return server.server.ports[0]


async def sentinels_agree(servers: list[Owned]) -> bool:
    """Return True if every sentinel sees the others and a connected replica."""
    for sentinel in servers[_VALKEYS:]:
        async with redis.Redis(port=port_of(sentinel)) as client:
            state = (await client.sentinel_masters())["omnibus"]
            links = [each["master-link-status"] for each in await client.sentinel_slaves("omnibus")]
        if links != ["ok"] or state["is_sdown"] or state["num-other-sentinels"] != len(servers) - _VALKEYS - 1:
            return False
    return True


async def find_primary(servers: list[Owned]) -> int:
    """Return the index of the server that accepts writes, or -1."""
    roles = []
    for each in servers[:_VALKEYS]:
        async with redis.Redis(port=port_of(each), password=_PASSWORD) as client:
            roles.append((await client.info("replication"))["role"])
    return roles.index("master") if roles.count("master") == 1 else -1


async def read_timeouts(servers: list[Owned]) -> list[tuple[int, int]]:
    """Return each sentinel's timeouts in milliseconds, for primary and failover."""
    timeouts = []
    for sentinel in servers[_VALKEYS:]:
        async with redis.Redis(port=port_of(sentinel)) as client:
            state = (await client.sentinel_masters())["omnibus"]
        timeouts.append((state["down-after-milliseconds"], state["failover-timeout"]))
    return timeouts


async def test_what_was_written_last_is_there_after_all_servers_were_lost(servers: list[Owned]):
    assert await find_primary(servers) == 0
    assert await read_timeouts(servers) == _WAITS
    addresses = ",".join(f"{LOOPBACK}:{port_of(each)}" for each in servers[_VALKEYS:])
    store = Store(StoreSettings(url=f"redis+sentinel://:{_PASSWORD}@{addresses}/omnibus/0"))
    await store.swap_plan(Plan(1, 0, 1000.0, {}))
    servers[0].kill()
    await until_true(partial(try_swap, store, 2))
    await servers[0].start()
    await until_true(partial(sentinels_agree, servers))
    assert await find_primary(servers) == 1

    for each in servers:
        each.kill()
    for each in servers:
        each.launch()
    for each in servers:
        await each.wait_ready()
    await until_true(partial(sentinels_agree, servers))

    assert await find_primary(servers) == 1
    assert await read_timeouts(servers) == _WAITS
    await until_true(partial(has_epoch, store, 2))
    await store.close()


async def has_epoch(store: Store, epoch: int) -> bool:
    with suppress(StoreUnavailable):  # connections to what was killed
        return await store.epoch() == epoch
    return False


async def try_swap(store: Store, epoch: int) -> bool:
    with suppress(StoreUnavailable):
        await store.swap_plan(Plan(epoch, epoch - 1, 1000.0, {}))
        return True
    return False


async def can_read(bus: NatsBus) -> bool:
    with suppress(BusUnavailable):  # a leader is being elected
        return await bus.read_records("omnibus.inv.a.b") == []
    return False


async def test_three_servers_of_the_chart_are_one_bus(objects: list[Object], tmp_path: Path, monkeypatch):
    (secret,) = select_kind(objects, "Secret").values()
    words: dict[str, Any] = {key: base64.b64decode(word).decode() for key, word in secret["data"].items()}
    nats_env = read_env(select_kind(objects, "StatefulSet")["om-nats"]["spec"]["template"])
    for name, value in nats_env.items():
        if "secretKeyRef" in value:
            monkeypatch.setenv(name, words[value["secretKeyRef"]["key"]])
    config = select_kind(objects, "ConfigMap")["om-nats"]["data"]["nats.conf"]
    routes = free_ports(3)

    async with clusters.running_all(
        [prepare_nats(config, number, routes, tmp_path) for number in range(3)]
    ) as owned_servers:
        url = clusters.join_urls([each.server for each in owned_servers])
        settings = BusSettings(url=url, user="gateway", password=words["gateway"], replicas=3)
        bus = await NatsBus.connect(settings, "gateway")
        await bus.open_records(600.0, 1 << 30)
        owned_servers[0].kill()
        async with asyncio.timeout(_WITHIN_SECONDS):
            while not bus.connected:
                await asyncio.sleep(0.1)
        await until_true(partial(can_read, bus))
        await bus.drain()
    gateway = read_env(select_kind(objects, "Deployment")["om-gateway"]["spec"]["template"])
    assert gateway["OMNIBUS_BUS_REPLICAS"] == "3"
    assert gateway["OMNIBUS_BUS_URL"].count("om-nats-") == 6


def prepare_nats(config: str, number: int, routes: list[int], directory: Path) -> InfraServer:
    """Prepare one server of the cluster on loopback."""
    text = re.sub(r"(?m)^(port|http|store_dir|  store_dir): .*$", "", config)
    text = text.replace("$POD", f"om-nats-{number}").replace("0.0.0.0:6222", f"{LOOPBACK}:{routes[number]}")
    for other, port in enumerate(routes):
        text = text.replace(f"om-nats-{other}.om-nats-nodes:6222", f"{LOOPBACK}:{port}")
    path = directory / f"nats-{number}.conf"
    path.write_text(text)
    server = infra.prepare_nats(directory / f"nats-{number}", config=path)
    return replace(server, spec=replace(server.spec, name=f"nats-{number}"))
