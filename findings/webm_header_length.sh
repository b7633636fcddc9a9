#!/usr/bin/env bash
# The length in the header of a WebM file of Opus is longer than its samples.
#
# Versions: PyAV 18.1.0 (FFmpeg 8), numpy 2.4.6, Python 3.11.
# One would guess: three seconds of samples make a WebM file whose Duration says three seconds, so that rounding it up gives 3.
# What happens: Duration counts the samples that decoders leave out at the beginning (CodecDelay) and at the end
# (DiscardPadding), so it says more than 3 s, and whole seconds, rounded up, are 4. The decoder gives exactly 3 s.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet av==18.1.0 numpy==2.4.6

"$work/venv/bin/python" - <<'PY'
import io
import math
import sys

import av
import numpy as np

out = io.BytesIO()
with av.open(out, "w", format="webm") as file:
    stream = file.add_stream("libopus", rate=48000, layout="mono")
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 3 * 48000), np.float32), format="fltp", layout="mono")
    frame.sample_rate, frame.pts = 48000, 0
    file.mux(stream.encode(frame))
    file.mux(stream.encode(None))
with av.open(io.BytesIO(out.getvalue())) as file:
    header = file.duration / av.time_base
    decoded = sum(frame.samples for frame in file.decode(audio=0)) / 48000
print(f"header: {header:.4f} s, rounded up: {math.ceil(header)}; decoded: {decoded:.4f} s, rounded up: {math.ceil(decoded)}")
sys.exit(0 if header > 3 and decoded == 3 else "the behaviour has changed")
PY
