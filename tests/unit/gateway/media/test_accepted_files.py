"""The gateway accepts every file that the decoder reads. It reports the decoded size and length.

FFmpeg writes the files, to a file or to a pipe, and so does Pillow; combinations that a muxer cannot write are skipped.
"""

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import NamedTuple

import av
import pytest

from omnibus.errors import BadMedia
from omnibus_gateway.media.inspect import MediaInfo, inspect_media
from omnibus_models import media
from tests.unit.gateway.samples import make_sample_sound, make_sample_video

#: Seconds between the length in a header and that of the decoded samples: a frame of any codec.
SLACK_SECONDS = 0.1
SECONDS = 1.3


class AudioFile(NamedTuple):
    container: str
    codec: str
    rate: int = 48000
    layout: str = "mono"
    options: tuple[tuple[str, str], ...] = ()

    def write_audio(self, *, piped: bool, seconds: float = SECONDS) -> bytes:
        return make_sample_sound(
            self.container, self.codec, seconds, self.rate, layout=self.layout, piped=piped, **dict(self.options)
        )

    def __str__(self) -> str:
        return "-".join(
            [self.container, self.codec, str(self.rate), self.layout, *(value for _, value in self.options)]
        )


WAV_CODECS = [f"pcm_{kind}" for kind in ("u8", "s16le", "s24le", "s32le", "s64le", "f32le", "f64le", "alaw", "mulaw")]
BIG_CODECS = ["pcm_s16be", "pcm_s24be", "pcm_s32be", "pcm_f32be", "pcm_f64be", "pcm_alaw", "pcm_mulaw"]
MP4_CODECS = ["aac", "libopus", "flac", "alac", "ac3", "eac3", "libmp3lame", "mp2"]
FRAGMENTS = ["", "frag_keyframe+empty_moov", "frag_every_frame+empty_moov+default_base_moof", "dash+delay_moov"]
LIVE = (("live", "1"),)


def audio_files() -> Iterator[AudioFile]:
    for codec, layout in product(WAV_CODECS, ("mono", "stereo")):
        yield AudioFile("wav", codec, layout=layout)
        yield AudioFile("w64", codec, layout=layout)
    for codec in ("adpcm_ms", "adpcm_ima_wav", "libmp3lame", "mp2"):
        yield AudioFile("wav", codec, 22050)
        yield AudioFile("wav", codec, layout="stereo")
    yield AudioFile("wav", "pcm_s16le", options=(("rf64", "always"),))
    yield from (AudioFile("aiff", codec, 44100) for codec in (*BIG_CODECS, "adpcm_ima_qt"))
    yield from (AudioFile("au", codec, 8000) for codec in (*BIG_CODECS, "pcm_s8"))
    yield from (AudioFile("caf", codec, 44100) for codec in (*BIG_CODECS, "pcm_s16le", "alac", "adpcm_ima_qt"))
    for rate in (8000, 16000, 22050, 24000, 32000, 44100, 48000):
        yield AudioFile("mp3", "libmp3lame", rate)
        yield AudioFile("mp3", "libmp3lame", rate, options=(("write_xing", "0"),))
        yield AudioFile("adts", "aac", rate)
        yield AudioFile("flac", "flac", rate, "stereo")
    yield from (AudioFile("mp2", "mp2", rate) for rate in (22050, 44100, 48000))
    yield AudioFile("amr", "libopencore_amrnb", 8000)
    yield from (AudioFile("ogg", codec, layout="stereo") for codec in ("libopus", "flac"))
    for codec, options in product(
        ("libopus", "flac", "aac", "ac3", "eac3", "libmp3lame", "mp2", "alac", "pcm_s16le"), ((), LIVE)
    ):
        yield AudioFile("matroska", codec, options=options)
    yield from (
        AudioFile("webm", "libopus", layout=layout, options=options)
        for layout, options in product(("mono", "stereo"), ((), LIVE))
    )
    for codec, flags in product(MP4_CODECS, FRAGMENTS):
        yield AudioFile("mp4", codec, options=(("movflags", flags),) if flags else ())
    for codec, flags in product(("aac", "alac", "pcm_s16le", "pcm_s24be", "pcm_mulaw", "adpcm_ima_qt"), FRAGMENTS[:2]):
        yield AudioFile("mov", codec, options=(("movflags", flags),) if flags else ())
    yield from (AudioFile(container, "aac") for container in ("ipod", "3gp", "3g2", "f4v", "ismv"))
    yield AudioFile("3gp", "libopencore_amrnb", 8000)
    yield from (AudioFile("avi", codec) for codec in ("pcm_s16le", "libmp3lame", "ac3"))


def check_audio(data: bytes) -> tuple[MediaInfo, float] | None:
    """Compare a file's facts with its decoded seconds and return both; None if the decoder cannot read it."""
    try:
        duration = len(media.decode_audio(memoryview(data))) / 16_000
    except BadMedia:
        return None
    info = inspect_media(data, "audio")
    assert info.seconds == pytest.approx(duration, abs=SLACK_SECONDS), (info.mime, info.seconds, duration)
    return info, duration


#: Errors of FFmpeg's muxers.
MUXER_ERRORS = (av.error.FFmpegError, ValueError)


@pytest.mark.behaviour(
    "FFmpeg 8.0 (PyAV 18.1)",
    "cannot read the RF64, W64 and AIFF files that it writes to a pipe: their sizes are 0 or the largest number",
    "measures the samples that are there, and fills the sizes in before it decodes",
    source="EBU Tech 3306 (RF64); AIFF-C (Apple, 1991)",
)
@pytest.mark.parametrize("container", sorted({file.container for file in audio_files()}))
def test_audio_that_the_decoder_reads_is_accepted_with_its_length(container: str):
    unread, file_count = [], 0
    for file, is_piped in product((file for file in audio_files() if file.container == container), (False, True)):
        try:
            data = file.write_audio(piped=is_piped)
        except MUXER_ERRORS:
            continue
        file_count += 1
        if check_audio(data) is None:
            unread.append(f"{file} piped={is_piped}")

    assert file_count
    assert not unread


# Tags, cuts and sizes

MP3 = make_sample_sound("mp3", "libmp3lame", SECONDS, 44100, write_id3v2="0", id3v2_version="0")
TAGGED = [
    ("audio/mpeg", MP3),
    ("audio/aac", make_sample_sound("adts", "aac", SECONDS, 44100)),
    ("audio/flac", make_sample_sound("flac", "flac", SECONDS, 44100)),
]


def id3_tag(title: bytes = b"hello", *, flags: int = 0, padding: int = 0) -> bytes:
    """Return an ID3v2 tag with a title, and zeros after it inside."""
    frame = b"TIT2" + struct.pack(">I", len(title) + 1) + b"\0\0\0" + title + bytes(padding)
    size = bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0))
    footer = b"3DI\4\0" + bytes([flags]) + size if flags & 0x10 else b""
    return b"ID3\4\0" + bytes([flags]) + size + frame + footer


PREFIXES = {
    "tag": id3_tag(),
    "tag of 200 kB": id3_tag(b"\xff\xfb\x90\x00" * 50_000),
    "padding inside": id3_tag(padding=2000),
    "padding behind": id3_tag() + bytes(1024),
    "footer": id3_tag(flags=0x10),
    "two tags": id3_tag() + id3_tag(b"again"),
    "two tags and padding": id3_tag() + bytes(300) + id3_tag(b"again") + bytes(700),
}


@pytest.mark.behaviour(
    "FFmpeg 8.0 (PyAV 18.1)",
    "reads MP3, ADTS and FLAC after an ID3 tag, and MP3 after zeros that follow the tag",
    "passes over tags and zeros before it recognizes a format",
    source="id3v2.4.0-structure, 3.1 to 3.4",
)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_audio_behind_tags_is_accepted_where_the_decoder_reads_it(prefix: str):
    read = []
    for mime, data in TAGGED:
        audio_info = check_audio(PREFIXES[prefix] + data)
        if audio_info is not None:
            read.append(mime)
            assert audio_info[0].mime == mime
            assert audio_info[1] == pytest.approx(SECONDS, abs=SLACK_SECONDS)

    assert "audio/mpeg" in read
    assert prefix != "tag" or len(read) == len(TAGGED)


@pytest.mark.parametrize("cut", [1, 17, 100, 417, 418, 419, 1000, 5000])
@pytest.mark.parametrize("codec", ["libmp3lame", "mp2", "aac"])
def test_audio_that_begins_inside_a_frame_is_accepted(codec: str, cut: int):
    container = {"libmp3lame": "mp3", "mp2": "mp2", "aac": "adts"}[codec]
    data = make_sample_sound(container, codec, 3.0, 44100, **({"write_xing": "0"} if codec == "libmp3lame" else {}))

    audio_info = check_audio(data[cut:])

    assert audio_info is not None
    assert 0 < audio_info[1] <= 3.1


@pytest.mark.parametrize("end", [b"TAG" + bytes(125), b"APETAGEX" + bytes(200), bytes(500), MP3[: len(MP3) // 2]])
def test_what_follows_the_last_frame_does_not_change_the_kind(end: bytes):
    audio_info = check_audio(MP3 + end)

    assert audio_info is not None
    assert audio_info[0].mime == "audio/mpeg"


def build_wav(riff: int, data: int, samples: bytes) -> bytes:
    form = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16)
    return form + struct.pack("<4sI", b"data", data) + samples


SAMPLES = bytes(2 * 20_800)
WAV_SIZES = {
    "true": (36 + len(SAMPLES), len(SAMPLES)),
    "zeros": (0, 0),
    "the header alone": (36, 0),
    "data zero": (36 + len(SAMPLES), 0),
    "RIFF zero": (0, len(SAMPLES)),
    "ones": (0xFFFF_FFFF, 0xFFFF_FFFF),
    "data ones": (36 + len(SAMPLES), 0xFFFF_FFFF),
    "ones less the header": (0xFFFF_FFFF, 0xFFFF_FFDB),
    "largest signed": (0x7FFF_FFFF, 0x7FFF_FFFF),
    "largest signed less the header": (0x7FFF_FFFF, 0x7FFF_FFDB),
    "sign": (0x8000_0000, 0x8000_0000),
    "sox": (0x7FFF_F024, 0x7FFF_F000),
    "two milliards": (2_000_000_000, 2_000_000_000),
    "two milliards of data": (2_000_000_036, 2_000_000_000),
}


@pytest.mark.parametrize("sizes", WAV_SIZES)
def test_a_wav_has_the_samples_that_are_there_whatever_sizes_a_stream_states(sizes: str):
    audio_info = check_audio(build_wav(*WAV_SIZES[sizes], SAMPLES))

    assert audio_info is not None
    assert audio_info[0].seconds == pytest.approx(1.3)
    assert audio_info[1] == pytest.approx(1.3, abs=0.001)


@pytest.mark.parametrize("container", ["w64", "rf64"])
@pytest.mark.parametrize("size", [0, 2**64 - 1, 2**63 - 1, 2_000_000_000])
def test_long_forms_of_wav_have_the_samples_that_are_there(container: str, size: int):
    if container == "w64":
        data = bytearray(make_sample_sound("w64", "pcm_s16le", SECONDS))
        places = [16, data.index(b"data\xf3") + 16]
    else:
        data = bytearray(make_sample_sound("wav", "pcm_s16le", SECONDS, rf64="always"))
        places = [20, 28]
    for place in places:
        struct.pack_into("<Q", data, place, size)

    audio_info = check_audio(bytes(data))

    assert audio_info is not None
    assert audio_info[1] == pytest.approx(SECONDS, abs=0.01)


# Video


VIDEOS = [
    *(("mp4", codec) for codec in ("mpeg4", "libx264", "libx265", "libsvtav1", "libvpx-vp9")),
    *(("mov", codec) for codec in ("mpeg4", "libx264")),
    *(("3gp", codec) for codec in ("mpeg4",)),
    *(("matroska", codec) for codec in ("mpeg4", "libx264", "libvpx", "mpeg2video", "mpeg1video")),
    *(("webm", codec) for codec in ("libvpx", "libvpx-vp9", "libsvtav1")),
    *(("avi", codec) for codec in ("mpeg4", "libx264")),
    *((container, "libx264") for container in ("f4v", "ismv", "ipod")),
]
BRANDS = [b"isom", b"iso2", b"iso6", b"mp41", b"mp42", b"avc1", b"XAVC", b"cmfc", b"cmfs", b"dash", b"msdh", b"M4V ",
          b"MSNV", b"3gp5", b"3g2a", b"qt  ", b"f4v ", b"ndsc", b"NDSS", b"caqv", b"hvc1", b"dby1", b"niko", b"pana"]  # fmt: skip


def write_video(container: str, codec: str, *, piped: bool, **options: str) -> bytes:
    """Return six frames, written in a separate thread. As root, SVT-AV1 makes that thread a realtime one."""
    audio = "aac" if container == "mp4" else ""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make_sample_video, container, codec, frames=6, audio=audio, piped=piped, **options).result()


def check_video(data: bytes, size: tuple[int, int], seconds: float) -> MediaInfo | None:
    """Compare a file's facts with the decoded video and return them; None if the decoder cannot read it."""
    try:
        frames = media.decode_video(memoryview(data)).frames
    except BadMedia:
        return None
    info = inspect_media(data, "video")
    assert (info.width, info.height) == size == (frames.shape[2], frames.shape[1])
    # Encoders that reorder frames delay the first one by two.
    assert info.seconds == pytest.approx(seconds, abs=0.21)
    return info


@pytest.mark.parametrize("container", sorted({container for container, _ in VIDEOS}))
def test_video_that_the_decoder_reads_is_accepted_with_its_size_and_length(container: str):
    unread, file_count = [], 0
    flags = [{}, {"live": "1"}] if container in ("matroska", "webm") else [{}]
    if container in ("mp4", "mov"):
        flags = [{"movflags": each} for each in FRAGMENTS]
    codecs = [codec for each, codec in VIDEOS if each == container]
    for codec, options, is_piped in product(codecs, flags, (False, True)):
        if codec == "libx265" and "every_frame" in options.get("movflags", ""):
            continue  # FFmpeg does not read back all frames that it has reordered over such fragments
        try:
            data = write_video(container, codec, piped=is_piped, **options)
        except MUXER_ERRORS:
            continue
        file_count += 1
        if check_video(data, (64, 48), 0.6) is None:
            unread.append((codec, options, is_piped))

    assert file_count
    assert not unread


@pytest.mark.parametrize("brand", BRANDS)
def test_an_mp4_of_any_brand_is_a_video(brand: bytes):
    data = make_sample_video("mp4", "mpeg4", frames=5)

    info = check_video(data[:8] + brand + data[12:], (64, 48), 0.5)

    assert info is not None
    assert info.mime == "video/mp4"


def test_a_mov_without_brands_is_a_video():
    data = make_sample_video("mov", "mpeg4", frames=5)
    head = int.from_bytes(data[:4], "big")
    # Same length, so that the places of frames stay true.
    old = struct.pack(">I4s", head, b"wide") + bytes(head - 8)

    assert check_video(old + data[head:], (64, 48), 0.5) is not None
