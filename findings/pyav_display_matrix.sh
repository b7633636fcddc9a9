#!/usr/bin/env bash
# PyAV decodes past display matrices, and VideoFrame.rotation cannot tell a mirror from a turn.
#
# Versions: av 18.1.0, numpy 2.4.6.
# Expected: frames as the ffmpeg command, OpenCV and browsers show them (ISO/IEC 14496-12, 8.3.2), or a property that says
#   what to do with them.
# Happens: frames come as they are stored. `rotation` is -180 for a video turned by 180 degrees and for one that is
#   mirrored; it is 0 for one that is upside down in a mirror. Only the frame's side data tell them apart.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import io
import struct
import sys

import av
import numpy as np

out = io.BytesIO()
with av.open(out, "w", format="mp4") as file:
    stream = file.add_stream("libx264", rate=10)
    stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:24, :32] = 255
    for _ in range(3):
        file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
    file.mux(stream.encode(None))

matrices = {"stored": (1, 0, 0, 1), "turned by 180": (-1, 0, 0, -1), "mirrored": (-1, 0, 0, 1), "flipped": (1, 0, 0, -1)}
seen = {}
for name, (a, b, c, d) in matrices.items():
    data = bytearray(out.getvalue())
    start = data.index(b"tkhd") + 44
    data[start : start + 36] = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    with av.open(io.BytesIO(bytes(data))) as file:
        frame = next(file.decode(video=0))
        bright = frame.to_ndarray(format="rgb24")[:, :, 0] > 128
        corner = "top left" if bright[4, 4] else "elsewhere"
        seen[name] = (frame.rotation, corner)
        print(f"{name}: rotation {frame.rotation}, the white corner is {corner}")
same = {corner for _, corner in seen.values()} == {"top left"}
confused = seen["mirrored"][0] == seen["turned by 180"][0] and seen["flipped"][0] == seen["stored"][0]
sys.exit(0 if same and confused else 1)
PYTHON
