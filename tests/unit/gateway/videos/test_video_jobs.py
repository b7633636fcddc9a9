"""Video jobs outlive gateways: one gateway at a time makes each, and any other can continue."""

import asyncio
import time
from pathlib import Path

import pytest
import redis.asyncio as redis

from omnibus.bus import subjects
from omnibus.store import JobRecord, JobRules
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.videos import job_payload, worker
from omnibus_gateway.videos.job_payload import KIND, ActiveInvocation, VideoJobSpec
from tests.unit.gateway.house import FILMER, ToyGateway, read_error_body
from tests.unit.gateway.videos.studio import (
    ASKED,
    Studio,
    connect_store,
    decode_video,
    fetch_content,
    open_studio,
    read_video,
    request_video,
    taken_by_nobody,
    wait_for_video,
)
from tests.unit.sidecar import node as nodes

PATH = "/v1/videos"


async def test_any_gateway_answers_for_a_video(place: Studio):
    other = await place.gateway("gw2")
    id = (await request_video(other, seed=50))["id"]

    await wait_for_video(place.first, id, status="completed")

    assert await read_video(other, id) == await read_video(place.first, id)
    assert (await fetch_content(other, id)).content == (await fetch_content(place.first, id)).content
    assert (await place.first.http.get(PATH)).json() == (await other.http.get(PATH)).json()
    assert (await other.http.delete(f"{PATH}/{id}")).status_code == 200
    assert (await place.first.http.get(f"{PATH}/{id}")).status_code == 404


async def test_gateways_that_want_the_same_videos_make_each_once(place: Studio):
    other = await place.gateway("gw2")
    other.videos.startup()

    jobs = await asyncio.gather(*(request_video((place.first, other)[seed % 2], seed=seed) for seed in range(10)))
    for each in jobs:
        await wait_for_video(other, each["id"], status="completed")

    assert place.toys.begun == dict.fromkeys(range(10), 1)
    colours = [decode_video((await fetch_content(place.first, each["id"])).content).frames.mean() for each in jobs]
    assert colours == [pytest.approx(seed, abs=2) for seed in range(10)]
    await place.first.emptied()
    await other.emptied()


async def test_a_gateway_makes_a_few_at_a_time(place: Studio):
    place.toys.gate.clear()
    jobs = [await request_video(place.first, seed=seed) for seed in range(4)]

    for each in jobs[:2]:
        await wait_for_video(place.first, each["id"], progress=45)

    assert place.toys.begun == {0: 1, 1: 1}
    assert [(await read_video(place.first, each["id"]))["status"] for each in jobs[2:]] == ["queued", "queued"]
    place.toys.gate.set()
    for each in jobs:
        await wait_for_video(place.first, each["id"], status="completed")


async def test_a_gateway_that_stops_gives_its_video_back(place: Studio):
    place.toys.gate.clear()
    id = (await request_video(place.first, seed=5))["id"]
    await wait_for_video(place.first, id, progress=45)
    other = await place.gateway("gw2")

    await place.first.videos.shutdown()

    assert place.toys.stopped == {5: 1}
    assert (await read_video(other, id))["status"] == "queued"
    place.toys.gate.set()
    other.videos.startup()
    await wait_for_video(other, id, status="completed")
    assert place.toys.begun == {5: 2}
    assert place.files == [f"{id}.mp4", f"{id}.webp"]


async def test_a_gateway_that_starts_again_goes_on(place: Studio):
    place.toys.gate.clear()
    id = (await request_video(place.first))["id"]
    await wait_for_video(place.first, id, status="in_progress")
    await place.first.videos.shutdown()
    place.toys.gate.set()

    place.first.videos.startup()

    await wait_for_video(place.first, id, status="completed")


async def test_a_video_whose_gateway_fell_silent_is_taken_up(place: Studio, valkey_url: str):
    await place.first.videos.shutdown()
    id = (await request_video(place.first))["id"]
    end_subjects: list[str] = []
    await place.first.bus.subscribe(subjects.end_subject("*"), lambda delivery: end_subjects.append(delivery.subject))
    await taken_by_nobody(valkey_url, id, trace=job_payload.encode([ActiveInvocation("gone-1", ("filmer",))]))
    assert (await read_video(place.first, id))["status"] == "in_progress"

    place.first.videos.startup()

    await wait_for_video(place.first, id, status="completed")
    assert end_subjects[0] == subjects.end_subject("gone-1")
    assert len(end_subjects) == 2


@pytest.mark.parametrize("at", ["the same gateway", "another one"])
async def test_a_video_that_is_removed_in_the_making_stops(place: Studio, at: str):
    other = await place.gateway("gw2")
    place.toys.gate.clear()
    id = (await request_video(place.first, seed=5))["id"]
    await wait_for_video(place.first, id, progress=45)

    response = await (place.first if at == "the same gateway" else other).http.delete(f"{PATH}/{id}")

    assert response.status_code == 200
    await nodes.wait_until(lambda: place.toys.stopped == {5: 1})
    assert (await place.first.http.get(f"{PATH}/{id}")).status_code == 404
    await place.first.emptied()
    await nodes.wait_until(lambda: place.files == [])
    next_one = await request_video(place.first, seed=6)
    place.toys.gate.set()
    await wait_for_video(place.first, next_one["id"], status="completed")
    assert place.toys.begun == {5: 1, 6: 1}


async def test_a_video_that_is_removed_while_it_waits_is_never_begun(place: Studio):
    place.toys.gate.clear()
    first = [await request_video(place.first, seed=seed) for seed in range(2)]
    last = await request_video(place.first, seed=9)

    await place.first.http.delete(f"{PATH}/{last['id']}")

    place.toys.gate.set()
    for each in first:
        await wait_for_video(place.first, each["id"], status="completed")
    assert 9 not in place.toys.begun


async def test_what_another_gateway_has_meanwhile_stops_here(place: Studio, redis_client: redis.Redis):
    place.toys.gate.clear()
    id = (await request_video(place.first, seed=5))["id"]
    await wait_for_video(place.first, id, progress=45)

    await redis_client.hset(f"videos:job:{KIND}:{id}", "owner", "another")

    await nodes.wait_until(lambda: place.toys.stopped == {5: 1})
    await place.first.emptied()
    assert (await read_video(place.first, id))["status"] == "in_progress"


async def test_a_job_that_cannot_be_read_stops_no_other(
    place: Studio, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(worker, "_RETRY_PAUSE_SECONDS", 0.05)
    broken_id = new_secret_id("video_")
    await redis_client.hset(f"videos:job:{KIND}:{broken_id}", "request", "half of it")
    await redis_client.zadd(f"videos:jobs:{KIND}:due", {broken_id: 1})

    ids = [(await request_video(place.first, seed=seed))["id"] for seed in range(3)]

    for id in ids:
        await wait_for_video(place.first, id, status="completed")
    assert "cannot be taken" in caplog.text


async def test_a_deadline_holds_while_it_is_made(tmp_path: Path, valkey_url: str, empty_store: None):
    async with open_studio(tmp_path, valkey_url, video_deadline=0.5) as place:
        place.toys.gate.clear()
        id = (await request_video(place.first, seed=5))["id"]

        video = await wait_for_video(place.first, id, status="failed")

        assert video["error"]["code"] == "deadline_exceeded"
        await nodes.wait_until(lambda: place.toys.stopped == {5: 1})
        await place.first.emptied()


async def test_a_deadline_holds_while_it_waits(tmp_path: Path, valkey_url: str, empty_store: None):
    async with open_studio(tmp_path, valkey_url, video_deadline=0.05) as place:
        await place.first.videos.shutdown()
        id = (await request_video(place.first))["id"]
        over = time.time() + 0.1
        await nodes.wait_until(lambda: time.time() > over)

        place.first.videos.startup()

        video = await wait_for_video(place.first, id, status="failed")
        assert video["error"]["code"] == "deadline_exceeded"
        assert not place.toys.begun


async def test_a_video_expires(tmp_path: Path, valkey_url: str, empty_store: None):
    async with open_studio(tmp_path, valkey_url, video_kept=0.6) as place:
        id = (await request_video(place.first))["id"]
        await wait_for_video(place.first, id, status="completed")

        async def is_gone() -> bool:
            return (await place.first.http.get(f"{PATH}/{id}")).status_code == 404

        await nodes.wait_until(is_gone)
        assert (await fetch_content(place.first, id)).status_code == 404
        assert (await place.first.http.get(PATH)).json()["data"] == []


async def test_a_store_that_lost_everything_is_told_again(
    place: Studio, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("omnibus.store.connection.REREAD_SECONDS", 0.2)
    first_video = await request_video(place.first, seed=1)
    await wait_for_video(place.first, first_video["id"], status="completed")
    place.toys.gate.clear()
    slow_videos = [await request_video(place.first, seed=seed) for seed in (2, 3)]
    waiting = await request_video(place.first, seed=4)
    for each in slow_videos:
        await wait_for_video(place.first, each["id"], progress=45)

    await redis_client.flushall()

    await nodes.wait_until(lambda: _lists_videos(place.first, 4))
    place.toys.gate.set()
    for each in (first_video, *slow_videos, waiting):
        await wait_for_video(place.first, each["id"], status="completed")
        assert (await fetch_content(place.first, each["id"])).status_code == 200
    assert place.toys.begun[1] == 1


async def _lists_videos(home: ToyGateway, number: int) -> bool:
    return len((await home.http.get(PATH)).json()["data"]) == number


async def test_what_another_build_wrote_down_is_left_to_it(
    place: Studio, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "_RETRY_PAUSE_SECONDS", 0.05)
    now, id = time.time(), new_secret_id("video_")
    request = job_payload.encode(VideoJobSpec(model=FILMER, wish={}, v=99))
    job = JobRecord(id=id, request=request, created=now, until=now + 60, expires=now + 60)
    async with connect_store(valkey_url) as store:
        await store.put_job(KIND, job, JobRules(9, 9))

    own_video = await request_video(place.first)
    await wait_for_video(place.first, own_video["id"], status="completed")

    [video] = (await place.first.http.get(PATH)).json()["data"]
    assert video["id"] == own_video["id"]
    response = await place.first.http.get(f"{PATH}/{id}")
    assert (response.status_code, read_error_body(response)["code"]) == (500, "protocol_error")


async def test_a_gateway_without_a_plan_takes_nothing(tmp_path: Path, valkey_url: str, empty_store: None):
    async with open_studio(tmp_path, valkey_url) as place:
        id = (await request_video(place.first))["id"]
        await wait_for_video(place.first, id, status="completed")
        plan, place.first.router.plan = place.first.router.plan, None
        async with connect_store(valkey_url) as store:
            record = await store.job(KIND, id)
            again = JobRecord(
                id=new_secret_id("video_"),
                request=record.request,
                created=record.created,
                until=record.until,
                expires=record.until,
            )
            await store.put_job(KIND, again, JobRules(9, 9))

        response = await place.first.http.post(PATH, json=ASKED)

        assert response.status_code == 503
        assert (await read_video(place.first, again.id))["status"] == "queued"
        place.first.router.plan = plan
        await wait_for_video(place.first, again.id, status="completed")
