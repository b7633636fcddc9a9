"""``/v1/videos`` for clients: created as requested, followed, fetched in parts, listed and removed."""

import re
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from tests.unit.gateway.house import FILMER, TEXT, ToyGateway, read_error_body, start_toy_gateway
from tests.unit.gateway.videos.studio import (
    ASKED,
    RATE,
    Studio,
    decode_video,
    fetch_content,
    open_studio,
    request_video,
    wait_for_video,
)

PATH = "/v1/videos"
NOBODY = "video_" + "0" * 48


@pytest.fixture
async def place(tmp_path: Path, valkey_url: str, empty_store: None) -> AsyncIterator[Studio]:
    async with open_studio(tmp_path, valkey_url) as video_studio:
        yield video_studio


@pytest.fixture
async def home(place: Studio) -> ToyGateway:
    return place.first


async def test_a_video_is_made_as_it_was_asked_for(place: Studio, home: ToyGateway):
    first = await request_video(home, seed=120)

    video = await wait_for_video(home, first["id"], status="completed")

    assert (first["status"], first["progress"], first["object"]) == ("queued", 0, "video")
    assert (first["completed_at"], first["expires_at"], first["error"]) == (None, None, None)
    assert (video["progress"], video["seconds"], video["size"]) == (100, "0.5", "64x32")
    assert video["created_at"] <= video["completed_at"] < video["expires_at"]
    film = decode_video((await fetch_content(home, first["id"])).content)
    assert (film.frames.shape, film.fps, film.rate) == ((9, 32, 64, 3), 24.0, RATE)
    assert np.abs(film.frames.astype(int) - 120).max() < 4
    assert film.sound.shape[1] == 2
    assert len(film.sound) == pytest.approx(RATE * 9 / 24, abs=2048)
    await home.emptied()


async def test_every_wish_reaches_the_model(place: Studio, home: ToyGateway):
    wish = {
        "seed": 7,
        "guidance": 3.5,
        "fps": 12.5,
        "negative_prompt": "clouds",
        "num_inference_steps": 3,
        "steps": None,
    }

    first = await request_video(home, **wish)
    await wait_for_video(home, first["id"], status="completed")

    [model_wish] = place.toys.wishes
    assert {
        "width": 64,
        "height": 32,
        "frames": 1,
        "steps": 3,
        "seed": 7,
        "guidance": 3.5,
        "fps": 12.5,
    }.items() <= model_wish.items()
    assert decode_video((await fetch_content(home, first["id"])).content).fps == 12.5


async def test_a_form_asks_for_the_same(place: Studio, home: ToyGateway):
    fields = {**ASKED, "steps": "4", "seed": "9", "sound": "false"}

    response = await home.http.post(PATH, files={name: (None, value) for name, value in fields.items()})

    assert response.status_code == 200, response.text
    await wait_for_video(home, response.json()["id"], status="completed")
    assert decode_video((await fetch_content(home, response.json()["id"])).content).sound is None
    assert place.toys.wishes[0]["seed"] == 9


async def test_each_video_has_a_seed_that_makes_it_again(place: Studio, home: ToyGateway):
    first, second = await request_video(home), await request_video(home)
    await wait_for_video(home, first["id"], status="completed")

    again = await request_video(home, seed=first["seed"])
    await wait_for_video(home, again["id"], status="completed")

    assert first["seed"] != second["seed"]
    files = [(await fetch_content(home, each["id"])).content for each in (first, again)]
    np.testing.assert_array_equal(decode_video(files[0]).frames, decode_video(files[1]).frames)


async def test_there_is_a_picture_of_it(home: ToyGateway):
    id = (await request_video(home, seed=120))["id"]
    await wait_for_video(home, id, status="completed")

    response = await fetch_content(home, id, variant="thumbnail")

    assert response.headers["content-type"] == "image/webp"
    picture = Image.open(BytesIO(response.content))
    assert picture.size == (64, 32)
    assert np.abs(np.array(picture.convert("RGB")).astype(int) - 120).max() < 6


async def test_it_can_be_fetched_in_parts(home: ToyGateway):
    id = (await request_video(home))["id"]
    await wait_for_video(home, id, status="completed")
    whole = await fetch_content(home, id)
    size = len(whole.content)

    parts = [
        await home.http.get(f"{PATH}/{id}/content", headers={"range": f"bytes={place}"})
        for place in ("0-99", "100-", "-50", f"{size}-")
    ]

    assert (whole.headers["content-type"], whole.headers["accept-ranges"]) == ("video/mp4", "bytes")
    assert whole.headers["content-length"] == str(size)
    assert [part.status_code for part in parts] == [206, 206, 206, 416]
    assert parts[0].headers["content-range"] == f"bytes 0-99/{size}"
    assert parts[0].content + parts[1].content == whole.content
    assert parts[2].content == whole.content[-50:]
    head = await home.http.head(f"{PATH}/{id}/content")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(size), b"")


async def test_progress_is_told_while_it_is_made(place: Studio, home: ToyGateway):
    place.toys.gate.clear()
    id = (await request_video(home))["id"]

    half = await wait_for_video(home, id, progress=45)
    early = await fetch_content(home, id)
    place.toys.gate.set()

    assert half["status"] == "in_progress"
    assert (early.status_code, read_error_body(early)["param"]) == (400, "video_id")
    assert "not completed" in read_error_body(early)["message"]
    await wait_for_video(home, id, status="completed")


async def test_a_video_that_cannot_be_made_says_why(place: Studio, home: ToyGateway):
    async def refuse_width(job: Job) -> None:
        raise BadRequest("width must be a multiple of 96", param="width")

    place.toys.refuse = refuse_width
    id = (await request_video(home))["id"]

    video = await wait_for_video(home, id, status="failed")

    assert video["error"] == {
        "code": "bad_request",
        "message": "width must be a multiple of 96",
        "param": "size",
        "type": "invalid_request_error",
    }
    assert video["completed_at"] is None
    assert (await fetch_content(home, id)).status_code == 400
    assert place.files == []
    await home.emptied()


async def test_an_engine_that_fails_fails_the_video(place: Studio, home: ToyGateway):
    async def fail_engine(job: Job) -> None:
        raise ZeroDivisionError

    place.toys.refuse = fail_engine
    id = (await request_video(home))["id"]

    video = await wait_for_video(home, id, status="failed")

    assert (video["error"]["code"], video["error"]["type"]) == ("stage_failed", "server_error")


async def test_videos_are_listed_page_by_page(home: ToyGateway):
    ids = [(await request_video(home))["id"] for _ in range(3)]

    newest = (await home.http.get(PATH, params={"limit": 2})).json()
    rest = (await home.http.get(PATH, params={"limit": 2, "after": newest["last_id"]})).json()
    oldest = (await home.http.get(PATH, params={"order": "asc"})).json()

    assert [each["id"] for each in newest["data"]] == [ids[2], ids[1]]
    assert (newest["has_more"], newest["first_id"], newest["last_id"]) == (True, ids[2], ids[1])
    assert ([each["id"] for each in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    assert [each["id"] for each in oldest["data"]] == ids
    none = (await home.http.get(PATH, params={"after": ids[0]})).json()
    assert none == {"data": [], "has_more": False, "first_id": None, "last_id": None, "object": "list"}


async def test_a_removed_video_is_gone_with_its_files(place: Studio, home: ToyGateway):
    id = (await request_video(home))["id"]
    await wait_for_video(home, id, status="completed")
    assert place.files == [f"{id}.mp4", f"{id}.webp"]

    deletion = await home.http.delete(f"{PATH}/{id}")

    assert deletion.json() == {"id": id, "object": "video.deleted", "deleted": True}
    assert place.files == []
    for response in (
        await home.http.get(f"{PATH}/{id}"),
        await fetch_content(home, id),
        await home.http.delete(f"{PATH}/{id}"),
    ):
        assert (response.status_code, read_error_body(response)["param"]) == (404, "video_id")


@pytest.mark.parametrize("id", [NOBODY, "video_", "..%2f..%2fetc", "file-" + "0" * 48])
async def test_unknown_ids_are_not_found(home: ToyGateway, id: str):
    for response in (
        await home.http.get(f"{PATH}/{id}"),
        await home.http.get(f"{PATH}/{id}/content"),
        await home.http.delete(f"{PATH}/{id}"),
        await home.http.get(PATH, params={"after": id}),
    ):
        assert response.status_code == 404, response.text


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"model": "nobody"}, 404, "model"),
        ({"model": TEXT}, 400, "model"),
        ({"seconds": "four"}, 400, "seconds"),
        ({"seconds": -1}, 400, "seconds"),
        ({"seconds": 61}, 413, "seconds"),
        ({"seconds": 50, "fps": 120}, 413, "seconds"),
        ({"size": "64"}, 400, "size"),
        ({"size": "99999x99999"}, 413, "size"),
        ({"size": "1920x1080", "seconds": 20}, 413, "size"),
        ({"size": "1280x720"}, 400, "size"),
        ({"size": "32x16"}, 400, "size"),
        ({"seconds": 0, "fps": 60}, 400, "seconds"),
        ({"steps": 0}, 400, "steps"),
        ({"steps": 1}, 400, "steps"),
        ({"steps": 4, "num_inference_steps": 4}, 400, "num_inference_steps"),
        ({"guidance": 1, "guidance_scale": 1}, 400, "guidance_scale"),
        ({"fps": 0}, 400, "fps"),
        ({"seed": -1}, 400, "seed"),
        ({"input_reference": {"file_id": "file-1"}}, 404, "input_reference"),
        ({"quality": "high"}, 400, "quality"),
    ],
)
async def test_what_cannot_be_made_is_refused_before_it_is_written_down(
    home: ToyGateway, changes: dict[str, Any], status: int, param: str
):
    home.serve(FILMER, TEXT)

    response = await home.http.post(PATH, json={**ASKED, **changes})

    assert (response.status_code, read_error_body(response)["param"]) == (status, param), response.text
    assert (await home.http.get(PATH)).json()["data"] == []


async def test_a_refused_size_names_the_nearest_one_that_the_model_makes(home: ToyGateway):
    response = await home.http.post(PATH, json={**ASKED, "size": "1280x720"})

    assert "multiple of 32 from 32 on, not 720; the nearest is 704" in read_error_body(response)["message"]


async def test_sound_that_a_model_does_not_make_is_refused(home: ToyGateway):
    silent: dict[str, Any] = {"family": "ltx2", "checkpoint": "", "components": ["text_encoder", "dit", "vae"]}
    silent["options"] = {"M": {"components": silent["components"], "service": "generator"}}
    home.serve(silent={**silent, "paths": [{"options": ["M"]}]})

    loud = await home.http.post(PATH, json={**ASKED, "model": "silent", "sound": True})
    usual = await home.http.post(PATH, json={**ASKED, "model": "silent"})

    assert (loud.status_code, read_error_body(loud)["param"]) == (400, "sound")
    assert usual.status_code == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order"), ({"x": 1}, "x")],
)
async def test_odd_pages_are_refused(home: ToyGateway, query: dict[str, Any], param: str):
    response = await home.http.get(PATH, params=query)

    assert (response.status_code, read_error_body(response)["param"]) == (400, param)


@pytest.mark.parametrize("variant", ["spritesheet", "poster"])
async def test_odd_variants_are_refused(home: ToyGateway, variant: str):
    response = await fetch_content(home, NOBODY, variant=variant)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "variant")


@pytest.mark.parametrize("path", [f"{PATH}/{NOBODY}/remix", f"{PATH}/edits", f"{PATH}/extensions"])
async def test_what_would_change_a_video_says_what_to_send_instead(home: ToyGateway, path: str):
    response = await home.http.post(path, json={"prompt": "a bluer boat"})

    assert (response.status_code, read_error_body(response)["code"]) == (404, "not_found")
    assert "POST /v1/videos" in read_error_body(response)["message"]


async def test_other_methods_are_refused(home: ToyGateway):
    for method, path in (("PUT", PATH), ("POST", f"{PATH}/{NOBODY}"), ("DELETE", f"{PATH}/{NOBODY}/content")):
        response = await home.http.request(method, path)

        assert response.status_code == 405, response.text


async def test_no_more_wait_than_there_may_be(tmp_path: Path, valkey_url: str, empty_store: None):
    async with open_studio(tmp_path, valkey_url, videos_open=2) as video_studio:
        video_studio.toys.gate.clear()
        jobs = [await request_video(video_studio.first) for _ in range(2)]

        response = await video_studio.first.http.post(PATH, json=ASKED)

        assert (response.status_code, response.headers["retry-after"]) == (429, "10")
        video_studio.toys.gate.set()
        for each in jobs:
            await wait_for_video(video_studio.first, each["id"], status="completed")
        await request_video(video_studio.first)


async def test_no_more_bytes_are_kept_than_there_may_be(tmp_path: Path, valkey_url: str, empty_store: None):
    async with open_studio(tmp_path, valkey_url, video_bytes=100) as video_studio:
        id = (await request_video(video_studio.first))["id"]
        await wait_for_video(video_studio.first, id, status="completed")

        response = await video_studio.first.http.post(PATH, json=ASKED)

        assert response.status_code == 429
        assert "delete some" in read_error_body(response)["message"]
        await video_studio.first.http.delete(f"{PATH}/{id}")
        await request_video(video_studio.first)


async def test_without_a_media_directory_there_are_no_videos(tmp_path: Path, valkey_url: str, empty_store: None):
    async with open_studio(tmp_path, valkey_url, media_dir="") as video_studio:
        response = await video_studio.first.http.post(PATH, json=ASKED)

        assert response.status_code == 403
        assert "OMNIBUS_GATEWAY_MEDIA_DIR" in read_error_body(response)["message"]


async def test_without_a_store_it_is_said_so(tmp_path: Path):
    async with start_toy_gateway(tmp_path) as home:
        home.serve(FILMER)

        for response in (await home.http.post(PATH, json=ASKED), await home.http.get(PATH)):
            assert (response.status_code, read_error_body(response)["code"]) == (503, "store_unavailable")


async def test_it_is_counted_what_became_of_it(home: ToyGateway):
    id = (await request_video(home))["id"]
    await wait_for_video(home, id, status="completed")

    metrics = (await home.http.get("/metrics")).text

    assert re.search(rf'omnibus_requests_total{{code="ok",model="{FILMER}"}} [1-9]', metrics)
    assert re.search(rf'omnibus_request_seconds_count{{model="{FILMER}"}} [1-9]', metrics)
