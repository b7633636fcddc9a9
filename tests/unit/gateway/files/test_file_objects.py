"""Generated files in a real S3 bucket, the same at all gateways."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus.errors import BadRequest, NotFound, StoreUnavailable, TooLarge
from omnibus.settings import GatewaySettings
from omnibus_gateway.media.files import FileStore, UnwrittenFile
from omnibus_gateway.media.object_storage import FileObjects, ObjectStorage, StoredObject, open_made_files, surplus
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.house import PAINTER, ToyGateway, read_error_body, start_toy_gateway

FIRST, SECOND = "video_" + "1" * 48, "video_" + "2" * 48
PICTURE: dict[str, Any] = {"model": PAINTER, "prompt": "a boat", "size": "64x48", "steps": 2, "response_format": "url"}


def open_storage(bucket: dict[str, Any]) -> ObjectStorage:
    storage = ObjectStorage.of_results(GatewaySettings(**bucket))
    assert storage is not None
    return storage


def make_file_objects(bucket: dict[str, Any], **more: Any) -> FileObjects:
    return FileObjects(GatewaySettings(**{**bucket, **more}), open_storage(bucket))


async def list_keys(bucket: dict[str, Any]) -> list[str]:
    return sorted(each.key for each in await open_storage(bucket).list("results"))


# Location


def test_results_stay_in_the_directory_unless_it_is_said_otherwise(bucket: dict[str, Any], tmp_path: Path):
    off = {**bucket, "storage_results": False, "media_dir": str(tmp_path)}
    file_store = open_made_files(GatewaySettings(**off))

    assert isinstance(file_store, FileStore)
    file_store.close()
    assert ObjectStorage.of_results(GatewaySettings(**off)) is None
    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_STORAGE_RESULTS requires a bucket"):
        open_made_files(GatewaySettings(storage_results=True, media_dir=str(tmp_path)))


# Files with URLs


async def test_a_file_is_read_and_revoked_at_any_gateway(bucket: dict[str, Any]):
    one, other = make_file_objects(bucket), make_file_objects(bucket)
    ticket = await one.put(b"picture", "image/png")

    stored_ticket, data = await other.read(ticket.id)
    other_ticket = await other.get_ticket(ticket.id)

    assert (data, stored_ticket.mime, stored_ticket.nbytes, stored_ticket.id) == (b"picture", "image/png", 7, ticket.id)
    assert (other_ticket, stored_ticket.expires - stored_ticket.created) == (stored_ticket, 3600)
    await other.remove(ticket.id)
    for read in (one.read, one.get_ticket, one.remove):
        with pytest.raises(NotFound):
            await read(ticket.id)
    assert await list_keys(bucket) == []


async def test_what_has_expired_is_gone_and_leaves_the_bucket(bucket: dict[str, Any]):
    old = await make_file_objects(bucket).put(b"old", "image/png")
    await asyncio.sleep(2.1)  # S3 counts whole seconds
    brief = make_file_objects(bucket, file_seconds=1.0)

    with pytest.raises(NotFound):
        await brief.read(old.id)
    fresh = await brief.put(b"fresh", "image/png")

    assert await list_keys(bucket) == [f"results/files/{fresh.id}/nobody.image.png"]


async def test_the_oldest_of_who_has_most_leave(bucket: dict[str, Any]):
    now = time.time()
    objects = [
        *(StoredObject(f"results/files/a{at}/alice.image.png", 100, now - at) for at in range(9)),
        StoredObject("results/files/b0/bob.image.png", 300, now - 100),
        StoredObject("results/files/c0/carol.image.png", 1, now - 9000),
    ]

    leaving = [each.key.split("/")[2] for each in surplus(objects, now - 3600, 700)]

    assert leaving == ["c0", "a8", "a7", "a6", "a5", "a4"]
    at = make_file_objects(bucket, file_bytes=150)
    with acting_as(Tenant("alice")):
        await at.put(b"x" * 100, "image/png")
        at._swept = 0.0
        await at.put(b"y" * 100, "image/png")
    assert len(await list_keys(bucket)) == 1


async def test_sounds_have_the_ids_that_they_were_promised(bucket: dict[str, Any]):
    ids = [f"audio_{number}" + "0" * 47 for number in range(2)]
    at = make_file_objects(bucket, file_largest=10)

    problems = await at.put_named(
        [UnwrittenFile(id, "audio/pcm", b"x" * size, "a") for id, size in zip(ids, (5, 11), strict=True)]
    )

    assert {id: type(problem) for id, problem in problems.items()} == {ids[1]: TooLarge}
    assert (await at.read(ids[0]))[0].mime == "audio/pcm"


@pytest.mark.parametrize("id", ["", "file-", "../../files", "file-" + "0" * 47, "file-" + "0" * 48])
async def test_other_ids_are_not_found_whatever_they_name(bucket: dict[str, Any], id: str):
    with pytest.raises(NotFound):
        await make_file_objects(bucket).read(id)


async def test_an_image_is_fetched_whole_and_in_parts_by_its_url(tmp_path: Path, bucket: dict[str, Any]):
    async with start_toy_gateway(tmp_path, **bucket) as home:
        await home.all_of(PAINTER)
        [image] = (await home.http.post("/v1/images/generations", json=PICTURE)).json()["data"]
        path = httpx.URL(image["url"]).path

        whole = await home.http.get(path)
        part = await home.http.get(path, headers={"range": "bytes=1-3"})

        assert whole.content.startswith(b"\x89PNG")
        assert whole.headers["content-type"] == "image/png"
        assert (part.status_code, part.content) == (206, b"PNG")
        assert part.headers["content-range"] == f"bytes 1-3/{len(whole.content)}"
        assert (await home.http.delete(path.removesuffix("/content"))).status_code == 200
        assert (await home.http.get(path)).status_code == 404


async def test_a_bucket_that_is_away_is_said_to_be(tmp_path: Path, bucket_server: str):
    away = {"storage": "s3://files", "storage_endpoint": "http://127.0.0.1:1", "storage_results": True}

    with pytest.raises(StoreUnavailable, match="s3://files"):
        await make_file_objects(away).put(b"x", "image/png")


async def test_an_error_of_a_bucket_is_an_answer_and_no_broken_body(tmp_path: Path, bucket: dict[str, Any]):
    async with start_toy_gateway(tmp_path, **{**bucket, "storage_endpoint": "http://127.0.0.1:1"}) as home:
        response = await _get_content(home)

    assert response.status_code == 503
    assert read_error_body(response)["code"] == "store_unavailable"


async def _get_content(home: ToyGateway) -> httpx.Response:
    return await home.http.get(f"/v1/files/file-{'0' * 48}/content")
