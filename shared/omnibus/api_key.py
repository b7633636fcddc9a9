"""API keys as data: their records and the file of keys. No I/O except for that file.

A key is 256 random bits. Its record contains a SHA-256 of it, and nothing that could authenticate a request. Keys of
one ``tenant`` share its place in the queue, and each key has its own limits.
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

#: Prefix of keys, so that people and scanners of leaked secrets recognise them.
PREFIX = "omni-"
#: Names of tenants: they go into labels and file names.
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
_Limit = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key. ``weight`` is its tenant's share of the GPU-seconds under contention.

    ``rate`` is in requests per second, ``burst`` the number of simultaneous requests (0: a second's worth).
    ``concurrent`` limits requests in progress, ``gpu_seconds`` the GPU-seconds per second of time. A limit of 0 is
    unlimited.
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
        """Short name of the key: the first 12 hex digits of its hash."""
        return self.sha256[:12]


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``{"keys": [{"sha256": "...", "tenant": "search", "weight": 2, "rate": 10}]}``."""

    keys: tuple[KeyRecord, ...]


def generate_key() -> str:
    """Return a random key."""
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """Return the SHA-256 of a key in hex, the only stored form."""
    return sha256(key.encode()).hexdigest()


def check_key_record(record: KeyRecord) -> KeyRecord:
    """Return ``record`` if it is valid, else raise ``BadRequest``."""
    if not re.fullmatch(r"[0-9a-f]{64}", record.sha256):
        raise BadRequest(f"key of {record.tenant[:64]!r}: sha256 must be 64 hex digits, the SHA-256 of the key")
    if not TENANT.fullmatch(record.tenant):
        raise BadRequest(
            f"{record.tenant[:80]!r} is not a tenant name: use letters, digits, dot, dash, underscore, at most 64"
        )
    return record


def find_key_record(records: Mapping[str, KeyRecord], key: str) -> KeyRecord | None:
    """Return the record of ``key`` among ``records`` by their hash.

    The lookup uses a hash, so its timing reveals nothing about a key. The comparison is in constant time as well.
    """
    digest = hash_key(key)
    record = records.get(digest)
    return record if record is not None and hmac.compare_digest(record.sha256, digest) else None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(KeyRecord).decode
_decode_file = msgspec.json.Decoder(KeyFile).decode


def encode_key_record(record: KeyRecord) -> bytes:
    return _encode(record)


def decode_key_record(body: bytes) -> KeyRecord:
    """Decode a record. Raises ``BadRequest`` unless it is a key of this build."""
    try:
        return check_key_record(_decode(body))
    except UNREADABLE as error:
        raise BadRequest(f"not a key record: {error}") from error


def read_key_file(path: Path) -> dict[str, KeyRecord]:
    """Return the keys of a file by their hash. Raises ``BadRequest`` with the file's first error."""
    try:
        body = path.read_bytes()
        return by_hash(map(check_key_record, _decode_file(body).keys))
    except OSError as error:
        raise BadRequest(f"the file of API keys {path} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise BadRequest(f"{path} is not a file of API keys: {error}") from error


def by_hash(records: Iterable[KeyRecord]) -> dict[str, KeyRecord]:
    return {record.sha256: record for record in records}
