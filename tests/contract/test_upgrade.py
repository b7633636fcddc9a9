"""The previous build's gateway with current executors, and the reverse, over NATS.

The tests replay the messages that crossed its bus. ``tests/golden/record_previous.py`` recorded
``tests/golden/releases/previous.json`` in a tree of that build, with the schema of each kind of message. That build
would reject a message that does not match its schema.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest

from omnibus import graph
from omnibus.bus import Delivery, messages, subjects
from omnibus.bus.messages import Chunk, Hop, PlanEvent
from omnibus.bus.nats import NatsBus
from omnibus.cluster.presence import follow_events
from omnibus.plan import decode_plan, encode_plan
from omnibus.recording import records
from omnibus.settings import BusSettings
from tests.golden.corpus import HERE
from tests.unit.executor.arithmetic import LIMIT
from tests.unit.gateway.house import OMNI, VL, ToyGateway, read_chat_answer, start_toy_gateway
from tests.unit.planner.conftest import system  # noqa: F401 - a fixture
from tests.unit.planner.town import PlannerSystem
from tests.unit.sidecar import node as nodes

KIT: dict[str, Any] = json.loads((HERE / "releases" / "previous.json").read_text())
ANSWERS = {answer["model"]: answer for answer in KIT["answers"]}
HEARTBEAT_SECONDS = 0.2
PATHS = {VL: "EL", OMNI: "Th>Ta>V"}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}
#: Beginning of a subject to the kind of message, by the name of its schema.
KINDS = {
    "omnibus.reply.": "reply",
    "omnibus.edge.": "edge",
    "omnibus.end.": "end",
    "omnibus.event.executor": "executor",
    "omnibus.event.gateway": "gateway",
    "omnibus.event.load": "load",
    "omnibus.event.plan": "plan_event",
    "omnibus.task.": "invocation",
}
DECODERS = {
    "reply": messages.decode_replies,
    "edge": messages.decode_edges,
    "end": messages.decode_end,
    "executor": messages.decode_status,
    "gateway": messages.decode_gateway,
    "load": messages.decode_load,
    "plan_event": messages.decode_plan_event,
    "invocation": graph.decode_invocation,
    "record": records.decode_message,
}
#: Fields that this build sends and the previous one refuses, by kind of message, where ``*`` is any name: the changelog
#: says which services to update first. From 1.0 on there may be none.
ADDED: dict[str, set[str]] = {
    "reply": {"computed", "cuts", "joules"},
    "edge": {"computed", "joules"},
    "plan": {
        "prices",
        "models.*.adapters",
        "models.*.goals",
        "models.*.options.*.checkpoint",
        "models.*.options.*.dtype",
    },
}


class RecordedMessage(NamedTuple):
    """A message that crossed a bus."""

    subject: str
    data: bytes

    @property
    def kind(self) -> str:
        """Name of a message's schema; ``record`` for those of the stream."""
        if self.subject.startswith("omnibus.inv."):
            return "record"
        return next((kind for start, kind in KINDS.items() if self.subject.startswith(start)), "")


CROSSED = [RecordedMessage(each["subject"], each["data"].encode()) for each in KIT["messages"]]


def list_parts(message: RecordedMessage) -> Iterator[tuple[str, Any]]:
    """Schema name and document of a message for the previous build."""
    document = json.loads(message.data)
    if message.kind in ("reply", "edge"):
        yield from ((message.kind, each) for each in document["msgs"])
    elif message.kind == "record":
        began, end = records.split_records(message.data)
        yield from (("invocation", json.loads(began)),) if began else ()
        yield from (("end_record", json.loads(end)),) if end else ()
    elif message.kind:
        yield message.kind, document


def assert_previous_build_reads(bus_messages: list[RecordedMessage]) -> None:
    for message in bus_messages:
        for kind, document in list_parts(message):
            assert_fits(kind, document)


def assert_fits(kind: str, document: Any) -> None:
    """Check that the previous build accepts a message as ``kind``.

    Fields in ``ADDED`` are exempt.
    """
    subset = without_fields(document, ADDED.get(kind, set()))
    jsonschema.validate(subset, KIT["schemas"][kind], jsonschema.Draft202012Validator)


def without_fields(value: Any, fields: set[str]) -> Any:
    """Copy of ``value`` without ``fields``, named as in ``ADDED``."""
    if not isinstance(value, dict):
        return value
    result = {}
    for key, each in value.items():
        below = {rest for head, _, rest in (field.partition(".") for field in fields) if head in (key, "*")}
        if "" not in below:
            result[key] = without_fields(each, below)
    return result


class Played(NamedTuple):
    """A house of this build, the replayed service's connection, and all messages."""

    home: ToyGateway
    player: NatsBus
    crossed: list[RecordedMessage]


@asynccontextmanager
async def recorded_house(directory: Path, url: str) -> AsyncIterator[Played]:
    """A house on the NATS server at ``url``; player and observer have separate connections."""
    bus_messages: list[RecordedMessage] = []
    observer, player, bus = [await connect_bus(url, name) for name in ("observer", "previous build", "this build")]
    await observer.subscribe("omnibus.>", lambda each: bus_messages.append(RecordedMessage(each.subject, each.data)))
    async with start_toy_gateway(directory, bus=bus) as home:
        try:
            yield Played(home, player, bus_messages)
        finally:
            await player.drain()
            await observer.drain()


async def connect_bus(url: str, name: str) -> NatsBus:
    return await NatsBus.connect(BusSettings(url=url, max_payload=LIMIT), name)


def answer_shapes(replies: Iterable[Any]) -> set[tuple[str, int, str]]:
    """Ends of nodes and outputs by node; chunk sizes depend on timing and are left out."""
    ends = {("end", each.node, "") for each in replies if isinstance(each, Hop)}
    return ends | {
        ("output", each.node, each.output)
        for each in replies
        if isinstance(each, Chunk) and each.output in ("text", "audio")
    }


def of_request(model: str, *kinds: str) -> list[RecordedMessage]:
    """Messages of the recorded request to ``model``."""
    id = ANSWERS[model]["id"].encode()
    return [message for message in CROSSED if message.kind in kinds and id in message.data]


@pytest.mark.parametrize("kind", sorted({message.kind for message in CROSSED}))
def test_this_build_reads_what_the_previous_one_sent(kind: str):
    for message in CROSSED:
        if message.kind == kind:
            assert DECODERS[kind](message.data)


def test_the_recorded_messages_fit_the_schemas_of_the_build_that_sent_them():
    assert_previous_build_reads(CROSSED)
    strange = json.loads(of_request(VL, "reply")[0].data)["msgs"][0] | {"flavour": 1}

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(strange, KIT["schemas"]["reply"], jsonschema.Draft202012Validator)


@pytest.mark.parametrize("model", [VL, OMNI])
async def test_a_gateway_of_the_previous_build_is_served_by_executors_of_this_one(
    tmp_path: Path, nats_url: str, model: str
):
    async with recorded_house(tmp_path, nats_url) as (home, player, bus_messages):
        await home.all_of(model)
        replies: list[Any] = []
        await player.subscribe(
            subjects.reply_subject("gw"), lambda delivery: replies.extend(messages.decode_replies(delivery.data))
        )
        invocations = of_request(model, "invocation")
        for message in invocations:
            player.publish(message.subject, renew_invocation(message.data))
        await nodes.wait_until(lambda: sum(isinstance(each, Hop) for each in replies) == len(invocations))
        texts = [
            (each.data or {}).get("text", "") for each in replies if isinstance(each, Chunk) and each.output == "text"
        ]
        for message in of_request(model, "end"):
            player.publish(message.subject, message.data)
        # Samples are the gateway's to release, which is only played here.
        await nodes.wait_until(lambda: not any(home.place.status(id).inflight for id in home.place.executors))

    recorded_replies = [
        each for message in of_request(model, "reply") for each in messages.decode_replies(message.data)
    ]
    assert "".join(texts) == ANSWERS[model]["text"]
    assert answer_shapes(replies) == answer_shapes(recorded_replies)
    assert {"reply", "executor"} <= {message.kind for message in bus_messages}
    assert_previous_build_reads(bus_messages)


def renew_invocation(invocation: bytes) -> bytes:
    """A recorded invocation as if it were sent now."""
    document, now = json.loads(invocation), time.time()
    return json.dumps({**document, "created": now, "deadline": now + nodes.PATIENCE}).encode()


async def test_executors_of_the_previous_build_serve_a_gateway_of_this_one(tmp_path: Path, nats_url: str):
    async with recorded_house(tmp_path, nats_url) as (home, player, bus_messages):
        home.serve(VL)
        async with previous_executors(home, player):
            response = await home.ask(VL, "hello there", path=PATHS[VL], seed=5)
            end = await home.ended(response.headers["x-request-id"])

    assert read_chat_answer(response) == ANSWERS[VL]["text"]
    assert end.status == "done"
    assert {"invocation", "end"} <= {message.kind for message in bus_messages}
    assert_previous_build_reads([message for message in bus_messages if message.kind != "load"])


@asynccontextmanager
async def previous_executors(home: ToyGateway, player: NatsBus) -> AsyncIterator[None]:
    """Executors that send heartbeats and answers as the previous build did."""
    recorded_id = ANSWERS[VL]["id"].encode()
    executors = [message for message in CROSSED if message.kind == "executor" and b'"toy-vl' in message.data]

    def publish_answer(delivery: Delivery) -> None:
        id = graph.decode_invocation(delivery.data).id.encode()
        for message in of_request(VL, "reply"):
            player.publish(message.subject, message.data.replace(recorded_id, id))

    async def publish_heartbeats() -> None:
        while True:
            for message in executors:
                player.publish(message.subject, message.data)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    for message in of_request(VL, "invocation"):
        await player.subscribe(message.subject, publish_answer)
    beating = asyncio.create_task(publish_heartbeats())
    try:
        await nodes.wait_until(lambda: len(home.members.statuses()) == len(executors))
        yield
    finally:
        beating.cancel()


async def test_a_planner_of_the_previous_build_is_followed_by_a_gateway_of_this_one(tmp_path: Path, nats_url: str):
    (entry,) = KIT["plans"]
    plan, events = decode_plan(entry["plan"].encode()), list[PlanEvent]()
    async with recorded_house(tmp_path, nats_url) as (home, player, _):
        await follow_events(home.bus, {subjects.PLAN: home.runs.room.handle_plan_event})
        await follow_events(home.bus, {subjects.PLAN: events.append})
        player.publish(entry["subject"], entry["event"].encode())
        await nodes.wait_until(lambda: bool(events))
        home.router.plan = plan
        for option, spec in plan.models[OMNI].options.items():
            await home.executor(OMNI, option, *spec.components)
        response = await home.ask(OMNI, "hello there", path=PATHS[OMNI], seed=5, **SPOKEN)

        assert home.router.growing == {}
        assert (events[0].epoch, events[0].growth) == (plan.epoch, {})
        assert read_chat_answer(response) == ANSWERS[OMNI]["text"]


async def test_a_planner_of_this_build_is_followed_by_a_gateway_of_the_previous_one(system: PlannerSystem):  # noqa: F811
    bodies: list[bytes] = []
    await system.bus.subscribe(subjects.event_subject(subjects.PLAN), lambda delivery: bodies.append(delivery.data))
    async with system.planner():
        plan = await system.current(1)
        await nodes.wait_until(lambda: bool(bodies))

    assert_fits("plan_event", json.loads(bodies[0]))
    assert json.loads(bodies[0])["epoch"] == plan.epoch
    assert_fits("plan", json.loads(encode_plan(plan)))


@pytest.mark.parametrize("field", sorted(ADDED["plan"]))
def test_what_a_plan_of_this_build_has_more_is_refused_by_the_previous_one(field: str):
    (entry,) = KIT["plans"]
    plan = json.loads(encode_plan(decode_plan(entry["plan"].encode())))
    strange = without_fields(plan, ADDED["plan"] - {field})

    with pytest.raises(jsonschema.ValidationError, match=field.rpartition(".")[2]):
        jsonschema.validate(strange, KIT["schemas"]["plan"], jsonschema.Draft202012Validator)
