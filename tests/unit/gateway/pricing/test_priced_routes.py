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
from omnibus_gateway.pricing.cost_fit import CostFits
from tests.unit.gateway.house import FILMER, OMNI, PAINTER, TOYS, House, error, house
from tests.unit.gateway.house import TEXT as TEXT_MODEL
from tests.unit.gateway.pricing.test_usage import EUROS, PRICE
from tests.unit.gateway.samples import sound
from tests.unit.gateway.videos.studio import Toys, becomes, decode, hum
from tests.unit.sidecar.node import until

EMBEDDER = "toy-embedder"
WAV = sound("wav", "pcm_s16le", 0.5, 16000)
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
    "vae": (decode, _STAGES["vae"][1]),
    "audio_vae": (hum, lambda _: HUMMED),
    "text_encoder": _STAGES["text_encoder"],
}

#: Sends a request of a size, from 1 on, with these headers.
Ask = Callable[[House, int, dict[str, str]], Awaitable[httpx.Response]]


def timed(work: Any, seconds: Callable[[Job], float]) -> Any:
    """Return ``work`` with an engine that computes ``seconds`` for a job."""

    async def run(job: Job) -> None:
        current_clock().seconds += seconds(job)
        await work(job)

    return run


@pytest.fixture
async def home(tmp_path: Path, store: Store) -> AsyncIterator[House]:
    async with house(tmp_path, store) as made:
        made.records.meter.fits = CostFits(period=0.0)
        made.serve(OMNI, PAINTER, FILMER, **{EMBEDDER: catalog.embedding_declaration("qwen2", "")})
        plan = made.router.plan
        assert plan is not None
        made.router.plan = msgspec.structs.replace(plan, prices=EUROS, models=one_path(plan))
        for model, served in plan.models.items():
            stages = _STAGES if model != FILMER else _FILM_STAGES
            for option, spec in served.options.items():
                works = {part: timed(*stages[part]) for part in spec.components if part in stages}
                await made.executor(model, option, *spec.components, **works)
        made.videos.startup()
        yield made


def one_path(plan: Plan) -> dict[str, ModelPlan]:
    """Return the models of ``plan`` with one path for each type."""
    return {
        name: msgspec.structs.replace(
            model,
            types={kind: (msgspec.structs.replace(paths[0], rate=1.0),) for kind, paths in model.types.items()},
        )
        for name, model in plan.models.items()
    }


def post(path: str, **body: Any) -> Ask:
    """Return a request to ``path``; functions among the values of ``body`` are called with its size."""

    async def ask(home: House, size: int, headers: dict[str, str]) -> httpx.Response:
        sized = {name: value(size) if callable(value) else value for name, value in body.items()}
        return await home.http.post(path, json=sized, headers=headers)

    return ask


async def transcribe(home: House, size: int, headers: dict[str, str]) -> httpx.Response:
    fields = {"model": OMNI, "prompt": TEXT * size}
    return await home.http.post(
        "/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", WAV)}, headers=headers
    )


async def film(home: House, size: int, headers: dict[str, str]) -> httpx.Response:
    wish = {"model": FILMER, "prompt": "a boat", "seconds": "0.5", "size": "64x32", "steps": size}
    response = await home.http.post("/v1/videos", json=wish, headers=headers)
    if response.json().get("object") == "video":
        await becomes(home, response.json()["id"], status="completed")
    return response


ROUTES: dict[str, tuple[Ask, Callable[[int], float]]] = {
    "completions": (post("/v1/completions", model=OMNI, prompt=lambda size: TEXT * size), lambda _: THOUGHT),
    "several answers": (
        post("/v1/chat/completions", model=OMNI, n=2, messages=[{"role": "user", "content": TEXT}]),
        lambda _: THOUGHT,
    ),
    "responses": (post("/v1/responses", model=OMNI, input=lambda size: TEXT * size), lambda _: THOUGHT),
    "responses in the background": (
        post("/v1/responses", model=OMNI, background=True, input=lambda size: TEXT * size),
        lambda _: THOUGHT,
    ),
    "speech": (
        post("/v1/audio/speech", model=OMNI, voice="Chelsie", response_format="pcm", input=lambda size: TEXT * size),
        lambda _: THOUGHT + TALKED + VOCODED,
    ),
    "transcriptions": (transcribe, lambda _: ENCODED + THOUGHT),
    "embeddings": (
        post("/v1/embeddings", model=EMBEDDER, input=lambda size: [TEXT * 10] * size),
        lambda size: CHARACTER * len(TEXT) * 10 * size,
    ),
    "images": (
        post("/v1/images/generations", model=PAINTER, prompt="a boat", size="64x64", n=2, steps=lambda size: size),
        lambda size: READ + 2 * (STEP * size + PAINTED),
    ),
    "a stream of images": (
        post("/v1/images/generations", model=PAINTER, prompt="a boat", size="64x64", stream=True, steps=int),
        lambda size: READ + STEP * size + PAINTED,
    ),
    "chats with images": (
        post(
            "/v1/chat/completions",
            model=PAINTER,
            modalities=["image"],
            messages=[{"role": "user", "content": "a boat"}],
            image_config=lambda size: {"size": "64x64", "steps": size},
        ),
        lambda size: READ + STEP * size + PAINTED,
    ),
    "responses that are an image": (
        post("/v1/responses", model=PAINTER, input="a boat", tools=[{"type": "image_generation", "size": "64x64"}]),
        lambda _: DRAWN,
    ),
    "videos": (film, lambda size: READ + STEP * size + PAINTED + HUMMED),
}


async def test_every_route_has_quotes_and_holds_limits(home: House):
    for name, (ask, seconds) in ROUTES.items():
        for size in (1, 4, 2, 5, 1, 4):
            await ask(home, size, {})
            await until(lambda: home.dispatcher.inflight_count == 0)
        quoted = await ask(home, 3, {"x-omnibus-quote": "1"})
        price = seconds(3) * PRICE / 3600
        taken = await ask(home, 3, {"x-omnibus-max-cost": f"{price * 1.1:.9f}"})
        refused = await ask(home, 3, {"x-omnibus-max-cost": f"{price * 0.9:.9f}"})

        quote = quoted.json()
        assert quote.get("object") == "quote", (name, quoted.text)
        assert quote["gpu_seconds"] == pytest.approx(seconds(3), rel=0.05), name
        assert quote["money"] == pytest.approx(price, rel=0.05), name
        assert taken.status_code == 200, (name, taken.text)
        assert (refused.status_code, error(refused)["code"]) == (402, "cost_limit_exceeded"), name
        assert "the expected cost of this request" in error(refused)["message"], name
    await home.emptied()


async def draw_four(job: Job) -> None:
    """Call the image tool four times."""
    await job.value("messages")
    for _ in range(4):
        await job.send("text", {"calls": call_head("image_generation") + json.dumps({"prompt": "a cat"}), "ids": [1]})
    job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 4}})


async def test_no_more_images_are_drawn_than_the_limit_leaves_room_for(home: House, store: Store):
    home.serve(TEXT_MODEL, PAINTER)
    assert home.router.plan is not None
    home.router.plan = msgspec.structs.replace(home.router.plan, prices=EUROS, models=one_path(home.router.plan))
    await home.executor(TEXT_MODEL, "L", "thinker", thinker=timed(draw_four, lambda _: THOUGHT))
    ask = post("/v1/responses", model=TEXT_MODEL, input="draw", tools=[{"type": "image_generation", "size": "64x64"}])
    for _ in range(6):
        drawn = [item["status"] for item in (await ask(home, 1, {})).json()["output"]]
        assert drawn == ["completed"] * 4
        await until(lambda: home.dispatcher.inflight_count == 0)

    quote = (await ask(home, 1, {"x-omnibus-quote": "1"})).json()
    limits = [(THOUGHT + images * DRAWN) * PRICE / 3600 for images in (2.5, 0.5)]
    taken, refused = [await ask(home, 1, {"x-omnibus-max-cost": f"{limit:.9f}"}) for limit in limits]

    assert quote["gpu_seconds"] == pytest.approx(THOUGHT + DRAWN, rel=0.05)
    assert quote["money"] == pytest.approx((THOUGHT + DRAWN) * PRICE / 3600, rel=0.05)
    assert quote["image"]["gpu_seconds"] == pytest.approx(DRAWN, rel=0.05)
    assert [item["status"] for item in taken.json()["output"]] == ["completed"] * 2, taken.text
    stored = await store.response(taken.json()["id"])
    assert stored is not None
    assert stored.record.images == 2
    assert stored.record.image_path
    assert (refused.status_code, error(refused)["code"]) == (402, "cost_limit_exceeded")
    await home.emptied()
