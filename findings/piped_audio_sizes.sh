#!/usr/bin/env bash
# FFmpeg cannot read every audio file that it has written to a pipe itself.
#
# Versions: PyAV 18.1.0 (FFmpeg 8), numpy 2.4.6, Python 3.11.
# One would guess: a file that a muxer of FFmpeg writes without an error is one that its demuxer of the same name reads.
# What happens: where the output cannot seek, the muxers of W64, AIFF and RF64 leave sizes of 0, or the largest number, in the
# header and report no error. The demuxers of W64 and AIFF then reject the file as invalid, that of RF64 finds no samples in it.
# WAV is read: its demuxer takes the bytes that are there.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet av==18.1.0 numpy==2.4.6

"$work/venv/bin/python" - <<'PY'
import io
import sys

import av
import numpy as np

FILES = {"wav": ("wav", "pcm_s16le", {}), "rf64": ("wav", "pcm_s16le", {"rf64": "always"}),
         "w64": ("w64", "pcm_s16le", {}), "aiff": ("aiff", "pcm_s16be", {})}


class Pipe:
    """An output without seek."""

    def __init__(self):
        self.out = io.BytesIO()

    def write(self, data):
        return self.out.write(data)


def write(target, container, codec, options):
    with av.open(target, "w", format=container, options=options) as file:
        stream = file.add_stream(codec, rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts = 16000, 0
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def count_samples(data):
    try:
        with av.open(io.BytesIO(data)) as file:
            return sum(frame.samples for frame in file.decode(audio=0))
    except av.error.InvalidDataError:
        return "invalid data"


seen = {}
for name, kind in FILES.items():
    seekable, pipe = io.BytesIO(), Pipe()
    write(seekable, *kind)
    write(pipe, *kind)
    seen[name] = (count_samples(seekable.getvalue()), count_samples(pipe.out.getvalue()))
    print(f"{name:5} written to a file: {seen[name][0]}, to a pipe: {seen[name][1]}")
expected = {"wav": (16000, 16000), "rf64": (16000, 0), "w64": (16000, "invalid data"), "aiff": (16000, "invalid data")}
sys.exit(0 if seen == expected else "the behaviour has changed")
PY
