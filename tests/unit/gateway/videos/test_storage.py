"""The video directory: shared by gateways, limited in size, and swept."""

import os
import time
from pathlib import Path

import pytest

from omnibus.errors import Fatal, Forbidden, NotFound, Overloaded
from omnibus.settings import GatewaySettings
from omnibus_gateway.videos.storage import VideoStorage

FIRST, SECOND = "video_" + "1" * 48, "video_" + "2" * 48


def make_storage(directory: Path, **more: object) -> VideoStorage:
    return VideoStorage(GatewaySettings(media_dir=str(directory), **more))


async def store_film(at: VideoStorage, id: str, data: bytes = b"film", seconds: float = 60.0) -> None:
    draft = await at.new_draft(id)
    draft.write_bytes(data)
    await at.store_video(id, draft, b"picture", seconds)


async def test_what_one_gateway_keeps_another_finds(tmp_path: Path):
    await store_film(make_storage(tmp_path), FIRST)

    other = make_storage(tmp_path)

    assert (await other.find_file(FIRST, "video")).read_bytes() == b"film"
    assert (await other.find_file(FIRST, "thumbnail")).read_bytes() == b"picture"


async def test_what_is_removed_is_not_found(tmp_path: Path):
    at = make_storage(tmp_path)
    await store_film(at, FIRST)

    await at.remove_files(FIRST)
    await at.remove_files(FIRST)

    with pytest.raises(NotFound):
        await at.find_file(FIRST, "video")
    assert list((tmp_path / "videos").iterdir()) == []


async def test_drafts_of_one_video_do_not_meet(tmp_path: Path):
    at = make_storage(tmp_path)

    assert await at.new_draft(FIRST) != await at.new_draft(FIRST)


async def test_what_has_expired_is_swept_when_another_is_kept(tmp_path: Path):
    at = make_storage(tmp_path)
    await store_film(at, FIRST, seconds=-120.0)
    left, fresh = await at.new_draft(FIRST), await at.new_draft(FIRST)
    for path in (left, fresh):
        path.write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(left, (long_ago, long_ago))

    await store_film(at, SECOND)

    names = {path.name for path in (tmp_path / "videos").iterdir()}
    assert names == {f"{SECOND}.mp4", f"{SECOND}.webp", fresh.name}


async def test_a_full_room_takes_no_more(tmp_path: Path):
    at = make_storage(tmp_path, video_bytes=20)
    await at.check_capacity()
    await store_film(at, FIRST, b"x" * 21)

    with pytest.raises(Overloaded, match="delete some"):
        await at.check_capacity()

    await at.remove_files(FIRST)
    await at.check_capacity()


async def test_a_tenant_whose_videos_take_its_share_gets_no_more(tmp_path: Path):
    at = make_storage(tmp_path, video_bytes=100, tenant_share=0.25)
    await store_film(at, FIRST, b"x" * 26)

    with pytest.raises(Overloaded, match="all the space of one tenant"):
        await at.check_capacity([FIRST])

    await at.check_capacity([SECOND])
    await at.check_capacity()
    await at.remove_files(FIRST)
    await at.check_capacity([FIRST])


async def test_without_a_directory_nothing_is_kept():
    at = VideoStorage(GatewaySettings())

    with pytest.raises(Forbidden, match="OMNIBUS_GATEWAY_MEDIA_DIR"):
        await at.check_capacity()
    with pytest.raises(NotFound):
        await at.find_file(FIRST, "video")
    await at.remove_files(FIRST)


async def test_a_directory_that_takes_no_files_is_said(tmp_path: Path):
    (tmp_path / "videos").write_text("a file")

    with pytest.raises(Fatal, match="takes no files"):
        await make_storage(tmp_path).new_draft(FIRST)


async def test_what_cannot_be_kept_leaves_nothing_but_its_draft(tmp_path: Path):
    at = make_storage(tmp_path)
    draft = await at.new_draft(FIRST)

    with pytest.raises(Fatal, match="takes no files"):
        await at.store_video(FIRST, draft, b"picture", 60.0)

    assert list((tmp_path / "videos").iterdir()) == []


async def test_others_on_the_machine_cannot_read_them(tmp_path: Path):
    await store_film(make_storage(tmp_path), FIRST)

    assert (tmp_path / "videos").stat().st_mode & 0o077 == 0
