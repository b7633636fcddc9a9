"""A video is its tenant's: others do not see it, by its id or in the list, and it waits with its tenant's weight."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.gateway.tenancy.tenant import NOBODY, Tenant, acting
from services.gateway.videos import work
from tests.unit.gateway.videos.studio import Studio, asked, becomes, fetched, stored, studio, told

A, B = Tenant("a", 3.0), Tenant("b")


@pytest.fixture
async def place(tmp_path: Path, valkey_url: str, cleared: None) -> AsyncIterator[Studio]:
    async with studio(tmp_path, valkey_url) as made:
        yield made


async def test_another_tenant_finds_nothing(place: Studio):
    http = place.first.http
    with acting(A):
        id = (await asked(place.first))["id"]
        await becomes(place.first, id, status="completed")

    with acting(B):
        answers = [
            await http.get(f"/v1/videos/{id}"),
            await fetched(place.first, id),
            await http.delete(f"/v1/videos/{id}"),
            await http.get("/v1/videos", params={"after": id}),
        ]
        listed = (await http.get("/v1/videos")).json()

    assert [each.status_code for each in answers] == [404] * 4
    assert (listed["data"], listed["has_more"]) == ([], False)
    for who in (A, NOBODY):  # the operator sees all
        with acting(who):
            assert (await told(place.first, id))["id"] == id
            assert (await fetched(place.first, id)).status_code == 200


async def test_a_list_passes_over_what_is_others(place: Studio):
    ids: dict[str, list[str]] = {"a": [], "b": []}
    for who in (A, B, B, A, B, B, A):
        with acting(who):
            ids[who.name].append((await asked(place.first))["id"])

    with acting(A):
        whole = (await place.first.http.get("/v1/videos", params={"order": "asc"})).json()
        first = (await place.first.http.get("/v1/videos", params={"order": "asc", "limit": 2})).json()
        rest = (
            await place.first.http.get("/v1/videos", params={"order": "asc", "limit": 2, "after": first["last_id"]})
        ).json()

    assert [each["id"] for each in whole["data"]] == ids["a"]
    assert [each["id"] for each in first["data"] + rest["data"]] == ids["a"]
    assert (first["has_more"], rest["has_more"]) == (True, False)


async def test_who_asked_and_its_weight_are_written_down(place: Studio, valkey_url: str):
    with acting(A):
        id = (await asked(place.first))["id"]

    async with stored(valkey_url) as store:
        job = await store.job(work.KIND, id)

    assert job is not None
    assert (work.decode(job).tenant, work.decode(job).weight) == ("a", 3.0)
