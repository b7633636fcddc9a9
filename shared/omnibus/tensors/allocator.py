"""Allocation of the bytes of the arena: best fit, O(log n) in the number of holes, with running counters.

Why best fit: among holes that are large enough the smallest is taken, the lowest address among equals,
and always its low end. The untouched tail of the arena is as a rule the largest hole, so it is used
last: the same low pages are written again and again, stay mapped and warm, and the file stays sparse.
First fit by address touches about as much of the arena (within 15 % in a simulation of mixed sizes at
half load) and refuses about as seldom, but needs a tree that knows the largest hole below each node.
"""

from sortedcontainers import SortedList

#: Every block starts at a multiple of this and is a multiple of it long (bytes): one cache line.
ALIGNMENT_BYTES = 64
#: From how many bytes on a block's data begins ``_IN_PAGE_BYTES`` behind the beginning of a page, where its hole has
#: room for that. Large arrays elsewhere begin 16 to 64 bytes behind one. Past the caches glibc copies four pages side
#: by side where the target's place in its page is up to 256 bytes behind the source's, and two else, which takes a
#: tenth longer.
PLACED_BYTES = 1 << 20
_PAGE_BYTES, _IN_PAGE_BYTES = 4096, 256


class Allocator:
    """Hands out byte ranges of ``[0, backed)``, which may grow up to ``size``. Knows nothing of owners.

    ``header`` is how many bytes of a block are in front of its data. ``used`` and ``peak`` are bytes; ``touched`` is
    the highest end that was ever handed out. ``backed`` is where the memory ends that has pages; without it, all of it
    has.
    """

    def __init__(self, size: int, backed: int | None = None, header: int = 0) -> None:
        self._header = header
        self.size = size - size % ALIGNMENT_BYTES
        self.backed = 0
        self.used = 0
        self.peak = 0
        self.touched = 0
        self._taken: dict[int, int] = {}
        self._by_size: SortedList[tuple[int, int]] = SortedList()
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self.add_backed(self.size if backed is None else backed)

    @property
    def free_bytes(self) -> int:
        return self.size - self.used

    @property
    def blocks(self) -> int:
        return len(self._taken)

    @property
    def holes(self) -> int:
        return len(self._by_start)

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest hole: the largest block that fits once there are pages for it."""
        hole = int(self._by_size[-1][0]) if self._by_size else 0
        return max(hole, self.size - self._tail_start)

    def add_backed(self, end: int) -> None:
        """Hand out the memory below ``end`` too: it has pages now. Less than before changes nothing."""
        end = min(end - end % ALIGNMENT_BYTES, self.size)
        if end <= self.backed:
            return
        start = self._tail_start
        if start < self.backed:
            self._drop_hole(start)
        self._add_hole(start, end - start)
        self.backed = end

    def required_end(self, nbytes: int) -> int | None:
        """Up to where memory must have pages for ``nbytes`` bytes at its end; ``None`` when that is beyond ``size``."""
        end = self._tail_start + _round_up(nbytes)
        return end if end <= self.size else None

    def allocate(self, nbytes: int) -> int | None:
        """The offset of ``nbytes`` bytes (rounded up to ``ALIGNMENT``), or ``None`` when no hole fits."""
        length = _round_up(nbytes)
        place = self._by_size.bisect_left((length, 0))
        if place == len(self._by_size):
            return None
        hole, start = self._by_size.pop(place)
        start += self._split_hole(start, hole, length)
        self._taken[start] = length
        self.used += length
        self.peak = max(self.peak, self.used)
        self.touched = max(self.touched, start + length)
        return int(start)

    def shrink(self, offset: int, nbytes: int) -> None:
        """Take back what the block at ``offset`` has beyond ``nbytes`` bytes. ``KeyError`` if none is there."""
        length, end = _round_up(nbytes), offset + self._taken[offset]
        rest = end - offset - length
        if rest <= 0:
            return
        self._taken[offset] = length
        self.used -= rest
        if end in self._by_start:
            end += self._drop_hole(end)
        self._add_hole(offset + length, end - offset - length)

    def free(self, offset: int) -> None:
        """Take back the block at ``offset`` and join it with the holes beside it. ``KeyError`` if none is there."""
        length = self._taken.pop(offset)
        self.used -= length
        start, end = offset, offset + length
        if end in self._by_start:
            end += self._drop_hole(end)
        if start in self._by_end:
            start = self._by_end[start]
            self._drop_hole(start)
        self._add_hole(start, end - start)

    @property
    def _tail_start(self) -> int:
        """Offset of the free memory at the end of the backed memory, in bytes; ``backed`` when there is none."""
        return self._by_end.get(self.backed, self.backed)

    def _split_hole(self, start: int, hole: int, length: int) -> int:
        """Take ``length`` bytes out of a hole; returns how far behind its beginning."""
        del self._by_start[start], self._by_end[start + hole]
        front = (_IN_PAGE_BYTES - start - self._header) % _PAGE_BYTES if length >= PLACED_BYTES else 0
        if front + length > hole:
            front = 0
        if front:
            self._add_hole(start, front)
        if hole > front + length:
            self._add_hole(start + front + length, hole - front - length)
        return front

    def _add_hole(self, start: int, length: int) -> None:
        self._by_size.add((length, start))
        self._by_start[start] = length
        self._by_end[start + length] = start

    def _drop_hole(self, start: int) -> int:
        length = self._by_start.pop(start)
        del self._by_end[start + length]
        self._by_size.remove((length, start))
        return length


def _round_up(nbytes: int) -> int:
    return max(nbytes + ALIGNMENT_BYTES - 1 & -ALIGNMENT_BYTES, ALIGNMENT_BYTES)
