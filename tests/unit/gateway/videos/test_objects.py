"""Videos in a bucket of a real S3 server: the same at all gateways, even after their maker is lost."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import NotFound, Overloaded, StoreUnavailable
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.content import PART_BYTES
from omnibus_gateway.media.object_storage import ObjectStorage
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from omnibus_gateway.videos.service import VideoObjects
from tests.unit.gateway.videos.studio import (
    Studio,
    fetch_content,
    open_studio,
    request_video,
    taken_by_nobody,
    wait_for_video,
)
from tests.unit.sidecar import node as nodes

FIRST, SECOND = "video_" + "1" * 48, "video_" + "2" * 48


@pytest.fixture
async def place(tmp_path: Path, valkey_url: str, bucket: dict[str, Any]) -> AsyncIterator[Studio]:
    async with open_studio(tmp_path, valkey_url, **bucket) as video_studio:
        yield video_studio


def open_storage(bucket: dict[str, Any]) -> ObjectStorage:
    storage = ObjectStorage.of_results(GatewaySettings(**bucket))
    assert storage is not None
    return storage


def make_objects(bucket: dict[str, Any], **more: Any) -> VideoObjects:
    return VideoObjects(GatewaySettings(**{**bucket, **more}), open_storage(bucket))


async def list_keys(bucket: dict[str, Any]) -> list[str]:
    return sorted(each.key for each in await open_storage(bucket).list("results"))


async def store_film(at: VideoObjects, id: str, data: bytes = b"film") -> None:
    draft = await at.new_draft(id)
    draft.write_bytes(data)
    await at.store_video(id, draft, b"picture", 60.0)


async def test_a_video_is_the_same_at_all_gateways_and_leaves_no_draft(bucket: dict[str, Any], tmp_path: Path):
    one, other = make_objects(bucket, media_dir=str(tmp_path / "own")), make_objects(bucket)
    size = 7_000_001  # several parts of an upload
    await store_film(one, FIRST, b"a" * size)

    content = await other.find_file(FIRST, "video")

    assert content.nbytes == size
    assert await content.read(size - 3, size) == b"aaa"
    assert await (await other.find_file(FIRST, "thumbnail")).read(0, 7) == b"picture"
    assert await other.expiry_time(FIRST) == pytest.approx(time.time() + 3600, abs=5)
    await other.remove_files(FIRST)
    await other.remove_files(FIRST)
    with pytest.raises(NotFound):
        await one.find_file(FIRST, "video")
    assert await one.expiry_time(FIRST) == 0.0


async def test_a_video_is_written_once(bucket: dict[str, Any]):
    one, other = make_objects(bucket), make_objects(bucket)
    await store_film(one, FIRST, b"first")

    await store_film(other, FIRST, b"later")

    assert await (await one.find_file(FIRST, "video")).read(0, 5) == b"first"


async def test_a_full_bucket_takes_no_more_and_what_has_expired_leaves(bucket: dict[str, Any]):
    at = make_objects(bucket, video_bytes=20, tenant_share=0.5)
    await store_film(at, FIRST, b"x" * 11)
    await at.check_capacity()
    await at.check_capacity([SECOND])
    with pytest.raises(Overloaded, match="one tenant"):
        await at.check_capacity([FIRST])
    await store_film(at, SECOND, b"x" * 10)
    with pytest.raises(Overloaded, match="all available space"):
        await at.check_capacity()

    await asyncio.sleep(1.1)
    brief = make_objects(bucket, video_kept=-60.0)
    await store_film(brief, SECOND, b"x")

    assert await list_keys(bucket) == [f"results/videos/{SECOND}.mp4", f"results/videos/{SECOND}.webp"]


async def test_drafts_are_private_and_gone_at_the_end(bucket: dict[str, Any]):
    at = make_objects(bucket)
    draft = await at.new_draft(FIRST)
    draft.write_bytes(b"half")
    directory = draft.parent

    await at.close()

    assert not directory.exists()


async def test_a_video_outlives_the_gateway_and_the_disk_that_made_it(
    place: Studio, empty_store: None, bucket: dict[str, Any], tmp_path: Path
):
    other = await place.gateway("gw2")
    id = (await request_video(place.first, seed=50))["id"]
    await wait_for_video(place.first, id, status="completed")
    film = (await fetch_content(place.first, id)).content
    await place.first.videos.shutdown()
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)

    whole, picture = await fetch_content(other, id), await fetch_content(other, id, variant="thumbnail")
    size = len(film)
    parts = [
        await other.http.get(f"/v1/videos/{id}/content", headers={"range": f"bytes={part}"})
        for part in ("0-99", "100-", "-10", f"{size}-", "0-1,3-4")
    ]

    assert whole.content == film
    assert whole.headers["content-type"] == "video/mp4"
    assert whole.headers["content-disposition"] == f'inline; filename="{id}.mp4"'
    assert picture.content.startswith(b"RIFF")
    assert [each.status_code for each in parts] == [206, 206, 206, 416, 200]
    assert [each.content for each in parts] == [film[:100], film[100:], film[-10:], b"", film]
    assert parts[0].headers["content-range"] == f"bytes 0-99/{size}"
    assert parts[3].headers["content-range"] == f"bytes */{size}"
    assert (await other.http.delete(f"/v1/videos/{id}")).status_code == 200
    assert (await fetch_content(other, id)).status_code == 404
    assert await list_keys(bucket) == []


async def test_a_video_of_one_tenant_is_no_others(place: Studio, empty_store: None):
    with acting_as(Tenant("a")):
        id = (await request_video(place.first))["id"]
        await wait_for_video(place.first, id, status="completed")
        assert (await fetch_content(place.first, id)).status_code == 200
    with acting_as(Tenant("b")):
        assert (await fetch_content(place.first, id)).status_code == 404
        assert (await place.first.http.delete(f"/v1/videos/{id}")).status_code == 404


async def test_a_video_whose_gateway_died_behind_its_last_byte_is_not_made_again(
    tmp_path: Path, valkey_url: str, empty_store: None, bucket: dict[str, Any]
):
    async with open_studio(tmp_path, valkey_url, **bucket) as place:
        await place.first.videos.shutdown()
        id = (await request_video(place.first))["id"]
        await taken_by_nobody(valkey_url, id)
        await store_film(make_objects(bucket), id, b"film")

        place.first.videos.startup()

        await wait_for_video(place.first, id, status="completed")
        assert (await fetch_content(place.first, id)).content == b"film"
        assert place.toys.begun == {}


async def test_a_bucket_that_is_away_while_a_video_is_taken_up_fails_no_job(
    tmp_path: Path,
    valkey_url: str,
    empty_store: None,
    bucket: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level("INFO")
    monkeypatch.setattr("omnibus_gateway.videos.worker._RETRY_PAUSE_SECONDS", 0.2)
    async with open_studio(tmp_path, valkey_url, **bucket) as place:
        films_there = place.first.videos._films
        assert isinstance(films_there, VideoObjects)
        there = films_there._storage
        await place.first.videos.shutdown()
        id = (await request_video(place.first))["id"]
        films_there._storage = open_storage({**bucket, "storage_endpoint": "http://127.0.0.1:1"})
        place.first.videos.startup()
        await nodes.wait_until(lambda: id in place.first.videos._worker.running_jobs)

        await nodes.wait_until(lambda: "is tried again: the storage s3://files" in caplog.text)
        films_there._storage = there

        await wait_for_video(place.first, id, status="completed")
    assert "worker failed" not in caplog.text


async def test_a_client_that_wants_a_part_of_a_long_video_reads_no_other(bucket: dict[str, Any]):
    at = make_objects(bucket)
    data = bytes(range(256)) * (PART_BYTES // 256 * 3)
    await store_film(at, FIRST, data)

    content = await at.find_file(FIRST, "video")
    parts = [await content.read(begin, begin + 1000) for begin in (0, PART_BYTES - 500, len(data) - 1000)]

    assert b"".join(parts) == data[:1000] + data[PART_BYTES - 500 : PART_BYTES + 500] + data[-1000:]


async def test_a_bucket_that_is_away_is_said_to_be(bucket: dict[str, Any]):
    with pytest.raises(StoreUnavailable, match="s3://files"):
        await make_objects({**bucket, "storage_endpoint": "http://127.0.0.1:1"}).expiry_time(FIRST)
