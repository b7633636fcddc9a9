"""Files uploaded in parts: assembled in the named order, within an hour, private to a tenant."""

import io
from hashlib import md5
from pathlib import Path
from typing import Any

import openai
import pytest

from omnibus.errors import BadRequest, Conflict, NotFound, StorageFull, TooLarge
from omnibus_gateway.files import uploads as uploads_module
from omnibus_gateway.files.uploads import FileUploads
from omnibus_gateway.media.client_files import ClientFiles
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.files.test_client_files import client_of, open_client_files
from tests.unit.gateway.house import PNG, ToyGateway, read_error_body


async def begin_upload(files: ClientFiles, nbytes: int, **more: Any) -> tuple[FileUploads, str]:
    uploads = FileUploads(files)
    return uploads, (await uploads.begin("a.bin", "user_data", "application/x-parts", nbytes, **more)).id


async def test_the_openai_client_uploads_a_file_in_chunks(home: ToyGateway):
    client = client_of(home)

    upload = await client.uploads.upload_file_chunked(
        file=io.BytesIO(PNG).getvalue(), filename="a.png", bytes=len(PNG), mime_type="image/png", purpose="vision",
        part_size=len(PNG) // 3, md5=md5(PNG, usedforsecurity=False).hexdigest(),
    )  # fmt: skip

    assert (upload.status, upload.bytes, upload.filename) == ("completed", len(PNG), "a.png")
    assert upload.file is not None
    assert (await client.files.content(upload.file.id)).content == PNG
    assert (await client.files.retrieve(upload.file.id)).bytes == len(PNG)
    with pytest.raises(openai.ConflictError, match="completed"):
        await client.uploads.cancel(upload.id)
    with pytest.raises(openai.NotFoundError):
        await client.uploads.parts.create("upload_1", data=b"1")
    response = await home.http.post("/v1/uploads", json={"bytes": 0, "filename": "a", "mime_type": "", "purpose": "x"})
    assert read_error_body(response)["param"] == "bytes"


async def test_parts_are_put_together_as_they_are_named(tmp_path: Path):
    files = open_client_files(tmp_path)
    uploads, id = await begin_upload(files, 6)
    late, early, spare = [await uploads.add_part(id, data) for data in (b"def", b"abc", b"")[:2]] + ["part_none"]

    with pytest.raises(BadRequest, match="no part"):
        await uploads.complete(id, [early, spare])
    with pytest.raises(BadRequest, match="3 bytes, but the upload was announced with 6"):
        await uploads.complete(id, [early])
    with pytest.raises(BadRequest, match="twice"):
        await uploads.complete(id, [early, early])
    with pytest.raises(BadRequest, match="md5"):
        await uploads.complete(id, [early, late], md5="0" * 32)
    assert await files.list_all() == []
    assert await files.storage.list("nobody/data") == [], "what did not become a file is gone"

    upload = await uploads.complete(id, [early, late], md5=md5(b"abcdef", usedforsecurity=False).hexdigest().upper())

    assert upload.file is not None
    assert (await files.read(upload.file.id)).data == b"abcdef"
    assert (upload.file.mime, upload.file.filename) == ("application/x-parts", "a.bin")
    assert await files.storage.list("nobody/parts") == []


async def test_no_more_comes_than_was_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = open_client_files(tmp_path, file_largest=8, upload_bytes=10)
    uploads, id = await begin_upload(files, 6)

    await uploads.add_part(id, b"abcd")
    with pytest.raises(TooLarge, match="has 7 with this part"):
        await uploads.add_part(id, b"efg")
    with pytest.raises(BadRequest, match="empty"):
        await uploads.add_part(id, b"")
    with pytest.raises(TooLarge, match="the limit is 8"):
        await begin_upload(files, 9)
    with pytest.raises(StorageFull):  # the first one's bytes count from the beginning
        await begin_upload(files, 5)
    monkeypatch.setattr(uploads_module, "MAX_PARTS", 1)
    with pytest.raises(TooLarge, match="at most 1 parts"):
        await uploads.add_part(id, b"e")
    monkeypatch.setattr(uploads_module, "MAX_UPLOADS", 1)
    with pytest.raises(StorageFull, match="pending"):
        await begin_upload(files, 1)


async def test_what_is_over_takes_nothing_and_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = open_client_files(tmp_path)
    uploads, cancelled_id = await begin_upload(files, 3)
    await uploads.add_part(cancelled_id, b"ab")

    assert (await uploads.cancel(cancelled_id)).status == "cancelled"
    for after in (
        uploads.add_part(cancelled_id, b"c"),
        uploads.complete(cancelled_id, ["x"]),
        uploads.cancel(cancelled_id),
    ):
        with pytest.raises(Conflict, match="cancelled"):
            await after
    monkeypatch.setattr(uploads_module, "UPLOAD_SECONDS", -1.0)
    _, expired_id = await begin_upload(files, 3)
    with pytest.raises(Conflict, match="expired"):
        await uploads.add_part(expired_id, b"abc")
    await begin_upload(files, 3)
    assert [each.key for each in await files.storage.list("nobody/parts")] == []
    with pytest.raises(NotFound):
        await uploads.cancel(cancelled_id)


async def test_uploads_of_others_are_not_found(tmp_path: Path):
    files = open_client_files(tmp_path)
    with acting_as(Tenant("ann", 1.0)):
        uploads, id = await begin_upload(files, 3)
    with acting_as(Tenant("bob", 1.0)), pytest.raises(NotFound):
        await uploads.add_part(id, b"abc")
    with acting_as(Tenant("ann", 1.0)):
        assert (await uploads.add_part(id, b"abc")).startswith("part_")
