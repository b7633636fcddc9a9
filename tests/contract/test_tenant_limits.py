"""Tenant limits in a real store are atomic across gateways."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.errors import LimitReached, OmnibusError, Overloaded, StoreFull, TooLarge
from omnibus.settings import StoreSettings
from omnibus.store import (
    BackgroundPlaces,
    ConversationLimits,
    ConversationRecord,
    JobRecord,
    JobRules,
    ResponseRecord,
    Store,
    TenantAccount,
)
from omnibus.up import infra
from tests.unit.bus.servers import run_owned_server

RECORD = ResponseRecord(
    id="resp_1", model="m", created=1700.0, deadline=1760.0, seed=7, request=b"{}", input=b"[]", tenant="ann"
)
ANN, BOB = TenantAccount("ann", 10_000), TenantAccount("bob", 10_000)


def make_response(number: int, tenant: str = "ann", nbytes: int = 0, background: bool = False) -> ResponseRecord:
    id, input = f"resp_{tenant}_{number}", b'"' + b"x" * nbytes + b'"'
    return msgspec.structs.replace(
        RECORD, id=id, tenant=tenant, created=1700.0 + number, input=input, background=background
    )


async def bytes_held(store: Store, tenant: str) -> int:
    total = await store.reserve(TenantAccount(tenant), "probe:1", 0, 1.0)
    await store.release(tenant, "probe:1")
    return total.bytes


async def count_outcomes(*calls) -> Counter[str]:
    """Count the outcomes of concurrent calls."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(not isinstance(each, BaseException) or isinstance(each, OmnibusError) for each in results)
    return Counter(type(each).__name__ if isinstance(each, OmnibusError) else "stored" for each in results)


@pytest.fixture
async def gateways(store: Store, valkey_url: str):
    """Two connections to the same store."""
    other = Store(StoreSettings(url=valkey_url, prefix="test"))
    yield store, other
    await other.close()


async def test_gateways_together_begin_no_more_responses_in_the_background_than_a_tenant_may(gateways):
    places = BackgroundPlaces(16, 4)

    calls = [
        gateways[number % 2].put_response(make_response(number, background=True), "gw", b"", 60, 100, places=places)
        for number in range(20)
    ]

    assert await count_outcomes(*calls) == {"stored": 4, "Overloaded": 16}
    await gateways[0].put_response(make_response(0, "bob", background=True), "gw", b"", 60, 100, places=places)
    assert await gateways[0].count_open_responses() == 5


async def test_a_place_in_the_background_is_free_again_when_its_response_ends_is_deleted_or_expires(store: Store):
    places = BackgroundPlaces(16, 1)

    async def begin_response(number: int, seconds: float = 60) -> ResponseRecord:
        new_response = make_response(number, background=True)
        await store.put_response(new_response, "gw", b"", seconds, 100, places=places)
        return new_response

    await store.end_response(await begin_response(1), "gw", b"{}", 60)
    await store.drop_response(await begin_response(2))
    await begin_response(3, seconds=0.2)
    with pytest.raises(Overloaded, match="of your background responses"):
        await begin_response(4)
    await asyncio.sleep(0.3)
    await begin_response(5)


async def test_when_all_places_are_taken_a_tenant_with_less_than_its_part_still_gets_one(store: Store):
    places = BackgroundPlaces(8, 4)
    for tenant in ("ann", "bob"):
        for number in range(4):
            await store.put_response(make_response(number, tenant, background=True), "gw", b"", 60, 100, places=places)

    counts = [
        await count_outcomes(
            store.put_response(make_response(number, "cid", background=True), "gw", b"", 60, 100, places=places)
        )
        for number in range(4)
    ]

    assert counts == [{"stored": 1}, {"stored": 1}, {"Overloaded": 1}, {"Overloaded": 1}]
    with pytest.raises(Overloaded):
        await store.put_response(make_response(9, "ann", background=True), "gw", b"", 60, 100, places=places)


async def test_gateways_together_store_no_more_bytes_than_a_tenant_may(gateways):
    record = ConversationRecord("conv_1", 1700.0, {}, "ann")
    await gateways[0].put_conversation(record, 60, 10, ANN)
    limits = ConversationLimits(2048, 1 << 20)

    calls = [
        gateways[number % 2].extend_conversation(record, {f"i{number}": b"x" * 1000}, 60, limits, ANN)
        for number in range(40)
    ]
    counts = await count_outcomes(*calls)

    assert set(counts) == {"stored", "LimitReached"}
    assert 6 <= counts["stored"] <= 9
    assert await bytes_held(gateways[0], "ann") <= 10_000
    with pytest.raises(LimitReached, match="TENANT_BYTES"):
        await gateways[1].reserve(ANN, "secret:1", 5000, 60)
    await gateways[1].reserve(BOB, "secret:1", 5000, 60)  # another tenant's
    assert await gateways[0].drop_conversation(record)
    assert await bytes_held(gateways[0], "ann") == 0


async def test_what_expires_or_is_deleted_leaves_room(store: Store):
    await store.reserve(ANN, "audio:1", 9000, 0.2)
    with pytest.raises(LimitReached):
        await store.reserve(ANN, "audio:2", 2000, 60)
    await asyncio.sleep(0.3)

    assert await store.reserve(ANN, "audio:2", 2000, 60) == (1, 2000)
    assert await store.reserve(ANN, "audio:2", 3000, 60) == (1, 3000)
    assert await store.reserve(ANN, "stream:1", 1000, 60) == (1, 4000)
    assert await store.release("ann", "audio:2", "unknown:1") == 1
    assert await bytes_held(store, "ann") == 1000
    with pytest.raises(Overloaded, match="stream"):
        await store.reserve(ANN, "stream:2", 1, 60, most=1)


async def test_older_responses_make_room_for_a_new_one_and_nothing_leaves_where_that_would_not_suffice(store: Store):
    account = TenantAccount("ann", 16_000)  # each response takes about 2,600: bytes are base64 in a record
    for number in range(3):
        await store.put_response(make_response(number, nbytes=1500), "", b"{}", 60, 100, account)
    await store.put_response(make_response(3, nbytes=1500), "gw", b"", 60, 100, account)  # it is being made

    with pytest.raises(LimitReached):
        await store.put_response(make_response(4, nbytes=11_000), "", b"{}", 60, 100, account)
    assert [n for n in range(4) if await store.response(f"resp_ann_{n}")] == [0, 1, 2, 3]

    await store.put_response(make_response(5, nbytes=4500), "", b"{}", 60, 100, account)
    assert [n for n in range(6) if await store.response(f"resp_ann_{n}")] == [1, 2, 3, 5]
    assert await bytes_held(store, "ann") <= 16_000


async def test_the_end_of_a_response_counts_and_one_without_room_is_refused(store: Store):
    record = make_response(1)
    await store.put_response(record, "gw", b"", 60, 100, ANN)
    before = await bytes_held(store, "ann")

    with pytest.raises(LimitReached):
        await store.end_response(record, "gw", b"x" * 20_000, 60, ANN)
    assert await store.end_response(record, "gw", b"x" * 500, 60, ANN)

    assert await bytes_held(store, "ann") == before + 500


async def test_a_conversation_is_bounded_in_items_and_bytes(store: Store, raw: redis.Redis):
    record, limits = ConversationRecord("conv_1", 1700.0, {}, "ann"), ConversationLimits(3, 100)
    await store.put_conversation(record, 60, 10)
    await store.extend_conversation(record, {"a": b"x" * 60}, 60, limits)

    with pytest.raises(TooLarge, match="100 bytes"):
        await store.extend_conversation(record, {"b": b"x" * 41}, 60, limits)
    await store.extend_conversation(record, {"a": b"x" * 50, "b": b"x" * 40}, 60, limits)  # one is replaced
    assert await store.conversation_bytes(record) == 90
    with pytest.raises(TooLarge, match="3 items"):
        await store.extend_conversation(record, {"c": b"", "d": b""}, 60, limits)
    assert await store.drop_conversation_items(record, ["a"]) == 1
    assert await store.conversation_bytes(record) == 40

    await raw.hdel("test:conversation:conv_1", "bytes")  # as builds before this one left it
    assert await store.conversation_bytes(record) == 40


async def test_tenants_take_turns_with_jobs_at_several_workers(gateways):
    rules = JobRules(64, 512)
    for number in range(6):
        await gateways[0].put_job("batch", make_job(f"ann{number}", "ann"), rules)
    for tenant in ("bob", "cid"):
        await gateways[1].put_job("batch", make_job(f"{tenant}0", tenant), rules)

    jobs = [await gateways[number % 2].take_job("batch", f"owner{number}", 60.0) for number in range(5)]

    assert [each.id for each in jobs if isinstance(each, JobRecord)] == ["ann0", "bob0", "cid0", "ann1", "ann2"]
    assert not await gateways[0].job_waits("batch", "ann")
    await gateways[0].put_job("batch", make_job("bob1", "bob"), rules)
    assert await gateways[0].job_waits("batch", "ann")
    assert not await gateways[0].job_waits("batch", "bob")


async def test_the_turn_goes_round_where_each_tenant_has_as_much_at_work(store: Store):
    rules, order = JobRules(64, 512), list[str]()
    for number in range(3):
        for tenant in ("ann", "bob"):
            await store.put_job("batch", make_job(f"{tenant}{number}", tenant), rules)

    for number in range(6):  # one worker: each job ends before the next one begins
        taken_job = await store.take_job("batch", f"owner{number}", 60.0)
        assert isinstance(taken_job, JobRecord)
        order.append(taken_job.tenant)
        await store.end_job("batch", taken_job.id, f"owner{number}", "completed", b"", 60.0)

    assert order == ["ann", "bob"] * 3


async def test_a_full_store_refuses_what_is_new_and_ends_what_is_there(tmp_path: Path):
    async with run_owned_server(infra.prepare_valkey(tmp_path, max_bytes=8 << 20)) as process:
        store = Store(StoreSettings(url=process.server.url, prefix="full", timeout=5.0))
        raw = redis.Redis.from_url(process.server.url)
        try:
            record, new_response = ConversationRecord("conv_1", 1700.0, {}, "ann"), make_response(1)
            await store.put_conversation(record, 60, 10)
            await store.put_response(new_response, "gw", b"", 60, 100)
            await store.put_job("batch", make_job("j1", "ann"), JobRules(64, 512))
            taken_job = await store.take_job("batch", "owner", 60.0)
            assert isinstance(taken_job, JobRecord)
            for size in (1 << 20, 1 << 16, 1 << 12):  # a large command counts itself until it is refused
                with pytest.raises(StoreFull, match="maxmemory"):
                    for number in range(2000):
                        items = {f"i{size}-{number}": b"x" * size}
                        await store.extend_conversation(record, items, 60, ConversationLimits(1 << 20, 1 << 30))

            assert (await raw.config_get("maxmemory-policy"))["maxmemory-policy"] == "noeviction"
            assert int((await raw.info("memory"))["used_memory"]) < 12 << 20
            with pytest.raises(StoreFull):
                await store.put_response(make_response(2, nbytes=1 << 16), "gw", b"", 60, 100)
            assert await store.hold_job("batch", "j1", "owner", 60.0, 50)
            assert await store.end_job("batch", "j1", "owner", "completed", b"", 60.0)
            assert await store.end_response(new_response, "gw", b"{}", 60)
            assert await store.drop_conversation(record)
            await store.put_response(make_response(2, nbytes=1 << 16), "gw", b"", 60, 100)
        finally:
            await raw.aclose()
            await store.close()


def make_job(id: str, tenant: str) -> JobRecord:
    return JobRecord(id=id, request=b"{}", created=1700.0, until=4e9, expires=4e9, tenant=tenant)
