"""Data of earlier releases stays readable; docs/operations.md lists the versions.

    python -m tests.contract.test_releases

records the backup of this release, once it is made.
"""

import asyncio
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
import yaml

from omnibus import __version__
from omnibus.graph import WIRE_VERSION
from omnibus.recording import backup as backups
from omnibus.recording.backup import BackupReader, restore_backup, write_backup
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus.tensors import peer_protocol, protocol
from omnibus.up import infra
from tests.contract.test_backup import SETTINGS, connect_bus, purge_records, read_entries, write_entries
from tests.e2e.system import ROOT
from tests.unit.bus.servers import run_owned_server

KITS = ROOT / "tests" / "golden" / "releases"
PAGE = (ROOT / "docs" / "operations.md").read_text()
MESSAGES = 5


@pytest.mark.parametrize("kit", sorted(KITS.glob("*.tar.gz")), ids=lambda path: path.name)
async def test_the_backup_of_every_release_can_be_restored_and_read(
    kit: Path, valkey_url: str, nats_url: str, raw: redis.Redis
):
    store = Store(StoreSettings(url=valkey_url, prefix="test", secret="a secret"))
    bus = await connect_bus(nats_url)
    await purge_records(bus)
    backup = BackupReader.open(kit)

    await restore_backup(backup, store, bus, SETTINGS, replace=True)

    entries: dict[str, Any] = await read_entries(store, bus)
    assert entries["state"] == (3, 2)
    assert [plan.epoch for plan in entries["plans"]] == [1, 2, 3]
    assert {name: len(entries[name]) for name in ("profiles", "apps", "keys", "records", "dead")} == {
        "profiles": 1, "apps": 1, "keys": 1, "records": MESSAGES, "dead": 1,
    }  # fmt: skip
    await store.close()
    await bus.drain()
    backup.close()


def test_this_release_has_a_backup_or_is_being_made():
    releases = {path.name.removesuffix(".tar.gz") for path in KITS.glob("*.tar.gz")}

    assert __version__ in releases, "run python -m tests.contract.test_releases"


@pytest.mark.parametrize(
    ("row", "version"),
    [
        ("gateways, planners, executors, over the bus", WIRE_VERSION),
        ("sidecars and their clients on a node", protocol.VERSION),
        ("sidecars of different nodes", peer_protocol.VERSION),
        ("backups", backups.FORMAT),
    ],
)
def test_the_page_has_the_versions_of_the_code(row: str, version: int):
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row} |")]

    assert f"({version})" in line


def test_the_table_has_what_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((ROOT / "deploy/helm/omnibus/Chart.yaml").read_text())
    (python,) = re.findall(r"\| Python \| ([\d.]+)", PAGE)
    (kubernetes,) = re.findall(r"\| Kubernetes \| ([\d.]+)", PAGE)
    (bus,) = re.findall(r"\| NATS server \| ([\d.]+)", PAGE)

    assert project["requires-python"] == f">={python}"
    assert chart["kubeVersion"] == f">={kubernetes}.0-0"
    assert f"nats:{bus}-" in (ROOT / "deploy/helm/omnibus/values.yaml").read_text()
    assert f"nats:{bus}-" in (ROOT / "deploy/compose/compose.yaml").read_text()


async def record_release() -> None:
    """Write the backup of this release, with one entry of every kind."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        valkey, nats = infra.prepare_valkey(directory), infra.prepare_nats(directory)
        async with run_owned_server(valkey), run_owned_server(nats):
            store = Store(StoreSettings(url=valkey.url, prefix="test", secret="a secret"))
            bus = await connect_bus(nats.url)
            await write_entries(store, bus, MESSAGES)
            KITS.mkdir(exist_ok=True)
            await write_backup(KITS / f"{__version__}.tar.gz", store, bus)
            await store.close()
            await bus.drain()


if __name__ == "__main__":
    asyncio.run(record_release())
