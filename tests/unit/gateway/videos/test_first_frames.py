"""Videos with a first image. It is stored with the job, so that any gateway can make them."""

import base64
import io
from typing import Any

import pytest
import redis.asyncio as redis
from PIL import Image

from omnibus.families import catalog
from omnibus_gateway.videos import job_payload, service
from tests.unit.gateway.house import FILMER, ToyGateway, read_error_body
from tests.unit.gateway.videos.studio import (
    ASKED,
    Studio,
    connect_store,
    decode_video,
    fetch_content,
    request_video,
    wait_for_video,
)

PATH, KEPT = "/v1/videos", "videos:jobfile:*"


def plain_image(colour: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), (colour, 10, 10)).save(out, "PNG")
    return out.getvalue()


RED = plain_image(90)


@pytest.fixture
async def home(place: Studio) -> ToyGateway:
    return place.first


async def read_colour(at: ToyGateway, id: str) -> float:
    return float(decode_video((await fetch_content(at, id)).content).frames.mean())


def make_upload(file: bytes = RED) -> dict[str, Any]:
    fields = {name: str(value) for name, value in ASKED.items()}
    return {"data": fields, "files": {"input_reference": ("first.png", file, "image/png")}}


def make_reference(file: bytes = RED) -> dict[str, Any]:
    return {"image_url": f"data:image/png;base64,{base64.b64encode(file).decode()}"}


async def test_an_upload_and_a_reference_begin_the_same_video(home: ToyGateway, redis_client: redis.Redis):
    responses = [
        await home.http.post(PATH, **make_upload()),
        await home.http.post(PATH, json={**ASKED, "input_reference": make_reference()}),
        # As the official client writes a reference into a form.
        await home.http.post(
            PATH,
            data=make_upload()["data"],
            files={"input_reference[image_url]": (None, make_reference()["image_url"])},
        ),
    ]

    assert [each.status_code for each in responses] == [200] * 3, [each.text for each in responses]
    for each in responses:
        video = await wait_for_video(home, each.json()["id"], status="completed")
        assert await read_colour(home, video["id"]) == pytest.approx(90, abs=3)
    assert await redis_client.keys(KEPT) == []
    await home.emptied()


async def test_another_gateway_makes_it(place: Studio, home: ToyGateway):
    other = await place.gateway("gw2")
    await home.videos.shutdown()
    other.videos.startup()

    id = (await request_video(home, input_reference=make_reference()))["id"]

    await wait_for_video(other, id, status="completed")
    assert await read_colour(other, id) == pytest.approx(90, abs=3)


async def test_its_image_goes_with_it(place: Studio, home: ToyGateway, redis_client: redis.Redis):
    place.toys.gate.clear()
    id = (await request_video(home, input_reference=make_reference()))["id"]
    [key] = await redis_client.keys(KEPT)
    assert 0 < await redis_client.ttl(key) < home.settings.video_deadline + 120

    assert (await home.http.delete(f"{PATH}/{id}")).status_code == 200

    assert await redis_client.keys(KEPT) == []
    place.toys.gate.set()


async def test_a_lost_image_fails_the_video_and_says_so(place: Studio, home: ToyGateway, redis_client: redis.Redis):
    await home.videos.shutdown()
    id = (await request_video(home, input_reference=make_reference()))["id"]
    await redis_client.delete(*await redis_client.keys(KEPT))
    home.videos.startup()

    video = await wait_for_video(home, id, status="failed")

    assert (video["error"]["code"], video["error"]["param"]) == ("not_found", "input_reference")
    assert "send it again" in video["error"]["message"]


async def test_gateways_of_before_leave_it_to_others(place: Studio, home: ToyGateway, valkey_url: str):
    place.toys.gate.clear()
    async with connect_store(valkey_url) as store:
        ids = [(await request_video(home, **more))["id"] for more in ({}, {"input_reference": make_reference()})]
        jobs = [await store.job(job_payload.KIND, id) for id in ids]

    assert [job_payload.decode_job(job).v for job in jobs if job is not None] == [1, 2]
    assert b'"image"' not in jobs[0].request
    place.toys.gate.set()


@pytest.mark.parametrize(
    ("bad_reference", "message"),
    [
        ({}, "either an 'image_url' or a 'file_id'"),
        ({"file_id": "file-1", "image_url": "https://a.example/b.png"}, "either an 'image_url' or a 'file_id'"),
        ({"file_id": "file-1"}, "file"),
        ({"image_url": "data:image/png;base64,AAAA"}, "image"),
        ("a.png", "Expected `object | null`"),
    ],
)
async def test_references_that_cannot_be_used_are_refused(home: ToyGateway, bad_reference: Any, message: str):
    response = await home.http.post(PATH, json={**ASKED, "input_reference": bad_reference})

    assert 400 <= response.status_code < 500, response.text
    assert (read_error_body(response)["param"] or "").startswith("input_reference")
    assert message in read_error_body(response)["message"]
    assert (await home.http.get(PATH)).json()["data"] == []


async def test_an_image_of_too_many_bytes_is_refused(home: ToyGateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "_MAX_IMAGE_BYTES", 10)

    response = await home.http.post(PATH, **make_upload())

    assert (response.status_code, read_error_body(response)["param"]) == (413, "input_reference")


async def test_a_model_without_an_encoder_of_first_frames_says_so(home: ToyGateway):
    whole = catalog.model_declaration("ltx2", "")
    parts = [part for part in whole["components"] if part != "vae_encoder"]
    plain = {
        "family": "ltx2",
        "checkpoint": "",
        "components": parts,
        "tasks": {part: kind for part, kind in whole["tasks"].items() if part in parts},
        "options": {"M": {"components": parts, "service": "generator"}},
        "paths": [{"options": ["M"], "share": 1}],
    }
    home.serve(FILMER, plain=plain)

    response = await home.http.post(PATH, json={**ASKED, "model": "plain", "input_reference": make_reference()})

    assert (response.status_code, read_error_body(response)["param"]) == (400, "input_reference")
    assert "plain does not accept a first image" in read_error_body(response)["message"]
