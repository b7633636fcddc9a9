"""Parallel uploads at several gateways stay within their tenant's limit."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus.errors import StorageFull, TooLarge
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.files.uploads import FileUploads
from omnibus_gateway.media.client_files import ClientFiles
from omnibus_gateway.tenancy.tenant import Tenant, acting_as

LIMIT = 1000


@pytest.fixture(params=["store", "no store"])
async def gateways(request: pytest.FixtureRequest, tmp_path: Path, valkey_url: str) -> AsyncIterator[list[ClientFiles]]:
    """Two gateways with a store, or one twice without a store."""
    url = valkey_url if request.param == "store" else "redis://127.0.0.1:1"
    stores = [Store(StoreSettings(url=url, prefix=f"uploads-{tmp_path.name}", timeout=5.0)) for _ in range(2)]
    settings = GatewaySettings(media_dir=str(tmp_path), upload_bytes=LIMIT)
    client_files = [ClientFiles(settings, store) for store in stores]
    with acting_as(Tenant("ann")):
        yield client_files if request.param == "store" else [client_files[0], client_files[0]]
    for store in stores:
        await store.close()


async def _count_outcomes(*calls) -> Counter[str]:
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(not isinstance(each, BaseException) or isinstance(each, StorageFull | TooLarge) for each in outcomes)
    return Counter(type(each).__name__ if isinstance(each, Exception) else "kept" for each in outcomes)


async def test_files_uploaded_at_the_same_time_stay_within_the_limit(gateways: list[ClientFiles]):
    calls = [gateways[number % 2].add(b"x" * 300, f"{number}.bin", "user_data") for number in range(12)]

    outcomes = await _count_outcomes(*calls)
    stored_bytes = sum(each.nbytes for each in await gateways[0].list_all())

    assert set(outcomes) <= {"kept", "StorageFull"}
    assert stored_bytes <= LIMIT
    while stored_bytes + 300 <= LIMIT:  # rejected ones find room once the others are stored
        await gateways[1].add(b"x" * 300, "late.bin", "user_data")
        stored_bytes += 300
    with pytest.raises(StorageFull):
        await gateways[0].add(b"x" * 300, "more.bin", "user_data")
    with acting_as(Tenant("bob")):
        await gateways[0].add(b"x" * 300, "other.bin", "user_data")


async def test_uploads_that_begin_at_the_same_time_are_promised_no_more_than_there_is(gateways: list[ClientFiles]):
    uploads = [FileUploads(files) for files in gateways]

    outcomes = await _count_outcomes(
        *(uploads[number % 2].begin("a.bin", "user_data", "", 300) for number in range(12))
    )
    assert outcomes["kept"] == 3

    first = (await gateways[0].storage.list(f"{_get_owner()}/uploads"))[0].key.rpartition("/")[2]
    await uploads[0].cancel(first)
    again = await uploads[1].begin("a.bin", "user_data", "", 300)
    part = await uploads[0].add_part(again.id, b"x" * 300)
    upload = await uploads[1].complete(again.id, [part])
    assert upload.file is not None
    with pytest.raises(StorageFull):  # its bytes are now those of a file
        await uploads[0].begin("b.bin", "user_data", "", 300)


async def test_parts_that_come_at_the_same_time_are_no_more_than_announced(gateways: list[ClientFiles]):
    uploads = [FileUploads(files) for files in gateways]
    upload = await uploads[0].begin("a.bin", "user_data", "", 500)

    outcomes = await _count_outcomes(*(uploads[number % 2].add_part(upload.id, b"x" * 200) for number in range(10)))

    assert outcomes == {"kept": 2, "TooLarge": 8}
    parts = await gateways[0].storage.list(f"{_get_owner()}/parts")
    assert sum(each.nbytes for each in parts) == 400


def _get_owner() -> str:
    from omnibus_gateway.media.client_files import owner_prefix

    return owner_prefix()
