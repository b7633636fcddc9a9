"""API keys for operators: the list, new keys, and keys that are revoked. A key is shown once, when it is made."""

import logging
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.errors import BadRequest, Conflict
from omnibus.graph import UNREADABLE
from omnibus.store import Store
from services.gateway.tenancy.key_store import KeyView

log = logging.getLogger(__name__)

#: Bytes of a request for a key at most.
MAX_BODY_BYTES = 16 << 10
#: What is set by the gateway and not by who wants a key.
_OWN_FIELDS = ("sha256", "created")
_ID = re.compile(r"[0-9a-f]{12,64}")


class ConsoleKeys:
    """Lists, creates and revokes keys. ``view`` returns those in force here; others are in ``store`` alone."""

    def __init__(self, store: Store, view: Callable[[], KeyView]) -> None:
        self._store = store
        self._view = view

    async def list_keys(self) -> dict[str, Any]:
        """Keys and their limits by tenant; of a key only what operators name it by, its hash's first digits.

        Raises ``StoreUnavailable`` where this gateway does not follow the keys of the store, and cannot read them.
        """
        view = self._view()
        stored = () if view.follows_store else (await self._store.keys()).values()
        return describe_keys(view, stored)

    async def create_key(self, body: bytes) -> dict[str, Any]:
        """Keep a new key as the JSON ``body`` describes it: fields of a ``KeyRecord``, ``tenant`` at least.

        Returns its record with the ``key`` itself, which is kept nowhere. Raises ``BadRequest`` and
        ``StoreUnavailable``.
        """
        key = api_key.generate_key()
        record = _parse_record(body, api_key.hash_key(key))
        await self._store.put_key(record)
        log.info("API key %s of %s created in the console", record.id, record.tenant)
        return {"key": key, **_key_values(record, "store")}

    async def revoke_key(self, id: str) -> dict[str, Any]:
        """Revoke the key of the store that is called ``id``, 12 hex digits or more, and return its record.

        Raises ``BadRequest``, ``NotFound``, ``Conflict`` for a key of the file, and ``StoreUnavailable``.
        """
        if not _ID.fullmatch(id):
            raise BadRequest("a key is named by the first 12 hex digits of its SHA-256 at least", param="id")
        if any(sha256.startswith(id) for sha256 in self._view().of_file):
            raise Conflict(f"the key {id} is in the file of keys (OMNIBUS_GATEWAY_KEYS_FILE): remove it there")
        gone = await self._store.drop_key(id)
        log.info("API key %s of %s revoked in the console", gone.id, gone.tenant)
        return _key_values(gone, "store")


def describe_keys(view: KeyView, stored: Iterable[KeyRecord]) -> dict[str, Any]:
    """The keys of ``view``, and those of ``stored`` that are not in force at this gateway."""
    known = {each.sha256: each for each in (*stored, *view.records)}
    keys = sorted(known.values(), key=lambda each: (each.tenant, each.created, each.id))
    sources = ("file" if each.sha256 in view.of_file else "store" for each in keys)
    data = [_key_values(each, source) for each, source in zip(keys, sources, strict=True)]
    return {"required": view.required, "follows_store": view.follows_store, "data": data}


def _key_values(record: KeyRecord, source: str) -> dict[str, Any]:
    values = {name: value for name, value in msgspec.to_builtins(record).items() if name != "sha256"}
    return {**values, "id": record.id, "source": source}


def _parse_record(body: bytes, sha256: str) -> KeyRecord:
    """Raises ``BadRequest`` that names the field."""
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
        for name in _OWN_FIELDS:
            if name in given:
                raise BadRequest(f"{name} is set by the gateway: leave it out", param=name)
        wanted = {**given, "sha256": sha256, "created": round(time.time(), 3)}
        return api_key.check_key_record(msgspec.convert(wanted, KeyRecord))
    except UNREADABLE as error:
        raise BadRequest(f"this describes no key: {error}") from error
