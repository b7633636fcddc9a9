"""An app generates an image and has another model describe it.

Both calls are in one graph.
"""

import base64
import json
from typing import Any

import numpy as np

from omnibus.bus import subjects
from omnibus_models.world import scenes
from tests.e2e.meaning.asking import look
from tests.e2e.system import System

WISH = "a yellow square on red at the right"


async def draw(house: System, **more: Any) -> tuple[str, dict[str, Any]]:
    async with house.http() as http:
        answer = await http.post("/v1/apps/drawing/invoke", json={"text": WISH, "drawings": 2, **more})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"], answer.json()


async def test_a_drawing_is_seen_inside_of_the_graph_as_if_a_client_had_sent_it(house: System) -> None:
    id, drawing = await draw(house)

    assert drawing["seen"][drawing["chosen"]] == WISH
    async with house.http() as http:
        sent = await look(http, base64.b64decode(drawing["image"]), "What do you see?")
    assert sent.text == drawing["seen"][drawing["chosen"]]
    async with house.bus() as bus:
        body, _ = await house.record(id)
        *_, last = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, 60)]
    assert last["identical"], last


async def test_an_image_of_the_app_takes_part_and_is_there_again_in_a_replay(house: System) -> None:
    scene = scenes.scene_of_caption(WISH)
    assert scene is not None
    rival = scenes.encode_png(scenes.draw_scene(scene, np.random.default_rng(3)))

    id, drawing = await draw(house, rival=base64.b64encode(rival).decode())

    assert drawing["seen"][2] == WISH
    async with house.bus() as bus:
        body, _ = await house.record(id)
        *_, last = [json.loads(part) async for part in bus.request_stream(subjects.REPLAY, body, 60)]
    assert last["identical"], last


async def test_what_is_no_file_of_media_is_refused_by_name(house: System) -> None:
    async with house.http() as http:
        answer = await http.post(
            "/v1/apps/drawing/invoke", json={"text": WISH, "rival": base64.b64encode(b"no image").decode()}
        )

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_media"
