"""API keys for operators: list, create and revoke. A key is shown only once, when it is created."""

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
from omnibus_gateway.tenancy.tenant import KeyView

log = logging.getLogger(__name__)

#: Limit of the bytes of a request for a key.
MAX_BODY_BYTES = 16 << 10
#: Fields that only the gateway sets.
_OWN_FIELDS = ("sha256", "created")
_ID = re.compile(r"[0-9a-f]{12,64}")


class ConsoleKeys:
    """Lists, creates and revokes keys. ``view`` returns this gateway's keys; further keys are only in ``store``."""

    def __init__(self, store: Store, view: Callable[[], KeyView]) -> None:
        self._store = store
        self._view = view

    async def list_keys(self) -> dict[str, Any]:
        """Return keys and their limits by tenant. A key has only its id, the first digits of its hash.

        Raises ``StoreUnavailable`` if this gateway does not follow the keys of the store and cannot read them.
        """
        view = self._view()
        key_records = () if view.follows_store else (await self._store.keys()).values()
        return describe_keys(view, key_records)

    async def create_key(self, body: bytes) -> dict[str, Any]:
        """Create a key from ``body``, JSON with the fields of a ``KeyRecord``. ``tenant`` is required.

        Returns its record with the ``key`` itself, which is not stored. Raises ``BadRequest`` and
        ``StoreUnavailable``.
        """
        key = api_key.generate_key()
        record = _parse_record(body, api_key.hash_key(key))
        await self._store.put_key(record)
        log.info("API key %s of %s created in the console", record.id, record.tenant)
        return {"key": key, **_key_values(record, "store")}

    async def revoke_key(self, id: str) -> dict[str, Any]:
        """Revoke the stored key ``id`` and return its record. ``id`` has at least 12 hex digits.

        Raises ``BadRequest``, ``NotFound``, ``Conflict`` for a key of the file, and ``StoreUnavailable``.
        """
        if not _ID.fullmatch(id):
            raise BadRequest("the id of a key must be at least the first 12 hex digits of its SHA-256", param="id")
        if any(sha256.startswith(id) for sha256 in self._view().of_file):
            raise Conflict(f"the key {id} is in the file of keys (OMNIBUS_GATEWAY_KEYS_FILE): remove it there")
        key = await self._store.drop_key(id)
        log.info("API key %s of %s revoked in the console", key.id, key.tenant)
        return _key_values(key, "store")


def describe_keys(view: KeyView, stored_keys: Iterable[KeyRecord]) -> dict[str, Any]:
    """Describe the keys of ``view``, and those only in ``stored_keys``."""
    keys_by_hash = {each.sha256: each for each in (*stored_keys, *view.records)}
    keys = sorted(keys_by_hash.values(), key=lambda each: (each.tenant, each.created, each.id))
    sources = ("file" if each.sha256 in view.of_file else "store" for each in keys)
    data = [_key_values(each, source) for each, source in zip(keys, sources, strict=True)]
    return {"required": view.required, "follows_store": view.follows_store, "data": data}


def _key_values(record: KeyRecord, source: str) -> dict[str, Any]:
    values = {name: value for name, value in msgspec.to_builtins(record).items() if name != "sha256"}
    return {**values, "id": record.id, "source": source}


def _parse_record(body: bytes, sha256: str) -> KeyRecord:
    """Raises ``BadRequest`` with the name of the field."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        for name in _OWN_FIELDS:
            if name in fields:
                raise BadRequest(f"{name} is set by the gateway: omit it", param=name)
        values = {**fields, "sha256": sha256, "created": round(time.time(), 3)}
        return api_key.check_key_record(msgspec.convert(values, KeyRecord))
    except UNREADABLE as error:
        raise BadRequest(f"invalid key record: {error}") from error
