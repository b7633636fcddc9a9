"""Results of two gateways without a common disk are in a bucket.

They stay available after the gateway that stored them was killed.
"""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.bucket import CREDENTIALS, running_bucket
from tests.e2e.routes.conftest import DIRECTOR, LEASE, PAINTER, single_option
from tests.e2e.routes.test_videos import (
    LONG,
    WISH,
    _find_gateway,
    create_video,
    download_film,
    in_the_middle,
    mean_difference,
    wait_for_invocation,
    wait_until_ended,
)
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.watch import Watch

pytestmark = [
    pytest.mark.e2e, pytest.mark.nightly, pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
]  # fmt: skip

#: Mean of the differences, of 255, up to which two videos count as equal: see ``tests.e2e.routes.test_videos``.
SAME = 3.0


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with running_bucket() as url:
        yield url


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory, bucket: str, image_checkpoint: Path, ltx2_checkpoint: Path
) -> Iterator[System]:
    models = {
        PAINTER: single_option(declare_model("qwen_image", image_checkpoint), "TDV"),
        DIRECTOR: single_option(declare_model("ltx2", ltx2_checkpoint), "M"),
    }
    settings = {
        "OMNIBUS_GATEWAY_STORAGE": "s3://files/e2e",
        "OMNIBUS_GATEWAY_STORAGE_ENDPOINT": bucket,
        "OMNIBUS_GATEWAY_STORAGE_RESULTS": "true",
        "OMNIBUS_GATEWAY_VIDEO_LEASE": LEASE,
        **CREDENTIALS,
    }
    with start_system(tmp_path_factory.mktemp("bucket"), models, "--gateways", "2", **settings) as new_system:
        yield new_system


@pytest.fixture
async def clients(system: System) -> AsyncIterator[tuple[openai.AsyncOpenAI, openai.AsyncOpenAI]]:
    """A client of each gateway."""
    await system.becomes_ready()
    one, other = (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) for url in system.urls
    )
    async with one, other:
        yield one, other


async def kill_gateway(system: System, place: int) -> None:
    os.kill(system.gateway(place).pid, signal.SIGKILL)


async def test_what_a_killed_gateway_made_is_there(
    system: System, clients: tuple[openai.AsyncOpenAI, openai.AsyncOpenAI], tmp_path: Path
):
    one, other = clients
    shape: dict[str, Any] = {"size": "64x64", "response_format": "url", "extra_body": {"steps": 2}}
    picture = await one.images.generate(model=PAINTER, prompt="a boat", **shape)
    assert picture.data is not None
    id = (picture.data[0].url or "").split("/")[-2]
    async with Watch.on(system) as watch:
        video = await one.videos.create(**WISH, extra_body={"steps": 4, "seed": 1})
        maker = _find_gateway(system, await wait_for_invocation(watch))
    result = await wait_until_ended(other, video.id)
    assert result.status == "completed", result.error

    await kill_gateway(system, 0)
    if maker == 1:  # the one that made the video dies as well: both come back without it
        await kill_gateway(system, 1)
        await system.becomes_ready()

    assert (await other.files.content(id)).content.startswith(b"\x89PNG")
    content = (await other.videos.download_content(video.id)).content
    async with httpx.AsyncClient(base_url=system.urls[1], timeout=30) as http:
        part = await http.get(f"/v1/videos/{video.id}/content", headers={"range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, b"ftyp")
    assert content[4:8] == b"ftyp"
    await other.files.delete(id)
    await other.videos.delete(video.id)
    await system.becomes_ready()
    for client in clients:
        with pytest.raises(openai.NotFoundError):
            await client.files.content(id)
        with pytest.raises(openai.NotFoundError):
            await client.videos.download_content(video.id)


async def test_a_video_goes_on_when_its_gateway_is_killed(
    system: System, clients: tuple[openai.AsyncOpenAI, openai.AsyncOpenAI]
):
    plain = await create_video(clients[0], steps=LONG["steps"])
    async with Watch.on(system) as watch:
        video = await clients[0].videos.create(**WISH, extra_body=LONG)
        invocation = await wait_for_invocation(watch)
        await in_the_middle(watch, invocation)
        place = _find_gateway(system, invocation)

        await kill_gateway(system, place)

        survivor = clients[1 - place]
        result = await wait_until_ended(survivor, video.id)
    assert result.status == "completed", result.error
    assert mean_difference(await download_film(survivor, result.id), await download_film(survivor, plain.id)) < SAME
    await system.becomes_ready()
    await system.ledger_is_empty(10.0)
