"""``omnibus keys``: API keys of tenants, in the store."""

import argparse
import time

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.cli import plans
from omnibus.cli.format.tables import table_lines
from omnibus.cli.output import print_json, print_names
from omnibus.errors import BadRequest
from omnibus.store import Store


async def run_keys(options: argparse.Namespace) -> int:
    """Run the subcommand of ``omnibus keys`` in ``options``."""
    if options.keys_command == "create" and options.offline:
        key, record = _make_key(options)
        _print_new_key(key, record, options)
        return 0
    store = Store(plans.store_settings(options))
    try:
        if options.keys_command == "create":
            key, record = _make_key(options)
            await store.put_key(record)
            _print_new_key(key, record, options)
        elif options.keys_command == "revoke":
            revoked_key = await store.drop_key(options.id)
            if options.json:
                print_json(revoked_key)
            else:
                print(f"the key {revoked_key.id} of {revoked_key.tenant} is revoked")
        else:
            _print_keys(sorted((await store.keys()).values(), key=lambda each: (each.tenant, each.created)), options)
    finally:
        await store.close()
    return 0


def _make_key(options: argparse.Namespace) -> tuple[str, KeyRecord]:
    for name in ("rate", "burst", "concurrent", "gpu_seconds"):
        if getattr(options, name) < 0:
            raise BadRequest(f"--{name.replace('_', '-')} {getattr(options, name):g} must be 0 (for no limit) or more")
    key = api_key.generate_key()
    record = KeyRecord(
        api_key.hash_key(key),
        options.tenant,
        options.weight,
        options.rate,
        options.burst,
        options.concurrent,
        options.gpu_seconds,
        options.note,
        round(time.time(), 3),
    )
    return key, api_key.decode_key_record(api_key.encode_key_record(record))  # checked as when it is read


def _print_new_key(key: str, record: KeyRecord, options: argparse.Namespace) -> None:
    if options.json or options.offline:
        print_json({"key": key, "record": record})
        return
    print(key)
    print(f"a key of {record.tenant}, called {record.id}: it is shown only now and is not stored")


def _print_keys(keys: list[KeyRecord], options: argparse.Namespace) -> None:
    if options.json:
        print_json(keys)
        return
    if options.quiet:
        print_names(each.id for each in keys)
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
        for each in keys
    ]
    print("\n".join(table_lines(["KEY", "TENANT", "WEIGHT", "RATE", "AT ONCE", "GPU-S/S", "SINCE", "NOTE"], rows)))
