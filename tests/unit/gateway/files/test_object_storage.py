"""Objects in a directory and in a real S3 bucket behave alike."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus.errors import BadRequest, Conflict, NotFound, StoreUnavailable
from omnibus.settings import GatewaySettings
from omnibus_gateway.files.uploads import FileUpload, FileUploads
from omnibus_gateway.media.client_files import ClientFile, ClientFiles
from omnibus_gateway.media.object_storage import ObjectStorage


@pytest.fixture(params=["directory", "bucket"])
async def settings(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GatewaySettings]:
    if request.param == "directory":
        yield GatewaySettings(media_dir=str(tmp_path))
        return
    url = request.getfixturevalue("bucket_server")
    yield GatewaySettings(storage=f"s3://files/{tmp_path.name}", storage_endpoint=url)


def open_storage(settings: GatewaySettings) -> ObjectStorage:
    storage = ObjectStorage.from_settings(settings)
    assert storage is not None
    return storage


async def test_objects_are_written_read_listed_and_removed(settings: GatewaySettings):
    storage = open_storage(settings)

    await storage.put("a/one", b"1" * 1000)
    await storage.put("a/two", b"22")
    await storage.put("a/two", b"222")
    await storage.put("b/one", b"")

    assert await storage.get("a/two") == b"222"
    assert sorted((each.key, each.nbytes) for each in await storage.list("a")) == [("a/one", 1000), ("a/two", 3)]
    await storage.delete("a/one")
    await storage.delete("a/one")
    with pytest.raises(NotFound):
        await storage.get("a/one")
    assert [each.key for each in await storage.list("a")] == ["a/two"]
    assert await storage.list("nothing") == []


async def test_files_of_clients_are_the_same_wherever_they_are(settings: GatewaySettings):
    one, other = ClientFiles(settings), ClientFiles(settings)  # two gateways

    file = await one.add(b"x" * 6_000_000, "big.bin", "user_data", "application/octet-stream")

    assert await other.list_all() == [file]
    assert (await other.read(file.id)).data == b"x" * 6_000_000
    await other.remove(file.id)
    with pytest.raises(NotFound):
        await one.get(file.id)


async def test_an_upload_becomes_one_file_however_many_gateways_complete_it(settings: GatewaySettings):
    uploads = [FileUploads(ClientFiles(settings)) for _ in range(4)]
    id = (await uploads[0].begin("a.bin", "user_data", "", 6)).id
    parts = [await each.add_part(id, data) for each, data in zip(uploads, (b"abc", b"def"), strict=False)]

    outcomes = await asyncio.gather(*(each.complete(id, parts) for each in uploads), return_exceptions=True)

    [upload] = [each for each in outcomes if not isinstance(each, Conflict)]
    assert isinstance(upload, FileUpload)
    files = ClientFiles(settings)
    assert await files.list_all() == [upload.file]
    assert [each.nbytes for each in await files.storage.list("nobody/data")] == [6]


async def test_a_file_is_found_whose_gateway_died_behind_the_end_of_its_upload(
    settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch
):
    files = ClientFiles(settings)
    uploads = FileUploads(files)
    id = (await uploads.begin("a.bin", "user_data", "", 3)).id
    part = await uploads.add_part(id, b"abc")
    with monkeypatch.context() as dying, pytest.raises(asyncio.CancelledError):
        dying.setattr(files, "reveal", _raise_cancelled)
        await uploads.complete(id, [part])
    assert await files.list_all() == []

    with pytest.raises(Conflict, match="its file is") as conflict:
        await FileUploads(ClientFiles(settings)).complete(id, [part])

    [file] = await files.list_all()
    assert file.id in conflict.value.message
    assert (await files.read(file.id)).data == b"abc"
    with pytest.raises(Conflict, match="completed"):
        await uploads.cancel(id)


async def _raise_cancelled(_: ClientFile) -> None:
    raise asyncio.CancelledError


async def test_a_storage_that_is_away_is_said_to_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    storage = open_storage(GatewaySettings(storage="s3://files", storage_endpoint="http://127.0.0.1:1"))

    with pytest.raises(StoreUnavailable, match="s3://files"):
        await storage.put("a", b"1")


@pytest.mark.parametrize("where", ["files", "http://files", "s3://"])
def test_what_is_no_bucket_is_refused(where: str):
    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_STORAGE"):
        ObjectStorage.from_settings(GatewaySettings(storage=where))


async def test_an_object_that_comes_in_parts_is_there_as_a_whole(settings: GatewaySettings):
    storage = open_storage(settings)

    async def stream_parts() -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes([number]) * (6 << 20)  # more than S3 takes as one part of several

    await storage.put_stream("a/long", stream_parts())

    assert await storage.get("a/long") == b"".join([bytes([number]) * (6 << 20) for number in range(3)])
