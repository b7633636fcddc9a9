#!/usr/bin/env bash
# Pillow does not find a PNG's transparent colour in grey images of 2 and 4 bits and in RGB images of 16 bits.
#
# Versions: pillow 13.0.0.
# Expected: convert("RGBA") makes pixels of the colour in the tRNS chunk transparent (PNG, third edition, 11.3.1.1), as it
#   does for 8 bits.
# Happens: Pillow scales pixels to 8 bits and compares them with the colour as it was in the file. Nothing is transparent.
# Exits with 1 when the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pillow==13.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import io
import struct
import sys
import zlib

from PIL import Image


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(depth, colour, row, key):
    """One row of two pixels, the first of which has the transparent colour."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, depth, colour, 0, 0, 0))
    body = chunk(b"tRNS", key) + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + body


files = {
    "grey of 2 bits": png(2, 0, bytes([0b01110000]), struct.pack(">H", 1)),
    "grey of 4 bits": png(4, 0, bytes([0x5C]), struct.pack(">H", 5)),
    "grey of 8 bits": png(8, 0, bytes([80, 200]), struct.pack(">H", 80)),
    "RGB of 16 bits": png(16, 2, struct.pack(">6H", 9000, 20000, 40000, 1, 2, 3), struct.pack(">3H", 9000, 20000, 40000)),
}
found = {}
for name, data in files.items():
    alpha = Image.open(io.BytesIO(data)).convert("RGBA").getchannel("A")
    found[name] = [alpha.getpixel((place, 0)) for place in (0, 1)]
    print(f"{name}: opacity {found[name]}, expected [0, 255]")
missed = [name for name, opacity in found.items() if opacity == [255, 255]]
sys.exit(0 if missed == ["grey of 2 bits", "grey of 4 bits", "RGB of 16 bits"] else 1)
PYTHON
