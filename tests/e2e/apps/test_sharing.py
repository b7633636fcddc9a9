"""Models share equal encoders, and apps share equal unit tasks."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests import models_oracle as oracle
from tests.e2e.apps import texts
from tests.e2e.apps.conftest import TWIN
from tests.e2e.apps.estate import AppSystem, wait_until
from tests.e2e.questions import VL_QUESTIONS, make_image, make_question
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

TOKENS = 20
ENCODE = "encode-qwen2_5-vl-tiny-vision"

#: Two modules may use one unit task: what they import it from makes it the same.
TASKS = """
    from omnibus.task import TaskInput, TaskOutput, UnitTask


    class Words(TaskInput):
        text: str


    class Loud(TaskOutput):
        text: str


    class Shared(UnitTask[Words, Loud]):
        async def run(self, words: Words) -> Loud:
            return Loud(text=words.text.upper())
"""
USES = """
    from shared_tasks import Shared, Words

    TASK = Shared()


    async def serve(request: str) -> str:
        return "{by}: " + await (await TASK(Words(text=request))).text
"""


@pytest.fixture
async def executor_pids(twin_models: AppSystem) -> dict[str, int]:
    """Process id of every executor of the two models."""
    return await twin_models.system.whole()


@pytest.mark.cell("transformers", "qwen2_5_vl", "tokens", shape="a/E>L")
@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_a_model_whose_encoder_is_anothers_says_what_it_says_alone(
    twin_models: AppSystem, twin_checkpoint: Path, name: str
):
    question = VL_QUESTIONS[name]
    ids, text = oracle.vl_answer(twin_checkpoint, question.plain, question.media, TOKENS)

    async with Watch.on(twin_models.system) as watch, twin_models.system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=TWIN, messages=question.messages, max_tokens=TOKENS, temperature=0
        )
        await watch.end(raw.headers["x-request-id"])

    assert raw.parse().choices[0].message.content == text
    assert watch.ids(raw.headers["x-request-id"]) == ids


async def test_its_pictures_go_to_the_others_executor(twin_models: AppSystem, executor_pids: dict[str, int]):
    question = make_question(make_image(7), "describe")
    encoders = {id: process for id, process in twin_models.executors(ENCODE).items() if id in executor_pids}
    async with Watch.on(twin_models.system) as watch, twin_models.system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=TWIN, messages=question.messages, max_tokens=2, temperature=0
        )
        await watch.end(raw.headers["x-request-id"])

    task_subjects = [one.subject for one in watch.seen if one.subject.startswith("omnibus.task.")]
    assert f"omnibus.task.{ENCODE}.qwen2_5-vl-tiny-E-0" in task_subjects
    assert "omnibus.task.think-qwen2_5-vl-tiny-b-thinker.qwen2_5-vl-tiny-b-L-0" in task_subjects
    assert raw.headers["x-omnibus-path"] == f"{VL}/E>L"
    assert len(executor_pids) == 4
    assert set(encoders) == {"qwen2_5-vl-tiny-E-0", "qwen2_5-vl-tiny-EL-0"}
    await twin_models.system.ledger_is_empty()


async def test_what_was_encoded_for_one_model_is_found_for_the_other(twin_models: AppSystem):
    question = make_question(make_image(23), "describe")

    async def kept_after(model: str, path: str) -> tuple[int, int]:
        """Cache hits and misses of the encoder after ``model`` has answered."""
        async with twin_models.system.client() as client:
            await client.chat.completions.create(
                model=model, messages=question.messages, max_tokens=2, extra_headers={"x-omnibus-path": path}
            )
        return await encoder_cache(twin_models.system)

    hits, misses = await encoder_cache(twin_models.system)
    assert await kept_after(VL, "E>L") == (hits, misses + 1)
    assert await kept_after(TWIN, f"{VL}/E>L") == (hits + 1, misses + 1)


async def encoder_cache(system: System) -> tuple[int, int]:
    """Hits and misses of the one encoder, as ``nats service stats`` shows them."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    async with asyncio.timeout(10), system.bus() as bus:
        stop = await bus.subscribe("omnibus.test.stats", lambda delivery: queue.put_nowait(delivery.data))
        bus.publish("$SRV.STATS.omnibus-E", b"", reply="omnibus.test.stats")
        cache = json.loads(await queue.get())["endpoints"][0]["data"]["cache"]
        await stop()
    return cache["hits"], cache["misses"]


def test_who_uses_what_is_listed(twin_models: AppSystem):
    code, output = twin_models.run_cli("tasks")

    assert code == 0, output
    rows = {line.split()[0]: re.split(r"  +", line) for line in output.splitlines()[1:]}
    encode, think = rows[ENCODE], rows["think-qwen2_5-vl-tiny-b-thinker"]
    assert encode[1:4] == ["encode", VL, "vision"]
    assert set(encode[4].split(", ")) == {"arena", "chat", "mllm", "poet", "router"}
    assert "qwen2_5-vl-tiny-E-0 ok" in encode[5]
    assert set(think[4].split(", ")) == {"arena", "chat"}
    assert think[5] == "qwen2_5-vl-tiny-b-L-0 ok"
    assert rows["shout"][4] == "shout"


async def own_pid(system: System, task: str) -> int:
    """Process id of the only executor of ``task``, as it reports it."""
    pid_by_id: dict[str, int] = {}
    async with asyncio.timeout(20), system.bus() as bus:
        async for status in system.statuses(bus):
            if task in status.tasks and status.state == "ready":
                pid_by_id[status.id] = status.pid
                break
    (pid,) = pid_by_id.values()
    return pid


async def test_apps_with_equal_unit_tasks_share_their_executor_to_the_last(app_system: AppSystem):
    app_system.write("shared_tasks", TASKS)
    app_system.write("first", USES, by="first")
    app_system.write("second", USES, by="second")

    await app_system.register("first")
    before = await own_pid(app_system.system, "shared")
    await app_system.register("second")
    await app_system.wait_for_version("second", 1)
    assert (await app_system.tasks())["shared"]["users"] == ["first", "second"]
    assert await own_pid(app_system.system, "shared") == before
    async with app_system.send_repeatedly("second", "hi") as answers:
        assert await app_system.invoke_json("first", "hi") == "first: HI"
        await app_system.unregister("first")
        await app_system.wait_for_version("first", 0)
        await wait_until(lambda: answers.total() > 50)
        await until_used_by(app_system, "second")
        now = answers.total()
        await wait_until(lambda: answers.total() > now + 50)
    after = await own_pid(app_system.system, "shared")
    one = app_system.executors("shared")
    await app_system.unregister("second")
    await app_system.wait_for_version("second", 0)
    await wait_until(lambda: not app_system.executors("shared"))

    assert set(answers) == {'"second: HI"'}
    assert before == after == next(iter(one.values())).pid
    assert len(one) == 1
    assert "shared" not in await app_system.tasks()


async def until_used_by(estate: AppSystem, *names: str) -> None:
    """Wait until the gateways list no other user of the unit task.

    Apps that are about to finish count as users.
    """

    async def is_used() -> bool:
        return (await estate.tasks())["shared"]["users"] == list(names)

    await wait_until(is_used)


async def test_equal_names_of_unequal_tasks_are_refused(app_system: AppSystem):
    async with app_system.app("shouting", texts.SHOUT, cls="Loudly"):
        app_system.write("other", texts.SHOUT, cls="Loudly")

        response = await app_system.ask("POST", "/v1/apps", {"source": {"module": "other", "directory": "."}})

        assert response.status_code == 409, response.text
        assert "give yours another `kind`" in response.json()["error"]["message"]
        assert await app_system.invoke_json("shouting", "hi") == "HI!"
