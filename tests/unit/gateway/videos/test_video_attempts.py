"""Attempts to make a video: few if the video itself fails them, otherwise until its deadline."""

import asyncio
import logging
from itertools import count
from pathlib import Path

import pytest
import redis.asyncio as redis

from omnibus.bus import subjects
from omnibus.errors import ArenaFull, BusUnavailable, Overloaded, Retryable, StageUnavailable
from omnibus.executor.runner import Job
from omnibus_gateway.videos import storage, worker
from tests.unit.gateway.videos.studio import Studio, open_studio, request_video, taken_by_nobody, wait_for_video
from tests.unit.sidecar import node as nodes


async def test_a_video_over_which_gateways_die_is_given_up(place: Studio, valkey_url: str):
    await place.first.videos.shutdown()
    id = (await request_video(place.first))["id"]
    for _ in range(worker.MAX_ATTEMPTS):
        await taken_by_nobody(valkey_url, id, 0.05)

    place.first.videos.startup()

    video = await wait_for_video(place.first, id, status="failed")
    assert video["error"]["code"] == "stage_failed"
    assert "begun 3 times" in video["error"]["message"]
    assert not place.toys.begun


async def test_a_video_is_made_once_the_disk_has_room_again(
    place: Studio, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(worker, "_RETRY_PAUSE_SECONDS", 0.05)
    caplog.set_level(logging.INFO)
    full, names = [f"full-{number}" for number in range(worker.MAX_ATTEMPTS + 2)], map(str, count())
    monkeypatch.setattr(storage, "token_hex", lambda _: full.pop(0) if full else next(names))
    await place.first.videos.shutdown()
    id = (await request_video(place.first))["id"]
    (place.media / "videos").mkdir(parents=True, exist_ok=True)
    for name in full:
        (place.media / "videos" / f"{id}.{name}.draft").symlink_to("/dev/full")

    place.first.videos.startup()

    await wait_for_video(place.first, id, status="completed")
    assert caplog.text.count(f"{id} is tried again: the directory of the video is full") == worker.MAX_ATTEMPTS + 2
    assert not [name for name in place.files if name.endswith(".draft")]
    await place.first.emptied()


async def test_without_executors_a_video_waits_for_them(
    tmp_path: Path,
    valkey_url: str,
    empty_store: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(worker, "_RETRY_PAUSE_SECONDS", 0.05)
    caplog.set_level(logging.INFO)
    async with open_studio(tmp_path, valkey_url, hired=False) as place:
        id = (await request_video(place.first))["id"]
        await nodes.wait_until(
            lambda: caplog.text.count(f"{id} is tried again: no live executor") > worker.MAX_ATTEMPTS
        )

        await place.start_executor()

        await wait_for_video(place.first, id, status="completed")


async def test_an_executor_at_its_limit_is_asked_again(place: Studio):
    times = 0

    async def refuse_often(job: Job) -> None:
        nonlocal times
        times += 1
        if times <= worker.MAX_ATTEMPTS + 1:
            raise Overloaded("too much", retry_after=0.01)

    place.toys.refuse = refuse_often
    id = (await request_video(place.first))["id"]

    await wait_for_video(place.first, id, status="completed")

    assert times == worker.MAX_ATTEMPTS + 2


@pytest.mark.parametrize(
    "error",
    [
        Retryable("the sidecar is away"),
        BusUnavailable("the bus is away"),
        StageUnavailable("no executor lives", stage="dit"),
        ArenaFull("others take the memory"),
    ],
    ids=str,
)
async def test_what_a_video_cannot_help_is_not_counted_against_it(
    place: Studio, monkeypatch: pytest.MonkeyPatch, error: Retryable
):
    monkeypatch.setattr(worker, "_RETRY_PAUSE_SECONDS", 0.01)
    times = 0

    async def fail_often(job: Job) -> None:
        nonlocal times
        times += 1
        if times <= worker.MAX_ATTEMPTS + 1:
            raise error

    place.toys.refuse = fail_often
    id = (await request_video(place.first))["id"]

    await wait_for_video(place.first, id, status="completed")

    assert times == worker.MAX_ATTEMPTS + 2


@pytest.mark.parametrize(("quarantine", "code", "times"), [(600.0, "bad_input", 2), (0.0, "stage_failed", 3)])
async def test_a_video_in_whose_making_executors_die_is_given_up(
    tmp_path: Path,
    valkey_url: str,
    empty_store: None,
    monkeypatch: pytest.MonkeyPatch,
    quarantine: float,
    code: str,
    times: int,
):
    monkeypatch.setattr(worker, "_RETRY_PAUSE_SECONDS", 0.05)
    async with open_studio(tmp_path, valkey_url, quarantine=quarantine) as place:
        place.toys.gate.clear()
        id = (await request_video(place.first, seed=5))["id"]

        for death in range(1, times + 1):
            await nodes.wait_until(lambda death=death: place.toys.begun == {5: death})  # type: ignore[misc]
            place.first.bus.publish(subjects.event_subject(subjects.GONE), b"filmer")
            await nodes.wait_until(lambda death=death: place.toys.stopped == {5: death})  # type: ignore[misc]
            place.first.bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")

        video = await wait_for_video(place.first, id, status="failed")
        assert video["error"]["code"] == code
        assert place.toys.begun == {5: times}


async def test_a_store_at_its_limit_lets_a_video_go_on(
    tmp_path: Path, valkey_url: str, empty_store: None, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
):
    """It rejects new jobs, but still confirms leases and ends. Started work needs no other attempt."""
    async with open_studio(tmp_path, valkey_url, video_lease=1.5) as place:
        place.toys.gate.clear()
        id = (await request_video(place.first, seed=5))["id"]
        try:
            await nodes.wait_until(lambda: place.toys.begun == {5: 1})
            await redis_client.config_set("maxmemory", 1)
            await asyncio.sleep(2 * 1.5)  # leases
            place.toys.gate.set()

            await wait_for_video(place.first, id, status="completed")
        finally:
            await redis_client.config_set("maxmemory", 0)
        assert (place.toys.begun, place.toys.stopped) == ({5: 1}, {})
