"""A system with models of long names, an app, and requests of several stages, as commands show them."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.questions import make_image, make_question
from tests.e2e.system import OMNI, ROOT, System, declare_model, start_system

APP_FILE = "an_app_with_a_name_of_some_length.py"
OPTIONS = {
    "E": {"components": ["vision", "audio"], "service": "encoder"},
    "Th": {"components": ["thinker"], "service": "llm"},
    "Ta": {"components": ["talker"], "service": "llm"},
    "V": {"components": ["vocoder"], "service": "generator"},
    "Mono": {"components": ["vision", "audio", "thinker", "talker", "vocoder"], "service": "llm"},
}


class ShownSystem(NamedTuple):
    """A system and the ids of three requests: with an image and speech, its like, and text alone."""

    system: System
    ids: tuple[str, str, str]


@pytest.fixture(scope="package")
def shown_system(tmp_path_factory: pytest.TempPathFactory, omni_checkpoint: Path) -> Iterator[ShownSystem]:
    directory = tmp_path_factory.mktemp("shown")
    apps = directory / "apps"
    apps.mkdir()
    shutil.copy(ROOT / "examples" / "shout.py", apps / APP_FILE)
    paths = [{"options": ["E", "Th", "Ta", "V"], "share": 80}, {"options": ["Mono"], "share": 20}]
    model = declare_model("qwen2_5_omni", omni_checkpoint, options=OPTIONS, paths=paths)
    flags = ("--apps-dir", str(apps), "--app", str(apps / APP_FILE))
    with start_system(directory, {OMNI: model}, *flags, OMNIBUS_GATEWAY_RECORD="stages") as system:
        yield ShownSystem(system, asyncio.run(_send_requests(system)))


async def _send_requests(system: System) -> tuple[str, str, str]:
    text = "What do you see? " * 8
    image = make_question(text, make_image(1)).messages
    speech: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}
    bodies: list[dict[str, Any]] = [{"messages": image, **speech}, {"messages": image, **speech, "temperature": 0.5}]
    bodies.append({"messages": make_question("图像里有什么? " * 20).messages})
    ids = []
    async with system.http() as http:
        for body in bodies:
            response = await http.post(
                "/v1/chat/completions",
                json={"model": OMNI, "max_tokens": 8, "seed": 3, **body},
                headers={"x-omnibus-path": "E>Th>Ta>V" if "audio" in body else "Th"},
            )
            assert response.status_code == 200, response.text
            ids.append(str(response.headers["x-request-id"]))
    for id in ids:
        await system.record(id)
    return ids[0], ids[1], ids[2]
