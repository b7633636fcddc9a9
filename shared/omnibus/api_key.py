"""API keys as data: what a client holds, what is kept of it, and the file of keys. No I/O but that file's.

A key is 256 random bits, so one SHA-256 of it is kept and nothing that could be asked with. Keys of one ``tenant``
share its place in the queue; each key has limits of its own.
"""

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from omnibus.errors import BadRequest
from omnibus.graph import UNREADABLE

#: What keys begin with, so that people and scanners of leaked secrets know one when they see it.
PREFIX = "omni-"
#: Names of tenants: they go into labels and file names.
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
_Limit = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key. ``weight`` is its tenant's share of the GPU-seconds against others that wait; limits of 0 are none.

    ``rate`` is in requests per second, ``burst`` how many may come at once (0: a second's worth), ``concurrent``
    requests at the same time, ``gpu_seconds`` the GPU-seconds that it may use in a second of time.
    """

    sha256: str
    tenant: str
    weight: _Positive = 1.0
    rate: _Limit = 0.0
    burst: _Limit = 0.0
    concurrent: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    gpu_seconds: _Limit = 0.0
    note: str = ""
    created: float = 0.0

    @property
    def id(self) -> str:
        """Short name of the key for people: the first 12 hex digits of its hash."""
        return self.sha256[:12]


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``{"keys": [{"sha256": "...", "tenant": "search", "weight": 2, "rate": 10}]}``."""

    keys: tuple[KeyRecord, ...]


def generate_key() -> str:
    """A key that nobody can guess."""
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """SHA-256 in hex: what is kept of a key."""
    return sha256(key.encode()).hexdigest()


def check_key_record(record: KeyRecord) -> KeyRecord:
    """``record``, if it may be kept. Raises ``BadRequest`` that says what is wrong."""
    if not re.fullmatch(r"[0-9a-f]{64}", record.sha256):
        raise BadRequest(f"key of {record.tenant[:64]!r}: sha256 must be 64 hex digits, the SHA-256 of the key")
    if not TENANT.fullmatch(record.tenant):
        raise BadRequest(f"{record.tenant[:80]!r} is no tenant: letters, digits, dot, dash, underscore, at most 64")
    return record


def find_key_record(records: Mapping[str, KeyRecord], key: str) -> KeyRecord | None:
    """The record of ``key`` among ``records`` by their hash.

    What is looked up is a hash, which tells who measures time nothing of a key; it is compared in constant time
    all the same.
    """
    wanted = hash_key(key)
    found = records.get(wanted)
    return found if found is not None and hmac.compare_digest(found.sha256, wanted) else None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(KeyRecord).decode
_decode_file = msgspec.json.Decoder(KeyFile).decode


def encode_key_record(record: KeyRecord) -> bytes:
    return _encode(record)


def decode_key_record(body: bytes) -> KeyRecord:
    """Raises ``BadRequest`` for what is no key of this build."""
    try:
        return check_key_record(_decode(body))
    except UNREADABLE as error:
        raise BadRequest(f"not the record of a key: {error}") from error


def read_key_file(path: Path) -> dict[str, KeyRecord]:
    """The keys of a file by their hash. Raises ``BadRequest`` that names the file and its first fault."""
    try:
        body = path.read_bytes()
        return by_hash(map(check_key_record, _decode_file(body).keys))
    except OSError as error:
        raise BadRequest(f"the file of API keys {path} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise BadRequest(f"{path} is no file of API keys: {error}") from error


def by_hash(records: Iterable[KeyRecord]) -> dict[str, KeyRecord]:
    return {record.sha256: record for record in records}
