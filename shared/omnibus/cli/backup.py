"""``omnibus backup`` and ``omnibus restore``: state of the store and the streams, in one file."""

import argparse
import time
from contextlib import AsyncExitStack
from pathlib import Path

from omnibus.bus.nats import NatsBus
from omnibus.cli import plans
from omnibus.cli.invocations import connect_bus
from omnibus.cli.output import print_json
from omnibus.recording.backup import BackupManifest, BackupReader, restore_backup, write_backup
from omnibus.settings import BusSettings, read_settings
from omnibus.store import Store


async def run_backup(options: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        store, bus = await _connect(options, stack)
        manifest = await write_backup(Path(options.file), store, bus)
    _print_manifest(options, manifest, "in")
    return 0


async def run_restore(options: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        backup = BackupReader.open(Path(options.file))
        stack.callback(backup.close)
        store, bus = await _connect(options, stack)
        await restore_backup(backup, store, bus, read_settings(BusSettings), replace=options.replace)
    _print_manifest(options, backup.manifest, "written from")
    return 0


async def _connect(options: argparse.Namespace, stack: AsyncExitStack) -> tuple[Store, NatsBus | None]:
    store = Store(plans.store_settings(options))
    stack.push_async_callback(store.close)
    if options.no_streams:
        return store, None
    bus = await connect_bus(options)
    stack.push_async_callback(bus.drain)
    return store, bus


def _print_manifest(options: argparse.Namespace, manifest: BackupManifest, verb: str) -> None:
    if options.json:
        print_json(manifest)
        return
    counts = [
        f"{manifest.keys} keys of the store",
        *(f"{count} messages of {name}" for name, count in manifest.streams.items()),
    ]
    creation_time = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created))
    print(f"{', '.join(counts)} {verb} {options.file}, made at {creation_time} by omnibus {manifest.version}")
