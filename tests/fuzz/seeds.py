"""Valid media files to damage, by modality.

They are built on first use, so collecting tests costs nothing.
"""

from functools import lru_cache

import numpy as np

from tests.fuzz import hostile
from tests.fuzz.hostile import Hostile
from tests.unit.gateway import samples
from tests.unit.gateway.heic import write_heic

MODALITIES = ("audio", "image", "video")
_SMALL_BYTES = 20_000
_SAMPLE_CONTAINERS = [
    ("w64", "pcm_s16le"),
    ("aiff", "pcm_s16be"),
    ("au", "pcm_mulaw"),
    ("caf", "pcm_s16be"),
    ("wav", "adpcm_ms"),
    ("avi", "pcm_s16le"),
]
#: Formats whose length is searched in the file when it was written to a pipe.
_STREAMED = [("flac", "flac"), ("w64", "pcm_s16le"), ("aiff", "pcm_s16be"), ("matroska", "flac"), ("avi", "pcm_s16le")]


@lru_cache(1)
def make_files() -> dict[str, list[bytes]]:
    containers = [("wav", "pcm_s16le"), ("matroska", "libopus"), *hostile.SOUNDS.values(), *_SAMPLE_CONTAINERS]
    sounds = [samples.make_sample_sound(container, codec, 0.2, 48_000) for container, codec in containers]
    sounds += [samples.make_sample_sound(container, codec, 0.2, 48_000, piped=True) for container, codec in _STREAMED]
    sounds += [samples.make_sample_sound("amr", "libopencore_amrnb", 0.2, 8_000)]
    images = [samples.make_sample_picture(name) for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")]
    return {
        "audio": [*sounds, hostile.make_wav(8), hostile.make_matroska(16_000.0, 800)],
        "image": [*images, write_heic(np.zeros((24, 32, 3), np.uint8), exif=b"\0\0\0\6Exif\0\0")],
        "video": [
            samples.make_sample_video("mp4", "libx264"),
            samples.make_sample_video("webm", "libvpx", audio="libopus"),
            samples.make_sample_video("avi", "mpeg4", frames=4),
            samples.make_sample_video("matroska", "mpeg4", frames=4, live="1"),
            samples.make_sample_video("mp4", "mpeg4", frames=4, movflags="frag_keyframe+empty_moov"),
        ],
    }


@lru_cache(1)
def list_hostiles() -> list[Hostile]:
    return hostile.list_hostile()


@lru_cache(1)
def list_all() -> list[bytes]:
    whole = [data for several in make_files().values() for data in several]
    return whole + [each.data for each in list_hostiles()]


@lru_cache(1)
def list_small() -> list[bytes]:
    return [data for data in list_all() if len(data) < _SMALL_BYTES]
