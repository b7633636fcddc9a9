"""``omnibus keys``: API keys of tenants, in the store."""

import argparse
import json
import time

import msgspec

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.cli import plans
from omnibus.cli.format.tables import table
from omnibus.store import Store


async def keys_of(options: argparse.Namespace) -> int:
    """The command that was named below ``omnibus keys``."""
    if options.keys_command == "create" and options.offline:
        key, record = _made(options)
        _say_new(key, record, options)
        return 0
    store = Store(plans.settings(options))
    try:
        if options.keys_command == "create":
            key, record = _made(options)
            await store.put_key(record)
            _say_new(key, record, options)
        elif options.keys_command == "revoke":
            gone = await store.drop_key(options.id)
            print(_json(gone) if options.json else f"the key {gone.id} of {gone.tenant} is revoked")
        else:
            _list(sorted((await store.keys()).values(), key=lambda each: (each.tenant, each.created)), options)
    finally:
        await store.close()
    return 0


def _made(options: argparse.Namespace) -> tuple[str, KeyRecord]:
    key = api_key.new()
    record = KeyRecord(
        api_key.digest(key),
        options.tenant,
        options.weight,
        options.rate,
        options.burst,
        options.concurrent,
        options.gpu_seconds,
        options.note,
        round(time.time(), 3),
    )
    return key, api_key.decode(api_key.encode(record))  # as strictly as it is read again


def _say_new(key: str, record: KeyRecord, options: argparse.Namespace) -> None:
    if options.json or options.offline:
        print(json.dumps({"key": key, "record": msgspec.to_builtins(record)}))
        return
    print(key)
    print(f"a key of {record.tenant}, called {record.id}: it is shown this once and kept nowhere")


def _list(found: list[KeyRecord], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps([msgspec.to_builtins(each) for each in found]))
        return
    rows = [
        [
            each.id,
            each.tenant,
            f"{each.weight:g}",
            f"{each.rate:g}/s" if each.rate else "-",
            str(each.concurrent or "-"),
            f"{each.gpu_seconds:g}" if each.gpu_seconds else "-",
            time.strftime("%Y-%m-%d", time.localtime(each.created)) if each.created else "-",
            each.note,
        ]
        for each in found
    ]
    print("\n".join(table(["KEY", "TENANT", "WEIGHT", "RATE", "AT ONCE", "GPU-S/S", "SINCE", "NOTE"], rows)))


def _json(record: KeyRecord) -> str:
    return json.dumps(msgspec.to_builtins(record))
