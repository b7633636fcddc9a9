"""Two gateways on two nodes serve each other's media.

Each has its own media directory.
"""

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nodes.conftest import DIRECTOR, PAINTER
from tests.e2e.nodes.test_same_answers import nothing_is_left
from tests.e2e.omni.speech import make_speech_body
from tests.e2e.questions import OMNI_QUESTIONS, VL_QUESTIONS
from tests.e2e.system import VL, System

pytestmark = pytest.mark.e2e

FILM: dict[str, Any] = {
    "model": DIRECTOR, "prompt": "a cat sits on the mat", "seconds": "0.375", "size": "64x32", "steps": 4, "seed": 1,
}  # fmt: skip
#: Replays until each of two gateways has most probably run one.
REPLAYS = 24


def media_directory(system: System, gateway: int) -> Path:
    return Path(system.state.directory) / (f"media-{gateway}" if gateway else "media")


def has_content(system: System, gateway: int, digest: str) -> bool:
    """Return True if a gateway stores recorded content in its own directory."""
    return (media_directory(system, gateway) / digest[:2] / digest).is_file()


async def replay_record(system: System, body: bytes) -> dict[str, Any]:
    """First and last reply to a replay, with its node and comparison."""
    async with system.bus() as bus:
        replies = [json.loads(part) async for part in bus.request_stream("omnibus.replay", body, 60.0)]
    return {**replies[0], **replies[-1]}


async def fetch_content(system: System, gateway: int, path: str, **headers: str) -> bytes:
    async with system.http(gateway) as http:
        answer = await http.get(path, headers=headers)
    assert answer.status_code in (200, 206), answer.text
    return answer.content


async def read_status(system: System, gateway: int, path: str) -> int:
    async with system.http(gateway) as http:
        return (await http.get(path)).status_code


async def test_a_request_with_an_image_is_replayed_at_a_gateway_that_never_had_it(nodes: System):
    question = VL_QUESTIONS["image"]
    [(_, image)] = [part for part in question.parts if part[0] == "image"]
    digest = sha256(image).hexdigest()
    for gateway in (0, 1):  # earlier tests have sent it to both
        (media_directory(nodes, gateway) / digest[:2] / digest).unlink(missing_ok=True)
    body = {"model": VL, "messages": question.messages, "max_tokens": 12, "temperature": 0, "seed": 1}
    async with nodes.http(0) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    id = answer.headers["x-request-id"]
    document, _ = await nodes.record(id)
    assert (has_content(nodes, 0, digest), has_content(nodes, 1, digest)) == (True, False)

    replays = [await replay_record(nodes, document) for _ in range(REPLAYS)]

    assert [replay["identical"] for replay in replays] == [True] * REPLAYS
    assert len({replay["id"].partition("-")[0] for replay in replays}) == 2
    assert has_content(nodes, 1, digest)
    await nothing_is_left(nodes)


async def test_a_file_is_fetched_and_removed_at_the_other_gateway(nodes: System):
    body = {"model": PAINTER, "prompt": "a boat", "size": "64x64", "steps": 2, "response_format": "url"}
    async with nodes.http(0) as http:
        images = (await http.post("/v1/images/generations", json=body)).json()
    path = "/v1/files/" + images["data"][0]["url"].split("/")[-2]

    picture = await fetch_content(nodes, 1, f"{path}/content")

    assert picture.startswith(b"\x89PNG")
    assert picture == await fetch_content(nodes, 0, f"{path}/content")
    async with nodes.http(1) as http:
        assert (await http.delete(path)).status_code == 200
    assert [await read_status(nodes, gateway, path) for gateway in (0, 1)] == [404, 404]
    await nothing_is_left(nodes)


async def test_the_sound_of_a_spoken_answer_is_fetched_at_the_other_gateway(nodes: System):
    async with nodes.http(0) as http:
        completion = (await http.post("/v1/chat/completions", json=make_speech_body(OMNI_QUESTIONS["text"]))).json()
    path = f"/v1/files/{completion['choices'][0]['message']['audio']['id']}/content"

    sounds = [await fetch_content(nodes, gateway, path) for gateway in (1, 0)]

    assert sounds[0].startswith(b"RIFF")
    assert sounds[0] == sounds[1]
    await nothing_is_left(nodes)


async def test_a_video_is_fetched_at_both_gateways_and_removed_from_both(nodes: System):
    async with nodes.http(0) as http:
        id = (await http.post("/v1/videos", json=FILM)).json()["id"]
        async with asyncio.timeout(60.0):
            while (job := (await http.get(f"/v1/videos/{id}")).json())["status"] != "completed":
                assert job["status"] != "failed", job
                await asyncio.sleep(0.1)
    paths = [media_directory(nodes, gateway) / "videos" / f"{id}.mp4" for gateway in (0, 1)]
    assert [path.is_file() for path in paths].count(True) == 1  # at the gateway that saw to it

    films = [await fetch_content(nodes, gateway, f"/v1/videos/{id}/content") for gateway in (0, 1)]
    parts = [await fetch_content(nodes, gateway, f"/v1/videos/{id}/content", range="bytes=4-7") for gateway in (0, 1)]
    pictures = [await fetch_content(nodes, gateway, f"/v1/videos/{id}/content?variant=thumbnail") for gateway in (0, 1)]

    assert films[0] == films[1]
    assert parts == [b"ftyp", b"ftyp"]
    assert pictures[0] == pictures[1]
    async with nodes.http(1) as http:
        assert (await http.delete(f"/v1/videos/{id}")).status_code == 200
    async with asyncio.timeout(20.0):
        while any(path.exists() for path in paths):  # each gateway removes its own
            await asyncio.sleep(0.05)
    await nothing_is_left(nodes)
