"""An app generates an image and has another model describe it.

Both calls are in one graph.
"""

import base64
import json
from typing import Any

import numpy as np

from omnibus.bus import subjects
from omnibus_models.world import scenes
from tests.e2e.meaning.asking import ask_picture
from tests.e2e.system import System

WISH = "a yellow square on red at the right"


async def invoke_drawing(house: System, **more: Any) -> tuple[str, dict[str, Any]]:
    async with house.http() as http:
        answer = await http.post("/v1/apps/drawing/invoke", json={"text": WISH, "drawings": 2, **more})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"], answer.json()


async def test_a_drawing_is_seen_inside_of_the_graph_as_if_a_client_had_sent_it(world_system: System) -> None:
    id, drawing = await invoke_drawing(world_system)

    assert drawing["seen"][drawing["chosen"]] == WISH
    async with world_system.http() as http:
        answer = await ask_picture(http, base64.b64decode(drawing["image"]), "What do you see?")
    assert answer.text == drawing["seen"][drawing["chosen"]]
    async with world_system.bus() as bus:
        body, _ = await world_system.record(id)
        *_, last = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, 60)]
    assert last["identical"], last


async def test_an_image_of_the_app_takes_part_and_is_there_again_in_a_replay(world_system: System) -> None:
    scene = scenes.scene_of_caption(WISH)
    assert scene is not None
    rival = scenes.encode_png(scenes.draw_scene(scene, np.random.default_rng(3)))

    id, drawing = await invoke_drawing(world_system, rival=base64.b64encode(rival).decode())

    assert drawing["seen"][2] == WISH
    async with world_system.bus() as bus:
        body, _ = await world_system.record(id)
        *_, last = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, 60)]
    assert last["identical"], last


async def test_what_is_no_file_of_media_is_refused_by_name(world_system: System) -> None:
    async with world_system.http() as http:
        answer = await http.post(
            "/v1/apps/drawing/invoke", json={"text": WISH, "rival": base64.b64encode(b"no image").decode()}
        )

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_media"
