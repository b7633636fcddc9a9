"""Quotes and limits on every route that runs a model: one check, with the sizes of each kind of request."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Job
from omnibus.families import catalog
from omnibus.plan import ModelPlan, Plan
from omnibus.store import Store
from omnibus.structured.calls import call_head
from omnibus_gateway.pricing.meter import CostFits
from tests.unit.gateway.house import FILMER, OMNI, PAINTER, TOYS, ToyGateway, read_error_body, start_toy_gateway
from tests.unit.gateway.house import TEXT as TEXT_MODEL
from tests.unit.gateway.pricing.test_usage import EUROS, PRICE
from tests.unit.gateway.samples import make_sample_sound
from tests.unit.gateway.videos.studio import Toys, decode_frames, send_hum, wait_for_video
from tests.unit.sidecar.node import wait_until

EMBEDDER = "toy-embedder"
WAV = make_sample_sound("wav", "pcm_s16le", 0.5, 16000)
#: Seconds that each stage takes: for a request, a character of its texts, or a step of its denoiser.
ENCODED, THOUGHT, TALKED, VOCODED, CHARACTER = 0.5, 2.0, 0.25, 0.125, 0.01
READ, STEP, PAINTED, HUMMED = 0.1, 0.1, 0.2, 0.3
#: That an image of the usual number of steps takes.
DRAWN = READ + STEP * 20 + PAINTED
TEXT = "one two three four five six seven eight"
_STAGES: dict[str, tuple[Any, Callable[[Job], float]]] = {
    "audio": (TOYS["audio"], lambda _: ENCODED),
    "thinker": (TOYS["thinker"], lambda _: THOUGHT),
    "talker": (TOYS["talker"], lambda _: TALKED),
    "vocoder": (TOYS["vocoder"], lambda _: VOCODED),
    "text_encoder": (TOYS["text_encoder"], lambda _: READ),
    "dit": (TOYS["dit"], lambda job: STEP * job.inputs["steps"]),
    "vae": (TOYS["vae"], lambda _: PAINTED),
    "embedder": (TOYS["embedder"], lambda job: CHARACTER * sum(map(len, job.inputs["text"]))),
}
_FILM_STAGES = {
    "dit": (Toys().denoise, _STAGES["dit"][1]),
    "vae": (decode_frames, _STAGES["vae"][1]),
    "audio_vae": (send_hum, lambda _: HUMMED),
    "text_encoder": _STAGES["text_encoder"],
}

#: Sends a request of a size, from 1 on, with these headers.
Ask = Callable[[ToyGateway, int, dict[str, str]], Awaitable[httpx.Response]]


def time_work(work: Any, seconds: Callable[[Job], float]) -> Any:
    """Return ``work`` with an engine that computes ``seconds`` for a job."""

    async def run_timed(job: Job) -> None:
        current_clock().seconds += seconds(job)
        await work(job)

    return run_timed


@pytest.fixture
async def home(tmp_path: Path, store: Store) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, store) as gateway:
        gateway.records.meter.fits = CostFits(period=0.0)
        gateway.serve(OMNI, PAINTER, FILMER, **{EMBEDDER: catalog.embedding_declaration("qwen2", "")})
        plan = gateway.router.plan
        assert plan is not None
        gateway.router.plan = msgspec.structs.replace(plan, prices=EUROS, models=one_path(plan))
        for model, model_plan in plan.models.items():
            stages = _STAGES if model != FILMER else _FILM_STAGES
            for option, spec in model_plan.options.items():
                works = {part: time_work(*stages[part]) for part in spec.components if part in stages}
                await gateway.executor(model, option, *spec.components, **works)
        gateway.videos.startup()
        yield gateway


def one_path(plan: Plan) -> dict[str, ModelPlan]:
    """Return the models of ``plan`` with one path for each type."""
    return {
        name: msgspec.structs.replace(
            model,
            types={kind: (msgspec.structs.replace(paths[0], rate=1.0),) for kind, paths in model.types.items()},
        )
        for name, model in plan.models.items()
    }


def build_request(path: str, **body: Any) -> Ask:
    """Return a request to ``path``; functions among the values of ``body`` are called with its size."""

    async def send_request(home: ToyGateway, size: int, headers: dict[str, str]) -> httpx.Response:
        fields = {name: value(size) if callable(value) else value for name, value in body.items()}
        return await home.http.post(path, json=fields, headers=headers)

    return send_request


async def send_transcription(home: ToyGateway, size: int, headers: dict[str, str]) -> httpx.Response:
    fields = {"model": OMNI, "prompt": TEXT * size}
    return await home.http.post(
        "/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", WAV)}, headers=headers
    )


async def send_video(home: ToyGateway, size: int, headers: dict[str, str]) -> httpx.Response:
    wish = {"model": FILMER, "prompt": "a boat", "seconds": "0.5", "size": "64x32", "steps": size}
    response = await home.http.post("/v1/videos", json=wish, headers=headers)
    if response.json().get("object") == "video":
        await wait_for_video(home, response.json()["id"], status="completed")
    return response


ROUTES: dict[str, tuple[Ask, Callable[[int], float]]] = {
    "completions": (build_request("/v1/completions", model=OMNI, prompt=lambda size: TEXT * size), lambda _: THOUGHT),
    "several answers": (
        build_request("/v1/chat/completions", model=OMNI, n=2, messages=[{"role": "user", "content": TEXT}]),
        lambda _: THOUGHT,
    ),
    "responses": (build_request("/v1/responses", model=OMNI, input=lambda size: TEXT * size), lambda _: THOUGHT),
    "responses in the background": (
        build_request("/v1/responses", model=OMNI, background=True, input=lambda size: TEXT * size),
        lambda _: THOUGHT,
    ),
    "speech": (
        build_request(
            "/v1/audio/speech", model=OMNI, voice="Chelsie", response_format="pcm", input=lambda size: TEXT * size
        ),
        lambda _: THOUGHT + TALKED + VOCODED,
    ),
    "transcriptions": (send_transcription, lambda _: ENCODED + THOUGHT),
    "embeddings": (
        build_request("/v1/embeddings", model=EMBEDDER, input=lambda size: [TEXT * 10] * size),
        lambda size: CHARACTER * len(TEXT) * 10 * size,
    ),
    "images": (
        build_request(
            "/v1/images/generations", model=PAINTER, prompt="a boat", size="64x64", n=2, steps=lambda size: size
        ),
        lambda size: READ + 2 * (STEP * size + PAINTED),
    ),
    "a stream of images": (
        build_request("/v1/images/generations", model=PAINTER, prompt="a boat", size="64x64", stream=True, steps=int),
        lambda size: READ + STEP * size + PAINTED,
    ),
    "chats with images": (
        build_request(
            "/v1/chat/completions",
            model=PAINTER,
            modalities=["image"],
            messages=[{"role": "user", "content": "a boat"}],
            image_config=lambda size: {"size": "64x64", "steps": size},
        ),
        lambda size: READ + STEP * size + PAINTED,
    ),
    "responses that are an image": (
        build_request(
            "/v1/responses", model=PAINTER, input="a boat", tools=[{"type": "image_generation", "size": "64x64"}]
        ),
        lambda _: DRAWN,
    ),
    "videos": (send_video, lambda size: READ + STEP * size + PAINTED + HUMMED),
}


async def test_every_route_has_quotes_and_holds_limits(home: ToyGateway):
    for name, (ask, seconds) in ROUTES.items():
        for size in (1, 4, 2, 5, 1, 4):
            await ask(home, size, {})
            await wait_until(lambda: home.dispatcher.inflight_count == 0)
        quote_response = await ask(home, 3, {"x-omnibus-quote": "1"})
        price = seconds(3) * PRICE / 3600
        accepted_response = await ask(home, 3, {"x-omnibus-max-cost": f"{price * 1.1:.9f}"})
        rejection = await ask(home, 3, {"x-omnibus-max-cost": f"{price * 0.9:.9f}"})

        quote = quote_response.json()
        assert quote.get("object") == "quote", (name, quote_response.text)
        assert quote["gpu_seconds"] == pytest.approx(seconds(3), rel=0.05), name
        assert quote["money"] == pytest.approx(price, rel=0.05), name
        assert accepted_response.status_code == 200, (name, accepted_response.text)
        assert (rejection.status_code, read_error_body(rejection)["code"]) == (402, "cost_limit_exceeded"), name
        assert "the expected cost of this request" in read_error_body(rejection)["message"], name
    await home.emptied()


async def draw_four(job: Job) -> None:
    """Call the image tool four times."""
    await job.value("messages")
    for _ in range(4):
        await job.send("text", {"calls": call_head("image_generation") + json.dumps({"prompt": "a cat"}), "ids": [1]})
    job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 4}})


async def test_no_more_images_are_drawn_than_the_limit_leaves_room_for(home: ToyGateway, store: Store):
    home.serve(TEXT_MODEL, PAINTER)
    assert home.router.plan is not None
    home.router.plan = msgspec.structs.replace(home.router.plan, prices=EUROS, models=one_path(home.router.plan))
    await home.executor(TEXT_MODEL, "L", "thinker", thinker=time_work(draw_four, lambda _: THOUGHT))
    ask = build_request(
        "/v1/responses", model=TEXT_MODEL, input="draw", tools=[{"type": "image_generation", "size": "64x64"}]
    )
    for _ in range(6):
        statuses = [item["status"] for item in (await ask(home, 1, {})).json()["output"]]
        assert statuses == ["completed"] * 4
        await wait_until(lambda: home.dispatcher.inflight_count == 0)

    quote = (await ask(home, 1, {"x-omnibus-quote": "1"})).json()
    limits = [(THOUGHT + images * DRAWN) * PRICE / 3600 for images in (2.5, 0.5)]
    accepted_response, rejection = [await ask(home, 1, {"x-omnibus-max-cost": f"{limit:.9f}"}) for limit in limits]

    assert quote["gpu_seconds"] == pytest.approx(THOUGHT + DRAWN, rel=0.05)
    assert quote["money"] == pytest.approx((THOUGHT + DRAWN) * PRICE / 3600, rel=0.05)
    assert quote["image"]["gpu_seconds"] == pytest.approx(DRAWN, rel=0.05)
    assert [item["status"] for item in accepted_response.json()["output"]] == ["completed"] * 2, accepted_response.text
    stored_response = await store.response(accepted_response.json()["id"])
    assert stored_response is not None
    assert stored_response.record.images == 2
    assert stored_response.record.image_path
    assert (rejection.status_code, read_error_body(rejection)["code"]) == (402, "cost_limit_exceeded")
    await home.emptied()
