"""Whole media files to damage, by modality; made when first used, so that collecting tests costs nothing."""

from functools import lru_cache

from tests.fuzz import hostile
from tests.fuzz.hostile import Hostile
from tests.unit.gateway import samples

MODALITIES = ("audio", "image", "video")
_SMALL_BYTES = 20_000


@lru_cache(1)
def files() -> dict[str, list[bytes]]:
    containers = [("wav", "pcm_s16le"), ("matroska", "libopus"), *hostile.SOUNDS.values()]
    sounds = [samples.sound(container, codec, 0.2, 48_000) for container, codec in containers]
    return {
        "audio": [*sounds, hostile.wav(8), hostile.matroska(16_000.0, 800)],
        "image": [samples.picture(name) for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")],
        "video": [samples.film("mp4", "libx264"), samples.film("webm", "libvpx", audio="libopus")],
    }


@lru_cache(1)
def hostiles() -> list[Hostile]:
    return hostile.every()


@lru_cache(1)
def everything() -> list[bytes]:
    whole = [data for several in files().values() for data in several]
    return whole + [each.data for each in hostiles()]


@lru_cache(1)
def small() -> list[bytes]:
    return [data for data in everything() if len(data) < _SMALL_BYTES]
