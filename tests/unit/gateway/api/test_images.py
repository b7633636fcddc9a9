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
from tests.unit.gateway.house import PAINTER, VL, ToyGateway, read_error_body, start_toy_gateway
from tests.unit.sidecar.node import wait_until

GENERATIONS = "/v1/images/generations"
WISH: dict[str, Any] = {"model": PAINTER, "prompt": "a red boat", "size": "64x48", "seed": 7, "steps": 8, "guidance": 3}


@pytest.fixture
async def image_gateway(home: ToyGateway) -> ToyGateway:
    await home.all_of(PAINTER)
    return home


async def post_image(home: ToyGateway, path: str = GENERATIONS, **more: Any) -> httpx.Response:
    return await home.http.post(path, json={**WISH, **more})


def open_image(file: str | bytes) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(file) if isinstance(file, str) else file))


def read_colour(file: str | bytes) -> tuple[int, ...]:
    return tuple(int(value) for value in np.asarray(open_image(file).convert("RGB"))[0, 0])


def read_image_events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    payloads = []
    for block in filter(None, response.text.split("\n\n")):
        name, data = block.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        payloads.append(payload)
    return payloads


async def test_a_picture_is_made_as_it_was_wished(image_gateway: ToyGateway):
    response = await post_image(image_gateway)

    assert response.status_code == 200, response.text
    body = response.json()
    [image] = body["data"]
    assert (open_image(image["b64_json"]).size, open_image(image["b64_json"]).format) == ((64, 48), "PNG")
    assert read_colour(image["b64_json"]) == (7, 3, 3)
    assert (body["size"], body["output_format"], body["background"]) == ("64x48", "png", "opaque")
    assert body["usage"] == {
        "input_tokens": 3,
        "output_tokens": 12,
        "total_tokens": 15,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 3},
        "output_tokens_details": {"image_tokens": 12, "text_tokens": 0},
    }
    await image_gateway.emptied()


async def test_each_of_several_pictures_has_the_next_seed(image_gateway: ToyGateway):
    body = (await post_image(image_gateway, n=3)).json()

    assert [read_colour(image["b64_json"])[0] for image in body["data"]] == [7, 8, 9]
    assert body["usage"]["output_tokens"] == 36
    await image_gateway.emptied()


@pytest.mark.parametrize(("format", "name"), [("png", "PNG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
async def test_pictures_come_in_the_format_that_was_asked_for(image_gateway: ToyGateway, format: str, name: str):
    body = (await post_image(image_gateway, output_format=format)).json()

    assert body["output_format"] == format
    assert open_image(body["data"][0]["b64_json"]).format == name


async def test_more_compression_makes_smaller_files(image_gateway: ToyGateway):
    sizes = [
        len((await post_image(image_gateway, output_format="jpeg", output_compression=quality)).content)
        for quality in (1, 100)
    ]

    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("alias", ["guidance_scale", "true_cfg_scale"])
async def test_other_names_of_extras_mean_the_same(image_gateway: ToyGateway, alias: str):
    wish = {name: value for name, value in WISH.items() if name not in ("guidance", "steps")}

    response = await image_gateway.http.post(GENERATIONS, json={**wish, alias: 3, "num_inference_steps": 2})

    assert read_colour(response.json()["data"][0]["b64_json"]) == (7, 3, 3)


async def test_a_path_can_be_asked_for(image_gateway: ToyGateway):
    for path in ("T>D>V", "TDV"):
        response = await image_gateway.http.post(GENERATIONS, json=WISH, headers={"x-omnibus-path": path})

        assert response.headers["x-omnibus-path"] == path
    await image_gateway.emptied()


# Streams


async def test_a_stream_shows_the_picture_in_the_making_and_then_the_picture(image_gateway: ToyGateway):
    *partial, completion = read_image_events(await post_image(image_gateway, stream=True, partial_images=3))

    assert [event["type"] for event in partial] == ["image_generation.partial_image"] * 3
    assert [told["partial_image_index"] for told in partial] == [0, 1, 2]
    assert [read_colour(told["b64_json"])[0] for told in partial] == [20, 40, 60]
    assert {open_image(told["b64_json"]).size for told in partial} == {(64, 48)}
    assert completion["type"] == "image_generation.completed"
    assert read_colour(completion["b64_json"]) == (7, 3, 3)
    assert completion["usage"]["output_tokens"] == 12
    await image_gateway.emptied()


async def test_a_stream_without_partial_images_is_the_picture_alone(image_gateway: ToyGateway):
    [completion] = read_image_events(await post_image(image_gateway, stream=True))

    assert completion["type"] == "image_generation.completed"


@pytest.mark.parametrize("steps", range(1, 30))
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_there_are_never_more_partial_images_than_were_asked_for(steps: int, limit: int):
    every = preview_interval(steps, limit)

    preview_steps = [step for step in range(1, steps) if every and step % every == 0]

    assert min(1, limit, steps - 1) <= len(preview_steps) <= limit
    assert len(preview_steps) == limit or steps < limit * (limit + 1)


async def test_a_failure_before_the_first_event_is_an_error_like_any_other(image_gateway: ToyGateway):
    response = await post_image(image_gateway, stream=True, partial_images=2, size="60x48")

    assert response.status_code == 400
    assert read_error_body(response)["param"] == "size"
    await image_gateway.emptied()


async def test_a_failure_in_the_middle_is_an_event(home: ToyGateway):
    async def fail_painting(job: Job) -> None:
        await job.value("latents")
        raise RuntimeError("out of paint")

    home.serve(PAINTER)
    await home.executor(PAINTER, "T", "text_encoder")
    await home.executor(PAINTER, "D", "dit")
    await home.executor(PAINTER, "V", "vae", vae=fail_painting)

    response = await post_image(home, stream=True, partial_images=1)

    assert response.status_code == 200
    *_, last = [block for block in response.text.split("\n\n") if block]
    details = json.loads(last.removeprefix("data: "))["error"]
    assert (details["code"], details["stage"]) == ("stage_failed", "vae")
    await home.emptied()


async def test_a_client_that_leaves_stops_the_steps(home: ToyGateway):
    begin_event, stop_event = asyncio.Event(), asyncio.Event()

    async def wait_forever(job: Job) -> None:
        begin_event.set()
        try:
            await asyncio.Event().wait()
        finally:
            stop_event.set()

    home.serve(PAINTER)
    await home.executor(PAINTER, "T", "text_encoder")
    await home.executor(PAINTER, "V", "vae")
    await home.executor(PAINTER, "D", "dit", dit=wait_forever)
    left = asyncio.Event()

    async def receive_request() -> dict[str, Any]:
        if not sent_bodies:
            sent_bodies.append(True)
            return {"type": "http.request", "body": json.dumps(WISH).encode()}
        await left.wait()
        return {"type": "http.disconnect"}

    async def record_message(message: Any) -> None:
        messages.append(message)

    sent_bodies: list[bool] = []
    messages: list[Any] = []
    scope = {"type": "http", "method": "POST", "path": GENERATIONS, "headers": []}
    call = asyncio.ensure_future(home.app(scope, receive_request, record_message))  # type: ignore[arg-type]
    await begin_event.wait()

    left.set()
    await call

    await stop_event.wait()
    assert messages == []
    await home.emptied()


async def test_a_picture_that_takes_too_long_is_given_up(tmp_path: Path):
    async def wait_forever(job: Job) -> None:
        await asyncio.Event().wait()

    async with start_toy_gateway(tmp_path, deadline=0.5) as home:
        home.serve(PAINTER)
        await home.executor(PAINTER, "T", "text_encoder")
        await home.executor(PAINTER, "V", "vae")
        await home.executor(PAINTER, "D", "dit", dit=wait_forever)

        response = await post_image(home)

        assert (response.status_code, read_error_body(response)["code"]) == (504, "deadline_exceeded")
        await home.emptied()


async def test_over_the_limit_clients_are_told_to_come_again(tmp_path: Path):
    async with start_toy_gateway(tmp_path, max_inflight=0) as home:
        await home.all_of(PAINTER)

        response = await post_image(home)

        assert (response.status_code, response.headers["retry-after"]) == (429, "1")


# Refusals


@pytest.mark.parametrize(
    ("changes", "param"),
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
async def test_what_cannot_be_obeyed_is_refused_by_name(image_gateway: ToyGateway, changes: dict[str, Any], param: str):
    image_gateway.serve(PAINTER, VL)

    response = await post_image(image_gateway, **changes)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param
    await image_gateway.emptied()


@pytest.mark.parametrize(
    "changes",
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
async def test_what_changes_nothing_or_is_obeyed_is_taken(image_gateway: ToyGateway, changes: dict[str, Any]):
    response = await post_image(image_gateway, **changes)

    assert response.status_code == 200, response.text


async def test_an_unknown_model_is_not_found(image_gateway: ToyGateway):
    response = await post_image(image_gateway, model="nobody")

    assert response.status_code == 404
    assert read_error_body(response)["param"] == "model"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_request_is_refused(image_gateway: ToyGateway, body: bytes):
    response = await image_gateway.http.post(GENERATIONS, content=body)

    assert response.status_code == 400


async def test_other_methods_are_not_allowed(image_gateway: ToyGateway):
    response = await image_gateway.http.get(GENERATIONS)

    assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_variations_are_refused_with_advice(image_gateway: ToyGateway):
    response = await image_gateway.http.post("/v1/images/variations", files={"image": b"x"})

    assert response.status_code == 404
    assert "/v1/images/edits" in read_error_body(response)["message"]


# URLs


async def test_a_url_leads_to_the_file(image_gateway: ToyGateway):
    body = (await post_image(image_gateway, response_format="url", n=2)).json()

    urls = [image["url"] for image in body["data"]]
    assert len(set(urls)) == 2
    files = [await image_gateway.http.get(url) for url in urls]
    assert [read_colour(file.content)[0] for file in files] == [7, 8]
    assert {file.headers["content-type"] for file in files} == {"image/png"}


async def test_a_url_begins_with_what_the_client_called_the_gateway_or_with_the_setting(
    tmp_path: Path, image_gateway: ToyGateway
):
    [image] = (await post_image(image_gateway, response_format="url")).json()["data"]
    other = tmp_path / "other"
    other.mkdir()
    async with start_toy_gateway(other, public_url="https://api.example.com/") as behind:
        await behind.all_of(PAINTER)
        [other_image] = (await post_image(behind, response_format="url")).json()["data"]

    assert image["url"].startswith("http://localhost/v1/files/file-")
    assert other_image["url"].startswith("https://api.example.com/v1/files/file-")


async def test_without_a_directory_there_are_no_urls(tmp_path: Path):
    async with start_toy_gateway(tmp_path, media_dir="") as home:
        await home.all_of(PAINTER)

        response = await post_image(home, response_format="url")

        assert response.status_code == 400
        assert read_error_body(response)["param"] == "response_format"
        assert "OMNIBUS_GATEWAY_MEDIA_DIR" in read_error_body(response)["message"]


async def test_outcomes_are_counted_by_the_models_name(image_gateway: ToyGateway):
    await post_image(image_gateway)
    await post_image(image_gateway, model="nobody")

    metrics = ""

    async def is_counted() -> bool:  # it is once its answer was sent
        nonlocal metrics
        metrics = (await image_gateway.http.get("/metrics")).text
        return f'omnibus_requests_total{{code="ok",model="{PAINTER}"}}' in metrics

    await wait_until(is_counted)
    assert "nobody" not in metrics
