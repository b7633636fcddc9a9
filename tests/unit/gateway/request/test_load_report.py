"""A gateway's load reports: by model and type, at intervals, and only if there is news."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.bus.messages import Chunk, LoadCounts, LoadEvent
from omnibus.bus.nats import NatsBus
from omnibus.bus.subjects import task_name
from omnibus.errors import Fatal
from omnibus.executor.runner import Job
from omnibus.graph import GraphNode
from omnibus.plan import Plan
from omnibus.profile import QUANTITIES
from omnibus.settings import BusSettings
from omnibus.task import CompositeTask, choose
from omnibus.up import infra
from omnibus_gateway.dispatch.streams import ResultStream
from omnibus_gateway.pricing.meter import add_quantities
from omnibus_gateway.request.load_report import LoadReporter
from omnibus_gateway.routing.assignment import PlanScope
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router
from tests.property.estate import MODELS, make_model, start_graph_system
from tests.unit.bus.servers import run_owned_server
from tests.unit.executor.arithmetic import LIMIT
from tests.unit.gateway.house import OMNI, TOYS, VL, ToyGateway, make_image_part, make_text_part, start_toy_gateway
from tests.unit.gateway.test_several_models import make_plan
from tests.unit.sidecar.node import PATIENCE, wait_until
from tests.unit.task.tasks import ECHO, ONE, EchoInput, NumberInput

BOTH = "vision+thinker"


@pytest.fixture(autouse=True)
def report_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnibus_gateway.request.load_report.LOAD_REPORT_SECONDS", 0.02)


class Ear:
    """A subscriber that records load events."""

    def __init__(self) -> None:
        self.events: list[LoadEvent] = []

    async def start_listening(self, bus: Bus) -> "Ear":
        await bus.subscribe(subjects.event_subject(subjects.LOAD), self._record_event)
        return self

    def _record_event(self, delivery: Delivery) -> None:
        self.events.append(messages.decode_load(delivery.data))

    def sum_reports(self, name: str, kind: str) -> LoadCounts:
        """Return the sum of all reports of one type."""
        reports = [event.models[name][kind] for event in self.events if kind in event.models.get(name, {})]
        quantities: dict[str, float] = {}
        for load in reports:
            for quantity, value in load.quantities.items():
                quantities[quantity] = quantities.get(quantity, 0.0) + value
        counts = [sum(getattr(load, field) for load in reports) for field in ("came", "done", "failed", "refused")]
        return LoadCounts(*counts, quantities, sum(load.first for load in reports), sum(load.total for load in reports))

    async def read_last_event(self) -> LoadEvent:
        """Return the last event before reports stop."""
        await wait_until(lambda: bool(self.events) and not self.events[-1].models and not self.events[-1].inflight)
        return self.events[-1]


@pytest.fixture
async def load_listener(home: ToyGateway) -> Ear:
    return await Ear().start_listening(home.bus)


def _sum_parts(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


# Counts


async def test_requests_are_told_by_type_with_their_sizes(home: ToyGateway, load_listener: Ear):
    await home.all_of(VL)

    for _ in range(3):
        await home.ask(content="one two three")
    await home.ask(content=[make_text_part("what is this"), make_image_part()])
    await load_listener.read_last_event()

    thinker_load, media_load = load_listener.sum_reports(VL, "thinker"), load_listener.sum_reports(VL, BOTH)
    assert (thinker_load.came, thinker_load.done, thinker_load.failed, thinker_load.refused) == (3, 3, 0, 0)
    assert thinker_load.quantities == {"prompt_tokens": 15.0, "completion_tokens": 18.0}
    assert 0 < thinker_load.first <= thinker_load.total
    assert (media_load.came, media_load.done) == (1, 1)
    assert media_load.quantities["image_tokens"] == 1
    assert {(event.gateway, event.epoch) for event in load_listener.events} == {("gw", 1)}
    for kind, fields in (("thinker", {"prompt_tokens"}), (BOTH, {"prompt_tokens", "image_tokens"})):
        words = [event.models[VL][kind] for event in load_listener.events if kind in event.models.get(VL, {})]
        came, done_totals = (
            _sum_parts(getattr(word, field) for word in words) for field in ("estimated", "estimated_done")
        )
        assert came == done_totals  # all arrivals have ended
        assert {name for name, value in came.items() if value > 0} == fields


async def test_speech_is_told_in_seconds(home: ToyGateway, load_listener: Ear):
    await home.all_of(OMNI)
    speech_options = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}

    response = await home.ask(OMNI, "one two", **speech_options)
    await load_listener.read_last_event()

    assert response.status_code == 200
    [(name, types)] = [item for event in load_listener.events for item in event.models.items() if item[1]][-1:]
    assert name == OMNI
    [kind] = types
    words = load_listener.sum_reports(OMNI, kind).quantities["completion_tokens"]
    assert load_listener.sum_reports(OMNI, kind).quantities["speech_seconds"] == pytest.approx(words * 240 / 24000)


async def test_a_stream_counts_as_a_whole_answer_does(home: ToyGateway, load_listener: Ear):
    await home.all_of(VL)

    await home.ask(stream=True)
    await load_listener.read_last_event()

    load = load_listener.sum_reports(VL, "thinker")
    assert (load.came, load.done) == (1, 1)
    assert set(load.quantities) == {"prompt_tokens", "completion_tokens"}


@pytest.mark.parametrize(
    ("seconds", "types", "counts"),
    [
        (60.0, {}, (2, 0)),
        (1e-9, {}, (0, 2)),
        (0.0, {}, (0, 0)),
        (60.0, {"thinker": {"first_token": 1e-9}}, (0, 2)),
        (60.0, {"vision": {"first_token": 1e-9}}, (2, 0)),
        (0.0, {"thinker": {"first_token": 60.0}}, (2, 0)),
    ],
)
async def test_latencies_are_counted_and_held_against_the_goals_of_the_request_type(
    home: ToyGateway,
    load_listener: Ear,
    seconds: float,
    types: dict[str, dict[str, float]],
    counts: tuple[int, int],
):
    await home.all_of(VL)
    assert home.router.plan is not None
    goals = {"first_token": seconds} if seconds else {}
    models = {VL: msgspec.structs.replace(home.router.plan.models[VL], goals=goals, type_goals=types)}
    home.router.plan = msgspec.structs.replace(home.router.plan, epoch=2, models=models)

    for _ in range(2):
        await home.ask(content="one two three", stream=True)
    await load_listener.read_last_event()

    words = [event.models[VL]["thinker"] for event in load_listener.events if VL in event.models]
    assert (sum(word.met for word in words), sum(word.missed for word in words)) == counts
    for figure in ("done", "first_token", "token"):
        assert sum(sum(word.figures.get(figure, {}).values()) for word in words) == 2


async def test_what_is_refused_or_fails_misses_its_goals(home: ToyGateway, load_listener: Ear):
    async def fail_job(job: Job) -> None:
        raise Fatal("no")

    home.serve(VL)
    assert home.router.plan is not None
    models = {VL: msgspec.structs.replace(home.router.plan.models[VL], goals={"done": 60.0})}
    home.router.plan = msgspec.structs.replace(home.router.plan, models=models)
    await home.executor(VL, "L", "thinker", thinker=fail_job)
    await home.ask(path="L")
    await load_listener.read_last_event()

    assert sum(types["thinker"].missed for event in load_listener.events for types in event.models.values()) == 1


async def test_what_fails_came_and_failed(home: ToyGateway, load_listener: Ear):
    async def fail_job(job: Job) -> None:
        raise Fatal("no")

    home.serve(VL)
    await home.executor(VL, "L", "thinker", thinker=fail_job)

    assert (await home.ask(path="L")).status_code >= 500
    await load_listener.read_last_event()

    assert load_listener.sum_reports(VL, "thinker") == LoadCounts(came=1, failed=1)


async def test_what_nobody_serves_came_and_failed(home: ToyGateway, load_listener: Ear):
    home.serve(VL)

    assert (await home.ask()).status_code == 503
    await load_listener.read_last_event()

    assert load_listener.sum_reports(VL, "thinker") == LoadCounts(came=1, failed=1)


async def test_what_has_no_room_here_is_refused_before_its_type_is_known(tmp_path: Path):
    async with start_toy_gateway(tmp_path, max_inflight=0) as home:
        ear = await Ear().start_listening(home.bus)
        home.serve(VL)

        assert (await home.ask()).status_code == 429
        await ear.read_last_event()

        assert ear.sum_reports(VL, "") == LoadCounts(refused=1)


async def test_what_finds_every_executor_full_is_refused_and_did_not_come(home: ToyGateway, load_listener: Ear):
    home.serve(VL)
    await home.place.executor(
        "full", {"thinker": TOYS["thinker"]}, "L", credits=0, model=VL, named=lambda part: task_name("think", VL, part)
    )
    await wait_until(lambda: home.members.get("full") is not None)

    assert (await home.ask(path="L")).status_code == 429
    await load_listener.read_last_event()

    assert load_listener.sum_reports(VL, "thinker") == LoadCounts(refused=1)
    assert home.loads.inflight == 0


NONSENSE = [{"prompt_tokens": -5}, {"completion_tokens": 1 << 60}, {"prompt_tokens": "9"}, {"x": 1}, [1], "usage", 7]


@pytest.mark.parametrize("usage", NONSENSE)
def test_nonsense_of_an_engine_is_not_counted(usage: Any):
    stream = ResultStream(0, "text", lambda handle: np.zeros(1))
    stream.feed_chunk(Chunk("i", 0, "text", 0, 0, {"usage": usage, "rate": "loud"}, last=True))
    sums = [0.0] * len(QUANTITIES)

    add_quantities(sums, [stream])

    assert sums == [0.0] * len(QUANTITIES)


# Timing


async def test_after_the_last_request_comes_one_empty_word_and_then_silence(home: ToyGateway, load_listener: Ear):
    await home.all_of(VL)

    await home.ask()
    last = await load_listener.read_last_event()
    silent = home.loads._timer
    await home.ask()
    await wait_until(lambda: load_listener.events[-1] is not last and not load_listener.events[-1].models)

    empty = [event for event in load_listener.events if not event.models and not event.inflight]
    assert silent is None
    assert empty == [last, load_listener.events[-1]]
    assert load_listener.sum_reports(VL, "thinker").came == 2


async def test_as_long_as_a_request_runs_there_is_word_of_it(home: ToyGateway, load_listener: Ear):
    go_on = asyncio.Event()

    async def think_slowly(job: Job) -> None:
        await go_on.wait()
        await job.send("text", {"text": "hi"})
        job.close("text", {"finish_reason": "stop", "usage": {}})

    home.serve(VL)
    await home.executor(VL, "L", "thinker", thinker=think_slowly)
    asking = asyncio.create_task(home.ask(path="L"))
    await wait_until(lambda: len([event for event in load_listener.events if event.inflight and not event.models]) > 2)
    go_on.set()
    await asking
    await load_listener.read_last_event()

    assert load_listener.sum_reports(VL, "thinker").done == 1
    assert home.loads.inflight == 0


async def test_the_last_word_is_told_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("omnibus_gateway.request.load_report.LOAD_REPORT_SECONDS", 1000.0)
    async with start_toy_gateway(tmp_path) as home:
        ear = await Ear().start_listening(home.bus)
        await home.all_of(VL)

        await home.ask()
        home.loads.close()
        await wait_until(lambda: bool(ear.events))

        assert ear.sum_reports(VL, "thinker").done == 1


async def test_prometheus_counts_the_same(home: ToyGateway, load_listener: Ear):
    await home.all_of(VL)

    await home.ask()
    await load_listener.read_last_event()

    lines = (await home.http.get("/metrics")).text.splitlines()
    assert any(line.startswith(f'omnibus_arrivals_total{{model="{VL}",type="thinker"}}') for line in lines)
    assert any(line.startswith("omnibus_ended_total{") and 'outcome="done",type="thinker"' in line for line in lines)
    assert any(line.startswith("omnibus_quantities_total{") and 'quantity="prompt_tokens"' in line for line in lines)


# Several segments, several models, several events, on a real bus


class TwoModelChain(CompositeTask):
    """Two segments of two models."""

    async def invoke(self, x: int) -> Any:
        n = await ONE.invoke(NumberInput(x=choose([x]))).n
        return ECHO.invoke(EchoInput(what=n)).what


async def test_each_segment_counts_for_its_model(nats_url: str, tmp_path: Path):
    async with start_graph_system(nats_url, tmp_path) as place:
        ear = await Ear().start_listening(await NatsBus.connect(BusSettings(url=nats_url), "ear"))

        async with place.request() as run:
            assert await (await TwoModelChain()(6)) == 6
        await ear.read_last_event()

        one, echo = ear.sum_reports("sums", "one"), ear.sum_reports("words", "echo")
        assert (one.came, one.done, echo.came, echo.done) == (1, 1, 1, 1)
        assert len(run.segments) == 2


@pytest.fixture
async def buses(nats_url: str) -> AsyncIterator[tuple[NatsBus, Ear]]:
    teller = await NatsBus.connect(BusSettings(url=nats_url, max_payload=LIMIT), "teller")
    listener = await NatsBus.connect(BusSettings(url=nats_url), "ear")
    yield teller, await Ear().start_listening(listener)
    await teller.drain()
    await listener.drain()


def make_router(new_plan: Plan) -> Router:
    plan_router = Router("g", ExecutorTable())
    plan_router.plan = new_plan
    return plan_router


async def test_a_graph_of_several_models_counts_for_each(buses: tuple[NatsBus, Ear]):
    bus, ear = buses
    plan_router = make_router(make_plan())
    calls = [
        GraphNode(task, "", {}, "", tuple((n, "out") for n in range(at)))
        for at, task in enumerate(("see", "think-a", "spell"))
    ]
    loads = LoadReporter(plan_router, bus, LIMIT)

    for _ in range(3):
        loads.count_failure(loads.count_arrival(plan_router.assign(calls)), None)
    await ear.read_last_event()

    assert ear.sum_reports("org/a", BOTH) == ear.sum_reports("s", "spell") == LoadCounts(came=3, failed=3)
    assert {name for event in ear.events for name in event.models} == {"org/a", "s"}


async def test_what_does_not_fit_into_one_message_is_told_in_several(buses: tuple[NatsBus, Ear]):
    bus, ear = buses
    names = [f"model-{number}-{'x' * 200}" for number in range(900)]
    tasks, paths = MODELS["sums"]
    model_plan = make_model(tasks, paths)
    plan_router = make_router(Plan(1, 0, 1000.0, dict.fromkeys(names, model_plan)))
    loads = LoadReporter(plan_router, bus, LIMIT)
    scope = PlanScope(plan_router.plan)  # type: ignore[arg-type]

    for name in names:
        loads.count_failure(loads.count_arrival(scope.assign([GraphNode(ONE.name, "", {}, "")], name)), None)
    await ear.read_last_event()

    assert {name: ear.sum_reports(name, "one") for name in names} == dict.fromkeys(names, LoadCounts(came=1, failed=1))
    assert len([event for event in ear.events if event.models]) > 1
    assert all(len(messages.encode(event)) <= LIMIT for event in ear.events)


async def test_while_the_bus_is_away_counts_are_kept_and_told_with_their_time(tmp_path: Path):
    async with asyncio.timeout(PATIENCE * 2), run_owned_server(infra.prepare_nats(tmp_path)) as nats_server:
        bus = await NatsBus.connect(BusSettings(url=nats_server.server.url), "teller")
        ear = await Ear().start_listening(await NatsBus.connect(BusSettings(url=nats_server.server.url), "ear"))
        plan_router = make_router(make_plan())
        loads = LoadReporter(plan_router, bus, LIMIT)
        nats_server.kill()
        await wait_until(lambda: not bus.connected)

        for _ in range(5):
            loads.count_failure(loads.count_arrival(plan_router.assign([GraphNode("spell", "", {}, "")])), None)
        count_time = time.monotonic()
        await nats_server.start()
        back = time.monotonic()
        await wait_until(lambda: bool(ear.events))

        assert ear.sum_reports("s", "spell") == LoadCounts(came=5, failed=5)
        assert len([event for event in ear.events if event.models]) == 1
        assert ear.events[0].seconds >= back - count_time
