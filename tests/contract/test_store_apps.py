"""The app registry in the store on a real server: version-guarded changes, one owner per route and model."""

import asyncio
import hashlib
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio as redis

from omnibus import app_record
from omnibus.app_record import AppRecord, AppSource
from omnibus.errors import Conflict, NotFound, ProtocolError, StoreUnavailable
from omnibus.settings import StoreSettings
from omnibus.store import AppConflict, Store
from omnibus.up import infra
from omnibus.up.ports import free_ports
from tests.unit.bus.servers import run_owned_server

PATIENCE = 15.0  # seconds
TEXT = "async def serve(request):\n    return request\n"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()


def make_app(name: str = "poem", version: int = 1, *, model: str = "", **more: Any) -> AppRecord:
    source = more.pop("source", AppSource("import", f"apps.{name}"))
    route = "chat" if model else ""
    return AppRecord(name, version, source, route, model, (), {}, {}, False, "", 1000.0, 1000.0, **more)


def make_uploaded_app(name: str = "poem", version: int = 1, sha256: str = DIGEST) -> AppRecord:
    return make_app(name, version, source=AppSource("upload", name, sha256=sha256))


async def test_an_empty_store_has_no_apps(store: Store):
    assert await store.apps() == {}
    assert await store.app("poem") is None


async def test_an_app_is_read_as_it_was_written(store: Store):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": []}
    record = msgspec.structs.replace(make_app(model="poet"), request=schema, doc="Writes – poems.")

    await store.put_app(record, 0)

    assert await store.app("poem") == record
    assert await store.apps() == {"poem": record}


async def test_an_app_follows_its_own_version(store: Store):
    await store.put_app(make_app(), 0)

    await store.put_app(make_app(version=2), 1)

    assert (await store.apps())["poem"].version == 2


@pytest.mark.parametrize("expected_version", [0, 1, 3])
async def test_who_expects_another_version_is_refused_with_the_current_one(store: Store, expected_version: int):
    await store.put_app(make_app(version=2), 0)

    with pytest.raises(AppConflict, match="at version 2") as caught:
        await store.put_app(make_app(version=9), expected_version)
    with pytest.raises(AppConflict):
        await store.drop_app("poem", expected_version)

    assert (caught.value.current, caught.value.code, caught.value.status) == (2, "app_conflict", 409)
    assert await store.apps() == {"poem": make_app(version=2)}


async def test_an_app_that_is_not_there_cannot_be_updated(store: Store):
    with pytest.raises(AppConflict, match="not registered"):
        await store.put_app(make_app(version=2), 1)

    assert await store.apps() == {}


async def test_of_writers_that_cross_one_wins(store: Store, valkey_url: str):
    rivals = [Store(StoreSettings(url=valkey_url, prefix="test")) for _ in range(8)]
    wishes = [make_app(source=AppSource("import", f"apps.rival{number}")) for number in range(8)]

    outcomes = await asyncio.gather(
        *(rival.put_app(wish, 0) for rival, wish in zip(rivals, wishes, strict=True)), return_exceptions=True
    )

    winners = [number for number, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert all(isinstance(outcome, AppConflict) for number, outcome in enumerate(outcomes) if number not in winners)
    assert await store.app("poem") == wishes[winners[0]]
    for rival in rivals:
        await rival.close()


async def test_two_apps_cannot_serve_one_model(store: Store):
    await store.put_app(make_app(model="poet"), 0)

    with pytest.raises(Conflict, match="'poem' already serves 'poet' on the route 'chat'") as caught:
        await store.put_app(make_app("novel", model="poet"), 0)

    assert not isinstance(caught.value, AppConflict)
    assert set(await store.apps()) == {"poem"}


async def test_a_model_may_stay_with_its_app_and_go_to_another_one_later(store: Store):
    await store.put_app(make_app(model="poet"), 0)
    await store.put_app(make_app(version=2, model="poet"), 1)
    await store.drop_app("poem", 2)

    await store.put_app(make_app("novel", model="poet"), 0)

    assert set(await store.apps()) == {"novel"}


async def test_apps_without_a_route_do_not_meet(store: Store):
    await store.put_app(make_app(), 0)
    await store.put_app(make_app("novel"), 0)

    assert set(await store.apps()) == {"novel", "poem"}


async def test_a_dropped_app_is_gone(store: Store):
    await store.put_app(make_app(), 0)

    await store.drop_app("poem", 1)

    assert await store.apps() == {}
    with pytest.raises(NotFound, match="no app 'poem'"):
        await store.drop_app("poem", 1)


async def test_two_prefixes_do_not_meet(store: Store, valkey_url: str):
    other = Store(StoreSettings(url=valkey_url, prefix="other"))
    await store.put_app(make_app(), 0)

    assert await other.apps() == {}
    await other.close()


# Sources


async def test_a_source_is_known_by_its_content(store: Store):
    assert await store.put_source(TEXT) == DIGEST
    assert await store.source(DIGEST) == TEXT


async def test_an_unknown_source_is_said(store: Store):
    with pytest.raises(NotFound, match="upload it again"):
        await store.source("0" * 64)


async def test_a_source_that_is_another_text_is_refused(store: Store, raw: redis.Redis):
    await raw.set(f"test:app:source:{DIGEST}", "import os")

    with pytest.raises(ProtocolError, match="differs from the upload"):
        await store.source(DIGEST)


async def test_a_source_that_nobody_uses_expires_and_one_in_use_does_not(store: Store, raw: redis.Redis):
    await store.put_source(TEXT)
    assert await raw.ttl(f"test:app:source:{DIGEST}") > 0

    await store.put_app(make_uploaded_app(), 0)
    await store.put_source(TEXT)

    assert await raw.ttl(f"test:app:source:{DIGEST}") == -1


async def test_an_app_needs_its_source(store: Store):
    with pytest.raises(NotFound, match="upload it again"):
        await store.put_app(make_uploaded_app(), 0)

    assert await store.apps() == {}


async def test_a_source_leaves_with_the_last_app_that_refers_to_it(store: Store):
    await store.put_source(TEXT)
    await store.put_app(make_uploaded_app(), 0)
    await store.put_app(make_uploaded_app("novel"), 0)

    await store.drop_app("poem", 1)
    assert await store.source(DIGEST) == TEXT

    await store.drop_app("novel", 1)
    with pytest.raises(NotFound):
        await store.source(DIGEST)


async def test_a_source_leaves_when_its_app_has_another_one(store: Store):
    second = await store.put_source("other = 1\n")
    await store.put_source(TEXT)
    await store.put_app(make_uploaded_app(), 0)

    await store.put_app(make_uploaded_app(version=2, sha256=second), 1)

    assert await store.source(second) == "other = 1\n"
    with pytest.raises(NotFound):
        await store.source(DIGEST)


# Records of another build


@pytest.fixture
async def foreign_record(store: Store, raw: redis.Redis) -> bytes:
    """A record that this build cannot read; its name is ``newer``."""
    body = app_record.encode_app_record(make_app("newer", 7)).replace(b'"name"', b'"colour":"blue","name"')
    await raw.hset("test:apps", "newer", body)
    return body


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b'{"name":"broken"}', b"7"])
async def test_a_record_that_cannot_be_read_hides_no_other(store: Store, raw: redis.Redis, body: bytes):
    await store.put_app(make_app(), 0)
    await raw.hset("test:apps", "broken", body)

    assert set(await store.apps()) == {"poem"}
    await store.put_app(make_app("novel", model="poet"), 0)
    await store.drop_app("broken", None)
    assert await raw.hexists("test:apps", "broken") == 0


async def test_a_record_of_another_build_is_said_once(
    store: Store, foreign_record: bytes, caplog: pytest.LogCaptureFixture
):
    for _ in range(3):
        assert await store.apps() == {}

    assert [record.levelname for record in caplog.records] == ["ERROR"]
    with pytest.raises(ProtocolError, match="register it again"):
        await store.app("newer")


async def test_a_record_of_another_build_is_not_overwritten_but_can_be_dropped(store: Store, foreign_record: bytes):
    with pytest.raises(AppConflict, match="version 7"):
        await store.put_app(make_app("newer"), 0)

    await store.drop_app("newer", None)

    await store.put_app(make_app("newer"), 0)


# Changes


@pytest.mark.usefixtures("announced_only")
async def test_all_apps_come_first_and_then_each_change_well_before_anybody_would_look(store: Store):
    await store.put_app(make_app(), 0)

    async with aclosing(store.app_changes()) as changes:  # type: ignore[type-var]
        assert await asyncio.wait_for(anext(changes), PATIENCE) == {"poem": make_app()}
        for change, expected_apps in (
            (store.put_app(make_app(version=2), 1), {"poem": make_app(version=2)}),
            (store.put_app(make_app("novel"), 0), {"poem": make_app(version=2), "novel": make_app("novel")}),
            (store.drop_app("poem", 2), {"novel": make_app("novel")}),
        ):
            coming = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.05)
            await change
            assert await asyncio.wait_for(coming, PATIENCE) == expected_apps


@pytest.mark.usefixtures("announced_only")
async def test_whoever_follows_apps_can_be_stopped_at_any_moment(store: Store):
    async def follow_apps() -> None:
        async for _ in store.app_changes():
            pass

    for moment in range(40):
        following = asyncio.ensure_future(follow_apps())
        await asyncio.sleep(moment * 1e-4)
        following.cancel()
        finished_tasks, _ = await asyncio.wait({following}, timeout=PATIENCE)
        assert finished_tasks, f"still following, cancelled after {moment * 0.1:.1f} ms"


async def test_a_killed_server_gets_its_apps_and_their_sources_back(tmp_path: Path):
    async with run_owned_server(infra.prepare_valkey(tmp_path)) as process:
        store, reader = Store(StoreSettings(url=process.server.url)), Store(StoreSettings(url=process.server.url))
        await store.put_source(TEXT)
        await store.put_app(make_uploaded_app(), 0)
        await store.put_app(make_app("novel", 4, model="poet"), 0)
        before = await store.apps()
        async with aclosing(store.app_changes()) as changes:  # type: ignore[type-var]
            assert await asyncio.wait_for(anext(changes), PATIENCE) == before
            coming = asyncio.ensure_future(anext(changes))

            process.kill()
            await process.start()
            await _until_there(reader, set(before))

            assert await reader.apps() == before
            assert await reader.source(DIGEST) == TEXT
            assert not coming.done(), "for those who follow, nothing has happened"
            await store.drop_app("poem", 1)
            assert await asyncio.wait_for(coming, PATIENCE) == {"novel": before["novel"]}
        for each in (store, reader):
            await each.close()


async def _until_there(store: Store, names: set[str]) -> None:
    async with asyncio.timeout(PATIENCE), aclosing(store.app_changes()) as changes:  # type: ignore[type-var]
        async for apps in changes:
            if set(apps) == names:
                return


async def test_an_app_that_was_registered_anew_is_not_overwritten_by_who_knew_the_old_one(tmp_path: Path):
    async with run_owned_server(infra.prepare_valkey(tmp_path)) as process:
        store, other = Store(StoreSettings(url=process.server.url)), Store(StoreSettings(url=process.server.url))
        await store.put_app(make_app(version=3), 0)
        async with aclosing(store.app_changes()) as changes:  # type: ignore[type-var]
            await asyncio.wait_for(anext(changes), PATIENCE)

            process.kill()
            await process.start()
            await other.put_app(make_app(version=1), 0)

            assert await asyncio.wait_for(anext(changes), PATIENCE) == {"poem": make_app(version=1)}
        for each in (store, other):
            await each.close()


async def test_a_store_that_is_not_there_is_said_at_once():
    [port] = free_ports(1)
    store = Store(StoreSettings(url=f"redis://127.0.0.1:{port}/0", timeout=10 * PATIENCE))

    for call in (
        store.apps,
        lambda: store.app("poem"),
        lambda: store.put_app(make_app(), 0),
        lambda: store.drop_app("poem", 1),
        lambda: store.put_source(TEXT),
        lambda: store.source(DIGEST),
    ):
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailable, match=f"no store at redis://127.0.0.1:{port}"):
                await call()
    await store.close()


async def test_many_changes_at_once_are_read_once_and_what_stayed_is_not_decoded_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    reads, decoded_names = [], []
    read, decode = store._read_apps, store._decode_app
    monkeypatch.setattr(store, "_read_apps", lambda: reads.append(1) or read())
    monkeypatch.setattr(store, "_decode_app", lambda name, body: decoded_names.append(name) or decode(name, body))

    async with asyncio.timeout(PATIENCE), aclosing(store.app_changes()) as changes:  # type: ignore[type-var]
        await anext(changes)
        reads.clear()
        for number in range(40):
            await store.put_app(make_app(f"app{number}"), 0)
        while len(await anext(changes)) < 40:
            pass
        with pytest.raises(TimeoutError):  # all other announcements have been read by then
            await asyncio.wait_for(anext(changes), 0.3)

    assert len(reads) < 10
    assert sorted(decoded_names) == sorted(f"app{number}" for number in range(40))
