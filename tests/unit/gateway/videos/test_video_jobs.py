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
from tests.unit.gateway.house import FILMER, House, error
from tests.unit.gateway.videos.studio import (
    ASKED,
    Studio,
    asked,
    becomes,
    fetched,
    stored,
    studio,
    taken_by_nobody,
    told,
    watched,
)
from tests.unit.sidecar import node as nodes

PATH = "/v1/videos"


async def test_any_gateway_answers_for_a_video(place: Studio):
    other = await place.gateway("gw2")
    id = (await asked(other, seed=50))["id"]

    await becomes(place.first, id, status="completed")

    assert await told(other, id) == await told(place.first, id)
    assert (await fetched(other, id)).content == (await fetched(place.first, id)).content
    assert (await place.first.http.get(PATH)).json() == (await other.http.get(PATH)).json()
    assert (await other.http.delete(f"{PATH}/{id}")).status_code == 200
    assert (await place.first.http.get(f"{PATH}/{id}")).status_code == 404


async def test_gateways_that_want_the_same_videos_make_each_once(place: Studio):
    other = await place.gateway("gw2")
    other.videos.startup()

    made = await asyncio.gather(*(asked((place.first, other)[seed % 2], seed=seed) for seed in range(10)))
    for each in made:
        await becomes(other, each["id"], status="completed")

    assert place.toys.begun == dict.fromkeys(range(10), 1)
    colours = [watched((await fetched(place.first, each["id"])).content).frames.mean() for each in made]
    assert colours == [pytest.approx(seed, abs=2) for seed in range(10)]
    await place.first.emptied()
    await other.emptied()


async def test_a_gateway_makes_a_few_at_a_time(place: Studio):
    place.toys.gate.clear()
    made = [await asked(place.first, seed=seed) for seed in range(4)]

    for each in made[:2]:
        await becomes(place.first, each["id"], progress=45)

    assert place.toys.begun == {0: 1, 1: 1}
    assert [(await told(place.first, each["id"]))["status"] for each in made[2:]] == ["queued", "queued"]
    place.toys.gate.set()
    for each in made:
        await becomes(place.first, each["id"], status="completed")


async def test_a_gateway_that_stops_gives_its_video_back(place: Studio):
    place.toys.gate.clear()
    id = (await asked(place.first, seed=5))["id"]
    await becomes(place.first, id, progress=45)
    other = await place.gateway("gw2")

    await place.first.videos.shutdown()

    assert place.toys.stopped == {5: 1}
    assert (await told(other, id))["status"] == "queued"
    place.toys.gate.set()
    other.videos.startup()
    await becomes(other, id, status="completed")
    assert place.toys.begun == {5: 2}
    assert place.files == [f"{id}.mp4", f"{id}.webp"]


async def test_a_gateway_that_starts_again_goes_on(place: Studio):
    place.toys.gate.clear()
    id = (await asked(place.first))["id"]
    await becomes(place.first, id, status="in_progress")
    await place.first.videos.shutdown()
    place.toys.gate.set()

    place.first.videos.startup()

    await becomes(place.first, id, status="completed")


async def test_a_video_whose_gateway_fell_silent_is_taken_up(place: Studio, valkey_url: str):
    await place.first.videos.shutdown()
    id = (await asked(place.first))["id"]
    seen: list[str] = []
    await place.first.bus.subscribe(subjects.end_subject("*"), lambda delivery: seen.append(delivery.subject))
    await taken_by_nobody(valkey_url, id, trace=job_payload.encode([ActiveInvocation("gone-1", ("filmer",))]))
    assert (await told(place.first, id))["status"] == "in_progress"

    place.first.videos.startup()

    await becomes(place.first, id, status="completed")
    assert seen[0] == subjects.end_subject("gone-1")
    assert len(seen) == 2


@pytest.mark.parametrize("at", ["the same gateway", "another one"])
async def test_a_video_that_is_removed_in_the_making_stops(place: Studio, at: str):
    other = await place.gateway("gw2")
    place.toys.gate.clear()
    id = (await asked(place.first, seed=5))["id"]
    await becomes(place.first, id, progress=45)

    removed = await (place.first if at == "the same gateway" else other).http.delete(f"{PATH}/{id}")

    assert removed.status_code == 200
    await nodes.until(lambda: place.toys.stopped == {5: 1})
    assert (await place.first.http.get(f"{PATH}/{id}")).status_code == 404
    await place.first.emptied()
    await nodes.until(lambda: place.files == [])
    next_one = await asked(place.first, seed=6)
    place.toys.gate.set()
    await becomes(place.first, next_one["id"], status="completed")
    assert place.toys.begun == {5: 1, 6: 1}


async def test_a_video_that_is_removed_while_it_waits_is_never_begun(place: Studio):
    place.toys.gate.clear()
    first = [await asked(place.first, seed=seed) for seed in range(2)]
    last = await asked(place.first, seed=9)

    await place.first.http.delete(f"{PATH}/{last['id']}")

    place.toys.gate.set()
    for each in first:
        await becomes(place.first, each["id"], status="completed")
    assert 9 not in place.toys.begun


async def test_what_another_gateway_has_meanwhile_stops_here(place: Studio, raw: redis.Redis):
    place.toys.gate.clear()
    id = (await asked(place.first, seed=5))["id"]
    await becomes(place.first, id, progress=45)

    await raw.hset(f"videos:job:{KIND}:{id}", "owner", "another")

    await nodes.until(lambda: place.toys.stopped == {5: 1})
    await place.first.emptied()
    assert (await told(place.first, id))["status"] == "in_progress"


async def test_a_job_that_cannot_be_read_stops_no_other(
    place: Studio, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(worker, "_RETRY_PAUSE_SECONDS", 0.05)
    broken = new_secret_id("video_")
    await raw.hset(f"videos:job:{KIND}:{broken}", "request", "half of it")
    await raw.zadd(f"videos:jobs:{KIND}:due", {broken: 1})

    made = [(await asked(place.first, seed=seed))["id"] for seed in range(3)]

    for id in made:
        await becomes(place.first, id, status="completed")
    assert "cannot be taken" in caplog.text


async def test_a_deadline_holds_while_it_is_made(tmp_path: Path, valkey_url: str, cleared: None):
    async with studio(tmp_path, valkey_url, video_deadline=0.5) as place:
        place.toys.gate.clear()
        id = (await asked(place.first, seed=5))["id"]

        failed = await becomes(place.first, id, status="failed")

        assert failed["error"]["code"] == "deadline_exceeded"
        await nodes.until(lambda: place.toys.stopped == {5: 1})
        await place.first.emptied()


async def test_a_deadline_holds_while_it_waits(tmp_path: Path, valkey_url: str, cleared: None):
    async with studio(tmp_path, valkey_url, video_deadline=0.05) as place:
        await place.first.videos.shutdown()
        id = (await asked(place.first))["id"]
        over = time.time() + 0.1
        await nodes.until(lambda: time.time() > over)

        place.first.videos.startup()

        failed = await becomes(place.first, id, status="failed")
        assert failed["error"]["code"] == "deadline_exceeded"
        assert not place.toys.begun


async def test_a_video_expires(tmp_path: Path, valkey_url: str, cleared: None):
    async with studio(tmp_path, valkey_url, video_kept=0.6) as place:
        id = (await asked(place.first))["id"]
        await becomes(place.first, id, status="completed")

        async def gone() -> bool:
            return (await place.first.http.get(f"{PATH}/{id}")).status_code == 404

        await nodes.until(gone)
        assert (await fetched(place.first, id)).status_code == 404
        assert (await place.first.http.get(PATH)).json()["data"] == []


async def test_a_store_that_lost_everything_is_told_again(
    place: Studio, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("omnibus.store.connection.REREAD_SECONDS", 0.2)
    done = await asked(place.first, seed=1)
    await becomes(place.first, done["id"], status="completed")
    place.toys.gate.clear()
    begun = [await asked(place.first, seed=seed) for seed in (2, 3)]
    waiting = await asked(place.first, seed=4)
    for each in begun:
        await becomes(place.first, each["id"], progress=45)

    await raw.flushall()

    await nodes.until(lambda: _known(place.first, 4))
    place.toys.gate.set()
    for each in (done, *begun, waiting):
        await becomes(place.first, each["id"], status="completed")
        assert (await fetched(place.first, each["id"])).status_code == 200
    assert place.toys.begun[1] == 1


async def _known(home: House, number: int) -> bool:
    return len((await home.http.get(PATH)).json()["data"]) == number


async def test_what_another_build_wrote_down_is_left_to_it(
    place: Studio, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "_RETRY_PAUSE_SECONDS", 0.05)
    now, id = time.time(), new_secret_id("video_")
    request = job_payload.encode(VideoJobSpec(model=FILMER, wish={}, v=99))
    job = JobRecord(id=id, request=request, created=now, until=now + 60, expires=now + 60)
    async with stored(valkey_url) as store:
        await store.put_job(KIND, job, JobRules(9, 9))

    mine = await asked(place.first)
    await becomes(place.first, mine["id"], status="completed")

    [listed] = (await place.first.http.get(PATH)).json()["data"]
    assert listed["id"] == mine["id"]
    shown = await place.first.http.get(f"{PATH}/{id}")
    assert (shown.status_code, error(shown)["code"]) == (500, "protocol_error")


async def test_a_gateway_without_a_plan_takes_nothing(tmp_path: Path, valkey_url: str, cleared: None):
    async with studio(tmp_path, valkey_url) as place:
        id = (await asked(place.first))["id"]
        await becomes(place.first, id, status="completed")
        plan, place.first.router.plan = place.first.router.plan, None
        async with stored(valkey_url) as store:
            record = await store.job(KIND, id)
            again = JobRecord(
                id=new_secret_id("video_"),
                request=record.request,
                created=record.created,
                until=record.until,
                expires=record.until,
            )
            await store.put_job(KIND, again, JobRules(9, 9))

        refused = await place.first.http.post(PATH, json=ASKED)

        assert refused.status_code == 503
        assert (await told(place.first, again.id))["status"] == "queued"
        place.first.router.plan = plan
        await becomes(place.first, again.id, status="completed")
