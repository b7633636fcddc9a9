"""Two gateways without a common directory: a video belongs to its tenant at both, and is removed from both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from omnibus.errors import NotFound
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus_gateway.media.peers import FileResponder, FileSource, MediaPeers
from omnibus_gateway.tenancy.tenant import Tenant, acting_as
from omnibus_gateway.videos.service import Videos
from omnibus_gateway.videos.storage import VIDEO
from tests.unit.gateway.videos.studio import (
    Studio,
    connect_store,
    fetch_content,
    open_studio,
    request_video,
    wait_for_video,
)
from tests.unit.sidecar.node import wait_until

A, B = Tenant("a"), Tenant("b")


@pytest.fixture
async def place(tmp_path: Path, valkey_url: str, empty_store: None) -> AsyncIterator[Studio]:
    async with open_studio(tmp_path, valkey_url) as video_studio:
        yield video_studio


@pytest.fixture
async def other_videos(place: Studio, tmp_path: Path, valkey_url: str) -> AsyncIterator[Videos]:
    """Videos of a second gateway, which makes none."""
    first = place.first
    peers = MediaPeers("gw2", first.bus, first.tensors, lambda: 1)
    settings = GatewaySettings(media_dir=str(tmp_path / "elsewhere"))
    responder = FileResponder("gw", first.bus, first.tensors, {VIDEO: FileSource(first.videos.locate)})
    await responder.startup()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(responder.shutdown)
        videos = Videos(settings, await stack.enter_async_context(connect_store(valkey_url)), first.runs, peers)
        following = asyncio.get_running_loop().create_task(videos._follow_jobs())  # without its worker
        stack.push_async_callback(videos.shutdown)
        stack.push_async_callback(until_cancelled, following)
        yield videos


async def test_a_video_is_its_tenants_at_both_gateways(place: Studio, other_videos: Videos, tmp_path: Path):
    with acting_as(A):
        id = (await request_video(place.first))["id"]
        await wait_for_video(place.first, id, status="completed")
        film = (await fetch_content(place.first, id)).content

    with acting_as(B), pytest.raises(NotFound):
        await other_videos.find_content(id, "video")
    assert not (tmp_path / "elsewhere").exists()  # nothing was read for another tenant

    with acting_as(A):
        job, path = await other_videos.find_content(id, "video")
    assert isinstance(path, Path)
    assert (job.id, path.parent.parent) == (id, tmp_path / "elsewhere")
    assert path.read_bytes() == film


@pytest.mark.parametrize("at", ["first", "elsewhere"])
async def test_what_is_removed_at_one_gateway_leaves_the_disks_of_both(
    place: Studio, other_videos: Videos, tmp_path: Path, at: str
):
    id = (await request_video(place.first))["id"]
    await wait_for_video(place.first, id, status="completed")
    _, copy = await other_videos.find_content(id, "video")
    assert isinstance(copy, Path)
    await wait_until(lambda: id in other_videos._mirror)

    await {"first": place.first.videos, "elsewhere": other_videos}[at].remove_video(id)

    await wait_until(lambda: not copy.exists() and place.files == [])
    with pytest.raises(NotFound):
        await other_videos.find_content(id, "video")
