"""Registered apps, and the text of uploaded ones."""

import hashlib
import logging
import secrets
from collections.abc import AsyncIterator

from omnibus import app_record
from omnibus.app_record import AppRecord
from omnibus.errors import Conflict, NotFound, ProtocolError
from omnibus.settings import StoreSettings
from omnibus.store.connection import FunctionRefused, StoreConnection

log = logging.getLogger(__name__)

#: Seconds that an uploaded source is kept without an app that refers to it.
SOURCE_TTL_SECONDS = 3600

_APPS, _LIFE, _SOURCES = "apps", "apps:life", "app:source:"


class AppConflict(Conflict):
    """Another client changed the app.

    ``current`` is its version: 0 for none, -1 for one of another build.
    """

    code = "app_conflict"

    def __init__(self, name: str, current: int) -> None:
        now = f"at version {current}" if current > 0 else "not registered" if not current else "of another build"
        super().__init__(f"the app {name!r} is {now}: check its version and try again", param="name")
        self.current = current


class AppStore(StoreConnection):
    """App registry. Records that this build cannot read are logged and left out."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self._complained: dict[str, bytes] = {}
        #: The last record read of each app: followers read all apps every few seconds, and most of them do not change.
        self._decoded: dict[str, tuple[bytes, AppRecord]] = {}
        #: Texts that went through this connection, to restore them if the store loses its data.
        self._texts: dict[str, str] = {}

    async def apps(self) -> dict[str, AppRecord]:
        """Return all apps by name."""
        return (await self._read_apps())[1]

    async def app(self, name: str) -> AppRecord | None:
        """Return an app, or None if it is unknown.

        Raises ``ProtocolError`` if another build wrote it or its signature is invalid.
        """
        body = await self._run_command(self._redis.hget(self._redis_key(_APPS), name))
        return self._decode_app(name, body) if body else None

    async def put_app(self, record: AppRecord, expected_version: int) -> None:
        """Write ``record`` atomically if its app is at ``expected_version``, 0 if new.

        Raises ``AppConflict`` if it is not, and ``Conflict`` with the name of the app that has its route and model.
        Raises ``NotFound`` if its uploaded source is not in the store.
        """
        body = self._seal.sign(_app_label(record.name), app_record.encode_app_record(record))
        keys = (_APPS, _LIFE, _APPS, _SOURCES)
        try:
            await self._run_function(
                "omnibus_put_app", keys, record.name, str(expected_version), body, secrets.token_hex(8)
            )
        except FunctionRefused as error:
            raise _refusal_error(record, error) from error

    async def drop_app(self, name: str, expected_version: int | None) -> None:
        """Remove an app at ``expected_version``, None for any. Raises ``NotFound`` and ``AppConflict``."""
        version_text = "any" if expected_version is None else str(expected_version)
        try:
            is_dropped = await self._run_function("omnibus_drop_app", (_APPS, _APPS, _SOURCES), name, version_text)
        except FunctionRefused as error:
            raise AppConflict(name, int(error.what)) from error
        if not is_dropped:
            raise NotFound(f"there is no app {name!r}", param="name")

    async def app_changes(self) -> AsyncIterator[dict[str, AppRecord]]:
        """Yield all apps, at once and after each change. Reconnects automatically.

        If the store loses its data, the known apps are written again, unless another follower was first. Otherwise,
        operators would have to register them again.
        """
        life, known = "", dict[str, AppRecord]()

        async def read_apps() -> dict[str, AppRecord]:
            nonlocal life, known
            lives, apps = await self._read_apps()
            if life and lives != life:
                log.warning("the store lost %d apps: writing them again", len(known.keys() - apps.keys()))
                for name in known.keys() - apps.keys():
                    await self._restore_app(known[name])
                lives, apps = await self._read_apps()
            for digest in _source_digests(known) - _source_digests(apps):
                self._texts.pop(digest, None)
            life, known = lives, apps
            return apps

        async for apps in self._follow_channel(_APPS, read_apps):
            yield apps

    async def put_source(self, text: str) -> str:
        """Store an app's text and return its SHA-256 in hex.

        The text stays until the last app that refers to it is removed.
        """
        digest = hashlib.sha256(text.encode()).hexdigest()
        await self._run_function("omnibus_put_source", (_SOURCES + digest,), text, str(SOURCE_TTL_SECONDS))
        self._texts[digest] = text
        return digest

    async def source(self, sha256: str) -> str:
        """Return the text of an app.

        Raises ``NotFound`` if the store does not have it, and ``ProtocolError`` if its digest is another.
        """
        body = await self._run_command(self._redis.get(self._redis_key(_SOURCES + sha256)))
        if body is None:
            raise NotFound(f"the source {sha256[:12]} is not in the store: upload it again")
        if hashlib.sha256(body).hexdigest() != sha256:
            raise ProtocolError(f"the source {sha256[:12]} in the store differs from the upload: upload it again")
        self._texts[sha256] = body.decode()
        return self._texts[sha256]

    async def _read_apps(self) -> tuple[str, dict[str, AppRecord]]:
        """Return the store's life and all apps, read in one step."""
        async with self._redis.pipeline(transaction=True) as commands:
            commands.get(self._redis_key(_LIFE))
            commands.hgetall(self._redis_key(_APPS))
            life, bodies = await self._run_command(commands.execute())
        before, self._decoded = self._decoded, {}
        for key, body in sorted(bodies.items()):
            name = key.decode(errors="replace")
            known = before.get(name)
            try:
                record = known[1] if known is not None and known[0] == body else self._decode_app(name, body)
            except ProtocolError as error:
                if self._complained.get(name) != body:
                    self._complained[name] = body
                    log.error("app %r is left out: %s", name, error)
                continue
            self._decoded[name] = body, record
        return (life or b"").decode(), {name: record for name, (_, record) in self._decoded.items()}

    def _decode_app(self, name: str, body: bytes) -> AppRecord:
        return app_record.decode_app_record(self._seal.verify(_app_label(name), body))

    async def _restore_app(self, record: AppRecord) -> None:
        try:
            if text := self._texts.get(record.source.sha256):
                await self.put_source(text)
            await self.put_app(record, 0)
        except (Conflict, NotFound) as error:  # another follower restored it, or has its text
            log.info("app %r: %s", record.name, error)


def _app_label(name: str) -> str:
    return f"the app {name!r}"


def _refusal_error(record: AppRecord, error: FunctionRefused) -> Conflict | NotFound:
    if error.reason == "STALE":
        return AppConflict(record.name, int(error.what))
    if error.reason == "TAKEN":
        return Conflict(
            f"the app {error.what!r} already serves {record.model!r} on the route {record.route!r}: "
            "choose another model name, or unregister it",
            param="model",
        )
    return NotFound(f"the source {record.source.sha256[:12]} is not in the store: upload it again")


def _source_digests(apps: dict[str, AppRecord]) -> set[str]:
    return {record.source.sha256 for record in apps.values() if record.source.sha256}
