"""Audio of any number of channels, and headers with absurd sizes.

Cases that could kill a process or exhaust its memory run in a separate one.
"""

import json
import math
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from omnibus.errors import BadMedia
from omnibus_models import media
from tests.unit.models import files

DEADLINE_SECONDS = 120
RATE_HERTZ = 16_000
# Address space above what the interpreter has with its libraries loaded.
ROOM_BYTES = 256 << 20


def build_wav(samples: np.ndarray, rate: int = RATE_HERTZ) -> bytes:
    """Return int16 [n, channels] as a WAV file."""
    data, width = samples.astype("<i2").tobytes(), 2 * samples.shape[1]
    form = struct.pack("<HHIIHH", 1, samples.shape[1], rate, rate * width, width, 16)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt \x10\0\0\0" + form + _build_chunk(data)


def _build_chunk(data: bytes) -> bytes:
    return b"data" + struct.pack("<I", len(data)) + data


def build_element(key: int, body: bytes) -> bytes:
    """Return one element of Matroska."""
    name = key.to_bytes((key.bit_length() + 7) // 8, "big")
    return name + (1 << 56 | len(body)).to_bytes(8, "big") + body


def build_matroska(rate: float, count: int, channels: int = 1) -> bytes:
    """Return ``count`` samples of silence. The header states ``rate`` per second and one second in all."""
    info = build_element(
        0x1549A966, build_element(0x2AD7B1, (1_000_000).to_bytes(4, "big")) + build_element(0x4489, _pack_float(1000.0))
    )
    sound = build_element(
        0xE1,
        build_element(0xB5, _pack_float(rate))
        + build_element(0x9F, bytes([channels]))
        + build_element(0x6264, b"\x10"),
    )
    track = (
        build_element(0xD7, b"\1")
        + build_element(0x73C5, b"\1")
        + build_element(0x83, b"\2")
        + build_element(0x86, b"A_PCM/INT/LIT")
    )
    cluster = build_element(0xE7, b"\0") + build_element(0xA3, b"\x81\0\0\x80" + bytes(2 * count * channels))
    tracks = build_element(0x1654AE6B, build_element(0xAE, track + sound))
    head = build_element(0x1A45DFA3, build_element(0x4282, b"matroska"))
    return head + build_element(0x18538067, info + tracks + build_element(0x1F43B675, cluster))


def _pack_float(value: float) -> bytes:
    return struct.pack(">d", value)


def in_a_process(code: str, data: bytes) -> str:
    """Return the output of ``code`` for ``data`` in a separate process. The process must not end by a signal."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.run(command, input=data, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert process.returncode == 0, (process.returncode, process.stderr[-2000:])
    return process.stdout.decode()


MEANS = """
    import sys, json
    from omnibus_models import media
    for line in sys.stdin:
        print(json.dumps([float(each) for each in media.decode_audio(memoryview(bytes.fromhex(line)))]), flush=True)
"""


@pytest.mark.parametrize("first", [1, 8, 16, 24])
def test_sound_of_any_number_of_channels_is_their_mean(first: int) -> None:
    several = [
        np.random.default_rng(channels).integers(-9000, 9000, (400, channels)) for channels in range(first, first + 9)
    ]

    output = in_a_process(MEANS, "\n".join(build_wav(samples).hex() for samples in several).encode())

    means = [(samples / 32768).mean(axis=1) for samples in several]
    np.testing.assert_allclose([json.loads(line) for line in output.splitlines()], means, atol=1e-6)


BOUNDED = f"""
    import resource, sys
    import av
    from omnibus.errors import OmnibusError
    from omnibus_models import media
    data = memoryview(sys.stdin.buffer.read())
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + {ROOM_BYTES}
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        media.decode_audio(data)
    except OmnibusError as error:
        print(error.message)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures its address space by /proc")
@pytest.mark.parametrize("rate", [0.001, 1.0, 10.0, 999.0])
def test_a_recording_that_claims_few_samples_a_second_takes_no_memory(rate: float) -> None:
    complaint = in_a_process(BOUNDED, build_matroska(rate, 33_000))

    assert "sample rate" in complaint or "longer than" in complaint or "corrupt" in complaint


@pytest.mark.skipif(sys.platform != "linux", reason="measures its address space by /proc")
def test_a_frame_that_is_longer_than_allowed_is_refused_before_it_is_resampled() -> None:
    data = build_matroska(1000.0, 16_000_000)  # 4.4 hours in 32 MB, which would be resampled to 1 GB

    assert "longer than" in in_a_process(BOUNDED, data)


@pytest.mark.parametrize(("rate", "channels"), [(900_000.0, 1), (16_000.0, 65), (16_000.0, 255)])
def test_a_sample_rate_or_a_number_of_channels_that_no_recording_has_is_refused(rate: float, channels: int) -> None:
    with pytest.raises(BadMedia):
        media.decode_audio(memoryview(build_matroska(rate, 400, channels)))


@pytest.mark.parametrize("place", [8, 16, 20, 24])
def test_a_header_that_claims_more_memory_than_there_is_is_bad_media(place: int) -> None:
    data = bytearray(files.encode_tone(1.0, "aac", "mp4"))
    at = data.index(b"stsz") + place
    data[at : at + 4] = b"\x3f\xff\xff\xff"

    with pytest.raises(BadMedia):
        media.decode_audio(memoryview(data))


@pytest.mark.parametrize(
    ("value", "fault"),
    [(3e38, "full scale"), (-3e38, "full scale"), (math.inf, "not finite"), (math.nan, "not finite")],
)
def test_samples_that_no_model_can_compute_with_are_refused(value: float, fault: str):
    samples = np.zeros(1600, np.float32)
    samples[800] = value
    data = samples.tobytes()
    form = struct.pack("<IHHIIHH", 16, 3, 1, RATE_HERTZ, 4 * RATE_HERTZ, 4, 32)
    file = b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + form + _build_chunk(data)

    with pytest.raises(BadMedia, match=fault):
        media.decode_audio(file, rate=RATE_HERTZ)
