"""Generated files: fetched by id for a limited time, at any gateway that shares the directory."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from omnibus.errors import BadRequest, Fatal, NotFound, TooLarge
from omnibus.settings import GatewaySettings
from omnibus_gateway.media.files import FileStore, FileTicket, UnwrittenFile
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.house import ToyGateway, read_error_body


def make_settings(directory: Path, **more: Any) -> GatewaySettings:
    return GatewaySettings(media_dir=str(directory), **more)


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[FileStore]:
    file_store = FileStore(make_settings(tmp_path))
    yield file_store
    file_store.close()


async def test_what_was_put_is_read_with_its_type(files: FileStore):
    ticket = await files.put(b"picture", "image/png")

    stored_ticket, data = await files.read(ticket.id)

    assert (stored_ticket, data) == (ticket, b"picture")
    assert (ticket.mime, ticket.nbytes) == ("image/png", 7)
    assert ticket.expires - ticket.created == 3600


async def test_equal_files_have_ids_of_their_own_and_one_content(files: FileStore, tmp_path: Path):
    first, second = [await files.put(b"same", "image/png") for _ in range(2)]

    await files.remove(first.id)

    assert first.id != second.id
    assert (await files.read(second.id))[1] == b"same"
    assert len(list((tmp_path / "files" / "content").glob("*/*"))) == 1
    with pytest.raises(NotFound):
        await files.read(first.id)


async def test_another_gateway_reads_the_same_directory(files: FileStore, tmp_path: Path):
    ticket = await files.put(b"shared", "image/png")

    other = FileStore(make_settings(tmp_path))

    assert (await other.read(ticket.id))[1] == b"shared"
    other.close()


async def test_what_has_expired_is_gone_and_leaves_the_disk(files: FileStore, tmp_path: Path):
    brief = FileStore(make_settings(tmp_path, file_seconds=0.0))
    old = await brief.put(b"old", "image/png")
    brief.close()
    [content] = (tmp_path / "files" / "content").glob("*/*")
    os.utime(content, (0, 0))

    with pytest.raises(NotFound):
        await files.read(old.id)
    fresh = await files.put(b"fresh", "image/png")

    assert [path.name for path in (tmp_path / "files" / "tickets").iterdir()] == [fresh.id]
    assert [path.name for path in (tmp_path / "files" / "content").glob("*/*")] == [fresh.sha256]


async def test_when_there_are_more_than_fit_the_oldest_leave(tmp_path: Path):
    small = FileStore(make_settings(tmp_path, file_bytes=250))
    tickets = [await small.put(bytes([number]) * 100, "image/png") for number in range(3)]

    with pytest.raises(NotFound):
        await small.read(tickets[0].id)
    assert (await small.read(tickets[2].id))[1] == b"\x02" * 100
    small.close()


async def test_a_tenant_that_fills_the_room_drives_out_its_own_files_alone(tmp_path: Path):
    small = FileStore(make_settings(tmp_path, file_bytes=1000))
    with acting_as(Tenant("alice")):
        alices = [await small.put(bytes([number]) * 100, "image/png") for number in range(2)]

    with acting_as(Tenant("bob")):
        bobs = [await small.put(bytes([100 + number]) * 100, "image/png") for number in range(30)]

    for ticket in (*alices, bobs[-1]):
        assert (await small.read(ticket.id))[0] == ticket
    with pytest.raises(NotFound):
        await small.read(bobs[0].id)
    small.close()


@pytest.mark.parametrize(
    "id",
    ["", "file-", "../../etc/passwd", "file-" + "0" * 47, "file-" + "g" * 48, "file-" + "0" * 48, "file-" + "0" * 49],
)
async def test_other_ids_are_not_found_whatever_they_name(files: FileStore, id: str):
    with pytest.raises(NotFound):
        await files.read(id)


async def test_a_broken_ticket_is_not_found(files: FileStore, tmp_path: Path):
    ticket = await files.put(b"x", "image/png")
    (tmp_path / "files" / "tickets" / ticket.id).write_bytes(b"{")

    with pytest.raises(NotFound):
        await files.get_ticket(ticket.id)


async def test_a_ticket_cannot_name_content_outside(files: FileStore, tmp_path: Path):
    ticket = await files.put(b"x", "image/png")
    forged_ticket = msgspec.structs.replace(ticket, sha256="../../../../etc/passwd")
    (tmp_path / "files" / "tickets" / ticket.id).write_bytes(msgspec.json.encode(forged_ticket))

    with pytest.raises(NotFound):
        await files.read(ticket.id)


async def test_files_over_the_limit_are_refused(tmp_path: Path):
    small = FileStore(make_settings(tmp_path, file_largest=10))

    with pytest.raises(TooLarge):
        await small.put(b"x" * 11, "image/png")
    small.close()


async def test_without_a_directory_nothing_is_kept(tmp_path: Path):
    off = FileStore(GatewaySettings())

    with pytest.raises(BadRequest, match="OMNIBUS_GATEWAY_MEDIA_DIR"):
        off.require_enabled("response_format")
    with pytest.raises(NotFound):
        await off.get_ticket("file-" + "0" * 48)
    off.close()


async def test_a_directory_that_takes_no_files_is_said_so(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    broken_store = FileStore(make_settings(tmp_path / "file"))

    with pytest.raises(Fatal, match="takes no files"):
        await broken_store.put(b"x", "image/png")
    broken_store.close()


async def test_they_are_read_by_their_owner_alone(files: FileStore, tmp_path: Path):
    ticket = await files.put(b"secret", "image/png")

    path = tmp_path / "files" / "tickets" / ticket.id

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


# Routes


async def upload_image(home: ToyGateway) -> FileTicket:
    return await home.files.put(b"\x89PNG", "image/png")


async def test_the_content_is_sent_with_what_a_browser_needs(home: ToyGateway):
    ticket = await upload_image(home)

    response = await home.http.get(f"/v1/files/{ticket.id}/content")

    assert response.content == b"\x89PNG"
    assert response.headers["content-type"] == "image/png"
    assert response.headers["content-disposition"] == f'inline; filename="{ticket.id}.png"'
    assert response.headers["x-content-type-options"] == "nosniff"
    assert 3500 < int(response.headers["cache-control"].removeprefix("private, max-age=")) <= 3600


async def test_the_official_client_reads_shows_and_removes_files(home: ToyGateway):
    ticket = await upload_image(home)
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=home.http, max_retries=0)

    about = await client.files.retrieve(ticket.id)
    content = await client.files.content(ticket.id)
    deletion = await client.files.delete(ticket.id)

    assert (about.id, about.bytes, about.filename) == (ticket.id, 4, f"{ticket.id}.png")
    assert content.content == b"\x89PNG"
    assert deletion.deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.content(ticket.id)


@pytest.mark.parametrize("path", ["/v1/files/file-1", "/v1/files/file-1/content", "/v1/files/..%2f..%2fx/content"])
async def test_unknown_files_are_not_found_in_the_usual_shape(home: ToyGateway, path: str):
    response = await home.http.get(path)

    assert response.status_code == 404
    assert read_error_body(response)["code"] == "not_found"


NAME = "audio_" + "0123456789abcdef" * 3


async def test_a_file_whose_id_was_known_before_is_one_file_with_its_ticket(files: FileStore, tmp_path: Path):
    errors = await files.put_named([UnwrittenFile(NAME, "audio/wav", b"RIFF sound", "")])

    ticket, data = await files.read(NAME)

    assert (errors, data, ticket.mime, ticket.nbytes) == ({}, b"RIFF sound", "audio/wav", 10)
    assert await files.get_ticket(NAME) == ticket
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [NAME]


async def test_it_counts_for_its_tenant_and_is_found_by_everybody(files: FileStore, tmp_path: Path):
    await files.put_named([UnwrittenFile(NAME, "audio/wav", b"sound", "alice")])

    ticket, data = await files.read(NAME)

    assert data == b"sound"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{NAME}-{ticket.owner}"]


async def test_it_is_revoked_by_its_id(files: FileStore):
    await files.put_named([UnwrittenFile(NAME, "audio/wav", b"sound", "alice")])

    await files.remove(NAME)

    with pytest.raises(NotFound):
        await files.read(NAME)


async def test_one_that_is_written_again_takes_the_place_of_the_first(files: FileStore):
    for sound in (b"the beginning", b"all"):
        await files.put_named([UnwrittenFile(NAME, "audio/wav", sound, "")])

    assert (await files.read(NAME))[1] == b"all"


async def test_one_that_is_too_large_does_not_keep_others_out(tmp_path: Path):
    small = FileStore(make_settings(tmp_path, file_largest=10))
    other = NAME[:-1] + "0"

    errors = await small.put_named(
        [UnwrittenFile(NAME, "audio/wav", b"x" * 11, ""), UnwrittenFile(other, "audio/wav", b"x", "")]
    )

    assert [type(error) for error in errors.values()] == [TooLarge]
    assert (await small.read(other))[1] == b"x"
    with pytest.raises(NotFound):
        await small.read(NAME)
    small.close()


async def test_one_that_was_cut_off_is_not_found(files: FileStore, tmp_path: Path):
    await files.put_named([UnwrittenFile(NAME, "audio/wav", b"sound", "")])
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    path.write_bytes(path.read_bytes()[1:])

    with pytest.raises(NotFound):
        await files.read(NAME)


async def test_named_files_expire_and_leave_when_there_are_too_many(tmp_path: Path):
    brief = FileStore(make_settings(tmp_path, file_seconds=0.0))
    await brief.put_named([UnwrittenFile(NAME, "audio/wav", b"old", "")])
    brief.close()
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    os.utime(path, (0, 0))
    small = FileStore(make_settings(tmp_path, file_bytes=2000))
    ids = ["audio_" + f"{number:048x}" for number in range(3)]

    with pytest.raises(NotFound):
        await small.read(NAME)
    for id in ids:
        await small.put_named([UnwrittenFile(id, "audio/wav", b"x" * 600, "")])

    assert not path.exists()
    assert (await small.read(ids[-1]))[1] == b"x" * 600
    with pytest.raises(NotFound):
        await small.read(ids[0])
    small.close()


async def test_a_directory_that_takes_no_named_files_is_said_so(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    broken_store = FileStore(make_settings(tmp_path / "file"))

    errors = await broken_store.put_named([UnwrittenFile(NAME, "audio/wav", b"x", "")])

    assert [type(error) for error in errors.values()] == [Fatal]
    broken_store.close()
