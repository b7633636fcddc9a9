"""Sizes of the pieces in which a vocoder takes codes. They depend on the place in the waveform only.

A vocoder computes each piece with some codes around it, so samples differ in their last bits where pieces are cut. If
codes were taken as they arrive, the same codes would make slightly different audio each time. The first pieces are
small, so that audio starts early. Later pieces are large and cost less per code; by then the listener has enough audio
in hand.
"""

from collections.abc import Iterator

#: Audio in the first pieces. Talkers send their codes in such batches, which are multiples of ``_BATCH_CODES``.
_FIRST_CHUNK_SECONDS = 0.24
_BATCH_CODES = 4
#: Pieces of one size before it doubles. The audio of earlier pieces then lasts until the next one is ready, if codes
#: arrive 1.4 times as fast as they are played.
_CHUNKS_PER_SIZE = 6


def piece_sizes(codes_per_second: float, most: int) -> Iterator[int]:
    """Yield the sizes of all pieces of a waveform, in codes or frames.

    The iterator is infinite; ``most`` is the largest size.
    """
    size = _BATCH_CODES * max(1, round(codes_per_second * _FIRST_CHUNK_SECONDS / _BATCH_CODES))
    while size < most:
        yield from [size] * _CHUNKS_PER_SIZE
        size *= 2
    while True:
        yield most
