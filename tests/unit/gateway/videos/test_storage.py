"""The room where videos are kept: shared by gateways, bounded, and swept."""

import os
import time
from pathlib import Path

import pytest

from omnibus.errors import Fatal, Forbidden, NotFound, Overloaded
from omnibus.settings import GatewaySettings
from services.gateway.videos.storage import Films

FIRST, SECOND = "video_" + "1" * 48, "video_" + "2" * 48


def films(directory: Path, **more: object) -> Films:
    return Films(GatewaySettings(media_dir=str(directory), **more))


async def keep(at: Films, id: str, data: bytes = b"film", seconds: float = 60.0) -> None:
    draft = await at.draft(id)
    draft.write_bytes(data)
    await at.keep(id, draft, b"picture", seconds)


async def test_what_one_gateway_keeps_another_finds(tmp_path: Path):
    await keep(films(tmp_path), FIRST)

    other = films(tmp_path)

    assert (await other.find(FIRST, "video")).read_bytes() == b"film"
    assert (await other.find(FIRST, "thumbnail")).read_bytes() == b"picture"


async def test_what_is_removed_is_not_found(tmp_path: Path):
    at = films(tmp_path)
    await keep(at, FIRST)

    await at.remove(FIRST)
    await at.remove(FIRST)

    with pytest.raises(NotFound):
        await at.find(FIRST, "video")
    assert list((tmp_path / "videos").iterdir()) == []


async def test_drafts_of_one_video_do_not_meet(tmp_path: Path):
    at = films(tmp_path)

    assert await at.draft(FIRST) != await at.draft(FIRST)


async def test_what_has_expired_is_swept_when_another_is_kept(tmp_path: Path):
    at = films(tmp_path)
    await keep(at, FIRST, seconds=-120.0)
    left, fresh = await at.draft(FIRST), await at.draft(FIRST)
    for path in (left, fresh):
        path.write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(left, (long_ago, long_ago))

    await keep(at, SECOND)

    names = {path.name for path in (tmp_path / "videos").iterdir()}
    assert names == {f"{SECOND}.mp4", f"{SECOND}.webp", fresh.name}


async def test_a_full_room_takes_no_more(tmp_path: Path):
    at = films(tmp_path, video_bytes=20)
    await at.check()
    await keep(at, FIRST, b"x" * 21)

    with pytest.raises(Overloaded, match="delete some"):
        await at.check()

    await at.remove(FIRST)
    await at.check()


async def test_a_tenant_whose_videos_take_its_share_gets_no_more(tmp_path: Path):
    at = films(tmp_path, video_bytes=100, tenant_share=0.25)
    await keep(at, FIRST, b"x" * 26)

    with pytest.raises(Overloaded, match="one tenant may have"):
        await at.check([FIRST])

    await at.check([SECOND])
    await at.check()
    await at.remove(FIRST)
    await at.check([FIRST])


async def test_without_a_directory_nothing_is_kept():
    at = Films(GatewaySettings())

    with pytest.raises(Forbidden, match="OMNIBUS_GATEWAY_MEDIA_DIR"):
        await at.check()
    with pytest.raises(NotFound):
        await at.find(FIRST, "video")
    await at.remove(FIRST)


async def test_a_directory_that_takes_no_files_is_said(tmp_path: Path):
    (tmp_path / "videos").write_text("a file")

    with pytest.raises(Fatal, match="takes no files"):
        await films(tmp_path).draft(FIRST)


async def test_what_cannot_be_kept_leaves_nothing_but_its_draft(tmp_path: Path):
    at = films(tmp_path)
    draft = await at.draft(FIRST)

    with pytest.raises(Fatal, match="takes no files"):
        await at.keep(FIRST, draft, b"picture", 60.0)

    assert list((tmp_path / "videos").iterdir()) == []


async def test_others_on_the_machine_cannot_read_them(tmp_path: Path):
    await keep(films(tmp_path), FIRST)

    assert (tmp_path / "videos").stat().st_mode & 0o077 == 0
