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
from tests.unit.gateway.house import FILMER, TEXT, House, error, house
from tests.unit.gateway.videos.studio import (
    ASKED,
    RATE,
    Studio,
    asked,
    becomes,
    fetched,
    studio,
    watched,
)

PATH = "/v1/videos"
NOBODY = "video_" + "0" * 48


@pytest.fixture
async def place(tmp_path: Path, valkey_url: str, cleared: None) -> AsyncIterator[Studio]:
    async with studio(tmp_path, valkey_url) as made:
        yield made


@pytest.fixture
async def home(place: Studio) -> House:
    return place.first


async def test_a_video_is_made_as_it_was_asked_for(place: Studio, home: House):
    first = await asked(home, seed=120)

    done = await becomes(home, first["id"], status="completed")

    assert (first["status"], first["progress"], first["object"]) == ("queued", 0, "video")
    assert (first["completed_at"], first["expires_at"], first["error"]) == (None, None, None)
    assert (done["progress"], done["seconds"], done["size"]) == (100, "0.5", "64x32")
    assert done["created_at"] <= done["completed_at"] < done["expires_at"]
    film = watched((await fetched(home, first["id"])).content)
    assert (film.frames.shape, film.fps, film.rate) == ((9, 32, 64, 3), 24.0, RATE)
    assert np.abs(film.frames.astype(int) - 120).max() < 4
    assert film.sound.shape[1] == 2
    assert len(film.sound) == pytest.approx(RATE * 9 / 24, abs=2048)
    await home.emptied()


async def test_every_wish_reaches_the_model(place: Studio, home: House):
    wish = {
        "seed": 7,
        "guidance": 3.5,
        "fps": 12.5,
        "negative_prompt": "clouds",
        "num_inference_steps": 3,
        "steps": None,
    }

    first = await asked(home, **wish)
    await becomes(home, first["id"], status="completed")

    [made] = place.toys.wishes
    assert {
        "width": 64,
        "height": 32,
        "frames": 1,
        "steps": 3,
        "seed": 7,
        "guidance": 3.5,
        "fps": 12.5,
    }.items() <= made.items()
    assert watched((await fetched(home, first["id"])).content).fps == 12.5


async def test_a_form_asks_for_the_same(place: Studio, home: House):
    fields = {**ASKED, "steps": "4", "seed": "9", "sound": "false"}

    response = await home.http.post(PATH, files={name: (None, value) for name, value in fields.items()})

    assert response.status_code == 200, response.text
    await becomes(home, response.json()["id"], status="completed")
    assert watched((await fetched(home, response.json()["id"])).content).sound is None
    assert place.toys.wishes[0]["seed"] == 9


async def test_each_video_has_a_seed_that_makes_it_again(place: Studio, home: House):
    first, second = await asked(home), await asked(home)
    await becomes(home, first["id"], status="completed")

    again = await asked(home, seed=first["seed"])
    await becomes(home, again["id"], status="completed")

    assert first["seed"] != second["seed"]
    files = [(await fetched(home, each["id"])).content for each in (first, again)]
    np.testing.assert_array_equal(watched(files[0]).frames, watched(files[1]).frames)


async def test_there_is_a_picture_of_it(home: House):
    id = (await asked(home, seed=120))["id"]
    await becomes(home, id, status="completed")

    response = await fetched(home, id, variant="thumbnail")

    assert response.headers["content-type"] == "image/webp"
    picture = Image.open(BytesIO(response.content))
    assert picture.size == (64, 32)
    assert np.abs(np.array(picture.convert("RGB")).astype(int) - 120).max() < 6


async def test_it_can_be_fetched_in_parts(home: House):
    id = (await asked(home))["id"]
    await becomes(home, id, status="completed")
    whole = await fetched(home, id)
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


async def test_progress_is_told_while_it_is_made(place: Studio, home: House):
    place.toys.gate.clear()
    id = (await asked(home))["id"]

    half = await becomes(home, id, progress=45)
    early = await fetched(home, id)
    place.toys.gate.set()

    assert half["status"] == "in_progress"
    assert (early.status_code, error(early)["param"]) == (400, "video_id")
    assert "not completed" in error(early)["message"]
    await becomes(home, id, status="completed")


async def test_a_video_that_cannot_be_made_says_why(place: Studio, home: House):
    async def refuse(job: Job) -> None:
        raise BadRequest("width must be a multiple of 96", param="width")

    place.toys.refuse = refuse
    id = (await asked(home))["id"]

    failed = await becomes(home, id, status="failed")

    assert failed["error"] == {
        "code": "bad_request",
        "message": "width must be a multiple of 96",
        "param": "size",
        "type": "invalid_request_error",
    }
    assert failed["completed_at"] is None
    assert (await fetched(home, id)).status_code == 400
    assert place.files == []
    await home.emptied()


async def test_an_engine_that_fails_fails_the_video(place: Studio, home: House):
    async def fail(job: Job) -> None:
        raise ZeroDivisionError

    place.toys.refuse = fail
    id = (await asked(home))["id"]

    failed = await becomes(home, id, status="failed")

    assert (failed["error"]["code"], failed["error"]["type"]) == ("stage_failed", "server_error")


async def test_videos_are_listed_page_by_page(home: House):
    ids = [(await asked(home))["id"] for _ in range(3)]

    newest = (await home.http.get(PATH, params={"limit": 2})).json()
    rest = (await home.http.get(PATH, params={"limit": 2, "after": newest["last_id"]})).json()
    oldest = (await home.http.get(PATH, params={"order": "asc"})).json()

    assert [each["id"] for each in newest["data"]] == [ids[2], ids[1]]
    assert (newest["has_more"], newest["first_id"], newest["last_id"]) == (True, ids[2], ids[1])
    assert ([each["id"] for each in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    assert [each["id"] for each in oldest["data"]] == ids
    none = (await home.http.get(PATH, params={"after": ids[0]})).json()
    assert none == {"data": [], "has_more": False, "first_id": None, "last_id": None, "object": "list"}


async def test_a_removed_video_is_gone_with_its_files(place: Studio, home: House):
    id = (await asked(home))["id"]
    await becomes(home, id, status="completed")
    assert place.files == [f"{id}.mp4", f"{id}.webp"]

    removed = await home.http.delete(f"{PATH}/{id}")

    assert removed.json() == {"id": id, "object": "video.deleted", "deleted": True}
    assert place.files == []
    for response in (
        await home.http.get(f"{PATH}/{id}"),
        await fetched(home, id),
        await home.http.delete(f"{PATH}/{id}"),
    ):
        assert (response.status_code, error(response)["param"]) == (404, "video_id")


@pytest.mark.parametrize("id", [NOBODY, "video_", "..%2f..%2fetc", "file-" + "0" * 48])
async def test_unknown_ids_are_not_found(home: House, id: str):
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
    home: House, changes: dict[str, Any], status: int, param: str
):
    home.serve(FILMER, TEXT)

    response = await home.http.post(PATH, json={**ASKED, **changes})

    assert (response.status_code, error(response)["param"]) == (status, param), response.text
    assert (await home.http.get(PATH)).json()["data"] == []


async def test_a_refused_size_names_the_nearest_one_that_the_model_makes(home: House):
    refused = await home.http.post(PATH, json={**ASKED, "size": "1280x720"})

    assert "multiple of 32 from 32 on, not 720; the nearest is 704" in error(refused)["message"]


async def test_sound_that_a_model_does_not_make_is_refused(home: House):
    silent: dict[str, Any] = {"family": "ltx2", "checkpoint": "", "components": ["text_encoder", "dit", "vae"]}
    silent["options"] = {"M": {"components": silent["components"], "service": "generator"}}
    home.serve(silent={**silent, "paths": [{"options": ["M"]}]})

    loud = await home.http.post(PATH, json={**ASKED, "model": "silent", "sound": True})
    usual = await home.http.post(PATH, json={**ASKED, "model": "silent"})

    assert (loud.status_code, error(loud)["param"]) == (400, "sound")
    assert usual.status_code == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order"), ({"x": 1}, "x")],
)
async def test_odd_pages_are_refused(home: House, query: dict[str, Any], param: str):
    response = await home.http.get(PATH, params=query)

    assert (response.status_code, error(response)["param"]) == (400, param)


@pytest.mark.parametrize("variant", ["spritesheet", "poster"])
async def test_odd_variants_are_refused(home: House, variant: str):
    response = await fetched(home, NOBODY, variant=variant)

    assert (response.status_code, error(response)["param"]) == (400, "variant")


@pytest.mark.parametrize("path", [f"{PATH}/{NOBODY}/remix", f"{PATH}/edits", f"{PATH}/extensions"])
async def test_what_would_change_a_video_says_what_to_send_instead(home: House, path: str):
    response = await home.http.post(path, json={"prompt": "a bluer boat"})

    assert (response.status_code, error(response)["code"]) == (404, "not_found")
    assert "POST /v1/videos" in error(response)["message"]


async def test_other_methods_are_refused(home: House):
    for method, path in (("PUT", PATH), ("POST", f"{PATH}/{NOBODY}"), ("DELETE", f"{PATH}/{NOBODY}/content")):
        response = await home.http.request(method, path)

        assert response.status_code == 405, response.text


async def test_no_more_wait_than_there_may_be(tmp_path: Path, valkey_url: str, cleared: None):
    async with studio(tmp_path, valkey_url, videos_open=2) as made:
        made.toys.gate.clear()
        kept = [await asked(made.first) for _ in range(2)]

        refused = await made.first.http.post(PATH, json=ASKED)

        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        made.toys.gate.set()
        for each in kept:
            await becomes(made.first, each["id"], status="completed")
        await asked(made.first)


async def test_no_more_bytes_are_kept_than_there_may_be(tmp_path: Path, valkey_url: str, cleared: None):
    async with studio(tmp_path, valkey_url, video_bytes=100) as made:
        id = (await asked(made.first))["id"]
        await becomes(made.first, id, status="completed")

        refused = await made.first.http.post(PATH, json=ASKED)

        assert refused.status_code == 429
        assert "delete some" in error(refused)["message"]
        await made.first.http.delete(f"{PATH}/{id}")
        await asked(made.first)


async def test_without_a_media_directory_there_are_no_videos(tmp_path: Path, valkey_url: str, cleared: None):
    async with studio(tmp_path, valkey_url, media_dir="") as made:
        refused = await made.first.http.post(PATH, json=ASKED)

        assert refused.status_code == 403
        assert "OMNIBUS_GATEWAY_MEDIA_DIR" in error(refused)["message"]


async def test_without_a_store_it_is_said_so(tmp_path: Path):
    async with house(tmp_path) as home:
        home.serve(FILMER)

        for response in (await home.http.post(PATH, json=ASKED), await home.http.get(PATH)):
            assert (response.status_code, error(response)["code"]) == (503, "store_unavailable")


async def test_it_is_counted_what_became_of_it(home: House):
    id = (await asked(home))["id"]
    await becomes(home, id, status="completed")

    metrics = (await home.http.get("/metrics")).text

    assert re.search(rf'omnibus_requests_total{{code="ok",model="{FILMER}"}} [1-9]', metrics)
    assert re.search(rf'omnibus_request_seconds_count{{model="{FILMER}"}} [1-9]', metrics)
