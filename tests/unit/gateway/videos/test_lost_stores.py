"""Gateways and the store die in any order: no accepted video is lost or made twice."""

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from omnibus.errors import StoreUnavailable
from omnibus.store import JobRecord
from omnibus.up import infra
from omnibus_gateway.videos.job_payload import KIND
from tests.nightly import nightly
from tests.unit.bus.servers import Owned, running
from tests.unit.gateway.house import House
from tests.unit.gateway.videos.studio import Studio, asked, becomes, fetched, stored, studio, told
from tests.unit.sidecar import node as nodes

PATH = "/v1/videos"
#: The store ends first, second and last; nightly runs cover the other orders of equal gateways.
ORDERS = [("store", "a", "b"), ("a", "store", "b"), ("b", "a", "store")]
ORDERS += nightly(*(order for order in itertools.permutations(("a", "b", "store")) if order not in ORDERS))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the store be read again at once."""
    monkeypatch.setattr("omnibus.store.connection.REREAD_SECONDS", 0.2)
    monkeypatch.setattr("omnibus.store.connection.RETRY_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("omnibus_gateway.videos.worker._GIVE_BACK_SECONDS", 0.05)


class Site(NamedTuple):
    """A studio of two gateways that make videos, and a killable store."""

    place: Studio
    gateways: dict[str, House]
    store: Owned
    durable: bool


@asynccontextmanager
async def opened(directory: Path, durable: bool, lease: float) -> AsyncIterator[Site]:
    async with (
        running(infra.prepare_valkey(directory, durable=durable)) as owned,
        studio(directory, owned.server.url, video_lease=lease) as place,
    ):
        other = await place.gateway("gw2")
        other.videos.startup()
        yield Site(place, {"a": place.first, "b": other}, owned, durable)


@pytest.fixture(params=[False, True], ids=["in memory", "durable"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A site with short leases, for quick replacement of dead gateways."""
    async with opened(tmp_path, bool(request.param), 1.2) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["in memory", "durable"])
async def patient(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A site with leases that outlive a slow restart of the store."""
    async with opened(tmp_path, bool(request.param), 20.0) as made:
        yield made


async def restart(site: Site, name: str) -> None:
    """Kill ``name`` and start it again."""
    if name == "store":
        site.store.kill()
        await site.store.start()
        await written_back(site)
        return
    await crash(site.gateways[name])
    site.gateways[name] = await site.place.gateway(f"{name}-{time.monotonic_ns()}")
    site.gateways[name].videos.startup()
    await synchronised(site.gateways[name])


async def written_back(site: Site) -> None:
    """Wait until the gateways have restored their jobs to the store."""

    async def whole() -> bool:
        async with stored(site.store.server.url) as store:
            there = (await store.review_jobs(KIND, 512, [])).states
        return all(set(home.videos._mirror._jobs) <= set(there) for home in site.gateways.values())

    await nodes.until(whole)


async def crash(home: House) -> None:
    """Stop the gateway's work on videos without informing the store."""

    async def unreachable(*_: object, **__: object) -> bool:
        raise StoreUnavailable("its gateway is dead")

    store = home.videos._store
    store.free_job = store.end_job = store.restore_job = unreachable  # type: ignore[method-assign]
    await home.videos.shutdown()


async def synchronised(home: House) -> None:
    """Wait until a gateway has read all jobs of the store."""

    async def same() -> bool:
        try:
            there = await home.videos._store.review_jobs(KIND, 512, [])
        except StoreUnavailable:  # a connection to the killed server
            return False
        return set(there.states) <= set(home.videos._mirror._jobs)

    await nodes.until(same)


async def settled(site: Site) -> None:
    for home in site.gateways.values():
        await synchronised(home)


async def status(home: House, id: str) -> str:
    """Return the status of a video once the gateway answers; a killed store may not be back yet."""
    answers: list[str] = []

    async def answered() -> bool:
        response = await home.http.get(f"{PATH}/{id}")
        if response.status_code == 200:
            answers.append(response.json()["status"])
        return bool(answers)

    await nodes.until(answered)
    return answers[0]


async def all_completed(site: Site, ids: list[str]) -> None:
    async def completed() -> bool:
        return {await status(site.gateways["b"], id) for id in ids} == {"completed"}

    await nodes.until(completed)


async def content(home: House, id: str) -> None:
    """Wait until the gateway returns a video; its connection to a killed store may fail once."""

    async def given() -> bool:
        return (await fetched(home, id)).status_code == 200

    await nodes.until(given)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_completed_videos_stay_so_whatever_ends_in_whatever_order(patient: Site, order: tuple[str, ...]):
    ids = [(await asked(patient.gateways["ab"[seed % 2]], seed=seed))["id"] for seed in range(4)]
    for id in ids:
        await becomes(patient.gateways["a"], id, status="completed")
    await settled(patient)

    for name in order:
        await restart(patient, name)
        seen = {await status(home, id) for home in patient.gateways.values() for id in ids}
        assert seen == {"completed"}, f"after the end of {name}"

    assert patient.place.toys.begun == dict.fromkeys(range(4), 1)
    for id in ids:
        await content(patient.gateways["b"], id)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_accepted_videos_are_made_whatever_ends_in_whatever_order(site: Site, order: tuple[str, ...]):
    site.place.toys.gate.clear()
    ids = [(await asked(site.gateways["ab"[seed % 2]], seed=seed))["id"] for seed in range(8)]
    await settled(site)

    for name in order:
        await restart(site, name)
    site.place.toys.gate.set()

    await all_completed(site, ids)
    for id in ids:
        await content(site.gateways["b"], id)
    assert len((await site.gateways["a"].http.get(PATH)).json()["data"]) == len(ids)


async def test_what_is_being_made_goes_on_when_the_store_loses_it(patient: Site):
    patient.place.toys.gate.clear()
    ids = [(await asked(patient.gateways["a"], seed=seed))["id"] for seed in range(4)]
    for id in ids:
        await becomes(patient.gateways["b"], id, progress=45)

    await restart(patient, "store")
    for id in ids:
        assert await status(patient.gateways["b"], id) == "in_progress"
    patient.place.toys.gate.set()

    await all_completed(patient, ids)
    assert patient.place.toys.begun == dict.fromkeys(range(4), 1)
    assert not patient.place.toys.stopped


async def test_a_gateway_that_missed_the_end_does_not_make_the_video_again(site: Site):
    home = site.gateways["b"]
    id = (await asked(site.gateways["a"], seed=3))["id"]
    await becomes(home, id, status="completed")
    await settled(site)
    mirror = home.videos._mirror
    record = mirror._jobs[id]
    await crash(site.gateways["a"])
    await home.videos.shutdown()
    queued = JobRecord(
        id=id, request=record.request, created=record.created, until=record.until, expires=record.expires
    )
    mirror._jobs[id] = queued  # its earlier state

    site.store.kill()
    if not site.durable:
        await site.store.start()
    else:
        (Path(str(site.store.server.spec.cwd)) / "appendonlydir").rename(site.place.media / "taken-away")
        await site.store.start()
    home.videos.startup()

    assert await status(home, id) == "completed"
    assert (await told(home, id))["progress"] == 100
    assert site.place.toys.begun == {3: 1}


async def test_a_video_whose_maker_died_between_its_file_and_its_end_is_completed_by_the_next(site: Site):
    for home in site.gateways.values():
        await home.videos.shutdown()
    id = (await asked(site.gateways["a"], seed=5))["id"]
    films = site.gateways["a"].videos._films
    draft = await films.new_draft(id)
    draft.write_bytes(b"whole")
    await films.store_video(id, draft, b"picture", 60.0)

    site.gateways["b"].videos.startup()

    await becomes(site.gateways["b"], id, status="completed")
    assert not site.place.toys.begun
    assert (await fetched(site.gateways["b"], id)).content == b"whole"


async def test_a_video_that_was_removed_stays_so_when_the_store_is_lost(site: Site):
    done = (await asked(site.gateways["a"], seed=1))["id"]
    await becomes(site.gateways["a"], done, status="completed")
    site.place.toys.gate.clear()
    for seed in range(2, 8):
        waiting = (await asked(site.gateways["b"], seed=seed))["id"]
    await settled(site)
    mirror = site.gateways["b"].videos._mirror
    known = dict(mirror._jobs)
    for id in (done, waiting):
        assert (await site.gateways["a"].http.delete(f"{PATH}/{id}")).status_code == 200

    mirror._jobs.update(known)  # it missed the removals
    await restart(site, "store")
    await settled(site)

    async def forgotten() -> bool:
        answers = [await home.http.get(f"{PATH}/{id}") for home in site.gateways.values() for id in (done, waiting)]
        return all(answer.status_code == 404 for answer in answers)

    await nodes.until(forgotten)
    site.place.toys.gate.set()


async def test_an_end_that_the_store_lost_is_written_back_and_its_file_stays(patient: Site):
    patient.place.toys.gate.clear()
    id = (await asked(patient.gateways["a"], seed=5))["id"]
    await becomes(patient.gateways["b"], id, progress=45)
    for home in patient.gateways.values():
        home.videos._tasks[0].cancel()  # no task follows the store, so only the worker sees the lost job

    async with stored(patient.store.server.url) as store:
        await store._redis.flushall()
    patient.place.toys.gate.set()

    await nodes.until(lambda: patient.place.files == [f"{id}.mp4", f"{id}.webp"])
    await becomes(patient.gateways["a"], id, status="completed")
    assert patient.place.toys.begun == {5: 1}
