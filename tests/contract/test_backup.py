"""Backups restore a store and a bus on empty servers; damaged files are rejected."""

import gzip
import io
import json
import stat
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import DEADLETTERS, INVOCATIONS, dead_letter_subject, record_subject
from omnibus.cli import main as run_command
from omnibus.errors import BadRequest
from omnibus.plan import Plan
from omnibus.recording.backup import BackupReader, restore_backup, write_backup
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus.up import infra
from omnibus.up.infra import InfraServer
from tests.contract.test_store_adapters import make_adapter
from tests.contract.test_store_apps import TEXT, make_uploaded_app
from tests.contract.test_store_jobs import KIND, MANY, make_job
from tests.contract.test_store_keys import make_key_record
from tests.contract.test_store_profiles import make_profile

SETTINGS = BusSettings(record_bytes=1 << 26, dead_bytes=1 << 26)
MESSAGES = 600  # several parts


async def connect_bus(url: str) -> NatsBus:
    bus = await NatsBus.connect(BusSettings(url=url), "test")
    for spec in (INVOCATIONS, DEADLETTERS):
        await bus.open_records(600.0, 1 << 26, spec)
    return bus


async def purge_records(bus: NatsBus) -> None:
    for spec in (INVOCATIONS, DEADLETTERS):
        await bus.purge_subject(spec, spec.subjects)


@pytest.fixture
async def own_bus(nats_url: str) -> AsyncIterator[NatsBus]:
    bus = await connect_bus(nats_url)
    await purge_records(bus)
    yield bus
    await bus.drain()


@pytest.fixture
async def signed_store(valkey_url: str, raw: redis.Redis) -> AsyncIterator[Store]:
    new_store = Store(StoreSettings(url=valkey_url, prefix="test", secret="a secret"))
    yield new_store
    await new_store.close()


async def write_entries(store: Store, bus: NatsBus, messages: int = MESSAGES) -> dict[str, Any]:
    """Write one entry of every kind; return the readers' view."""
    for epoch in (1, 2, 3):
        await store.swap_plan(Plan(epoch, epoch - 1, 1000.0, {}))
    await store.pin_plan(2)
    await store.lead_plan("a planner", 600.0)
    await store.put_profile(make_profile("qwen"))
    await store.put_source(TEXT)
    await store.put_app(make_uploaded_app(), 0)
    await store.put_key(make_key_record())
    await store.put_adapter(make_adapter())
    await store.put_job(KIND, make_job("first"), MANY)
    await store.put_job(KIND, make_job("second"), MANY)
    for number in range(messages):
        await bus.store_record(
            record_subject("chat", f"i{number}"), b'{"n":%d,"text":"\xc3\xbc"}' % number, f"{number}"
        )
    await bus.store_record(dead_letter_subject("chat", "i0"), b"\x00\xff not text", "dead")
    return await read_entries(store, bus)


async def read_entries(store: Store, bus: NatsBus) -> dict[str, Any]:
    state = await store.plan_state()
    return {
        "plans": [await store.plan(epoch) for epoch in (1, 2, 3)],
        "state": (state.epoch, state.pin),
        "profiles": await store.profiles(),
        "source": await store.source(make_uploaded_app().source.sha256),
        "apps": await anext(aiter(store.app_changes())),
        "keys": await store.keys(),
        "adapters": await store.adapters(),
        "jobs": [await store.job(KIND, name) for name in ("first", "second")],
        "records": [(each.subject, each.data) for each in await bus.read_records("omnibus.inv.>")],
        "dead": [(each.subject, each.data) for each in await bus.read_latest(DEADLETTERS, 10)],
    }


async def test_everything_is_there_again_on_servers_that_had_nothing(
    signed_store: Store, own_bus: NatsBus, raw: redis.Redis, tmp_path: Path
):
    path = tmp_path / "omnibus.tar.gz"
    before = await write_entries(signed_store, own_bus)

    manifest = await write_backup(path, signed_store, own_bus)
    await raw.flushall()
    await purge_records(own_bus)
    backup = BackupReader.open(path)
    await restore_backup(backup, signed_store, own_bus, SETTINGS, replace=False)
    backup.close()

    assert await read_entries(signed_store, own_bus) == before
    assert len(before["records"]) == MESSAGES
    assert manifest.streams == {"OMNIBUS_INVOCATIONS": MESSAGES, "OMNIBUS_DEADLETTERS": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert not await raw.exists("test:plan:lead")  # which planner leads is not for later
    assert await raw.pttl("test:job:video:first") > 0
    await signed_store.swap_plan(Plan(4, 3, 1000.0, {}))  # functions go on with what was restored
    assert (await signed_store.take_job(KIND, "worker", 60.0)).id == "first"  # type: ignore[union-attr]


async def test_what_is_there_is_removed_only_where_that_is_said(
    signed_store: Store, own_bus: NatsBus, raw: redis.Redis, tmp_path: Path
):
    before = await write_entries(signed_store, own_bus)
    await write_backup(tmp_path / "b.tar.gz", signed_store, own_bus)
    await signed_store.put_profile(make_profile("later"))
    await own_bus.store_record(record_subject("chat", "later"), b"{}", "later")
    await raw.set("other:key", "of somebody else")
    backup = BackupReader.open(tmp_path / "b.tar.gz")

    with pytest.raises(BadRequest, match="OMNIBUS_INVOCATIONS has messages already: say --replace"):
        await restore_backup(backup, signed_store, own_bus, SETTINGS, replace=False)
    with pytest.raises(BadRequest, match="keys already: say --replace"):
        await restore_backup(backup, signed_store, None, SETTINGS, replace=False)
    assert "later" in await signed_store.profiles()

    await restore_backup(backup, signed_store, own_bus, SETTINGS, replace=True)

    assert await read_entries(signed_store, own_bus) == before
    assert await raw.get("other:key") == b"of somebody else"
    backup.close()


def rewrite_backup(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change the parts of a backup by their names."""
    with tarfile.open(path) as archive:
        parts = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    change(parts)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def set_manifest(**fields: Any) -> Callable[[dict[str, bytes]], None]:
    def change_parts(parts: dict[str, bytes]) -> None:
        parts["manifest.json"] = json.dumps({**json.loads(parts["manifest.json"]), **fields}).encode()

    return change_parts


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda parts: parts.pop("manifest.json"), "it has no manifest.json"),
        (lambda parts: parts.pop("store.jsonl"), "it has no store.jsonl"),
        (lambda parts: parts.update({"store.jsonl": parts["store.jsonl"] + b"{}"}), "store.jsonl is not what was"),
        (set_manifest(format=2), "reads form 1"),
        (set_manifest(wire=2), "wire version 2"),
        (set_manifest(streams={"OTHERS": 1}), "streams that this build does not have: OTHERS"),
        (set_manifest(keys="many"), "not a backup of omnibus"),
    ],
)
async def test_files_that_are_no_whole_backup_of_this_version_are_refused(
    signed_store: Store, raw: redis.Redis, tmp_path: Path, change: Callable[[dict[str, bytes]], None], says: str
):
    path = tmp_path / "b.tar.gz"
    await signed_store.put_profile(make_profile("qwen"))
    await write_backup(path, signed_store, None)
    rewrite_backup(path, change)

    with pytest.raises(BadRequest, match=says):
        BackupReader.open(path)


@pytest.mark.parametrize("cut", ["half", "text", "absent"])
async def test_files_that_are_cut_off_are_refused(signed_store: Store, raw: redis.Redis, tmp_path: Path, cut: str):
    path = tmp_path / "b.tar.gz"
    await signed_store.put_profile(make_profile("qwen"))
    await write_backup(path, signed_store, None)
    whole = path.read_bytes()
    if cut == "absent":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if cut == "half" else gzip.compress(b"hello"))

    with pytest.raises(BadRequest, match="not a complete backup"):
        BackupReader.open(path)


async def test_a_backup_never_overwrites_a_file(signed_store: Store, tmp_path: Path):
    path = tmp_path / "b.tar.gz"
    path.write_text("mine")

    with pytest.raises(BadRequest, match="exists already"):
        await write_backup(path, signed_store, None)
    with pytest.raises(BadRequest, match="cannot be written"):
        await write_backup(tmp_path / "no" / "b.tar.gz", signed_store, None)

    assert path.read_text() == "mine"


def test_the_commands_do_the_same(run_server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], nats_url: str):
    servers: list[InfraServer] = [infra.prepare_valkey(tmp_path / name) for name in ("one", "two")]
    path = str(tmp_path / "b.tar.gz")
    with run_server(servers[0]), run_server(servers[1]):
        urls = [("--store", server.url, "--nats", nats_url, "--no-streams") for server in servers]
        assert run_command(["keys", "create", "search", "--store", servers[0].url]) == 0
        assert run_command(["backup", path, *urls[0]]) == 0
        assert run_command(["restore", path, *urls[1]]) == 0
        assert run_command(["restore", path, *urls[1]]) == 1
        capsys.readouterr()
        assert run_command(["keys", "list", "--store", servers[1].url]) == 0

    assert "search" in capsys.readouterr().out
