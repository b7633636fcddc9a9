"""Hostile and unusual files: limits apply before decoding, and errors never repeat a decoder's message."""

import http.server
import io
import struct
import threading
import zlib
from collections.abc import Callable

import av
import numpy as np
import pytest
from PIL import Image

from omnibus.errors import BadMedia, TooLarge
from omnibus_models import media
from tests.unit.models import files

JPEG, WAV, MP4 = files.make_picture(1, kind="JPEG"), files.make_tone(2.0), files.make_film(2.0)
DECODERS = {"image": media.decode_image, "audio": media.decode_audio, "video": media.decode_video}


def decode_media(kind: str, data: bytes, limits: media.MediaDecodeLimits = media.DEFAULT) -> object:
    return DECODERS[kind](memoryview(data), limits)


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that promises many pixels and contains none."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 64)
    chunks = [struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in (body, data)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def encode_flac(seconds: float) -> bytes:
    return files.encode_tone(seconds, "flac", "flac")


UNUSABLE = {
    "empty image": ("image", b""),
    "text as image": ("image", b"<script>alert(1)</script>"),
    "half a JPEG": ("image", JPEG[: len(JPEG) // 2]),
    "half a PNG": ("image", files.make_picture(1)[:4000]),
    "a PNG without pixels": ("image", png_header(100, 100)),
    "a sound as image": ("image", WAV),
    "empty audio": ("audio", b""),
    "noise as audio": ("audio", bytes(range(256)) * 20),
    "half a WAV": ("audio", WAV[: len(WAV) // 2]),
    "half a FLAC": ("audio", encode_flac(2.0)[: len(encode_flac(2.0)) // 2]),
    "a WAV of no samples": ("audio", files.make_tone(0.0)),
    "a film without sound": ("audio", MP4),
    "empty video": ("video", b""),
    "half an MP4": ("video", MP4[: len(MP4) // 2]),
    "an MP4 without its index": ("video", MP4[:100]),
    "a sound as video": ("video", WAV),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_file_that_cannot_be_used_is_bad_media(case: str) -> None:
    kind, data = UNUSABLE[case]

    with pytest.raises(BadMedia) as caught:
        decode_media(kind, data)

    assert "script" not in caught.value.message
    assert "Errno" not in caught.value.message


def test_damaged_bytes_never_raise_anything_else() -> None:
    random = np.random.default_rng(0)
    for kind, whole in (("image", JPEG), ("image", files.make_picture(2)), ("audio", encode_flac(0.5)), ("video", MP4)):
        for _ in range(40):
            data = bytearray(whole)
            for place in random.integers(0, len(whole), 12):
                data[place] = random.integers(256)
            try:
                decode_media(kind, bytes(data))
            except (BadMedia, TooLarge):
                continue


@pytest.mark.parametrize("size", [(30_000, 30_000), (8_000, 8_000)])
def test_a_decompression_bomb_is_refused_by_its_header(size: tuple[int, int]) -> None:
    with pytest.raises(TooLarge):
        decode_media("image", png_header(*size))


def test_limits_are_settings() -> None:
    assert decode_media("image", JPEG, media.MediaDecodeLimits(pixels=90 * 60))
    with pytest.raises(TooLarge, match="90x60"):
        decode_media("image", JPEG, media.MediaDecodeLimits(pixels=90 * 60 - 1))
    with pytest.raises(TooLarge, match="1 seconds"):
        decode_media("audio", WAV, media.MediaDecodeLimits(seconds=1))
    with pytest.raises(TooLarge, match="1 seconds"):
        decode_media("video", MP4, media.MediaDecodeLimits(seconds=1))
    with pytest.raises(TooLarge, match="5 frames"):
        decode_media("video", MP4, media.MediaDecodeLimits(frames=5))
    with pytest.raises(TooLarge, match="in all its frames"):
        decode_media("video", MP4, media.MediaDecodeLimits(decoded=5 * 64 * 48))
    with pytest.raises(TooLarge, match="64x48"):
        decode_media("video", MP4, media.MediaDecodeLimits(pixels=64 * 48 - 1))


def test_a_length_that_the_header_hides_is_still_bounded() -> None:
    mp3 = files.encode_tone(3.0, "mp3", "mp3")

    with pytest.raises(TooLarge, match="2 seconds"):
        decode_media("audio", mp3, media.MediaDecodeLimits(seconds=2))


def test_images_come_upright_and_in_colour() -> None:
    grey = Image.new("LA", (40, 20), (200, 128))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    out = io.BytesIO()
    grey.save(out, "PNG", exif=exif)

    picture = media.decode_image(memoryview(out.getvalue()))

    assert picture.mode == "RGB"
    assert picture.size == (20, 40)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_usual_image_formats_are_read(kind: str) -> None:
    assert media.decode_image(memoryview(files.make_picture(1, kind=kind))).size == (90, 60)


@pytest.mark.parametrize(
    ("codec", "container"), [("flac", "flac"), ("mp3", "mp3"), ("libopus", "ogg"), ("aac", "adts")]
)
def test_usual_sound_formats_become_mono_at_16_khz(codec: str, container: str) -> None:
    samples = media.decode_audio(memoryview(files.encode_tone(1.0, codec, container, rate=48_000)))

    assert samples.dtype == np.float32
    assert abs(len(samples) - 16_000) < 2_400  # lossy codecs pad
    assert 0.1 < float(np.sqrt((samples**2).mean())) < 0.3


def test_stereo_is_mixed_and_resampled() -> None:
    samples = media.decode_audio(memoryview(files.make_tone(1.0, rate=44_100, channels=2)))

    assert abs(len(samples) - 16_000) <= 32
    assert abs(float(np.sqrt((samples**2).mean())) - 0.3 / 2**0.5) < 0.02


def test_a_wav_of_unstated_length_is_read_to_its_end() -> None:
    endless_wav = WAV[:4] + b"\xff" * 4 + WAV[8:40] + b"\xff" * 4 + WAV[44:]

    assert np.array_equal(media.decode_audio(memoryview(endless_wav)), media.decode_audio(memoryview(WAV)))


def test_samples_that_are_no_numbers_are_refused() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="wav") as file:
        stream = file.add_stream("pcm_f32le", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.full((1, 1600), np.nan, np.float32), format="flt", layout="mono")
        frame.rate = 16_000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))

    with pytest.raises(BadMedia, match="finite"):
        decode_media("audio", out.getvalue())


def test_a_video_is_sampled_twice_per_second() -> None:
    clip = media.decode_video(memoryview(files.make_film(3.0, fps=8)))

    assert clip.fps == 2.0
    assert clip.frames.shape == (6, 48, 64, 3)
    assert clip.frames.dtype == np.uint8


def test_a_slow_video_keeps_all_its_frames() -> None:
    assert media.decode_video(memoryview(files.make_film(4.0, fps=1))).frames.shape[0] == 4


@pytest.mark.parametrize(
    "limits", [media.MediaDecodeLimits(sampled=8), media.MediaDecodeLimits(video_pixels=8 * 64 * 48)]
)
def test_a_long_video_is_thinned_out_evenly(limits: media.MediaDecodeLimits) -> None:
    whole = media.decode_video(memoryview(files.make_film(10.0)))

    thin = media.decode_video(memoryview(files.make_film(10.0)), limits)

    # Of 40 frames: from the first to the last, as many as fit.
    assert (len(whole.frames), whole.fps) == (20, 2.0)
    assert (len(thin.frames), thin.fps) == (8, 0.8)
    assert thin.seconds == tuple(number / 4 for number in (0, 6, 11, 17, 22, 28, 33, 39))
    assert np.array_equal(thin.frames[0], whole.frames[0])
    assert np.array_equal(thin.frames[-1], whole.frames[-1])


@pytest.fixture
def address() -> "tuple[str, list[str]]":
    """An HTTP server that records every request."""
    paths: list[str] = []

    class RecordingMediaHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RecordingMediaHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    server.server_close()


PLAYLISTS: dict[str, Callable[[str], str]] = {
    "hls": lambda url: f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{url}/a.ts\n#EXT-X-ENDLIST\n",
    "concat": lambda url: f"ffconcat version 1.0\nfile {url}/b.mp4\n",
    "local": lambda _: "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
}


@pytest.mark.parametrize("case", PLAYLISTS)
@pytest.mark.parametrize("kind", ["audio", "video"])
def test_a_playlist_opens_nothing_else(case: str, kind: str, address: "tuple[str, list[str]]") -> None:
    url, paths = address

    with pytest.raises(BadMedia):
        decode_media(kind, PLAYLISTS[case](url).encode())

    assert paths == []
