"""Clusters of real servers, by the configurations that docs/nodes.md shows."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from omnibus.process.spec import ProcessSpec
from omnibus.up import infra
from omnibus.up.infra import InfraServer
from omnibus.up.ports import LOOPBACK, free_ports
from tests.unit.bus.servers import Owned

PAGE = Path(__file__).parents[2] / "docs" / "nodes.md"


def read_snippet(begins: str) -> str:
    """The block of configuration on the page that begins so."""
    (snippet,) = re.findall(rf"```text\n({re.escape(begins)}.*?)```", PAGE.read_text(), re.DOTALL)
    return str(snippet)


def prepare_cluster(directory: Path, more: str = "", count: int = 3) -> list[InfraServer]:
    """NATS servers of one cluster, with ``more`` in their configurations.

    Each listens for leaf nodes as well: at the third of its ports.
    """
    ports = free_ports(2 * count)
    routes, leafs = ports[:count], ports[count:]
    servers = []
    for index, (route, leaf) in enumerate(zip(routes, leafs, strict=True)):
        text = read_snippet("server_name: nats-1").replace("nats-1", f"nats-{index + 1}")
        text = text.replace('listen: "10.0.0.1:6222"', f'listen: "127.0.0.1:{route}"')
        text = re.sub(
            r"nats://10\.0\.0\.(\d):6222", lambda found: f"nats://127.0.0.1:{routes[int(found[1]) - 1]}", text
        )
        text = re.sub(r'listen: "10.*|store_dir: "[^"]*",', "", text)  # arguments say where
        text += f'leafnodes {{ listen: "127.0.0.1:{leaf}" }}\n{more}'
        server = infra.prepare_nats(
            directory / f"nats-{index}", config=_write_file(directory / f"nats-{index}.conf", text)
        )
        servers.append(InfraServer(server.spec, server.url, (*server.ports, leaf), server.monitor))
    return servers


def prepare_leaf(directory: Path, cluster: list[InfraServer]) -> InfraServer:
    """A leaf node of ``cluster``."""
    text = re.sub(
        r"10\.0\.0\.(\d):7422",
        lambda found: f"127.0.0.1:{cluster[int(found[1]) - 1].ports[2]}",
        read_snippet("server_name: leaf-1"),
    )
    text = re.sub(r"listen: .*", "", text)
    return infra.prepare_nats(directory / "leaf", config=_write_file(directory / "leaf.conf", text))


def join_urls(servers: list[InfraServer]) -> str:
    return ",".join(server.url for server in servers)


@asynccontextmanager
async def running_all(servers: list[InfraServer]) -> AsyncIterator[list[Owned]]:
    """Start all ``servers`` together; one of a cluster alone never becomes ready."""
    processes = [Owned(server) for server in servers]
    async with AsyncExitStack() as stack:
        for each in processes:
            stack.callback(each.kill)
            each.launch()
        for each in processes:
            await each.wait_ready()
        yield processes


def _write_file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def prepare_sentinels(
    directory: Path, password: str, count: int = 3, *, quick: bool = True, durable: bool = False
) -> tuple[list[InfraServer], list[InfraServer]]:
    """Start a primary, its replica, and sentinels that watch them.

    All are on loopback and use ``password``. ``quick``: the sentinels wait less for the primary than the page
    recommends, because all are on one machine.
    """
    primary = infra.prepare_valkey(directory / "primary", password=password, durable=durable)
    replica = infra.prepare_valkey(directory / "replica", password=password, durable=durable)
    follow = ("--replicaof", LOOPBACK, str(primary.ports[0]), "--repl-diskless-sync-delay", "0")
    servers = [
        replace(each, spec=replace(each.spec, argv=(*each.spec.argv, "--masterauth", password, *more)))
        for each, more in ((primary, ()), (replica, follow))
    ]
    waits = [1000] * count if quick else [2300 + 700 * index for index in range(count)]
    return servers, [
        _prepare_sentinel(directory, port, primary, password, wait)
        for port, wait in zip(free_ports(count), waits, strict=True)
    ]


def _prepare_sentinel(directory: Path, port: int, primary: InfraServer, password: str, wait: int) -> InfraServer:
    """Start a sentinel that waits ``wait`` milliseconds for a silent primary."""
    text = (
        read_snippet("port 26379").replace("26379", str(port)).replace("10.0.1.1 6379", f"127.0.0.1 {primary.ports[0]}")
    )
    text = re.sub(r"(down-after-milliseconds \w+) \d+", rf"\1 {wait}", text)
    config = directory / f"sentinel-{port}.conf"
    config.write_text(f"{text}sentinel auth-pass omnibus {password}\nbind {LOOPBACK}\ndir {directory}\n")
    argv = (primary.spec.argv[0], str(config), "--sentinel")
    spec = ProcessSpec("sentinel", argv, cwd=directory, ready=partial(infra.valkey_ready, port))
    return InfraServer(spec, f"{LOOPBACK}:{port}", (port,))
