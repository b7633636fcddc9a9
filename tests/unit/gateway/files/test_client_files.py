"""Files that clients upload: private to a tenant, temporary, and usable in chats."""

import base64
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from omnibus.errors import NotFound, StorageFull, TooLarge
from omnibus.settings import GatewaySettings
from omnibus_gateway.media.client_files import ClientFiles
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from tests.unit.gateway.auth.test_middleware import start_gated_gateway
from tests.unit.gateway.house import (
    OMNI,
    PNG,
    VL,
    ToyGateway,
    build_chat_body,
    make_text_part,
    read_chat_answer,
    read_error_body,
)
from tests.unit.gateway.samples import make_sample_sound

WAV = make_sample_sound("wav", "pcm_s16le", 0.1)


def client_of(home: ToyGateway, http: Any = None, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key=key, base_url="http://localhost/v1", http_client=http or home.http, max_retries=0,
        _strict_response_validation=True,
    )  # fmt: skip


def open_client_files(directory: Path, **more: Any) -> ClientFiles:
    return ClientFiles(GatewaySettings(media_dir=str(directory), **more))


async def test_the_openai_client_uploads_lists_reads_and_deletes(home: ToyGateway):
    client = client_of(home)

    uploaded_files = [
        await client.files.create(file=(name, data), purpose=purpose)
        for name, data, purpose in (
            ("a.png", PNG, "vision"),
            ("b.jsonl", b"{}\n", "batch"),
            ("c.wav", WAV, "user_data"),
        )
    ]
    newest = [each.id async for each in client.files.list(limit=2)]
    batches = [each.id async for each in client.files.list(purpose="batch")]
    content = await client.files.content(uploaded_files[0].id)
    file_view = await client.files.retrieve(uploaded_files[1].id)
    deletion = await client.files.delete(uploaded_files[2].id)

    assert newest == [each.id for each in uploaded_files[::-1]]
    assert batches == [uploaded_files[1].id]
    assert content.content == PNG
    assert (file_view.filename, file_view.bytes, file_view.purpose) == ("b.jsonl", 3, "batch")
    assert deletion.deleted
    assert [each.id async for each in client.files.list(order="asc")] == [uploaded_files[0].id, uploaded_files[1].id]
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(uploaded_files[2].id)


@pytest.mark.parametrize(("name", "data", "image_count"), [("a.png", PNG, 1), ("a.wav", WAV, 1)])
async def test_a_chat_refers_to_a_file_by_its_id(home: ToyGateway, name: str, data: bytes, image_count: int):
    await home.all_of(OMNI)
    file = await client_of(home).files.create(file=(name, data), purpose="user_data")

    response = await home.ask(
        OMNI, [make_text_part("hi"), {"type": "file", "file": {"file_id": file.id}}, make_text_part("there")]
    )

    assert read_chat_answer(response).startswith("You said hi")
    assert read_chat_answer(response).count("saw") == image_count
    assert response.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 1  # the toy calls all media images


async def test_a_file_may_come_with_the_chat(home: ToyGateway):
    await home.all_of(OMNI)
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"

    assert "saw" in read_chat_answer(
        await home.ask(OMNI, [{"type": "file", "file": {"file_data": url, "filename": "a.png"}}])
    )


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ({"file_id": f"file-{'0' * 48}"}, "file_id"),
        ({"file_id": "../../etc/passwd"}, "file_id"),
        ({"file_data": "data:application/pdf;base64,AAAA"}, "file_data"),
        ({}, ""),
        ({"file_id": "a", "file_data": "b"}, ""),
    ],
)
async def test_what_no_chat_can_refer_to_is_refused(home: ToyGateway, file: dict[str, Any], place: str):
    await home.all_of(VL)

    rejection = await home.ask(VL, [{"type": "file", "file": file}])

    assert rejection.status_code in (400, 404)
    assert read_error_body(rejection)["param"] == f"messages[0].content[0].file{'.' + place if place else ''}"


async def test_a_file_that_is_no_media_is_refused_by_its_type(home: ToyGateway):
    await home.all_of(VL)
    file = await client_of(home).files.create(file=("a.txt", b"hello", "text/plain"), purpose="user_data")

    details = read_error_body(await home.ask(VL, [{"type": "file", "file": {"file_id": file.id}}]))

    assert "text/plain" in details["message"]
    assert details["param"] == "messages[0].content[0].file.file_id"


async def test_tenants_see_their_own_files_alone(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        await gate.home.all_of(VL)
        own_file = await client_of(gate.home, gate.http, "a").files.create(file=("a.png", PNG), purpose="vision")
        other = client_of(gate.home, gate.http, "b")
        chat = build_chat_body(VL, [{"type": "file", "file": {"file_id": own_file.id}}])

        assert (await client_of(gate.home, gate.http, "a").files.content(own_file.id)).content == PNG
        assert [each.id async for each in other.files.list()] == []
        for rejection in (
            await gate.get("GET", f"/v1/files/{own_file.id}", "b"),
            await gate.get("GET", f"/v1/files/{own_file.id}/content"),
            await gate.get("DELETE", f"/v1/files/{own_file.id}", "b"),
            await gate.get("POST", "/v1/chat/completions", "b", json=chat),
        ):
            assert rejection.status_code == 404
        assert (await gate.get("GET", "/v1/files")).status_code == 401
        assert (await gate.get("POST", "/v1/chat/completions", "a", json=chat)).status_code == 200


async def test_a_tenant_has_so_much_room_and_no_more(tmp_path: Path):
    files = open_client_files(tmp_path, upload_bytes=100, file_largest=60)
    first = await files.add(b"a" * 60, "a", "batch")

    with pytest.raises(TooLarge):
        await files.add(b"a" * 61, "b", "batch")
    with pytest.raises(StorageFull):
        await files.add(b"a" * 60, "b", "batch")
    with acting_as(Tenant("other")):
        await files.add(b"a" * 60, "b", "batch")
    await files.remove(first.id)
    assert (await files.add(b"a" * 60, "b", "batch")).nbytes == 60


async def test_what_has_expired_is_gone_and_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = open_client_files(tmp_path, upload_bytes=100)
    old = await files.add(b"a" * 60, "a", "batch", seconds=3600)

    monkeypatch.setattr("time.time", lambda now=old.created: now + 3601)

    with pytest.raises(NotFound):
        await files.read(old.id)
    assert await files.list_all() == []
    assert (await files.add(b"a" * 60, "b", "batch")).filename == "b"


async def test_a_gateway_without_a_directory_says_how_to_have_one(home: ToyGateway):
    home.chat.files._storage = None

    rejection = await home.http.post("/v1/files", files={"file": ("a", b"a")}, data={"purpose": "batch"})

    assert rejection.status_code == 400
    assert "OMNIBUS_GATEWAY_STORAGE" in read_error_body(rejection)["message"]
    assert json.loads((await home.http.get("/v1/files")).content)["data"] == []
