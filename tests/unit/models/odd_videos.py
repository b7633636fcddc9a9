"""Valid videos of phones, screen recorders, cameras and converters, as FFmpeg shows them.

PyAV encodes each of them here, so the times of its frames are known. ``show_upright`` returns all of them as decoded by
the ``ffmpeg`` of the wheel ``imageio-ffmpeg``, in one process.
"""

import io
import itertools
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import imageio_ffmpeg
import numpy as np

Pixels = np.ndarray[Any, Any]
#: Entries a, b, c, d of display matrices: four turns, and their mirrors (ISO/IEC 14496-12, 8.3.2).
MATRICES = {
    "as it is": (1, 0, 0, 1),
    "90": (0, 1, -1, 0),
    "180": (-1, 0, 0, -1),
    "270": (0, -1, 1, 0),
    "mirrored": (-1, 0, 0, 1),
    "upside down": (1, 0, 0, -1),
    "90 mirrored": (0, 1, 1, 0),
    "270 mirrored": (0, -1, -1, 0),
}
_TICKS = Fraction(1, 90_000)


@dataclass(frozen=True)
class OddVideo:
    """A file, its frames' seconds after the first, and its duration; ``steady`` if the rate is constant."""

    name: str
    data: bytes
    seconds: tuple[Fraction, ...]
    length: Fraction
    steady: bool
    upright: tuple[int, int]  # width and height
    tolerance: int = 2


def odd_videos(folder: Path) -> list[OddVideo]:
    """Return all odd videos; ``folder`` is for files that FFmpeg converts."""
    return [*_usual_videos(), *_odd_samples(), *_converted_videos(folder)]


def _usual_videos() -> Iterator[OddVideo]:
    for name, container in itertools.product(MATRICES, ("mp4", "mov")):
        yield _build_video(f"{container} {name}", container, matrix=MATRICES[name])
    for rate, container in itertools.product(("1/5", "1", "3/2", "5", "24", "30000/1001", "60"), ("mp4", "matroska")):
        yield _build_video(f"{container} at {rate} frames per second", container, rate=Fraction(rate), count=11)
    for count in range(1, 9):
        yield _build_video(f"{count} frames", "mp4", rate=Fraction(2), count=count)
    for name, times in _UNEVEN.items():
        for container in ("mp4", "matroska"):
            yield uneven_video(f"{container} {name}", container, times)


def _odd_samples() -> Iterator[OddVideo]:
    formats = ("yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj444p", "gray", "yuv420p10le", "yuv444p10le")
    for pixels, size in itertools.product(formats, ((64, 48), (34, 50))):
        # Of ten bits per sample, releases of swscale interpolate colours of half the resolution in other ways.
        tolerance = 8 if pixels == "yuv420p10le" else 2
        yield _build_video(f"H.264 {pixels} {size}", "mp4", pixels=pixels, size=size, count=6, tolerance=tolerance)
    for size in ((63, 47), (17, 33), (1, 1), (3, 64)):
        yield _build_video(f"VP9 {size}", "webm", codec="libvpx-vp9", pixels="yuv420p", size=size, count=4)
    for codec, container in (
        ("mpeg4", "avi"),
        ("mpeg2video", "matroska"),
        ("libvpx", "webm"),
        ("mpeg1video", "matroska"),
    ):
        yield _build_video(f"{codec} in {container}", container, codec=codec, rate=Fraction(25), count=30)
    for late in (Fraction(3), Fraction(1, 3)):
        for container in ("mp4", "matroska"):
            yield _build_video(f"{container} that begins after {late} s", container, late=late)
    fields = {"flags": "+ildct+ilme"}
    yield _build_video("interlaced", "matroska", codec="mpeg2video", rate=Fraction(25), options=fields, tolerance=10)
    yield _build_video(
        "wide colours", "mp4", options={"x264-params": "colormatrix=bt709:colorprim=bt709:transfer=bt709"}
    )


#: FFmpeg's arguments to convert a video of ten frames per second, and the kind of result.
_CONVERSIONS: dict[str, tuple[str, str]] = {
    "turned by Matroska": ("-display_rotation:v 90 -i {} -c copy -f matroska", "turned"),
    "turned by the codec": (
        "-i {} -c copy -bsf:v h264_metadata=display_orientation=insert:rotate=270 -f matroska",
        "turned",
    ),
    "mirrored by the codec": (
        "-i {} -c copy -bsf:v h264_metadata=display_orientation=insert:flip=vertical -f matroska",
        "",
    ),
    "H.264 out of order in AVI": ("-i {} -c copy -f avi", ""),
    "in fragments": ("-i {} -c copy -movflags empty_moov+frag_every_frame -f mp4", ""),
    "after a day": ("-i {} -c copy -output_ts_offset 86400 -f matroska", ""),
    "VP8 with frames that are not shown": ("-i {} -c:v libvpx -auto-alt-ref 1 -lag-in-frames 8 -f webm", ""),
    "cut by an edit list": ("-ss 0.25 -i {} -c copy -f mp4", "cut"),
}


def _converted_videos(folder: Path) -> Iterator[OddVideo]:
    source = _build_video("H.264 out of order", "mp4", count=20)
    (folder / "source.mp4").write_bytes(source.data)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y"]
    outputs: list[str] = []
    for number, (arguments, _) in enumerate(_CONVERSIONS.values()):
        before, after = arguments.split("-i {} ")
        command += [*before.split(), "-i", str(folder / "source.mp4")]
        outputs += ["-map", f"{number}:v", *after.split(), str(folder / f"converted {number}")]
    subprocess.run([*command, *outputs], check=True, timeout=60)
    for number, (name, (_, change)) in enumerate(_CONVERSIONS.items()):
        kept_seconds = source.seconds[: len(source.seconds) - (3 if change == "cut" else 0)]
        size = source.upright[::-1] if change == "turned" else source.upright
        data = (folder / f"converted {number}").read_bytes()
        yield OddVideo(name, data, kept_seconds, Fraction(len(kept_seconds), 10), True, size)


def show_upright(videos: Sequence[OddVideo], folder: Path) -> list[Pixels]:
    """Return all frames of each video as FFmpeg shows them: uint8 [n, height, width, 3]."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y"]
    for number, video in enumerate(videos):
        (folder / f"{number}.in").write_bytes(video.data)
        command += ["-i", str(folder / f"{number}.in")]
    for number in range(len(videos)):
        command += ["-map", f"{number}:v", "-fps_mode", "passthrough", "-pix_fmt", "rgb24", "-f", "rawvideo"]
        command.append(str(folder / f"{number}.out"))
    subprocess.run(command, check=True, timeout=120)
    frames = []
    for number, video in enumerate(videos):
        width, height = video.upright
        frames.append(np.fromfile(folder / f"{number}.out", np.uint8).reshape(-1, height, width, 3))
    return frames


#: Seconds of frames, then the length: screen recorders write a frame when something moves.
_UNEVEN = {
    "a gap": ([0, Fraction(1, 2), 1, 8], 9),
    "a burst, then one frame": ([*(Fraction(number, 30) for number in range(30)), 8], Fraction(241, 30)),
    "slower and slower": ([Fraction(number**2, 20) for number in range(14)], 10),
    "from 60 to 5 frames per second": (
        [*(Fraction(number, 60) for number in range(60)), *(1 + Fraction(number, 5) for number in range(20))],
        5,
    ),
}


def uneven_video(name: str, container: str, timing: tuple[Sequence[Any], Any]) -> OddVideo:
    """Return a video with its frames' seconds and length from ``timing``."""
    times, length = [Fraction(time) for time in timing[0]], Fraction(timing[1])
    data = _encode_video(container, "libx264", times, length - times[-1], (64, 48), "yuv420p", Fraction(30), {})
    return OddVideo(name, data, tuple(times), length, False, (64, 48))


def _build_video(
    name: str,
    container: str,
    codec: str = "libx264",
    rate: Fraction = Fraction(10),
    count: int = 12,
    size: tuple[int, int] = (64, 48),
    pixels: str = "yuv420p",
    matrix: tuple[int, int, int, int] = (1, 0, 0, 1),
    late: Fraction = Fraction(0),
    options: dict[str, str] | None = None,
    tolerance: int = 2,
) -> OddVideo:
    times = [number / rate for number in range(count)]
    shifted_times = [time + late for time in times]
    data = _encode_video(container, codec, shifted_times, 1 / rate, size, pixels, rate, options or {})
    if matrix != (1, 0, 0, 1):
        data = _write_matrix(data, matrix)
    upright = size if matrix[0] else size[::-1]
    return OddVideo(name, data, tuple(times), count / rate, True, upright, tolerance)


def _encode_video(
    container: str,
    codec: str,
    times: Sequence[Fraction],
    last: Fraction,
    size: tuple[int, int],
    pixels: str,
    rate: Fraction,
    options: dict[str, str],
) -> bytes:
    """Encode smooth frames of different colours, so that no two look alike."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, options={"preset": "ultrafast", **options})
        stream.width, stream.height, stream.pix_fmt = *size, pixels
        constant = codec in ("mpeg4", "mpeg1video", "mpeg2video")
        stream.codec_context.time_base = 1 / rate if constant else _TICKS
        # For reordered frames the MP4 writer would use another one's duration for the last.
        stream.codec_context.max_b_frames = 2 if codec == "libx264" and constant_rate(times) else 0
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(_make_picture(number, *size), format="rgb24")
            frame = frame.reformat(format=pixels)
            frame.pts, frame.time_base = round(time / stream.codec_context.time_base), stream.codec_context.time_base
            for packet in stream.encode(frame):
                file.mux(_with_duration(packet, times, last))
        for packet in stream.encode(None):
            file.mux(_with_duration(packet, times, last))
    return out.getvalue()


def constant_rate(times: Sequence[Fraction]) -> bool:
    """Return True if all frames are as far apart as the first two."""
    return len({after - before for before, after in itertools.pairwise(times)}) < 2


def _with_duration(packet: Any, times: Sequence[Fraction], last: Fraction) -> Any:
    """Return the packet with the duration until the next frame."""
    time = packet.pts * packet.time_base
    following = [other for other in times if other > time + Fraction(1, 1000)]
    packet.duration = round(((min(following) - time) if following else last) / packet.time_base)
    return packet


def _make_picture(number: int, width: int, height: int) -> Pixels:
    rows, columns = np.mgrid[:height, :width]
    red = 255 * columns / max(1, width - 1)
    green = 255 * rows / max(1, height - 1)
    return np.stack([red, green, np.full_like(red, number * 37 % 256)], axis=-1).astype(np.uint8)


def _write_matrix(data: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """Return ``data`` with ``matrix`` in its one track header (version 0)."""
    buffer, start = bytearray(data), data.index(b"tkhd") + 44
    a, b, c, d = (entry << 16 for entry in matrix)
    buffer[start : start + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    return bytes(buffer)
