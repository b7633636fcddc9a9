"""Image generation: the route from request to files and events, with executors that paint one colour."""

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from omnibus.executor.runner import Job
from omnibus_gateway.tasks.images import preview_interval
from tests.unit.gateway.house import PAINTER, VL, House, error, house
from tests.unit.sidecar.node import until

GENERATIONS = "/v1/images/generations"
WISH: dict[str, Any] = {"model": PAINTER, "prompt": "a red boat", "size": "64x48", "seed": 7, "steps": 8, "guidance": 3}


@pytest.fixture
async def studio(home: House) -> House:
    await home.all_of(PAINTER)
    return home


async def draw(home: House, path: str = GENERATIONS, **more: Any) -> httpx.Response:
    return await home.http.post(path, json={**WISH, **more})


def opened(file: str | bytes) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(file) if isinstance(file, str) else file))


def colour(file: str | bytes) -> tuple[int, ...]:
    return tuple(int(value) for value in np.asarray(opened(file).convert("RGB"))[0, 0])


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in filter(None, response.text.split("\n\n")):
        name, data = block.split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert name == f"event: {told['type']}"
        found.append(told)
    return found


async def test_a_picture_is_made_as_it_was_wished(studio: House):
    response = await draw(studio)

    assert response.status_code == 200, response.text
    body = response.json()
    [image] = body["data"]
    assert (opened(image["b64_json"]).size, opened(image["b64_json"]).format) == ((64, 48), "PNG")
    assert colour(image["b64_json"]) == (7, 3, 3)
    assert (body["size"], body["output_format"], body["background"]) == ("64x48", "png", "opaque")
    assert body["usage"] == {
        "input_tokens": 3,
        "output_tokens": 12,
        "total_tokens": 15,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 3},
        "output_tokens_details": {"image_tokens": 12, "text_tokens": 0},
    }
    await studio.emptied()


async def test_each_of_several_pictures_has_the_next_seed(studio: House):
    body = (await draw(studio, n=3)).json()

    assert [colour(image["b64_json"])[0] for image in body["data"]] == [7, 8, 9]
    assert body["usage"]["output_tokens"] == 36
    await studio.emptied()


@pytest.mark.parametrize(("format", "name"), [("png", "PNG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
async def test_pictures_come_in_the_format_that_was_asked_for(studio: House, format: str, name: str):
    body = (await draw(studio, output_format=format)).json()

    assert body["output_format"] == format
    assert opened(body["data"][0]["b64_json"]).format == name


async def test_more_compression_makes_smaller_files(studio: House):
    sizes = [
        len((await draw(studio, output_format="jpeg", output_compression=quality)).content) for quality in (1, 100)
    ]

    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("alias", ["guidance_scale", "true_cfg_scale"])
async def test_other_names_of_extras_mean_the_same(studio: House, alias: str):
    wish = {name: value for name, value in WISH.items() if name not in ("guidance", "steps")}

    response = await studio.http.post(GENERATIONS, json={**wish, alias: 3, "num_inference_steps": 2})

    assert colour(response.json()["data"][0]["b64_json"]) == (7, 3, 3)


async def test_a_path_can_be_asked_for(studio: House):
    for path in ("T>D>V", "TDV"):
        response = await studio.http.post(GENERATIONS, json=WISH, headers={"x-omnibus-path": path})

        assert response.headers["x-omnibus-path"] == path
    await studio.emptied()


# Streams


async def test_a_stream_shows_the_picture_in_the_making_and_then_the_picture(studio: House):
    *partial, completed = events(await draw(studio, stream=True, partial_images=3))

    assert [told["type"] for told in partial] == ["image_generation.partial_image"] * 3
    assert [told["partial_image_index"] for told in partial] == [0, 1, 2]
    assert [colour(told["b64_json"])[0] for told in partial] == [20, 40, 60]
    assert {opened(told["b64_json"]).size for told in partial} == {(64, 48)}
    assert completed["type"] == "image_generation.completed"
    assert colour(completed["b64_json"]) == (7, 3, 3)
    assert completed["usage"]["output_tokens"] == 12
    await studio.emptied()


async def test_a_stream_without_partial_images_is_the_picture_alone(studio: House):
    [completed] = events(await draw(studio, stream=True))

    assert completed["type"] == "image_generation.completed"


@pytest.mark.parametrize("steps", range(1, 30))
@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
def test_there_are_never_more_partial_images_than_were_asked_for(steps: int, wanted: int):
    every = preview_interval(steps, wanted)

    shown = [step for step in range(1, steps) if every and step % every == 0]

    assert min(1, wanted, steps - 1) <= len(shown) <= wanted
    assert len(shown) == wanted or steps < wanted * (wanted + 1)


async def test_a_failure_before_the_first_event_is_an_error_like_any_other(studio: House):
    response = await draw(studio, stream=True, partial_images=2, size="60x48")

    assert response.status_code == 400
    assert error(response)["param"] == "size"
    await studio.emptied()


async def test_a_failure_in_the_middle_is_an_event(home: House):
    async def breaks(job: Job) -> None:
        await job.value("latents")
        raise RuntimeError("out of paint")

    home.serve(PAINTER)
    await home.executor(PAINTER, "T", "text_encoder")
    await home.executor(PAINTER, "D", "dit")
    await home.executor(PAINTER, "V", "vae", vae=breaks)

    response = await draw(home, stream=True, partial_images=1)

    assert response.status_code == 200
    *_, last = [block for block in response.text.split("\n\n") if block]
    told = json.loads(last.removeprefix("data: "))["error"]
    assert (told["code"], told["stage"]) == ("stage_failed", "vae")
    await home.emptied()


async def test_a_client_that_leaves_stops_the_steps(home: House):
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def endless(job: Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    home.serve(PAINTER)
    await home.executor(PAINTER, "T", "text_encoder")
    await home.executor(PAINTER, "V", "vae")
    await home.executor(PAINTER, "D", "dit", dit=endless)
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not sent:
            sent.append(True)
            return {"type": "http.request", "body": json.dumps(WISH).encode()}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    sent: list[bool] = []
    said: list[Any] = []
    scope = {"type": "http", "method": "POST", "path": GENERATIONS, "headers": []}
    call = asyncio.ensure_future(home.app(scope, receive, send))  # type: ignore[arg-type]
    await begun.wait()

    left.set()
    await call

    await stopped.wait()
    assert said == []
    await home.emptied()


async def test_a_picture_that_takes_too_long_is_given_up(tmp_path: Path):
    async def endless(job: Job) -> None:
        await asyncio.Event().wait()

    async with house(tmp_path, deadline=0.5) as home:
        home.serve(PAINTER)
        await home.executor(PAINTER, "T", "text_encoder")
        await home.executor(PAINTER, "V", "vae")
        await home.executor(PAINTER, "D", "dit", dit=endless)

        response = await draw(home)

        assert (response.status_code, error(response)["code"]) == (504, "deadline_exceeded")
        await home.emptied()


async def test_over_the_limit_clients_are_told_to_come_again(tmp_path: Path):
    async with house(tmp_path, max_inflight=0) as home:
        await home.all_of(PAINTER)

        response = await draw(home)

        assert (response.status_code, response.headers["retry-after"]) == (429, "1")


# Refusals


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"size": "64"}, "size"),
        ({"size": "0x64"}, "size"),
        ({"size": "64x48x3"}, "size"),
        ({"size": "60x48"}, "size"),
        ({"seed": -1}, "seed"),
        ({"steps": 0}, "steps"),
        ({"num_inference_steps": 4}, "num_inference_steps"),
        ({"guidance_scale": 4}, "guidance_scale"),
        ({"guidance": 101}, "guidance"),
        ({"quality": "hd"}, "quality"),
        ({"style": "vivid"}, "style"),
        ({"background": "transparent"}, "background"),
        ({"output_format": "gif"}, "output_format"),
        ({"output_format": "svg"}, "output_format"),
        ({"output_compression": 50}, "output_compression"),
        ({"output_format": "webp", "output_compression": 101}, "output_compression"),
        ({"partial_images": 2}, "partial_images"),
        ({"stream": True, "partial_images": 4}, "partial_images"),
        ({"stream": True, "n": 2}, "n"),
        ({"stream": True, "response_format": "url"}, "response_format"),
        ({"frame_count": 3}, "frame_count"),
        ({"lora": "x"}, "lora"),
        ({"model": VL}, "model"),
    ],
)
async def test_what_cannot_be_obeyed_is_refused_by_name(studio: House, changed: dict[str, Any], param: str):
    studio.serve(PAINTER, VL)

    response = await draw(studio, **changed)

    assert response.status_code == 400, response.text
    assert error(response)["param"] == param
    await studio.emptied()


@pytest.mark.parametrize(
    "changed",
    [
        {"quality": "auto"},
        {"background": "opaque"},
        {"background": "auto"},
        {"moderation": "low"},
        {"user": "somebody"},
        {"partial_images": 0},
        {"response_format": "b64_json"},
        {"negative_prompt": "clouds"},
    ],
)
async def test_what_changes_nothing_or_is_obeyed_is_taken(studio: House, changed: dict[str, Any]):
    response = await draw(studio, **changed)

    assert response.status_code == 200, response.text


async def test_an_unknown_model_is_not_found(studio: House):
    response = await draw(studio, model="nobody")

    assert response.status_code == 404
    assert error(response)["param"] == "model"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_request_is_refused(studio: House, body: bytes):
    response = await studio.http.post(GENERATIONS, content=body)

    assert response.status_code == 400


async def test_other_methods_are_not_allowed(studio: House):
    response = await studio.http.get(GENERATIONS)

    assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_variations_are_refused_with_advice(studio: House):
    response = await studio.http.post("/v1/images/variations", files={"image": b"x"})

    assert response.status_code == 404
    assert "/v1/images/edits" in error(response)["message"]


# URLs


async def test_a_url_leads_to_the_file(studio: House):
    body = (await draw(studio, response_format="url", n=2)).json()

    urls = [image["url"] for image in body["data"]]
    assert len(set(urls)) == 2
    files = [await studio.http.get(url) for url in urls]
    assert [colour(file.content)[0] for file in files] == [7, 8]
    assert {file.headers["content-type"] for file in files} == {"image/png"}


async def test_a_url_begins_with_what_the_client_called_the_gateway_or_with_the_setting(tmp_path: Path, studio: House):
    [image] = (await draw(studio, response_format="url")).json()["data"]
    other = tmp_path / "other"
    other.mkdir()
    async with house(other, public_url="https://api.example.com/") as behind:
        await behind.all_of(PAINTER)
        [shown] = (await draw(behind, response_format="url")).json()["data"]

    assert image["url"].startswith("http://localhost/v1/files/file-")
    assert shown["url"].startswith("https://api.example.com/v1/files/file-")


async def test_without_a_directory_there_are_no_urls(tmp_path: Path):
    async with house(tmp_path, media_dir="") as home:
        await home.all_of(PAINTER)

        response = await draw(home, response_format="url")

        assert response.status_code == 400
        assert error(response)["param"] == "response_format"
        assert "OMNIBUS_GATEWAY_MEDIA_DIR" in error(response)["message"]


async def test_outcomes_are_counted_by_the_models_name(studio: House):
    await draw(studio)
    await draw(studio, model="nobody")

    metrics = ""

    async def is_counted() -> bool:  # it is once its answer was sent
        nonlocal metrics
        metrics = (await studio.http.get("/metrics")).text
        return f'omnibus_requests_total{{code="ok",model="{PAINTER}"}}' in metrics

    await until(is_counted)
    assert "nobody" not in metrics
