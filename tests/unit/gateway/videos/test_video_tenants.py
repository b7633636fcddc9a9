"""A video is visible only to its tenant. It waits with its tenant's weight."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus_gateway.tenancy.tenant import NOBODY, Tenant, acting_as
from omnibus_gateway.videos import job_payload
from tests.unit.gateway.videos.studio import (
    ASKED,
    Studio,
    connect_store,
    fetch_content,
    open_studio,
    read_video,
    request_video,
    wait_for_video,
)

A, B = Tenant("a", 3.0), Tenant("b")


@pytest.fixture
async def place(tmp_path: Path, valkey_url: str, empty_store: None) -> AsyncIterator[Studio]:
    async with open_studio(tmp_path, valkey_url) as video_studio:
        yield video_studio


async def test_another_tenant_finds_nothing(place: Studio):
    http = place.first.http
    with acting_as(A):
        id = (await request_video(place.first))["id"]
        await wait_for_video(place.first, id, status="completed")

    with acting_as(B):
        answers = [
            await http.get(f"/v1/videos/{id}"),
            await fetch_content(place.first, id),
            await http.delete(f"/v1/videos/{id}"),
            await http.get("/v1/videos", params={"after": id}),
        ]
        video_list = (await http.get("/v1/videos")).json()

    assert [each.status_code for each in answers] == [404] * 4
    assert (video_list["data"], video_list["has_more"]) == ([], False)
    for tenant in (A, NOBODY):  # the operator sees all
        with acting_as(tenant):
            assert (await read_video(place.first, id))["id"] == id
            assert (await fetch_content(place.first, id)).status_code == 200


async def test_a_list_passes_over_what_is_others(place: Studio):
    ids: dict[str, list[str]] = {"a": [], "b": []}
    for tenant in (A, B, B, A, B, B, A):
        with acting_as(tenant):
            ids[tenant.name].append((await request_video(place.first))["id"])

    with acting_as(A):
        whole = (await place.first.http.get("/v1/videos", params={"order": "asc"})).json()
        first = (await place.first.http.get("/v1/videos", params={"order": "asc", "limit": 2})).json()
        rest = (
            await place.first.http.get("/v1/videos", params={"order": "asc", "limit": 2, "after": first["last_id"]})
        ).json()

    assert [each["id"] for each in whole["data"]] == ids["a"]
    assert [each["id"] for each in first["data"] + rest["data"]] == ids["a"]
    assert (first["has_more"], rest["has_more"]) == (True, False)


async def test_who_asked_and_its_weight_are_written_down(place: Studio, valkey_url: str):
    with acting_as(A):
        id = (await request_video(place.first))["id"]

    async with connect_store(valkey_url) as store:
        job = await store.job(job_payload.KIND, id)

    assert job is not None
    assert (job_payload.decode_job(job).tenant, job_payload.decode_job(job).weight) == ("a", 3.0)


async def test_a_tenant_that_takes_all_places_leaves_those_of_others(place: Studio):
    place.toys.gate.clear()
    rules = place.first.settings
    with acting_as(A):
        for _ in range(int(rules.videos_open * rules.tenant_share)):
            await request_video(place.first)
        limit_response = await place.first.http.post("/v1/videos", json=ASKED)

    with acting_as(B):
        other_response = await place.first.http.post("/v1/videos", json=ASKED)

    assert (limit_response.status_code, other_response.status_code) == (429, 200)
    assert "one tenant may have" in limit_response.json()["error"]["message"]
    assert int(limit_response.headers["retry-after"]) >= 1
    place.toys.gate.set()


async def test_where_there_are_no_tenants_all_places_are_anybodys(tmp_path: Path, valkey_url: str, empty_store: None):
    async with open_studio(tmp_path, valkey_url, videos_open=4, hired=False) as place:
        for _ in range(4):
            await request_video(place.first)

        assert (await place.first.http.post("/v1/videos", json=ASKED)).status_code == 429
