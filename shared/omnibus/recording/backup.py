"""Backups: the whole store and the streams of the bus in one file.

Any later version can check the file. It is a gzipped tar. ``store.jsonl`` has a key per line.
``streams/<NAME>/<number>.jsonl`` has messages of a stream from that number on. ``manifest.json``, the last one, lists
the content and the SHA-256 of each part: a truncated file has none.
"""

import asyncio
import base64
import hashlib
import io
import os
import tarfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from omnibus import __version__
from omnibus.bus import Stored
from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import DEADLETTERS, INVOCATIONS, StreamSpec
from omnibus.errors import BadRequest
from omnibus.graph import WIRE_VERSION
from omnibus.settings import BusSettings
from omnibus.store import Store
from omnibus.store.dump import StoredKey

#: Version of the file's format. Later builds read all earlier ones.
FORMAT = 1
STREAMS = {spec.name: spec for spec in (INVOCATIONS, DEADLETTERS)}
_STORE, _MANIFEST = "store.jsonl", "manifest.json"
#: Messages of one part: a part is completely in memory.
_PART_COUNT = 256
_MAX_MANIFEST_BYTES = 1 << 24


class BackupManifest(msgspec.Struct, frozen=True):
    """Description of a backup: ``parts`` are SHA-256 by name, ``streams`` counts of messages."""

    format: int
    version: str
    wire: int
    created: float
    keys: int
    streams: dict[str, int]
    parts: dict[str, str]


class StreamMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a stream. ``data`` is base64."""

    number: int
    subject: str
    data: str


async def write_backup(path: Path, store: Store, bus: NatsBus | None) -> BackupManifest:
    """Write the file ``path``, completely or not at all.

    Only its owner can read it.

    Without ``bus``, it contains no streams. Raises ``BadRequest`` if ``path`` exists, ``StoreUnavailable`` and
    ``BusUnavailable``.
    """
    if await asyncio.to_thread(path.exists):
        raise BadRequest(f"{path} exists already: name another file")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                manifest = await _write_parts(archive, store, bus)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        draft.rename(path)
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return manifest


async def _write_parts(archive: tarfile.TarFile, store: Store, bus: NatsBus | None) -> BackupManifest:
    digests: dict[str, str] = {}

    def add_part(name: str, data: bytes) -> None:
        digests[name] = hashlib.sha256(data).hexdigest()
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
        archive.addfile(entry, io.BytesIO(data))

    keys = await store.read_keys()
    add_part(_STORE, b"".join(msgspec.json.encode(key) + b"\n" for key in keys))
    counts: dict[str, int] = {}
    if bus is not None:
        for name, spec in STREAMS.items():
            counts[name] = 0
            async for messages in _read_stream(bus, spec):
                counts[name] += len(messages)
                add_part(f"streams/{name}/{messages[0].number:015}.jsonl", b"".join(map(_encode_message, messages)))
    manifest = BackupManifest(FORMAT, __version__, WIRE_VERSION, time.time(), len(keys), counts, dict(digests))
    add_part(_MANIFEST, msgspec.json.encode(manifest))
    return manifest


async def _read_stream(bus: NatsBus, spec: StreamSpec) -> AsyncIterator[list[Stored]]:
    """Yield messages in parts, the last ones first, without later arrivals."""
    below = 0
    while messages := await bus.read_latest(spec, _PART_COUNT, below):
        yield messages
        below = messages[0].number
        if below <= 1:
            return


def _encode_message(message: Stored) -> bytes:
    data = base64.b64encode(message.data).decode()
    return msgspec.json.encode(StreamMessage(message.number, message.subject, data)) + b"\n"


class BackupReader:
    """An opened backup whose parts have been checked."""

    def __init__(self, path: Path, archive: tarfile.TarFile, manifest: BackupManifest) -> None:
        self.manifest = manifest
        self._path = path
        self._archive = archive

    @classmethod
    def open(cls, path: Path) -> "BackupReader":
        """Open a backup. Raises ``BadRequest`` for a file that is not complete, was changed, or is of a later
        version."""
        try:
            if not path.is_file():
                raise BadRequest(f"{path} is not a complete backup: the file does not exist")
            archive = tarfile.open(path)  # noqa: SIM115 closed by ``close``
            manifest = _read_manifest(path, archive)
            reader = cls(path, archive, manifest)
            reader._check_parts()
        except (OSError, EOFError, tarfile.TarError) as error:
            raise BadRequest(f"{path} is not a complete backup: {error}") from error
        return reader

    def close(self) -> None:
        self._archive.close()

    def keys(self) -> list[StoredKey]:
        return [msgspec.json.decode(line, type=StoredKey) for line in self._part(_STORE).splitlines()]

    def messages(self, stream: str) -> Iterator[list[StreamMessage]]:
        """Yield messages of ``stream``, the first ones first, part by part."""
        for name in sorted(self.manifest.parts):
            if name.startswith(f"streams/{stream}/"):
                yield [msgspec.json.decode(line, type=StreamMessage) for line in self._part(name).splitlines()]

    def _check_parts(self) -> None:
        for name, digest in self.manifest.parts.items():
            if hashlib.sha256(self._part(name)).hexdigest() != digest:
                raise BadRequest(f"{self._path} was changed: {name} is not what was written")

    def _part(self, name: str) -> bytes:
        return _read_member(self._path, self._archive, name)


async def restore_backup(
    backup: BackupReader, store: Store, bus: NatsBus | None, settings: BusSettings, *, replace: bool
) -> None:
    """Write ``backup`` into ``store`` and the streams of ``bus``.

    With ``replace``, it replaces existing content. Streams are created as gateways with ``settings`` do it. Raises
    ``BadRequest`` before any write if there is content, but not ``replace``.
    """
    if bus is not None:
        await _make_room(bus, backup.manifest.streams, replace=replace)
    await store.write_keys(backup.keys(), replace=replace)
    if bus is None:
        return
    limits = {
        INVOCATIONS.name: (settings.record_seconds, settings.record_bytes),
        DEADLETTERS.name: (settings.dead_seconds, settings.dead_bytes),
    }
    for name in backup.manifest.streams:
        await bus.open_records(*limits[name], STREAMS[name])
        for messages in backup.messages(name):
            await _store_messages(bus, name, messages)


async def _store_messages(bus: NatsBus, stream: str, messages: Sequence[StreamMessage]) -> None:
    """Store messages one by one, in their order."""
    for each in messages:
        data = base64.b64decode(each.data)
        digest = hashlib.sha256(data).hexdigest()[:16]
        await bus.store_record(each.subject, data, f"restored-{stream}-{each.number}-{digest}")


async def _make_room(bus: NatsBus, streams: Mapping[str, int], *, replace: bool) -> None:
    for name in streams:
        if not await bus.read_latest(STREAMS[name], 1):
            continue
        if not replace:
            raise BadRequest(f"the stream {name} has messages already: say --replace to remove them, or --no-streams")
        await bus.purge_subject(STREAMS[name], STREAMS[name].subjects)


def _read_manifest(path: Path, archive: tarfile.TarFile) -> BackupManifest:
    data = _read_member(path, archive, _MANIFEST)
    try:
        manifest = msgspec.json.decode(data, type=BackupManifest)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{path} is not a backup of omnibus: {error}") from error
    if manifest.format > FORMAT or manifest.wire != WIRE_VERSION:
        raise BadRequest(
            f"{path} was made by omnibus {manifest.version}, in form {manifest.format} and wire version "
            f"{manifest.wire}; this build, {__version__}, reads form {FORMAT} and wire version {WIRE_VERSION}"
        )
    unknown = sorted(set(manifest.streams) - STREAMS.keys())
    if unknown:
        raise BadRequest(f"{path} holds streams that this build does not have: {', '.join(unknown)}")
    return manifest


def _read_member(path: Path, archive: tarfile.TarFile, name: str) -> bytes:
    try:
        member = archive.getmember(name)
    except KeyError:
        raise BadRequest(f"{path} is not a complete backup: it has no {name}") from None
    file = archive.extractfile(member) if member.isfile() else None
    if file is None or (name == _MANIFEST and member.size > _MAX_MANIFEST_BYTES):
        raise BadRequest(f"{path} is not a backup of omnibus: {name} is not what it should be")
    return file.read()
