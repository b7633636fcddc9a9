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
from omnibus_gateway.pricing.quantities import add_quantities
from omnibus_gateway.request.load_report import LoadReporter
from omnibus_gateway.routing.assignment import PlanScope
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router
from tests.property.estate import MODELS, estate, model
from tests.unit.bus.servers import running
from tests.unit.executor.arithmetic import LIMIT
from tests.unit.gateway.house import OMNI, TOYS, VL, House, house, image, text
from tests.unit.gateway.test_several_models import plan
from tests.unit.sidecar.node import PATIENCE, until
from tests.unit.task.tasks import ECHO, ONE, EchoInput, NumberInput

BOTH = "vision+thinker"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnibus_gateway.request.load_report.LOAD_REPORT_SECONDS", 0.02)


class Ear:
    """A subscriber that records load events."""

    def __init__(self) -> None:
        self.events: list[LoadEvent] = []

    async def listen(self, bus: Bus) -> "Ear":
        await bus.subscribe(subjects.event_subject(subjects.LOAD), self._heard)
        return self

    def _heard(self, delivery: Delivery) -> None:
        self.events.append(messages.decode_load(delivery.data))

    def sum(self, name: str, kind: str) -> LoadCounts:
        """Return the sum of all reports of one type."""
        found = [event.models[name][kind] for event in self.events if kind in event.models.get(name, {})]
        quantities: dict[str, float] = {}
        for load in found:
            for quantity, value in load.quantities.items():
                quantities[quantity] = quantities.get(quantity, 0.0) + value
        counts = [sum(getattr(load, field) for load in found) for field in ("came", "done", "failed", "refused")]
        return LoadCounts(*counts, quantities, sum(load.first for load in found), sum(load.total for load in found))

    async def last(self) -> LoadEvent:
        """Return the last event before reports stop."""
        await until(lambda: bool(self.events) and not self.events[-1].models and not self.events[-1].inflight)
        return self.events[-1]


@pytest.fixture
async def ear(home: House) -> Ear:
    return await Ear().listen(home.bus)


def _summed(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, 0.0) + value
    return found


# Counts


async def test_requests_are_told_by_type_with_their_sizes(home: House, ear: Ear):
    await home.all_of(VL)

    for _ in range(3):
        await home.ask(content="one two three")
    await home.ask(content=[text("what is this"), image()])
    await ear.last()

    told, seen = ear.sum(VL, "thinker"), ear.sum(VL, BOTH)
    assert (told.came, told.done, told.failed, told.refused) == (3, 3, 0, 0)
    assert told.quantities == {"prompt_tokens": 15.0, "completion_tokens": 18.0}
    assert 0 < told.first <= told.total
    assert (seen.came, seen.done) == (1, 1)
    assert seen.quantities["image_tokens"] == 1
    assert {(event.gateway, event.epoch) for event in ear.events} == {("gw", 1)}
    for kind, fields in (("thinker", {"prompt_tokens"}), (BOTH, {"prompt_tokens", "image_tokens"})):
        words = [event.models[VL][kind] for event in ear.events if kind in event.models.get(VL, {})]
        came, ended = (_summed(getattr(word, field) for word in words) for field in ("estimated", "estimated_done"))
        assert came == ended  # all arrivals have ended
        assert {name for name, value in came.items() if value > 0} == fields


async def test_speech_is_told_in_seconds(home: House, ear: Ear):
    await home.all_of(OMNI)
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}

    response = await home.ask(OMNI, "one two", **spoken)
    await ear.last()

    assert response.status_code == 200
    [(name, types)] = [item for event in ear.events for item in event.models.items() if item[1]][-1:]
    assert name == OMNI
    [kind] = types
    words = ear.sum(OMNI, kind).quantities["completion_tokens"]
    assert ear.sum(OMNI, kind).quantities["speech_seconds"] == pytest.approx(words * 240 / 24000)


async def test_a_stream_counts_as_a_whole_answer_does(home: House, ear: Ear):
    await home.all_of(VL)

    await home.ask(stream=True)
    await ear.last()

    told = ear.sum(VL, "thinker")
    assert (told.came, told.done) == (1, 1)
    assert set(told.quantities) == {"prompt_tokens", "completion_tokens"}


@pytest.mark.parametrize(("seconds", "counts"), [(60.0, (2, 0)), (1e-9, (0, 2)), (0.0, (0, 0))])
async def test_latencies_are_counted_and_held_against_the_goals_of_the_model(
    home: House, ear: Ear, seconds: float, counts: tuple[int, int]
):
    await home.all_of(VL)
    assert home.router.plan is not None
    goals = {"first_token": seconds} if seconds else {}
    models = {VL: msgspec.structs.replace(home.router.plan.models[VL], goals=goals)}
    home.router.plan = msgspec.structs.replace(home.router.plan, epoch=2, models=models)

    for _ in range(2):
        await home.ask(content="one two three", stream=True)
    await ear.last()

    words = [event.models[VL]["thinker"] for event in ear.events if VL in event.models]
    assert (sum(word.met for word in words), sum(word.missed for word in words)) == counts
    for figure in ("done", "first_token", "token"):
        assert sum(sum(word.figures.get(figure, {}).values()) for word in words) == 2


async def test_what_is_refused_or_fails_misses_its_goals(home: House, ear: Ear):
    async def fail(job: Job) -> None:
        raise Fatal("no")

    home.serve(VL)
    assert home.router.plan is not None
    models = {VL: msgspec.structs.replace(home.router.plan.models[VL], goals={"done": 60.0})}
    home.router.plan = msgspec.structs.replace(home.router.plan, models=models)
    await home.executor(VL, "L", "thinker", thinker=fail)
    await home.ask(path="L")
    await ear.last()

    assert sum(types["thinker"].missed for event in ear.events for types in event.models.values()) == 1


async def test_what_fails_came_and_failed(home: House, ear: Ear):
    async def fail(job: Job) -> None:
        raise Fatal("no")

    home.serve(VL)
    await home.executor(VL, "L", "thinker", thinker=fail)

    assert (await home.ask(path="L")).status_code >= 500
    await ear.last()

    assert ear.sum(VL, "thinker") == LoadCounts(came=1, failed=1)


async def test_what_nobody_serves_came_and_failed(home: House, ear: Ear):
    home.serve(VL)

    assert (await home.ask()).status_code == 503
    await ear.last()

    assert ear.sum(VL, "thinker") == LoadCounts(came=1, failed=1)


async def test_what_has_no_room_here_is_refused_before_its_type_is_known(tmp_path: Path):
    async with house(tmp_path, max_inflight=0) as home:
        ear = await Ear().listen(home.bus)
        home.serve(VL)

        assert (await home.ask()).status_code == 429
        await ear.last()

        assert ear.sum(VL, "") == LoadCounts(refused=1)


async def test_what_finds_every_executor_full_is_refused_and_did_not_come(home: House, ear: Ear):
    home.serve(VL)
    await home.place.executor(
        "full", {"thinker": TOYS["thinker"]}, "L", credits=0, model=VL, named=lambda part: task_name("think", VL, part)
    )
    await until(lambda: home.members.get("full") is not None)

    assert (await home.ask(path="L")).status_code == 429
    await ear.last()

    assert ear.sum(VL, "thinker") == LoadCounts(refused=1)
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


async def test_after_the_last_request_comes_one_empty_word_and_then_silence(home: House, ear: Ear):
    await home.all_of(VL)

    await home.ask()
    last = await ear.last()
    silent = home.loads._timer
    await home.ask()
    await until(lambda: ear.events[-1] is not last and not ear.events[-1].models)

    empty = [event for event in ear.events if not event.models and not event.inflight]
    assert silent is None
    assert empty == [last, ear.events[-1]]
    assert ear.sum(VL, "thinker").came == 2


async def test_as_long_as_a_request_runs_there_is_word_of_it(home: House, ear: Ear):
    go_on = asyncio.Event()

    async def think(job: Job) -> None:
        await go_on.wait()
        await job.send("text", {"text": "hi"})
        job.close("text", {"finish_reason": "stop", "usage": {}})

    home.serve(VL)
    await home.executor(VL, "L", "thinker", thinker=think)
    asking = asyncio.create_task(home.ask(path="L"))
    await until(lambda: len([event for event in ear.events if event.inflight and not event.models]) > 2)
    go_on.set()
    await asking
    await ear.last()

    assert ear.sum(VL, "thinker").done == 1
    assert home.loads.inflight == 0


async def test_the_last_word_is_told_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("omnibus_gateway.request.load_report.LOAD_REPORT_SECONDS", 1000.0)
    async with house(tmp_path) as home:
        ear = await Ear().listen(home.bus)
        await home.all_of(VL)

        await home.ask()
        home.loads.close()
        await until(lambda: bool(ear.events))

        assert ear.sum(VL, "thinker").done == 1


async def test_prometheus_counts_the_same(home: House, ear: Ear):
    await home.all_of(VL)

    await home.ask()
    await ear.last()

    lines = (await home.http.get("/metrics")).text.splitlines()
    assert any(line.startswith(f'omnibus_arrivals_total{{model="{VL}",type="thinker"}}') for line in lines)
    assert any(line.startswith("omnibus_ended_total{") and 'outcome="done",type="thinker"' in line for line in lines)
    assert any(line.startswith("omnibus_quantities_total{") and 'quantity="prompt_tokens"' in line for line in lines)


# Several segments, several models, several events, on a real bus


class Chain(CompositeTask):
    """Two segments of two models."""

    async def invoke(self, x: int) -> Any:
        n = await ONE.invoke(NumberInput(x=choose([x]))).n
        return ECHO.invoke(EchoInput(what=n)).what


async def test_each_segment_counts_for_its_model(nats_url: str, tmp_path: Path):
    async with estate(nats_url, tmp_path) as place:
        ear = await Ear().listen(await NatsBus.connect(BusSettings(url=nats_url), "ear"))

        async with place.request() as run:
            assert await (await Chain()(6)) == 6
        await ear.last()

        one, echo = ear.sum("sums", "one"), ear.sum("words", "echo")
        assert (one.came, one.done, echo.came, echo.done) == (1, 1, 1, 1)
        assert len(run.segments) == 2


@pytest.fixture
async def buses(nats_url: str) -> AsyncIterator[tuple[NatsBus, Ear]]:
    teller = await NatsBus.connect(BusSettings(url=nats_url, max_payload=LIMIT), "teller")
    listener = await NatsBus.connect(BusSettings(url=nats_url), "ear")
    yield teller, await Ear().listen(listener)
    await teller.drain()
    await listener.drain()


def router(planned: Plan) -> Router:
    made = Router("g", ExecutorTable())
    made.plan = planned
    return made


async def test_a_graph_of_several_models_counts_for_each(buses: tuple[NatsBus, Ear]):
    bus, ear = buses
    made = router(plan())
    calls = [
        GraphNode(task, "", {}, "", tuple((n, "out") for n in range(at)))
        for at, task in enumerate(("see", "think-a", "spell"))
    ]
    loads = LoadReporter(made, bus, LIMIT)

    for _ in range(3):
        loads.count_failure(loads.count_arrival(made.assign(calls)), None)
    await ear.last()

    assert ear.sum("org/a", BOTH) == ear.sum("s", "spell") == LoadCounts(came=3, failed=3)
    assert {name for event in ear.events for name in event.models} == {"org/a", "s"}


async def test_what_does_not_fit_into_one_message_is_told_in_several(buses: tuple[NatsBus, Ear]):
    bus, ear = buses
    names = [f"model-{number}-{'x' * 200}" for number in range(900)]
    tasks, paths = MODELS["sums"]
    planned = model(tasks, paths)
    made = router(Plan(1, 0, 1000.0, dict.fromkeys(names, planned)))
    loads = LoadReporter(made, bus, LIMIT)
    scope = PlanScope(made.plan)  # type: ignore[arg-type]

    for name in names:
        loads.count_failure(loads.count_arrival(scope.assign([GraphNode(ONE.name, "", {}, "")], name)), None)
    await ear.last()

    assert {name: ear.sum(name, "one") for name in names} == dict.fromkeys(names, LoadCounts(came=1, failed=1))
    assert len([event for event in ear.events if event.models]) > 1
    assert all(len(messages.encode(event)) <= LIMIT for event in ear.events)


async def test_while_the_bus_is_away_counts_are_kept_and_told_with_their_time(tmp_path: Path):
    async with asyncio.timeout(PATIENCE * 2), running(infra.prepare_nats(tmp_path)) as owned:
        bus = await NatsBus.connect(BusSettings(url=owned.server.url), "teller")
        ear = await Ear().listen(await NatsBus.connect(BusSettings(url=owned.server.url), "ear"))
        made = router(plan())
        loads = LoadReporter(made, bus, LIMIT)
        owned.kill()
        await until(lambda: not bus.connected)

        for _ in range(5):
            loads.count_failure(loads.count_arrival(made.assign([GraphNode("spell", "", {}, "")])), None)
        counted = time.monotonic()
        await owned.start()
        back = time.monotonic()
        await until(lambda: bool(ear.events))

        assert ear.sum("s", "spell") == LoadCounts(came=5, failed=5)
        assert len([event for event in ear.events if event.models]) == 1
        assert ear.events[0].seconds >= back - counted
