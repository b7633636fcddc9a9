"""API keys: their hashes and limits, as operators wrote them.

Client secrets: short-lived keys that a server passes to a browser instead of its API key.
"""

import logging
import secrets
from collections.abc import AsyncIterator

import msgspec

from omnibus import api_key
from omnibus.api_key import KeyRecord
from omnibus.errors import BadRequest, Conflict, NotFound, ProtocolError
from omnibus.settings import StoreSettings
from omnibus.store.connection import StoreConnection

log = logging.getLogger(__name__)

_KEYS, _LIFE = "keys", "keys:life"


class ApiKeyStore(StoreConnection):
    """API keys by their hash."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._unreadable: set[str] = set()

    async def put_key(self, record: KeyRecord) -> None:
        """Store a new key. Raises ``BadRequest``, and ``Conflict`` if it exists."""
        api_key.check_key_record(record)
        if not await self._write_key(record):
            raise Conflict(f"the key {record.id} already exists: revoke it first")

    async def drop_key(self, id: str) -> KeyRecord:
        """Revoke the key whose hash begins with ``id``. Raises ``NotFound``, and ``Conflict`` if several do."""
        records = [record for record in (await self.keys()).values() if record.sha256.startswith(id)] if id else []
        if len(records) > 1:
            raise Conflict(f"{len(records)} keys begin with {id[:64]!r}: use a longer prefix")
        if not records:
            raise NotFound(f"there is no key {id[:64]!r}: `omnibus keys list` shows them")
        async with self._redis.pipeline(transaction=True) as commands:
            commands.hdel(self._redis_key(_KEYS), records[0].sha256)
            commands.publish(self._redis_key(_KEYS), records[0].id)
            await self._run_command(commands.execute())
        return records[0]

    async def keys(self) -> dict[str, KeyRecord]:
        """Return all keys by their hash. Those that this build cannot read are logged and invalid."""
        return (await self._read_keys())[1]

    async def key_changes(self) -> AsyncIterator[dict[str, KeyRecord]]:
        """Yield all keys, at once and after each change. Reconnects automatically.

        If the store loses its data, the known keys are written again. Revoked keys stay revoked.
        """
        life, known = "", dict[str, KeyRecord]()

        async def read_keys() -> dict[str, KeyRecord]:
            nonlocal life, known
            lives, current_keys = await self._read_keys()
            if life and lives != life:
                log.warning("the store lost %d API keys: writing them again", len(known.keys() - current_keys.keys()))
                for digest in known.keys() - current_keys.keys():
                    await self._write_key(known[digest])
                lives, current_keys = await self._read_keys()
            life, known = lives, current_keys
            return current_keys

        async for current_keys in self._follow_channel(_KEYS, read_keys):
            yield current_keys

    async def _write_key(self, record: KeyRecord) -> bool:
        async with self._redis.pipeline(transaction=True) as all_at_once:
            all_at_once.setnx(self._redis_key(_LIFE), secrets.token_hex(8))
            all_at_once.hsetnx(self._redis_key(_KEYS), record.sha256, api_key.encode_key_record(record))
            all_at_once.publish(self._redis_key(_KEYS), record.id)
            _, new, _ = await self._run_command(all_at_once.execute())
        return bool(new)

    async def _read_keys(self) -> tuple[str, dict[str, KeyRecord]]:
        async with self._redis.pipeline(transaction=True) as commands:
            commands.get(self._redis_key(_LIFE))
            commands.hgetall(self._redis_key(_KEYS))
            life, bodies = await self._run_command(commands.execute())
        records = {}
        for field, body in bodies.items():
            name = field.decode(errors="replace")
            try:
                record = api_key.decode_key_record(body)
                if record.sha256 != name:
                    raise BadRequest("it is stored under another hash")
                records[name] = record
            except BadRequest as error:
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    log.error("the API key %s is left out: %s", name[:12], error)
        return (life or b"").decode(), records


#: Prefix of client secrets.
SECRET_PREFIX = "ek_"  # noqa: S105 no secret by itself


class ClientSecretRecord(msgspec.Struct, frozen=True):
    """Record of a secret: the SHA-256 of the API ``key`` that made it, and its session.

    ``session`` is the JSON of a session update, ``expires`` in Unix seconds. ``is_operators`` marks a secret made with
    the admin token of a gateway that requires keys.
    """

    session: bytes
    expires: float
    key: str = ""
    is_operators: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ClientSecretRecord).decode


class ClientSecretStore(StoreConnection):
    """Client secrets by their SHA-256."""

    async def put_client_secret(self, sha256: str, record: ClientSecretRecord, seconds: float) -> None:
        """Store ``record`` for ``seconds``."""
        await self._run_command(
            self._redis.set(self._redis_key(f"secret:{sha256}"), _encode(record), px=max(1, round(seconds * 1000)))
        )

    async def client_secret(self, sha256: str) -> ClientSecretRecord | None:
        """Return the record, or None if it is unknown or has expired.

        Raises ``ProtocolError`` if it cannot be read.
        """
        body = await self._run_command(self._redis.get(self._redis_key(f"secret:{sha256}")))
        try:
            return _decode(body) if body is not None else None
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"a client secret has a format that this version cannot read: {error}") from error
