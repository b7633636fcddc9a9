"""Bus users with reply subjects of their choice or with one model."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from omnibus.bus import permissions, subjects
from omnibus.bus.nats import NatsBus
from omnibus.executor.loop import Executor
from omnibus.executor.status import ExecutorIdentity
from omnibus.settings import BusSettings
from omnibus.up import infra
from tests.unit.bus.test_permissions import PASSWORDS, SECONDS, connect_user
from tests.unit.executor.arithmetic import Does, put_number

FORGED = (
    "omnibus.inv.chat.forged",
    "omnibus.task.think-m-thinker.l-0",
    "omnibus.task.think-m-thinker",
    "omnibus.end.g-0-1",
    "omnibus.replay",
    "omnibus.event.plan",
    "omnibus.event.gone",
    "omnibus.event.gateway",
    "omnibus.event.deadletter.chat.forged",
    "_INBOX.gateway.1.2",
    "_INBOX.planner.1.2",
    "$JS.API.STREAM.MSG.GET.OMNIBUS_INVOCATIONS",
    "$JS.API.DIRECT.GET.OMNIBUS_INVOCATIONS",
    "$JS.API.STREAM.PURGE.OMNIBUS_INVOCATIONS",
    "$JS.API.STREAM.DELETE.OMNIBUS_INVOCATIONS",
)
_MODELS = {"m": ["think-m-thinker"], "n.1": ["encode-n_1-vision", "think-n_1-thinker"]}


@pytest.fixture(scope="module")
def guarded_url(tmp_path_factory: pytest.TempPathFactory, run_server) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("replies")
    config = directory / "nats.conf"
    config.write_text(permissions.server_config(PASSWORDS))
    server = infra.prepare_nats(directory, config=config)
    with run_server(server):
        yield server.url


# Reply subjects, which the sender of a message chooses


async def answer_itself(bus: NatsBus, own: str, forged: str) -> None:
    """Send a message to ``own`` with the reply subject ``forged``, and answer it. ``bus`` may read ``own``."""
    arrival = asyncio.Event()
    await bus.subscribe(own, lambda _: arrival.set())
    bus.publish(own, b"{}", reply=forged)
    async with asyncio.timeout(SECONDS):
        await arrival.wait()
    bus.publish(forged, b"{}")
    await bus._flush_connection(5)


def list_denials(caplog: pytest.LogCaptureFixture, subject: str) -> list[str]:
    """Log messages that report a denied publish to ``subject``."""
    phrase = "permissions violation for publish"
    return [text for text in caplog.messages if phrase in text.lower() and subject.lower() in text.lower()]


@pytest.mark.parametrize("forged_subject", FORGED)
@pytest.mark.parametrize("user", ["encoder", "llm", "generator"])
async def test_a_reply_subject_that_an_executor_chose_itself_allows_it_nothing(
    guarded_url: str, user: str, forged_subject: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)

    async with connect_user(guarded_url, user) as executor:
        await answer_itself(executor, "omnibus.edge.evil", forged_subject)

    assert list_denials(caplog, forged_subject)


async def test_an_executor_cannot_purge_the_record_by_answering_itself(guarded_url: str):
    async with connect_user(guarded_url, "gateway") as gateway, connect_user(guarded_url, "llm") as executor:
        await gateway.open_records(60.0, 1 << 20)
        gateway.publish_record("omnibus.inv.chat.kept", b"{}", "kept")
        await gateway._flush_connection(5)

        await answer_itself(executor, "omnibus.edge.evil", "$JS.API.STREAM.PURGE.OMNIBUS_INVOCATIONS")

        assert [record.data for record in await gateway.read_records("omnibus.inv.*.kept")] == [b"{}"]


@pytest.mark.parametrize(
    ("user", "own", "forged_subject"),
    [
        ("gateway", "omnibus.replay", "omnibus.event.plan"),
        ("gateway", "omnibus.replay", "_INBOX.planner.1.2"),
        ("gateway", "omnibus.replay", "$JS.API.STREAM.PURGE.OMNIBUS_INVOCATIONS"),
        ("operator", "omnibus.event.census", "omnibus.event.plan"),
        ("operator", "omnibus.event.census", "_INBOX.gateway.1.2"),
    ],
)
async def test_nor_does_one_that_a_gateway_or_an_operator_chose(
    guarded_url: str, user: str, own: str, forged_subject: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)

    async with connect_user(guarded_url, user) as bus:
        await answer_itself(bus, own, forged_subject)

    assert list_denials(caplog, forged_subject)


async def test_a_gateway_asks_for_a_replay_over_http_and_another_answers_for_the_queue(guarded_url: str):
    async def echo_request(delivery):
        yield delivery.data

    async with connect_user(guarded_url, "gateway") as one, connect_user(guarded_url, "gateway") as other:
        await one.add_responder(subjects.REPLAY, echo_request, queue="gateways")

        answers = [part async for part in other.request_stream(subjects.REPLAY, b"again", SECONDS)]

    assert answers == [b"again"]


@pytest.mark.parametrize("verb", ["PING", "INFO", "STATS"])
async def test_an_operator_lists_services_and_their_statistics(guarded_url: str, verb: str):
    async def echo_data(delivery):
        yield delivery.data

    async with connect_user(guarded_url, "encoder") as executor, connect_user(guarded_url, "operator") as operator:
        await executor.register_service("omnibus-E", {}, {"encode": ("omnibus.task.encode-m-vision", echo_data)})

        for subject in (f"$SRV.{verb}", f"$SRV.{verb}.omnibus-E"):
            assert b"omnibus-E" in await operator.request(subject, b"", SECONDS)


# Users of one model each


@pytest.fixture(scope="module")
def narrow_url(tmp_path_factory: pytest.TempPathFactory, run_server) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("narrow")
    config = directory / "nats.conf"
    users = permissions.permissions_by_user(_MODELS)
    config.write_text(permissions.server_config({user: f"word-of-{user}" for user in users}, models=_MODELS))
    server = infra.prepare_nats(directory, config=config)
    with run_server(server):
        yield server.url


@asynccontextmanager
async def executor_of(url: str, model: str) -> AsyncIterator[NatsBus]:
    user = permissions.model_user(model)
    bus = await NatsBus.connect(BusSettings(url=url, user=user, password=f"word-of-{user}"), user)
    try:
        yield bus
    finally:
        await bus.drain()


@pytest.mark.parametrize(
    "subject",
    ["omnibus.task.>", "omnibus.task.*.l-0", "omnibus.task.think-n_1-thinker", "omnibus.task.think-n_1-thinker.l-0"],
)
async def test_an_executor_of_one_model_receives_no_work_of_another(
    narrow_url: str, subject: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)

    async with executor_of(narrow_url, "m") as bus:
        await bus.subscribe(subject, lambda _: None)
        await bus._flush_connection(5)

    assert [text for text in caplog.messages if "permissions violation for subscription" in text.lower()]


async def test_an_executor_of_one_model_serves_it(narrow_url: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    tasks = {"encode-n_1-vision": "vision", "think-n_1-thinker": "thinker"}
    identity = ExecutorIdentity(
        id="n_1-EL-0", model="n.1", option="EL", node="here", tasks=tasks, credits=4, origin="", slots=4
    )
    async with executor_of(narrow_url, "n.1") as bus, connect_user(narrow_url, "gateway") as gateway:
        runners = {component: Does(put_number) for component in tasks.values()}
        executor = Executor(identity, runners, bus, _NoTensors(), 65536)  # type: ignore[arg-type]
        statuses: asyncio.Queue[bytes] = asyncio.Queue()
        await gateway.subscribe(
            subjects.event_subject(subjects.EXECUTOR), lambda delivery: statuses.put_nowait(delivery.data)
        )
        await executor.startup()
        async with asyncio.timeout(SECONDS):
            assert b"n_1-EL-0" in await statuses.get()
        refusal = asyncio.Event()
        await gateway.subscribe("omnibus.reply.>", lambda delivery: refusal.set() if delivery.refused else None)
        for task in tasks:
            gateway.publish(subjects.task_subject(task, identity.id), b"{}", reply="omnibus.reply.g.i.1.e")
        await gateway._flush_connection(5)
        await executor.drain(1.0)

    assert not refusal.is_set()
    assert not [text for text in caplog.messages if "permissions violation" in text.lower()]


class _NoTensors:
    """Stub of the sidecar, which an executor without requests does not use."""
