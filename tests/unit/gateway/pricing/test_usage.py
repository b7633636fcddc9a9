"""The cost of answers: engine seconds by stage, and money by the plan's prices."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.executor.energy_meters import EnergyBill, RaplMeter, find_zones
from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Job
from omnibus.plan import DeploymentOption, PriceList
from omnibus_gateway.pricing.meter import UsageMeter
from tests.unit.executor.powercap import Powercap
from tests.unit.gateway.house import (
    VL,
    ToyGateway,
    build_chat_body,
    encode_media_rows,
    make_image_part,
    make_text_part,
    read_chat_answer,
    read_error_body,
    read_sse_events,
    write_chat_words,
)
from tests.unit.sidecar.node import wait_until

#: Seconds that the engines of these tests compute for a request, and the price of a place for an hour.
ENCODED, THOUGHT, PRICE = 0.25, 2.0, 3.6
ASKED = {"x-omnibus-usage": "1"}
EUROS = PriceList("EUR", {"cpu": PRICE})


async def costly_encode(job: Job) -> None:
    current_clock().seconds += ENCODED
    await encode_media_rows(job)


async def costly_think(job: Job) -> None:
    current_clock().seconds += THOUGHT
    await write_chat_words(job)


async def open_model(home: ToyGateway, prices: PriceList = EUROS) -> None:
    home.serve(VL)
    home.router.plan = msgspec.structs.replace(home.router.plan, prices=prices)  # type: ignore[type-var]
    await home.executor(VL, "E", "vision", vision=costly_encode)
    await home.executor(VL, "L", "thinker", thinker=costly_think)
    await home.executor(VL, "EL", "vision", "thinker", vision=costly_encode, thinker=costly_think)


async def send_chat(home: ToyGateway, content: Any, headers: dict[str, str] = ASKED, **more: Any) -> Any:
    return await home.http.post("/v1/chat/completions", json=build_chat_body(VL, content, **more), headers=headers)


async def test_an_answer_says_what_it_cost_to_who_asks(home: ToyGateway):
    await open_model(home)

    response = await send_chat(home, [make_text_part("what is it?"), make_image_part()])
    plain = await send_chat(home, "hello there", {})

    usage = response.json()["usage"]["omnibus"]
    assert [(each["component"], each["gpu"], each["gpu_seconds"]) for each in usage["stages"]] == [
        ("vision", "cpu", ENCODED),
        ("thinker", "cpu", THOUGHT),
    ]
    assert (usage["gpu_seconds"], usage["currency"], usage["complete"]) == (ENCODED + THOUGHT, "EUR", True)
    assert usage["money"] == pytest.approx((ENCODED + THOUGHT) * PRICE / 3600)
    assert "omnibus" not in plain.json()["usage"]
    end_record = await home.ended(response.headers["x-request-id"])
    assert json.loads(msgspec.json.encode(end_record.usage)) == usage
    assert (await home.ended(plain.headers["x-request-id"])).usage.gpu_seconds == THOUGHT  # type: ignore[union-attr]


async def test_a_streamed_answer_says_it_with_its_usage(home: ToyGateway):
    await open_model(home)

    response = await send_chat(home, "hello there", stream=True)

    last = [each for each in read_sse_events(response) if isinstance(each, dict) and each.get("usage")][-1]
    assert last["usage"]["omnibus"]["gpu_seconds"] == THOUGHT
    assert json.dumps(last["usage"]["omnibus"]).count("money") == 2, "of the stage, and of all"


async def test_without_a_currency_there_is_no_money(home: ToyGateway):
    await open_model(home, PriceList())

    usage = (await send_chat(home, "hello there")).json()["usage"]["omnibus"]

    assert usage["gpu_seconds"] == THOUGHT
    assert not {"money", "currency"} & {*usage, *usage["stages"][0]}


async def test_energy_is_said_where_every_stage_has_a_meter(home: ToyGateway, tmp_path: Path):
    await open_model(home)
    trees = {id: Powercap(tmp_path / id) for id in ("toy-vl-E-0", "toy-vl-L-0")}

    def measure_energy(id: str) -> None:
        """Simulate two seconds of work at 10 W on an executor."""
        times = [0.0]
        meter = RaplMeter(find_zones(trees[id].root))
        bill = EnergyBill(meter, lambda: times[0], lambda: times[0], lambda: times[0] * (os.cpu_count() or 1))
        times[0] = 2.0
        trees[id].use(20.0)
        bill.update()
        home.place.executors[id]._energy = bill

    measure_energy("toy-vl-L-0")

    async def read_usage() -> Any:
        response = await home.http.post(
            "/v1/chat/completions",
            json=build_chat_body(VL, [make_text_part("what is it?"), make_image_part()]),
            headers={**ASKED, "x-omnibus-path": "E>L"},
        )
        return response.json()["usage"]["omnibus"]

    one = await read_usage()
    measure_energy("toy-vl-E-0")
    second_usage = await read_usage()

    assert "energy_joules" not in one
    assert [each.get("energy_joules") for each in one["stages"]] == [None, pytest.approx(10 * THOUGHT)]
    assert [each["energy_joules"] for each in second_usage["stages"]] == pytest.approx([10 * ENCODED, 10 * THOUGHT])
    assert second_usage["energy_joules"] == pytest.approx(10 * (ENCODED + THOUGHT))


async def test_a_header_that_says_neither_yes_nor_no_is_refused(home: ToyGateway):
    await open_model(home)

    response = await send_chat(home, "hello there", {"x-omnibus-usage": "maybe"})

    assert (response.status_code, read_error_body(response)["param"]) == (400, "x-omnibus-usage")
    assert read_chat_answer(await send_chat(home, "hello there", {"x-omnibus-usage": "0"}))


def test_a_lent_option_costs_what_its_owner_pays(home: ToyGateway):
    """The GPUs of the executors that run it count, for any model."""
    home.serve(VL)
    plan = home.router.plan
    assert plan is not None
    (model,) = plan.models.values()
    big = DeploymentOption(("vision",), "encoder", gpus=2, gpu="H100")
    models = {
        "org/a": msgspec.structs.replace(model, options={"E": big}),
        "b": msgspec.structs.replace(model, options={"org/a/E": DeploymentOption(("vision",), "", 0, of="org/a/E")}),
    }
    home.router.plan = msgspec.structs.replace(plan, models=models, prices=PriceList("EUR", {"H100": 3.6}))

    rate = UsageMeter(home.router).find_rate("b", "org/a/E")

    assert (rate.gpu, rate.gpus) == ("H100", 2)
    assert rate.money == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("device", "declared_gpu", "reported_gpu"),
    [("cpu", "", "cpu"), ("cuda:0", "", ""), ("", "", ""), ("cpu", "H100", "H100"), ("cuda:0", "H100", "H100")],
)
async def test_a_place_is_told_as_its_executor_knows_it_where_the_plan_names_no_type(
    home: ToyGateway, device: str, declared_gpu: str, reported_gpu: str
):
    await open_model(home, PriceList())
    plan = home.router.plan
    assert plan is not None
    model = plan.models[VL]
    options = {
        name: msgspec.structs.replace(option, gpus=1, gpu=declared_gpu) for name, option in model.options.items()
    }
    home.router.plan = msgspec.structs.replace(plan, models={VL: msgspec.structs.replace(model, options=options)})
    for executor in home.place.executors.values():
        executor.identity = dataclasses.replace(executor.identity, device=device)
        executor._vitals._identity = executor.identity
    await wait_until(lambda: {status.device for status in home.members.statuses()} == {device})

    usage = (await send_chat(home, "hello there")).json()["usage"]["omnibus"]

    assert [(stage["gpu"], stage["gpus"], stage["gpu_seconds"]) for stage in usage["stages"]] == [
        (reported_gpu, 1, THOUGHT)
    ]
