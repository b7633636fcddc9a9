"""Media by content hash: kept for replay, evicted when full, and no access to other files."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from omnibus.errors import NotFound
from omnibus_gateway.media.blob_store import MediaStore
from tests.unit.sidecar.node import wait_until


def hash_content(data: bytes) -> str:
    return sha256(data).hexdigest()


@pytest.fixture
def media_store(tmp_path: Path) -> Iterator[MediaStore]:
    store = MediaStore(str(tmp_path / "kept"), 1000)
    yield store
    store.close()


async def store_data(keep: MediaStore, data: bytes) -> str:
    keep.put_nowait(hash_content(data), data)
    assert await keep.get(hash_content(data)) == data  # reads queue after writes
    return hash_content(data)


async def test_what_was_kept_comes_back(media_store: MediaStore):
    for data in (b"", b"x", b"y" * 500):
        await store_data(media_store, data)


async def test_what_was_never_kept_is_not_found_with_advice(media_store: MediaStore):
    with pytest.raises(NotFound, match=r"aaaaaaaaaaaa is not kept here: record in `full` mode"):
        await media_store.get("a" * 64)


async def test_without_a_directory_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    keep = MediaStore("", 1000)

    keep.put_nowait(hash_content(b"x"), b"x")

    with pytest.raises(NotFound):
        await keep.get(hash_content(b"x"))
    keep.close()
    assert os.listdir(tmp_path) == []


async def test_the_same_content_is_one_file(media_store: MediaStore, tmp_path: Path):
    for _ in range(3):
        await store_data(media_store, b"x" * 100)

    assert len(list((tmp_path / "kept").glob("*/*"))) == 1


async def test_several_gateways_share_a_directory(media_store: MediaStore, tmp_path: Path):
    await store_data(media_store, b"shared")
    other = MediaStore(str(tmp_path / "kept"), 1000)

    assert await other.get(hash_content(b"shared")) == b"shared"
    other.close()


async def test_it_is_read_by_its_owner_alone(media_store: MediaStore, tmp_path: Path):
    await store_data(media_store, b"secret")

    [file] = (tmp_path / "kept").glob("*/*")

    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


async def test_when_full_the_oldest_leave(media_store: MediaStore, tmp_path: Path):
    keys = []
    for number in range(10):
        keys.append(await store_data(media_store, bytes([number]) * 100))
        file = tmp_path / "kept" / keys[-1][:2] / keys[-1]
        os.utime(file, (number, number))
    keys.append(await store_data(media_store, b"\xff" * 100))
    media_store.put_nowait("0" * 64, b"")  # done when everything before is done
    await media_store.get("0" * 64)

    async def is_stored(name: str) -> bool:
        try:
            await media_store.get(name)
        except NotFound:
            return False
        return True

    left = [await is_stored(name) for name in keys]
    assert left == [False] * 4 + [True] * 7
    assert sum(file.stat().st_size for file in (tmp_path / "kept").glob("*/*")) <= 750


async def test_what_an_earlier_process_kept_counts(tmp_path: Path):
    first = MediaStore(str(tmp_path), 1000)
    for number in range(9):
        await store_data(first, bytes([number]) * 100)
    first.close()
    second = MediaStore(str(tmp_path), 1000)

    for number in range(100, 103):
        await store_data(second, bytes([number]) * 100)

    def is_within_limit() -> bool:
        return sum(file.stat().st_size for file in tmp_path.glob("*/*")) <= 1000

    await wait_until(is_within_limit)
    second.close()


@pytest.mark.parametrize(
    "name",
    ["../secret", "../../secret", "/etc/hostname", "..", "", "a" * 63, "A" * 64, "a" * 63 + "/", "a" * 64 + "\n"],
)
async def test_nothing_but_a_content_hash_is_looked_up(media_store: MediaStore, tmp_path: Path, name: str):
    await store_data(media_store, b"x")
    (tmp_path / "secret").write_bytes(b"secret")

    for lookup_key in (name, str(tmp_path / "secret")):
        with pytest.raises(NotFound):
            await media_store.get(lookup_key)
