"""Writer of video files, MP4 with H.264 and AAC. Frames and audio are encoded as they arrive, by PyAV."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnibus.errors import BadRequest, Fatal, StorageFull, out_of_space

MIME = "video/mp4"

#: Threads of the encoder, which shares the machine with everything else in a gateway.
_THREAD_COUNT = 2
#: Constant quality, visually close to the original frames.
_QUALITY = {"preset": "veryfast", "crf": "18"}
#: Numbers of BT.709, and of its narrow range, in H.264.
_BT709, _NARROW = 1, 1
#: Rates of AAC in samples per second, the rate to which others are resampled, and bits per second and channel.
_AAC_RATES_HERTZ = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_AAC_RATE_HERTZ, _CHANNEL_BITS_PER_SECOND = 48000, 96_000


class VideoWriter:
    """Video file at ``path`` that is encoded while its frames arrive. It has ``fps`` frames per second, and an audio
    track if ``sound``.

    Frames and audio are accepted in any order. ``close`` completes the file and moves its index to the beginning, so
    that it plays while it is downloaded. Only encoded frames are kept. Calls take a while: make them in one thread.
    Raises ``BadRequest`` for invalid input, and ``Fatal`` if the file cannot be written.
    """

    def __init__(self, path: Path, fps: float, sound: bool = False) -> None:
        import av  # 16 MiB that a gateway without videos does not need

        self._av = av
        self._rate = Fraction(fps).limit_denominator(1001)
        self._colours: Any = av.video.reformatter.VideoReformatter()
        self._frames: Any = None
        self._samples: Any = None
        self._silent = not sound
        self._begun = False
        self._early: list[Any] = []  # packets from before all tracks were known: nothing can be written until then
        self.count = 0  # frames
        self.heard = 0  # samples
        with self._map_write_errors():  # the file is created with the first write
            self._file = av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"})

    def add_frames(self, pixels: NDArray[np.uint8]) -> None:
        """Add frames, uint8 [n, height, width, 3] with even sides."""
        if (
            pixels.ndim != 4
            or pixels.shape[3] != 3
            or pixels.dtype != np.uint8
            or any(n % 2 for n in pixels.shape[1:3])
        ):
            raise BadRequest(
                f"frames must be uint8 [n, height, width, 3] with even sides, not {_describe_array(pixels)}"
            )
        with self._map_write_errors():
            for each in pixels:
                if self._frames is None:
                    self._frames = self._add_video_stream(each.shape[1], each.shape[0])
                self._mux_packets(self._frames.encode(self._to_video_frame(each)))
                self.count += 1

    def add_audio(self, samples: NDArray[np.float32], rate: int) -> None:
        """Add audio of one or two channels. ``samples`` are float32 [n] or [n, channels] in [-1, 1]."""
        if samples.ndim not in (1, 2) or samples.shape[1:] not in ((), (1,), (2,)):
            raise BadRequest(f"a video's audio must be float32 [n] or [n, 1 or 2], not {_describe_array(samples)}")
        if not len(samples):
            return
        layout = "stereo" if samples.shape[1:] == (2,) else "mono"
        with self._map_write_errors():
            if self._samples is None:
                self._samples = self._file.add_stream("aac", rate=rate if rate in _AAC_RATES_HERTZ else _AAC_RATE_HERTZ)
                self._samples.layout = layout
                self._samples.bit_rate = _CHANNEL_BITS_PER_SECOND * (1 + (layout == "stereo"))
            data = np.ascontiguousarray(np.clip(samples, -1.0, 1.0), np.float32).reshape(1, -1)
            frame = self._av.AudioFrame.from_ndarray(data, format="flt", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, self.heard, Fraction(1, rate)
            self.heard += len(samples)
            self._mux_packets(self._samples.encode(frame))

    def close(self) -> None:
        """Write the rest of the file. Raises ``BadRequest`` if there is no frame."""
        if not self.count:
            self.abort()
            raise BadRequest("a video needs at least one frame")
        with self._map_write_errors():
            self._write_pending()  # no audio arrived
            for stream in (self._frames, self._samples):
                if stream is not None:
                    self._mux_packets(stream.encode(None))
            self._file.close()

    def abort(self) -> None:
        """Close the file, which is incomplete."""
        with suppress(OSError, ValueError):
            self._file.close()

    def _add_video_stream(self, width: int, height: int) -> Any:
        stream: Any = self._file.add_stream("libx264", rate=self._rate, options=_QUALITY)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context = stream.codec_context
        context.thread_count, context.time_base = _THREAD_COUNT, 1 / self._rate
        context.color_range = _NARROW
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        return stream

    def _to_video_frame(self, pixels: NDArray[np.uint8]) -> Any:
        plain = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        frame = self._colours.reformat(plain, format="yuv420p", dst_colorspace=_BT709, dst_color_range=_NARROW)
        frame.pts, frame.time_base = self.count, 1 / self._rate
        return frame

    def _write_pending(self) -> None:
        """Write the packets that waited until all tracks were known."""
        self._begun = True
        early, self._early = self._early, []
        self._mux_packets(early)

    def _mux_packets(self, packets: Iterable[Any]) -> None:
        if not self._begun and self._frames is not None and (self._silent or self._samples is not None):
            self._write_pending()
        if self._begun:
            for packet in packets:
                self._file.mux(packet)
        else:
            self._early += packets

    @contextmanager
    def _map_write_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._av.error.FFmpegError) as error:
            if out_of_space(error):
                raise StorageFull("the directory of the video is full: free space, then try again") from error
            raise Fatal(f"cannot write the video: {type(error).__name__}") from error


def _describe_array(array: NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"
