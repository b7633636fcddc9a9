"""LoRA adapters that were loaded while the system serves."""

import logging
import secrets
from collections.abc import AsyncIterator

import msgspec

from omnibus.errors import Conflict, NotFound, ProtocolError
from omnibus.graph import UNREADABLE, WIRE_VERSION
from omnibus.settings import StoreSettings
from omnibus.store.connection import StoreConnection

log = logging.getLogger(__name__)

_ADAPTERS, _LIFE = "adapters", "adapters:life"


class AdapterRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter of the language model of ``model``; requests use its ``name``.

    ``path`` and ``sha256`` are those of ``omnibus.checkpoints.adapters``. ``created`` is in Unix seconds.
    """

    name: str
    model: str
    path: str
    sha256: str
    created: float
    v: int = WIRE_VERSION


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AdapterRecord).decode


class AdapterStore(StoreConnection):
    """Adapters by name. Records that this build cannot read are logged and left out."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._unreadable_adapters: dict[str, bytes] = {}

    async def put_adapter(self, record: AdapterRecord, *, replace: bool = False) -> None:
        """Store ``record``. Raises ``Conflict`` if its name exists, unless ``replace`` is true."""
        if not await self._write_adapter(record, replace=replace) and not replace:
            raise Conflict(f"the adapter {record.name!r} already exists", param="lora_name")

    async def drop_adapter(self, name: str) -> None:
        """Remove an adapter. Raises ``NotFound``."""
        async with self._redis.pipeline(transaction=True) as commands:
            commands.hdel(self._redis_key(_ADAPTERS), name)
            commands.publish(self._redis_key(_ADAPTERS), name)
            count, _ = await self._run_command(commands.execute())
        if not count:
            raise NotFound(f"no adapter {name[:80]!r} is loaded", param="lora_name")

    async def adapters(self) -> dict[str, AdapterRecord]:
        """Return all adapters by name."""
        return (await self._read_adapters())[1]

    async def adapter_changes(self) -> AsyncIterator[dict[str, AdapterRecord]]:
        """Yield all adapters, at once and after each change. Reconnects automatically.

        If the store loses its data, the known adapters are written again. Adapters that were unloaded stay removed.
        """
        life, known = "", dict[str, AdapterRecord]()

        async def read_adapters() -> dict[str, AdapterRecord]:
            nonlocal life, known
            lives, adapters = await self._read_adapters()
            if life and lives != life:
                log.warning("the store lost %d adapters: writing them again", len(known.keys() - adapters.keys()))
                for name in known.keys() - adapters.keys():
                    await self._write_adapter(known[name], replace=False)
                lives, adapters = await self._read_adapters()
            life, known = lives, adapters
            return adapters

        async for adapters in self._follow_channel(_ADAPTERS, read_adapters):
            yield adapters

    async def _write_adapter(self, record: AdapterRecord, *, replace: bool) -> bool:
        """Write and announce ``record``; return whether its name is new."""
        body = self._seal.sign(_adapter_label(record.name), _encode(record))
        async with self._redis.pipeline(transaction=True) as all_at_once:
            all_at_once.setnx(self._redis_key(_LIFE), secrets.token_hex(8))
            write = all_at_once.hset if replace else all_at_once.hsetnx
            write(self._redis_key(_ADAPTERS), record.name, body)
            all_at_once.publish(self._redis_key(_ADAPTERS), record.name)
            _, new, _ = await self._run_command(all_at_once.execute())
        return bool(new)

    async def _read_adapters(self) -> tuple[str, dict[str, AdapterRecord]]:
        """Return the store's life and all adapters, read in one step."""
        async with self._redis.pipeline(transaction=True) as commands:
            commands.get(self._redis_key(_LIFE))
            commands.hgetall(self._redis_key(_ADAPTERS))
            life, bodies = await self._run_command(commands.execute())
        adapters = {}
        for key, body in sorted(bodies.items()):
            name = key.decode(errors="replace")
            try:
                adapters[name] = self._decode_adapter(name, body)
            except ProtocolError as error:
                if self._unreadable_adapters.get(name) != body:
                    self._unreadable_adapters[name] = body
                    log.error("adapter %r is left out: %s", name, error)
        return (life or b"").decode(), adapters

    def _decode_adapter(self, name: str, body: bytes) -> AdapterRecord:
        try:
            record = _decode(self._seal.verify(_adapter_label(name), body))
        except UNREADABLE as error:
            raise ProtocolError(f"the stored adapter cannot be read ({error}): load it again") from error
        if record.name != name or record.v != WIRE_VERSION:
            raise ProtocolError("the stored adapter has another name or version: load it again")
        return record


def _adapter_label(name: str) -> str:
    return f"the adapter {name!r}"
