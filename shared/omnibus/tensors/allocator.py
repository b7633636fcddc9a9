"""Allocation of the bytes of the arena: best fit, O(log n) in the number of holes, with running counters.

Best fit takes the smallest hole that is large enough, the lowest address among equals, and always its low end. The
untouched tail of the arena is usually the largest hole, so it is used last. The same low pages are written repeatedly,
stay mapped and warm, and the file stays sparse. First fit by address touches about as much of the arena (within 15 % in
a simulation of mixed sizes at half load). It rejects about as rarely, but needs a tree with the largest hole below
each node.
"""

from sortedcontainers import SortedList

#: Alignment and granularity of blocks in bytes: one cache line.
ALIGNMENT_BYTES = 64
#: Least size of a block whose data starts ``_IN_PAGE_BYTES`` after the start of a page, if its hole has room for that.
#: Large arrays elsewhere start 16 to 64 bytes after one. Past the caches, glibc copies four pages side by side if the
#: target's place in its page is up to 256 bytes after the source's. Otherwise it copies two, which takes a tenth
#: longer.
PLACED_BYTES = 1 << 20
_PAGE_BYTES, _IN_PAGE_BYTES = 4096, 256


class Allocator:
    """Allocates byte ranges of ``[0, backed)``, which may grow to ``size``.

    It does not know their owners.

    ``header`` is the number of bytes of a block before its data. ``used`` and ``peak`` are bytes; ``touched`` is the
    highest end that was ever allocated. ``backed_size`` is the end of the memory that has pages, by default all of it.
    """

    def __init__(self, size: int, backed_size: int | None = None, header: int = 0) -> None:
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
        self.add_backed(self.size if backed_size is None else backed_size)

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
        """Allocate below ``end`` too, where memory now has pages. A lower ``end`` has no effect."""
        end = min(end - end % ALIGNMENT_BYTES, self.size)
        if end <= self.backed:
            return
        start = self._tail_start
        if start < self.backed:
            self._drop_hole(start)
        self._add_hole(start, end - start)
        self.backed = end

    def required_end(self, nbytes: int) -> int | None:
        """Return the end of pages that ``nbytes`` bytes at the end need.

        ``None`` if it is beyond ``size``.
        """
        end = self._tail_start + _round_up(nbytes)
        return end if end <= self.size else None

    def allocate(self, nbytes: int) -> int | None:
        """Return the offset of ``nbytes`` bytes, or ``None`` if no hole fits.

        The size is rounded up to ``ALIGNMENT_BYTES``.
        """
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
        """Free the bytes of the block at ``offset`` beyond ``nbytes``. Raises ``KeyError`` without a block."""
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
        """Free the block at ``offset`` and join adjacent holes. Raises ``KeyError`` without a block."""
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
        """Offset of the free memory at the end of the backed memory.

        In bytes; ``backed`` if there is none.
        """
        return self._by_end.get(self.backed, self.backed)

    def _split_hole(self, start: int, hole: int, length: int) -> int:
        """Remove ``length`` bytes from a hole; returns their distance from its start."""
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
