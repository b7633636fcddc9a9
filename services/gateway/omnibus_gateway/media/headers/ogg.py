"""Length of Ogg files from their pages.

Streams are Opus, Vorbis, FLAC and Theora: single, multiplexed or one after another. Sources: RFC 3533 (Ogg), RFC 7845
(Opus), the Vorbis I and Theora specifications, RFC 9639, section 10.1 (FLAC).
"""

import struct
from collections.abc import Iterator

from omnibus_gateway.media.headers.base import MAX_FRAMES, MAX_STEPS, Extent, check_audio

#: Seconds of the longest page. A first page that ends later belongs to a recording that started before its file.
_PAGE_SECONDS = 31.0


class _OggStream:
    """One logical stream: how to read its granules, and the first and last of them."""

    def __init__(self, head: bytes) -> None:
        self.rate, self.skip, self.shift, self.width, self.height = 0.0, 0, 0, 0, 0
        self.first = self.last = -1
        if head.startswith(b"OpusHead"):
            self.rate, self.skip = 48000, int.from_bytes(head[10:12], "little")
            check_audio(channels=head[9])
        elif head.startswith(b"\x01vorbis"):
            self.rate = int.from_bytes(head[12:16], "little")
            check_audio(self.rate, head[11])
        elif head.startswith(b"\x7fFLAC"):
            self.rate = int.from_bytes(head[27:30], "big") >> 4
            check_audio(self.rate)
        elif head.startswith(b"\x80theora"):
            self._read_theora(head)

    def _read_theora(self, head: bytes) -> None:
        self.width, self.height = int.from_bytes(head[14:17], "big"), int.from_bytes(head[17:20], "big")
        count, unit = struct.unpack_from(">II", head, 22)
        self.rate = count / unit if unit else 0.0
        self.shift = int.from_bytes(head[40:42], "big") >> 5 & 31

    def count_page(self, granule: int) -> None:
        """Record the granule of one page."""
        if granule > 0:
            self.first = granule if self.first < 0 else self.first
            self.last = max(self.last, granule)

    @property
    def frames(self) -> int:
        """Frames of video up to the last page."""
        return self._units(self.last) if self.width else 0

    @property
    def seconds(self) -> float:
        """Seconds between its start and its last page."""
        if self.last <= 0 or self.rate <= 0:
            return 0.0
        first = self._units(self.first)
        before = first if first > _PAGE_SECONDS * self.rate else self.skip
        return max(0.0, self._units(self.last) - before) / self.rate

    def _units(self, granule: int) -> int:
        return (granule >> self.shift) + (granule & (1 << self.shift) - 1) if self.shift else granule


def read_ogg(data: bytes) -> Extent:
    chains: list[dict[int, _OggStream]] = []
    begins = False  # True if the previous page was the first of its stream
    for flags, granule, serial, body in _iter_pages(data):
        if flags & 2:
            if not begins:
                chains.append({})
            chains[-1][serial] = _OggStream(data[body : body + 64])
            if len(chains) * len(chains[-1]) > MAX_STEPS:
                raise ValueError("too many streams")
        elif chains and serial in chains[-1]:
            chains[-1][serial].count_page(granule)
        begins = bool(flags & 2)
    streams = [each for chain in chains for each in chain.values() if each.rate]
    if not streams:
        raise ValueError("unknown Ogg coding")
    seconds = sum(max((each.seconds for each in chain.values()), default=0.0) for chain in chains)
    video = next((each for each in streams if each.width), None)
    if video is None:
        return Extent(seconds or None)
    return Extent(seconds or None, video.width, video.height, video.frames)


def _iter_pages(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield flags, granule, serial number and content offset of each page.

    After too many pages only the last one follows.
    """
    at = 0
    for _ in range(MAX_FRAMES):
        if data[at : at + 4] != b"OggS":
            at = data.find(b"OggS", at)
            if at < 0:
                return
        if at + 27 > len(data):
            return
        flags, granule, serial, count = data[at + 5], *struct.unpack_from("<qI", data, at + 6), data[at + 26]
        body = at + 27 + count
        yield flags, granule, serial, body
        at = body + sum(data[at + 27 : body])
    at = data.rfind(b"OggS", at)
    if 0 <= at <= len(data) - 27:
        yield data[at + 5], *struct.unpack_from("<qI", data, at + 6), at + 27
