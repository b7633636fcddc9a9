"""A distribution that an operator installs: its family becomes a chat model and its app an app, and no service changes."""

import asyncio
from collections.abc import Iterator
from textwrap import dedent

import pytest

from omnibus.process.spec import PACKAGE_PATH
from tests.e2e.apps.estate import AppSystem, read_error
from tests.e2e.questions import make_audio, make_image, make_question
from tests.e2e.system import ROOT, start_system
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

MODEL = "polly"

#: The family: gateways and planners import it, so it is light.
FAMILY = """
    from omnibus.errors import BadRequest
    from omnibus.task import ChatInput, ChatOutput, CompositeTask, Encode, Think
    from omnibus.task.library import EncodeInput, ThinkInput

    FAMILY = {
        "components": ["eye", "beak"],
        "encoders": {"image": "eye"},
        "tasks": {"eye": "encode", "beak": "think"},
        "options": {
            "E": {"components": ["eye"], "service": "encoder"},
            "B": {"components": ["beak"], "service": "llm"},
        },
        "paths": [{"options": ["E", "B"]}],
        "composite": "parrot:chat",
        "engine": "parrot_engine:engine",
    }


    class Parrot(CompositeTask):
        eye: Encode
        beak: Think

        def invoke(self, request: ChatInput) -> ChatOutput:
            if "audio" in request.modalities:
                raise BadRequest("a parrot does not listen", param="messages")
            seen = [self.eye.invoke(EncodeInput(media=media)).embedding for media in request.media]
            said = self.beak.invoke(ThinkInput(messages=request.messages, items=seen, params=request.params))
            return ChatOutput(text=said.text)


    def chat(name, plan):
        return Parrot(eye=Encode(model=name, component="eye"), beak=Think(model=name, component="beak"))
"""

#: Its engine: an image becomes a number, and text is echoed.
ENGINE = """
    import json

    import numpy as np


    class Runner:
        def __init__(self, work, checkpoint):
            self.work = work
            self.checkpoint = checkpoint
            self.jobs = 0

        async def load(self): ...

        async def run(self, job):
            self.jobs += 1
            await self.work(job, self.checkpoint)

        async def close(self): ...

        def stats(self):
            return {"parameters": 0, "jobs": self.jobs}


    async def see(job, checkpoint):
        media = await job.value("media")
        await job.put("embedding", {}, np.full((2, 3), len(media.array), np.float32))


    async def say(job, checkpoint):
        messages = await job.value("messages")
        sizes = [int(item.array[0, 0]) for item in await job.value("items")]
        content = messages[-1]["content"]
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        said = " ".join(part["text"] for part in parts if part["type"] == "text")
        words = [checkpoint, *said.split(), *map(str, sizes)][: job.inputs["params"]["max_tokens"]]
        for word in words:
            await job.send("text", {"text": word + " "})
        job.close("text", {"finish_reason": "stop", "usage": {"prompt_tokens": 1, "completion_tokens": len(words)}})


    def engine(component, settings):
        return Runner({"eye": see, "beak": say}[component], settings.checkpoint)
"""

#: Its app, which asks the model.
APP = """
    '''Says it twice.'''

    from omnibus.task import ChatInput, Think
    from omnibus.task.library import ThinkInput

    BEAK = Think(model="polly", component="beak")


    async def serve(request: str) -> list[str]:
        asked = ChatInput.of(request, max_tokens=9)
        question = ThinkInput(messages=asked.messages, params=asked.params)
        return [await (await BEAK(question)).text for _ in range(2)]
"""


@pytest.fixture(scope="module")
def plugin_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppSystem]:
    """A system with the plugin installed; family and checkpoint alone declare its model."""
    directory = tmp_path_factory.mktemp("aviary")
    place = directory / "site-packages"
    info = place / "parrot-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[omnibus.families]\nparrot = parrot:FAMILY\n\n[omnibus.apps]\nsquawk = parrot_app\n"
    )
    for module, text in {"parrot": FAMILY, "parrot_engine": ENGINE, "parrot_app": APP}.items():
        (place / f"{module}.py").write_text(dedent(text))
    paths = f"{ROOT}:{PACKAGE_PATH}:{place}"
    models = {MODEL: {"family": "parrot", "checkpoint": "squawk!"}}
    with start_system(directory, models, PYTHONPATH=paths, OMNIBUS_UP_FORK_SERVER="0") as system:
        yield AppSystem(system, directory)


async def test_a_family_of_a_plugin_is_served_as_a_chat_model(plugin_system: AppSystem):
    picture = make_image(1)
    async with Watch.on(plugin_system.system) as watch, plugin_system.system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=make_question("hello there", picture).messages, max_tokens=20
        )
        stream = await client.chat.completions.create(
            model=MODEL, messages=make_question("hello there").messages, max_tokens=2, stream=True
        )
        deltas = [each.choices[0].delta.content async for each in stream if each.choices[0].delta.content]
        model_ids = [model.id for model in (await client.models.list()).data]
        await watch.end(raw.headers["x-request-id"])

    assert raw.parse().choices[0].message.content == f"squawk! hello there {len(picture[1])} "
    assert deltas == ["squawk! ", "hello "]
    assert raw.headers["x-omnibus-path"] == "E>B"
    assert model_ids == [MODEL]
    await plugin_system.system.ledger_is_empty()


async def test_what_its_model_refuses_is_400_in_its_own_words(plugin_system: AppSystem):
    async with plugin_system.system.http() as http:
        answer = await http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": make_question(make_audio(0.5)).messages}
        )

    assert (answer.status_code, read_error(answer)["message"]) == (400, "a parrot does not listen")


async def test_an_app_of_a_plugin_is_registered_by_the_name_of_its_entry_point(plugin_system: AppSystem):
    code, output = await asyncio.to_thread(plugin_system.run_cli, "app", "register", "squawk")
    try:
        answer = await plugin_system.invoke_json("parrot_app", "who is pretty")
        tasks = await plugin_system.tasks()
    finally:
        await plugin_system.unregister("parrot_app")

    assert code == 0, output
    assert answer == ["squawk! who is pretty "] * 2
    assert tasks["think-polly-beak"]["users"] == ["chat", "parrot_app"]


async def test_what_nobody_installed_is_named(plugin_system: AppSystem):
    code, output = await asyncio.to_thread(plugin_system.run_cli, "app", "register", "macaw")

    assert code == 1
    assert "unknown module or plugin app 'macaw'" in output
