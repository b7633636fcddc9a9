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
from tests.nightly import mark_nightly
from tests.unit.bus.servers import Owned, run_owned_server
from tests.unit.gateway.house import ToyGateway
from tests.unit.gateway.videos.studio import (
    Studio,
    connect_store,
    fetch_content,
    open_studio,
    read_video,
    request_video,
    wait_for_video,
)
from tests.unit.sidecar import node as nodes

PATH = "/v1/videos"
#: The store ends first, second and last; nightly runs cover the other orders of equal gateways.
ORDERS = [("store", "a", "b"), ("a", "store", "b"), ("b", "a", "store")]
ORDERS += mark_nightly(*(order for order in itertools.permutations(("a", "b", "store")) if order not in ORDERS))


@pytest.fixture(autouse=True)
def reread_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the store be read again at once."""
    monkeypatch.setattr("omnibus.store.connection.REREAD_SECONDS", 0.2)
    monkeypatch.setattr("omnibus.store.connection.RETRY_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("omnibus_gateway.videos.worker._GIVE_BACK_SECONDS", 0.05)


class StudioSite(NamedTuple):
    """A studio of two gateways that make videos, and a killable store."""

    place: Studio
    gateways: dict[str, ToyGateway]
    store: Owned
    durable: bool


@asynccontextmanager
async def open_site(directory: Path, durable: bool, lease: float) -> AsyncIterator[StudioSite]:
    async with (
        run_owned_server(infra.prepare_valkey(directory, durable=durable)) as store_server,
        open_studio(directory, store_server.server.url, video_lease=lease) as place,
    ):
        other = await place.gateway("gw2")
        other.videos.startup()
        yield StudioSite(place, {"a": place.first, "b": other}, store_server, durable)


@pytest.fixture(params=[False, True], ids=["in memory", "durable"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[StudioSite]:
    """A site with short leases, for quick replacement of dead gateways."""
    async with open_site(tmp_path, bool(request.param), 1.2) as studio_site:
        yield studio_site


@pytest.fixture(params=[False, True], ids=["in memory", "durable"])
async def patient_site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[StudioSite]:
    """A site with leases that outlive a slow restart of the store."""
    async with open_site(tmp_path, bool(request.param), 20.0) as studio_site:
        yield studio_site


async def restart_part(site: StudioSite, name: str) -> None:
    """Kill ``name`` and start it again."""
    if name == "store":
        site.store.kill()
        await site.store.start()
        await written_back(site)
        return
    await crash_gateway(site.gateways[name])
    site.gateways[name] = await site.place.gateway(f"{name}-{time.monotonic_ns()}")
    site.gateways[name].videos.startup()
    await wait_until_synchronised(site.gateways[name])


async def written_back(site: StudioSite) -> None:
    """Wait until the gateways have restored their jobs to the store."""

    async def is_written_back() -> bool:
        async with connect_store(site.store.server.url) as store:
            there = (await store.review_jobs(KIND, 512, [])).states
        return all(set(home.videos._mirror._jobs) <= set(there) for home in site.gateways.values())

    await nodes.wait_until(is_written_back)


async def crash_gateway(home: ToyGateway) -> None:
    """Stop the gateway's work on videos without informing the store."""

    async def raise_unreachable(*_: object, **__: object) -> bool:
        raise StoreUnavailable("its gateway is dead")

    store = home.videos._store
    store.free_job = store.end_job = store.restore_job = raise_unreachable  # type: ignore[method-assign]
    await home.videos.shutdown()


async def wait_until_synchronised(home: ToyGateway) -> None:
    """Wait until a gateway has read all jobs of the store."""

    async def has_all_jobs() -> bool:
        try:
            there = await home.videos._store.review_jobs(KIND, 512, [])
        except StoreUnavailable:  # a connection to the killed server
            return False
        return set(there.states) <= set(home.videos._mirror._jobs)

    await nodes.wait_until(has_all_jobs)


async def wait_until_settled(site: StudioSite) -> None:
    for home in site.gateways.values():
        await wait_until_synchronised(home)


async def read_status(home: ToyGateway, id: str) -> str:
    """Return the status of a video once the gateway answers; a killed store may not be back yet."""
    answers: list[str] = []

    async def has_answered() -> bool:
        response = await home.http.get(f"{PATH}/{id}")
        if response.status_code == 200:
            answers.append(response.json()["status"])
        return bool(answers)

    await nodes.wait_until(has_answered)
    return answers[0]


async def all_completed(site: StudioSite, ids: list[str]) -> None:
    async def are_completed() -> bool:
        return {await read_status(site.gateways["b"], id) for id in ids} == {"completed"}

    await nodes.wait_until(are_completed)


async def wait_for_content(home: ToyGateway, id: str) -> None:
    """Wait until the gateway returns a video; its connection to a killed store may fail once."""

    async def is_returned() -> bool:
        return (await fetch_content(home, id)).status_code == 200

    await nodes.wait_until(is_returned)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_completed_videos_stay_so_whatever_ends_in_whatever_order(
    patient_site: StudioSite, order: tuple[str, ...]
):
    ids = [(await request_video(patient_site.gateways["ab"[seed % 2]], seed=seed))["id"] for seed in range(4)]
    for id in ids:
        await wait_for_video(patient_site.gateways["a"], id, status="completed")
    await wait_until_settled(patient_site)

    for name in order:
        await restart_part(patient_site, name)
        statuses = {await read_status(home, id) for home in patient_site.gateways.values() for id in ids}
        assert statuses == {"completed"}, f"after the end of {name}"

    assert patient_site.place.toys.begun == dict.fromkeys(range(4), 1)
    for id in ids:
        await wait_for_content(patient_site.gateways["b"], id)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_accepted_videos_are_made_whatever_ends_in_whatever_order(site: StudioSite, order: tuple[str, ...]):
    site.place.toys.gate.clear()
    ids = [(await request_video(site.gateways["ab"[seed % 2]], seed=seed))["id"] for seed in range(8)]
    await wait_until_settled(site)

    for name in order:
        await restart_part(site, name)
    site.place.toys.gate.set()

    await all_completed(site, ids)
    for id in ids:
        await wait_for_content(site.gateways["b"], id)
    assert len((await site.gateways["a"].http.get(PATH)).json()["data"]) == len(ids)


async def test_what_is_being_made_goes_on_when_the_store_loses_it(patient_site: StudioSite):
    patient_site.place.toys.gate.clear()
    ids = [(await request_video(patient_site.gateways["a"], seed=seed))["id"] for seed in range(4)]
    for id in ids:
        await wait_for_video(patient_site.gateways["b"], id, progress=45)

    await restart_part(patient_site, "store")
    for id in ids:
        assert await read_status(patient_site.gateways["b"], id) == "in_progress"
    patient_site.place.toys.gate.set()

    await all_completed(patient_site, ids)
    assert patient_site.place.toys.begun == dict.fromkeys(range(4), 1)
    assert not patient_site.place.toys.stopped


async def test_a_gateway_that_missed_the_end_does_not_make_the_video_again(site: StudioSite):
    home = site.gateways["b"]
    id = (await request_video(site.gateways["a"], seed=3))["id"]
    await wait_for_video(home, id, status="completed")
    await wait_until_settled(site)
    mirror = home.videos._mirror
    record = mirror._jobs[id]
    await crash_gateway(site.gateways["a"])
    await home.videos.shutdown()
    queued_job = JobRecord(
        id=id, request=record.request, created=record.created, until=record.until, expires=record.expires
    )
    mirror._jobs[id] = queued_job  # its earlier state

    site.store.kill()
    if not site.durable:
        await site.store.start()
    else:
        (Path(str(site.store.server.spec.cwd)) / "appendonlydir").rename(site.place.media / "taken-away")
        await site.store.start()
    home.videos.startup()

    assert await read_status(home, id) == "completed"
    assert (await read_video(home, id))["progress"] == 100
    assert site.place.toys.begun == {3: 1}


async def test_a_video_whose_maker_died_between_its_file_and_its_end_is_completed_by_the_next(site: StudioSite):
    for home in site.gateways.values():
        await home.videos.shutdown()
    id = (await request_video(site.gateways["a"], seed=5))["id"]
    films = site.gateways["a"].videos._films
    draft = await films.new_draft(id)
    draft.write_bytes(b"whole")
    await films.store_video(id, draft, b"picture", 60.0)

    site.gateways["b"].videos.startup()

    await wait_for_video(site.gateways["b"], id, status="completed")
    assert not site.place.toys.begun
    assert (await fetch_content(site.gateways["b"], id)).content == b"whole"


async def test_a_video_that_was_removed_stays_so_when_the_store_is_lost(site: StudioSite):
    completed_id = (await request_video(site.gateways["a"], seed=1))["id"]
    await wait_for_video(site.gateways["a"], completed_id, status="completed")
    site.place.toys.gate.clear()
    for seed in range(2, 8):
        waiting = (await request_video(site.gateways["b"], seed=seed))["id"]
    await wait_until_settled(site)
    mirror = site.gateways["b"].videos._mirror
    jobs = dict(mirror._jobs)
    for id in (completed_id, waiting):
        assert (await site.gateways["a"].http.delete(f"{PATH}/{id}")).status_code == 200

    mirror._jobs.update(jobs)  # it missed the removals
    await restart_part(site, "store")
    await wait_until_settled(site)

    async def are_forgotten() -> bool:
        answers = [
            await home.http.get(f"{PATH}/{id}") for home in site.gateways.values() for id in (completed_id, waiting)
        ]
        return all(answer.status_code == 404 for answer in answers)

    await nodes.wait_until(are_forgotten)
    site.place.toys.gate.set()


async def test_an_end_that_the_store_lost_is_written_back_and_its_file_stays(patient_site: StudioSite):
    patient_site.place.toys.gate.clear()
    id = (await request_video(patient_site.gateways["a"], seed=5))["id"]
    await wait_for_video(patient_site.gateways["b"], id, progress=45)
    for home in patient_site.gateways.values():
        home.videos._tasks[0].cancel()  # no task follows the store, so only the worker sees the lost job

    async with connect_store(patient_site.store.server.url) as store:
        await store._redis.flushall()
    patient_site.place.toys.gate.set()

    await nodes.wait_until(lambda: patient_site.place.files == [f"{id}.mp4", f"{id}.webp"])
    await wait_for_video(patient_site.gateways["a"], id, status="completed")
    assert patient_site.place.toys.begun == {5: 1}
