"""Sizes of the pieces in which a vocoder takes codes. They follow from the place in the waveform alone.

A vocoder computes each piece with some codes around it, so samples differ in their last bits where pieces are cut. Were
codes taken as they arrive, the same codes would sound a little different each time. So the first pieces are small, for
an early sound, and later ones large, each of which costs less for a code; a listener has sound enough by then.
"""

from collections.abc import Iterator

#: Sound in the first pieces. Talkers send their codes in such bunches, which are multiples of ``_BUNCH``.
_FIRST_CHUNK_SECONDS = 0.24
_BATCH_CODES = 4
#: Pieces of one size before it doubles: then the sound of earlier ones lasts until the next one is there, where codes
#: come 1.4 times as fast as they are played.
_CHUNKS_PER_SIZE = 6


def piece_sizes(codes_per_second: float, most: int) -> Iterator[int]:
    """The sizes of all pieces of a waveform in codes, or frames, without end; ``most`` is that of the largest."""
    size = _BATCH_CODES * max(1, round(codes_per_second * _FIRST_CHUNK_SECONDS / _BATCH_CODES))
    while size < most:
        yield from [size] * _CHUNKS_PER_SIZE
        size *= 2
    while True:
        yield most
