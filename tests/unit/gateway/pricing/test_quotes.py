"""Quotes: the price of a request before it runs, and limits that enforce it."""

from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Job
from omnibus.plan import PriceList
from omnibus_gateway.pricing.meter import SIZES, CostFits, StageFit
from tests.unit.gateway.house import (
    VL,
    ToyGateway,
    build_chat_body,
    encode_media_rows,
    make_image_part,
    make_text_part,
    read_error_body,
    write_chat_words,
)
from tests.unit.gateway.pricing.test_usage import EUROS, PRICE

ASK = {"x-omnibus-quote": "1"}
COMPLETION, PROMPT, WORK = map(SIZES.index, ("completion_tokens", "prompt_tokens", "work"))


async def timed_encode(job: Job) -> None:
    current_clock().seconds += 0.5
    await encode_media_rows(job)


def thinks_in(seconds: float) -> Any:
    """Return a thinker that computes ``seconds`` for each token of its answer."""

    async def timed_think(job: Job) -> None:
        current_clock().seconds += seconds * job.inputs["params"]["max_tokens"]
        await write_chat_words(job)

    return timed_think


async def send_chat(home: ToyGateway, content: Any = "a b c d e f g h", headers: Any = None, **more: Any) -> Any:
    body = build_chat_body(VL, content, ignore_eos=True, **more)
    return await home.http.post("/v1/chat/completions", json=body, headers=headers or {})


async def open_model(home: ToyGateway, prices: PriceList = EUROS) -> None:
    """Serve a model whose images take E>L or EL. The thinker of EL is twice as slow."""
    home.serve(VL)
    home.records.meter.fits = CostFits(period=0.0)
    plan = home.router.plan
    assert plan is not None
    (model,) = plan.models.values()
    paths = {
        kind: tuple(msgspec.structs.replace(path, rate=1.0) for path in paths) for kind, paths in model.types.items()
    }
    home.router.plan = msgspec.structs.replace(
        plan, models={VL: msgspec.structs.replace(model, types=paths)}, prices=prices
    )
    await home.executor(VL, "E", "vision", vision=timed_encode)
    await home.executor(VL, "L", "thinker", thinker=thinks_in(0.25))
    await home.executor(VL, "EL", "vision", "thinker", vision=timed_encode, thinker=thinks_in(0.5))


async def warm_up(home: ToyGateway, content: Any) -> None:
    for number in range(20):
        response = await send_chat(home, content, max_tokens=1 + number % 8)
        await home.ended(response.headers["x-request-id"])


async def test_a_quote_says_what_a_request_will_cost(home: ToyGateway):
    await open_model(home)
    content = [make_text_part("a b c d e f"), make_image_part()]
    await warm_up(home, content)

    quote = (await send_chat(home, content, ASK, max_tokens=6)).json()

    for path in quote["paths"]:
        assert path["usage"]["gpu_seconds"] == pytest.approx(
            0.5 + 6 * (0.25 if path["path"] == "E>L" else 0.5), rel=0.05
        )
        assert path["usage"]["money"] == pytest.approx(path["usage"]["gpu_seconds"] * PRICE / 3600)
    assert (quote["object"], quote["currency"], quote["paths"][0]["basis"]) == ("quote", "EUR", "measured")
    assert home.dispatcher.inflight_count == 0


async def test_every_image_of_a_request_counts(home: ToyGateway):
    await open_model(home)
    await warm_up(home, [make_text_part("a b"), make_image_part()])
    parts = [make_text_part("a b"), *[make_image_part() for _ in range(3)]]

    one, three = [(await send_chat(home, content, ASK, max_tokens=2)) for content in (parts[:2], parts)]

    assert three.json()["quantities"]["image_tokens"] == 3 * one.json()["quantities"]["image_tokens"]


async def test_a_limit_takes_the_cheaper_path_or_refuses(home: ToyGateway):
    await open_model(home)
    content = [make_text_part("a b c d e f"), make_image_part()]
    await warm_up(home, content)
    cheap, dear = (0.5 + 8 * 0.25) * PRICE / 3600, (0.5 + 8 * 0.5) * PRICE / 3600

    paths = [
        (await send_chat(home, content, {"x-omnibus-max-cost": f"{(cheap + dear) / 2:.9f}"}, max_tokens=8)).headers[
            "x-omnibus-path"
        ]
        for _ in range(4)
    ]
    rejection = await send_chat(home, content, {"x-omnibus-max-cost": f"{cheap / 2:.9f}"}, max_tokens=8)

    assert paths == ["E>L"] * 4
    assert (rejection.status_code, read_error_body(rejection)["code"]) == (402, "cost_limit_exceeded")
    assert "the expected cost of this request is 0.002" in read_error_body(rejection)["message"]


@pytest.mark.parametrize(
    ("prices", "seen", "why"), [(EUROS, False, "is unknown: send some requests"), (PriceList(), True, "no prices")]
)
async def test_a_limit_that_nobody_can_check_is_refused(home: ToyGateway, prices: PriceList, seen: bool, why: str):
    await open_model(home, prices)
    if seen:
        await warm_up(home, "a b c d e f g h")

    response = await send_chat(home, headers={"x-omnibus-max-cost": "1"}, max_tokens=2)

    assert (response.status_code, read_error_body(response)["code"]) == (402, "cost_limit_exceeded")
    assert why in read_error_body(response)["message"]


@pytest.mark.parametrize("limit", ["-1", "nan", "much"])
async def test_a_limit_is_an_amount(home: ToyGateway, limit: str):
    await open_model(home)

    response = await send_chat(home, headers={"x-omnibus-max-cost": limit})

    assert (response.status_code, read_error_body(response)["param"]) == (400, "x-omnibus-max-cost")


async def test_routes_that_would_not_hold_a_limit_refuse_it(home: ToyGateway):
    await open_model(home)

    limit = {"x-omnibus-max-cost": "1"}
    several = {"model": VL, "prompt": ["a", "b"]}
    rejections = [
        await home.http.post("/v1/completions", json=several, headers=limit),
        await home.http.post("/v1/responses/input_tokens", json={}, headers=limit),
    ]

    assert [(each.status_code, read_error_body(each)["param"]) for each in rejections] == [
        (400, "x-omnibus-max-cost")
    ] * 2


def test_seconds_of_a_stage_follow_from_the_sizes_of_a_request():
    """Nine of ten estimates are within 15 %, although a request's time varies."""
    random = np.random.default_rng(3)

    def draw_request() -> tuple[list[float], float]:
        quantities = [0.0] * len(SIZES)
        quantities[PROMPT], quantities[COMPLETION] = random.integers(20, 2000), random.integers(10, 400)
        return quantities, 0.01 + 5e-5 * quantities[PROMPT] + 2e-3 * quantities[COMPLETION]

    fit = StageFit()
    for _ in range(100):
        quantities, seconds = draw_request()
        fit.observe_job(quantities, seconds * random.normal(1.0, 0.1))

    errors = [
        abs(fit.predict_seconds(quantities) / seconds - 1)
        for quantities, seconds in (draw_request() for _ in range(100))
    ]
    assert sum(each < 0.15 for each in errors) >= 90


def test_few_and_small_sizes_are_told_from_what_every_request_takes():
    fit = StageFit()
    for work in (1, 2, 4):
        sizes = [0.0] * len(SIZES)
        sizes[WORK] = work
        fit.observe_job(sizes, 0.2 * work)

    assert fit.predict_seconds([0.0] * WORK + [3.0]) == pytest.approx(0.6, rel=0.01)
