"""A profile's predictions for a saturated replica match formulas and executors."""

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus.bus import Delivery, messages
from omnibus.bus.messages import BusyReply, Chunk, NodeFailed
from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus.executor.settings import ExecutorSettings
from omnibus.executor.sim import ComponentLoad, Predicted, Profile, Simulation, TypeDemand, predict_performance
from omnibus.graph import HANDLE, GraphNode, Invocation, make_ref
from tests.unit.executor.arithmetic import REPLY, Place, make_call, make_invocation
from tests.unit.executor.simulated import VirtualClock, make_profile

INFLIGHT = 40
#: Costs in the proportions of a real model's.
CELL: dict[str, Any] = {
    "vision": {
        "kind": "encode", "slots": 4, "batch": {"points": [[1, 0.03], [4, 0.09]]}, "tokens": {"image": {"mean": 60, "cv": 0.5}},
    },
    "thinker": {
        "kind": "think", "slots": 16, "chunk": 8, "share": 512, "steps": {"mean": 40, "cv": 0.3, "most": 400},
        "batch": {"base": 0.004, "per_token": 5e-5}, "step": {"base": 0.02, "per_item": 5e-4, "per_token": 1e-6},
    },
    "talker": {"kind": "talk", "slots": 16, "step": {"base": 0.012, "per_item": 2e-4}, "steps": {"per": 2}, "chunk": 12},
    "vocoder": {"kind": "vocode", "slots": 4, "batch": {"base": 0.004, "per_token": 2e-4}, "samples": 0},
}  # fmt: skip


def approx_value(value: float, rel: float = 0.02) -> Any:
    return pytest.approx(value, rel=rel)


def predict_single(component: str, load: ComponentLoad, **more: Any) -> Predicted:
    return predict_performance(
        make_profile(CELL), "O", {"all": TypeDemand(1.0, {component: load})}, inflight=INFLIGHT, **more
    )


# Formulas


def test_a_saturated_encoder_serves_full_batches():
    prediction = predict_single("vision", ComponentLoad())

    assert prediction.throughput == approx_value(4 / 0.09)
    assert prediction.batches == {"vision": approx_value(4)}
    assert prediction.seconds == {"all": approx_value(0.09 / 4)}


def test_several_items_of_a_request_cost_as_many_times():
    assert predict_single("vision", ComponentLoad(items=3)).seconds["all"] == approx_value(3 * 0.09 / 4)


def test_a_saturated_thinker_keeps_all_its_slots_stepping():
    prompt, answer, slots = 100, 50, 16
    step = 0.02 + 5e-4 * slots + 1e-6 * slots * (prompt + answer / 2)
    # Answers of one length end together, so that prompts come together as well: 5 of them fit into a share.
    passes = 4 * 0.004 / slots + 5e-5 * prompt
    seconds = passes + (answer - 1) * step / slots

    prediction = predict_single("thinker", ComponentLoad(prompt, answer))

    assert prediction.seconds["all"] == approx_value(seconds)
    assert prediction.throughput == approx_value(1 / seconds)
    assert prediction.batches["thinker"] == approx_value(16, 0.05)


def test_few_requests_in_flight_leave_slots_empty():
    few = predict_single("thinker", ComponentLoad(100, 50)).throughput
    fewer = predict_performance(
        make_profile(CELL), "O", {"all": TypeDemand(1.0, {"thinker": ComponentLoad(100, 50)})}, inflight=1
    )

    assert fewer.batches["thinker"] == 1
    assert fewer.throughput == approx_value(1 / (0.004 + 100 * 5e-5 + 49 * (0.02 + 5e-4 + 125e-6)))
    assert few > 8 * fewer.throughput


def test_slots_that_the_profile_leaves_open_are_the_executors_batch():
    sim_profile = make_profile({"vision": {**CELL["vision"], "slots": 0}})
    mix = {"all": TypeDemand(1.0, {"vision": ComponentLoad()})}

    assert [predict_performance(sim_profile, "O", mix, batch=size).throughput for size in (1, 4)] == [
        approx_value(1 / 0.03),
        approx_value(4 / 0.09),
    ]


def test_seconds_of_types_follow_their_work_and_fill_the_device():
    mix = {
        "short": TypeDemand(3.0, {"thinker": ComponentLoad(50, 20)}),
        "long": TypeDemand(1.0, {"thinker": ComponentLoad(400, 80)}),
        "seen": TypeDemand(1.0, {"vision": ComponentLoad(), "thinker": ComponentLoad(110, 20)}),
        "never": TypeDemand(0.0, {"thinker": ComponentLoad(50, 20)}),
    }

    prediction = predict_performance(make_profile(CELL), "O", mix, inflight=INFLIGHT, requests=2000)

    assert prediction.seconds["long"] > 3.5 * prediction.seconds["short"]
    assert prediction.seconds["seen"] == pytest.approx(sum(prediction.parts["seen"].values()))
    assert prediction.parts["seen"]["vision"] > 0.09 / 4
    assert prediction.seconds["never"] == 0
    busy = 0.6 * prediction.seconds["short"] + 0.2 * prediction.seconds["long"] + 0.2 * prediction.seconds["seen"]
    assert prediction.throughput == approx_value(1 / busy)


def test_speech_costs_its_talker_and_its_vocoder():
    loads = {"thinker": ComponentLoad(50, 41), "talker": ComponentLoad(50), "vocoder": ComponentLoad()}

    prediction = predict_performance(make_profile(CELL), "M", {"spoken": TypeDemand(1.0, loads)}, inflight=INFLIGHT)

    parts = prediction.parts["spoken"]
    batch = prediction.batches["talker"]
    assert parts["talker"] == approx_value(80 * (0.012 / batch + 2e-4), 0.15)
    assert parts["vocoder"] > 0.99 * (80 * 2e-4 + 7 * 0.004 / 4)
    assert prediction.throughput == approx_value(1 / sum(parts.values()))


def test_halves_and_roles_cost_what_they_do_themselves():
    loads = {"talker": ComponentLoad(50, 24), "vocoder": ComponentLoad(steps=24)}
    speech = predict_performance(make_profile(CELL), "TaV", {"all": TypeDemand(1.0, loads)}, inflight=INFLIGHT)
    alone = predict_performance(
        make_profile(CELL), "V", {"all": TypeDemand(1.0, {"vocoder": ComponentLoad(steps=24)})}, inflight=INFLIGHT
    )
    halves = make_profile({"p": {**CELL["thinker"], "kind": "prefill"}, "d": {**CELL["thinker"], "kind": "decode"}})
    split = predict_performance(
        halves,
        "PD",
        {"all": TypeDemand(1.0, {"p": ComponentLoad(100), "d": ComponentLoad(100, 50)})},
        inflight=INFLIGHT,
    )

    assert speech.parts["all"]["talker"] == approx_value(24 * (0.012 + 16 * 2e-4) / 16, 0.1)
    assert alone.seconds["all"] == approx_value(2 * (0.004 + 4 * 12 * 2e-4) / 4)
    assert split.parts["all"]["d"] > 50 * 0.02 / 16
    assert split.parts["all"]["p"] >= 100 * 5e-5


def test_other_tasks_are_predicted_by_their_steps():
    denoiser = {"slots": 2, "step": {"points": [[1, 0.09], [2, 0.12]]}, "steps": 30, "outputs": {"latents": {}}}
    decoder = {"slots": 1, "batch": {"per_token": 0.001}, "tokens": {"any": 500}, "outputs": {"image": {}}}
    loads = {"denoiser": ComponentLoad(), "decoder": ComponentLoad()}

    prediction = predict_performance(
        make_profile({"denoiser": denoiser, "decoder": decoder}), "D", {"draw": TypeDemand(1.0, loads)}
    )

    assert prediction.parts["draw"] == {"denoiser": approx_value(30 * 0.06), "decoder": approx_value(0.5)}


def test_scale_and_alpha_are_in_the_seconds_that_a_client_would_measure():
    mix = {"all": TypeDemand(1.0, {"vision": ComponentLoad()})}
    scaled_profile = make_profile(CELL, time_scale=0.1, options={"E": {"alpha": 2.0}})

    assert predict_performance(scaled_profile, "O", mix).throughput == approx_value(10 * 4 / 0.09)
    assert predict_performance(scaled_profile, "E", mix).throughput == approx_value(5 * 4 / 0.09)


def test_a_prediction_is_the_same_each_time():
    mix = {"all": TypeDemand(1.0, {"vision": ComponentLoad(), "thinker": ComponentLoad(70)})}

    assert predict_performance(make_profile(CELL, jitter=0.2), "O", mix) == predict_performance(
        make_profile(CELL, jitter=0.2), "O", mix
    )


@pytest.mark.parametrize(
    ("mix", "more", "fault"),
    [
        ({}, {}, "a mix needs request types"),
        ({"a": TypeDemand(0.0, {"vision": ComponentLoad()})}, {}, "positive shares"),
        (
            {"a": TypeDemand(2.0, {"vision": ComponentLoad()}), "b": TypeDemand(-1.0, {"vision": ComponentLoad()})},
            {},
            "positive shares",
        ),
        ({"a": TypeDemand(1.0, {})}, {}, "a load for some component"),
        ({"a": TypeDemand(1.0, {"nose": ComponentLoad()})}, {}, "no component 'nose'"),
        ({"a": TypeDemand(1.0, {"vision": ComponentLoad(items=0)})}, {}, "at least 1"),
        ({"a": TypeDemand(1.0, {"vision": ComponentLoad()})}, {"inflight": 0}, "at least 1"),
        ({"a": TypeDemand(1.0, {"vision": ComponentLoad()})}, {"requests": 0}, "at least 1"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(mix: dict, more: dict, fault: str):
    with pytest.raises(BadRequest, match=fault):
        predict_performance(make_profile(CELL), "O", mix, **more)


# Executors


class SaturatingCrowd:
    """Requests that fill all places in flight; each one that ends is replaced."""

    def __init__(
        self, here: Place, clock: VirtualClock, make: Callable[[int], Invocation], *last: tuple[int, str]
    ) -> None:
        self._here = here
        self._clock = clock
        self._make = make
        self._last = last
        self._number = count()
        self._wanted = 0
        self.done: list[float] = []
        self.broken: list[Any] = []
        self._over = asyncio.Event()

    async def throughput(self, requests: int, inflight: int = INFLIGHT) -> float:
        """Return requests per second after the first quarter."""
        self._wanted = requests
        await self._here.bus.subscribe(REPLY, self._handle_replies)
        for _ in range(inflight):
            self._send_request()
        async with asyncio.timeout(60):
            await self._over.wait()
        assert self.broken == []
        early = self.done[: requests // 4]
        return (len(self.done) - len(early)) / (self.done[-1] - early[-1])

    def _send_request(self) -> None:
        self._here.office.send(self._make(next(self._number)))

    def _handle_replies(self, delivery: Delivery) -> None:
        for reply in messages.decode_replies(delivery.data):
            if isinstance(reply, BusyReply | NodeFailed):
                self.broken.append(reply)
                self._over.set()
            if isinstance(reply, Chunk) and reply.last and (reply.node, reply.output) in self._last:
                self.done.append(self._clock.time)
                if len(self.done) == self._wanted:
                    self._over.set()
                elif not self._over.is_set():
                    self._send_request()


async def start_simulated(
    here: Place, id: str, profile: Profile, clock: VirtualClock, *components: str, option: str = "O"
) -> None:
    """Start an executor with simulated runners in the usual loop."""
    simulation = Simulation(ExecutorSettings(option=option), profile, clock.clock)
    runners = {component: simulation.make_runner(component) for component in components}
    for runner in runners.values():
        await runner.load()
    await here.executor(id, {name: runner.run for name, runner in runners.items()}, option, credits=INFLIGHT + 20)


async def put_picture(here: Place) -> dict[str, Any]:
    """Put a medium in the arena that stays readable throughout the test."""
    handle = await here.office.tensors.put(
        np.zeros(1000, np.uint8), invocation="media", deadline=time.time() + 600, readers=60000
    )
    return {HANDLE: msgspec.to_builtins(handle), "modality": "image"}


def make_think_node(number: int, **more: Any) -> GraphNode:
    """Return a thinker's node with a prompt of 70 tokens."""
    return make_call("thinker", messages=[{"role": "user", "content": f"{number:280}"}], params={}, **more)


def make_encode_node(medium: dict[str, Any], number: int) -> GraphNode:
    """Return an encoder's node for ``medium``, distinct for each number."""
    return make_call("vision", media={**medium, "sha256": str(number)})


async def count_rows(job: Job) -> None:
    item = await job.value("item")
    await job.put("y", {"rows": len(item.array)})


async def test_an_executor_of_thinkers_reaches_what_its_profile_promises(here: Place):
    sim_profile, clock = make_profile(CELL, jitter=0.1), VirtualClock()
    await start_simulated(here, "a", sim_profile, clock, "thinker")
    crowd = SaturatingCrowd(
        here, clock, lambda number: make_invocation([make_think_node(number)], ["a"], [(0, "text")]), (0, "text")
    )

    rate = await crowd.throughput(300)

    prediction = predict_performance(
        sim_profile, "O", {"text": TypeDemand(1.0, {"thinker": ComponentLoad(70)})}, inflight=INFLIGHT
    )
    assert rate == approx_value(prediction.throughput, 0.05)


async def test_an_executor_of_encoders_reaches_what_its_profile_promises(here: Place):
    sim_profile, clock, medium = make_profile(CELL, jitter=0.1), VirtualClock(), await put_picture(here)
    await start_simulated(here, "e", sim_profile, clock, "vision")
    await here.executor("c", {"count": count_rows}, credits=INFLIGHT + 20)
    crowd = SaturatingCrowd(
        here,
        clock,
        lambda number: make_invocation(
            [make_encode_node(medium, number), make_call("count", item=make_ref(0, "embedding"))],
            ["e", "c"],
            [(1, "y")],
        ),
        (1, "y"),
    )

    rate = await crowd.throughput(300)

    prediction = predict_performance(
        sim_profile, "O", {"image": TypeDemand(1.0, {"vision": ComponentLoad()})}, inflight=INFLIGHT
    )
    assert rate == approx_value(prediction.throughput, 0.05)


async def test_a_shared_executor_reaches_what_its_profile_promises_of_a_mix(here: Place):
    sim_profile, clock, medium = (
        make_profile(CELL, options={"EL": {"alpha": 1.2}}),
        VirtualClock(),
        await put_picture(here),
    )
    await start_simulated(here, "a", sim_profile, clock, "vision", "thinker", option="EL")

    def make_request(number: int) -> Invocation:
        if number % 2:
            return make_invocation([make_think_node(number)], ["a"], [(0, "text")])
        nodes = [make_encode_node(medium, number), make_think_node(number, items=[make_ref(0, "embedding")])]
        return make_invocation(nodes, ["a", "a"], [(1, "text")])

    rate = await SaturatingCrowd(here, clock, make_request, (0, "text"), (1, "text")).throughput(300)

    mix = {
        "text": TypeDemand(1.0, {"thinker": ComponentLoad(70)}),
        "image": TypeDemand(1.0, {"vision": ComponentLoad(), "thinker": ComponentLoad(130)}),
    }
    prediction = predict_performance(sim_profile, "EL", mix, inflight=INFLIGHT)
    assert rate == approx_value(prediction.throughput, 0.05)
    assert prediction.seconds["image"] > prediction.seconds["text"]


def make_speech_nodes(number: int) -> list[GraphNode]:
    voice = {"voice": "v", "params": {}}
    return [
        make_think_node(number),
        make_call(
            "talker", prompt=make_ref(0, "prompt"), layout=make_ref(0, "layout"), rows=make_ref(0, "rows"), **voice
        ),
        make_call("vocoder", codes=make_ref(1, "codes"), **voice),
    ]


async def test_a_monolith_that_speaks_reaches_what_its_profile_promises(here: Place):
    sim_profile, clock = make_profile(CELL), VirtualClock()
    await start_simulated(here, "a", sim_profile, clock, "thinker", "talker", "vocoder", option="M")
    crowd = SaturatingCrowd(
        here,
        clock,
        lambda number: make_invocation(make_speech_nodes(number), ["a"] * 3, [(0, "text"), (2, "audio")]),
        (2, "audio"),
    )

    rate = await crowd.throughput(200)

    loads = {"thinker": ComponentLoad(70), "talker": ComponentLoad(73), "vocoder": ComponentLoad()}
    prediction = predict_performance(sim_profile, "M", {"spoken": TypeDemand(1.0, loads)}, inflight=INFLIGHT)
    assert rate == approx_value(prediction.throughput, 0.05)


async def test_what_a_turn_sends_is_too_late_for_the_turn_after_it(here: Place):
    """Codes reach the vocoder during the next step. So fewer of them share a pass."""
    costly = {**CELL["vocoder"], "batch": {"base": 0.03, "per_token": 4e-4}}
    sim_profile, clock = make_profile({**CELL, "vocoder": costly}), VirtualClock()
    await start_simulated(here, "a", sim_profile, clock, "thinker", "talker", "vocoder", option="M")

    def make_request(number: int) -> Invocation:
        if number % 2:
            return make_invocation([make_think_node(number)], ["a"], [(0, "text")])
        return make_invocation(make_speech_nodes(number), ["a"] * 3, [(2, "audio")])

    rate = await SaturatingCrowd(here, clock, make_request, (0, "text"), (2, "audio")).throughput(240)

    speech_loads = {"thinker": ComponentLoad(70), "talker": ComponentLoad(73), "vocoder": ComponentLoad()}
    mix = {"text": TypeDemand(1.0, {"thinker": ComponentLoad(70)}), "spoken": TypeDemand(1.0, speech_loads)}
    prediction = predict_performance(sim_profile, "M", mix, inflight=INFLIGHT)
    assert rate == approx_value(prediction.throughput, 0.05)


async def test_two_executors_serve_as_much_as_the_slower_one(here: Place):
    slow = {**CELL, "vision": {**CELL["vision"], "batch": {"points": [[1, 0.3], [4, 0.9]]}}}
    sim_profile, clock, medium = make_profile(slow), VirtualClock(), await put_picture(here)
    await start_simulated(here, "e", sim_profile, clock, "vision", option="E")
    await start_simulated(here, "l", sim_profile, clock, "thinker", option="L")

    def make_request(number: int) -> Invocation:
        return make_invocation(
            [make_encode_node(medium, number), make_think_node(number, items=[make_ref(0, "embedding")])],
            ["e", "l"],
            [(1, "text")],
        )

    rate = await SaturatingCrowd(here, clock, make_request, (1, "text")).throughput(160)

    mix = {"image": TypeDemand(1.0, {"vision": ComponentLoad()})}
    assert rate == approx_value(predict_performance(sim_profile, "E", mix, inflight=INFLIGHT).throughput, 0.05)
    assert (
        rate
        < 0.5
        * predict_performance(sim_profile, "L", {"image": TypeDemand(1.0, {"thinker": ComponentLoad(130)})}).throughput
    )
