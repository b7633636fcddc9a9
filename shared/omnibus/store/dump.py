"""Every key of the store as data, for backups: one atomic read, one atomic write."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal

import msgspec

from omnibus.errors import BadRequest, StoreUnavailable
from omnibus.store.connection import StoreConnection

#: Names that a backup leaves out: leaders, streams that clients may continue, short-lived secrets, failed requests.
_TRANSIENT = ("plan:lead", "stream:", "secret:", "failures:")
_SCAN_COUNT = 1000
#: Expiry time of keys without one.
_NEVER = -1

KeyKind = Literal["string", "hash", "zset", "list", "set"]


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key with its value. ``name`` is without the prefix.

    ``value`` has one element for a string. For a hash it alternates names and values, for a sorted set members and
    scores. Otherwise it has the members. ``expires`` is in Unix milliseconds, or 0 if the key does not expire.
    """

    name: str
    kind: KeyKind
    value: list[bytes]
    expires: int = 0


class DumpStore(StoreConnection):
    """Reads and writes the whole store."""

    async def read_keys(self) -> list[StoredKey]:
        """Return all lasting keys under the prefix, read in one step.

        Raises ``StoreUnavailable``, also if keys keep changing their kind.
        """
        names = [name async for name in self._scan_names()]
        kinds = await self._run_in_one([("TYPE", name) for name in names])
        named_kinds = [(name, kind.decode()) for name, kind in zip(names, kinds, strict=True) if kind != b"none"]
        replies = await self._run_in_one(
            [command for name, kind in named_kinds for command in _read_commands(name, kind)]
        )
        values, expiries = replies[::2], replies[1::2]
        return [
            StoredKey(name, _checked_kind(kind), _flatten(value), max(expires, 0))
            for (name, kind), value, expires in zip(named_kinds, values, expiries, strict=True)
            if value not in (None, [], {}) or expires > _NEVER
        ]

    async def write_keys(self, keys: Sequence[StoredKey], *, replace: bool) -> None:
        """Write ``keys`` in one step, except expired ones.

        With ``replace`` everything else under the prefix is removed. Raises ``BadRequest`` if the store has keys and
        ``replace`` is false, and ``StoreUnavailable``.
        """
        present = [name async for name in self._scan_names(everything=True)]
        if present and not replace:
            raise BadRequest(f"the store has {len(present)} keys already: say --replace to remove them")
        removals: list[tuple[Any, ...]] = [("DEL", name) for name in present]
        await self._run_in_one([*removals, *(command for key in keys for command in _write_commands(key))])

    async def _scan_names(self, *, everything: bool = False) -> AsyncIterator[str]:
        """Yield names without the prefix, sorted."""
        start = self._redis_key("")
        all_names, cursor = set[str](), 0
        while True:
            cursor, names = await self._run_command(
                self._redis.scan(cursor, match=f"{_escape_pattern(start)}*", count=_SCAN_COUNT)
            )
            all_names |= {name.decode().removeprefix(start) for name in names}
            if not cursor:
                break
        for name in sorted(all_names):
            if everything or not name.startswith(_TRANSIENT):
                yield name

    async def _run_in_one(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run ``commands`` in one step and return their answers.

        The second word of each is a name.
        """
        if not commands:
            return []
        async with self._redis.pipeline(transaction=True) as together:
            for word, name, *rest in commands:
                together.execute_command(word, self._redis_key(name), *rest)
            answers: list[Any] = await self._run_command(together.execute())
            return answers


def _read_commands(name: str, kind: str) -> Iterator[tuple[Any, ...]]:
    reads: dict[str, tuple[Any, ...]] = {
        "string": ("GET", name),
        "hash": ("HGETALL", name),
        "zset": ("ZRANGE", name, 0, -1, "WITHSCORES"),
        "list": ("LRANGE", name, 0, -1),
        "set": ("SMEMBERS", name),
    }
    yield reads[_checked_kind(kind)]
    yield ("PEXPIRETIME", name)


def _write_commands(key: StoredKey) -> Iterator[tuple[Any, ...]]:
    pairs = [*zip(key.value[::2], key.value[1::2], strict=False)]
    if key.kind == "string":
        yield ("SET", key.name, *key.value)
    elif key.kind == "zset":
        yield ("ZADD", key.name, *(word for member, score in pairs for word in (score, member)))
    else:
        yield ({"hash": "HSET", "list": "RPUSH", "set": "SADD"}[key.kind], key.name, *key.value)
    if key.expires:
        yield ("PEXPIREAT", key.name, key.expires)


def _checked_kind(kind: str) -> KeyKind:
    if kind not in ("string", "hash", "zset", "list", "set"):
        raise StoreUnavailable(
            f"the store contains a {kind}, which no version of omnibus writes: check that nothing else uses the prefix"
        )
    return kind  # type: ignore[return-value]


def _flatten(value: Any) -> list[bytes]:
    """Convert an answer of the server to bytes, for any protocol version."""
    if isinstance(value, dict):
        return [_to_bytes(word) for pair in value.items() for word in pair]
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [
            word for each in value for word in (_flatten(each) if isinstance(each, list | tuple) else [_to_bytes(each)])
        ]
    return [_to_bytes(value)]


def _to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else repr(value).encode()


def _escape_pattern(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\*?[]^-" else letter for letter in text)
