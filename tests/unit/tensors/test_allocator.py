import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.tensors.allocator import ALIGNMENT_BYTES, PLACED_BYTES, Allocator

SIZE = 64 * ALIGNMENT_BYTES


class Naive:
    """A simple allocator with the same guarantees, which searches everything each time."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self.peak = 0
        self.touched = 0

    def list_gaps(self) -> list[tuple[int, int]]:
        gaps, at = [], 0
        for start, length in [*sorted(self.taken.items()), (SIZE, 0)]:
            if start > at:
                gaps.append((start - at, at))
            at = start + length
        return gaps

    def allocate(self, nbytes: int) -> int | None:
        length = max(-(-nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        fitting = sorted(gap for gap in self.list_gaps() if gap[0] >= length)
        if not fitting:
            return None
        start = fitting[0][1]
        self.taken[start] = length
        self.peak = max(self.peak, sum(self.taken.values()))
        self.touched = max(self.touched, start + length)
        return start


# A negative number frees the block of that age, any other allocates that many bytes.
OPERATIONS = st.lists(st.integers(-20, SIZE + ALIGNMENT_BYTES) | st.integers(-20, 6 * ALIGNMENT_BYTES), max_size=80)


@settings(max_examples=300, deadline=None)
@given(OPERATIONS)
def test_the_allocator_agrees_with_a_naive_one(operations):
    allocator, naive = Allocator(SIZE), Naive()

    for operation in operations:
        if operation >= 0:
            offset = allocator.allocate(operation)
            assert offset == naive.allocate(operation)
            assert offset is None or offset % ALIGNMENT_BYTES == 0
        elif naive.taken:
            offset = list(naive.taken)[operation % len(naive.taken)]
            allocator.free(offset)
            del naive.taken[offset]

        gaps = naive.list_gaps()
        assert allocator.used == sum(naive.taken.values())
        assert allocator.free_bytes == SIZE - allocator.used
        assert allocator.blocks == len(naive.taken)
        assert allocator.holes == len(gaps)
        assert allocator.largest_hole == max((length for length, _ in gaps), default=0)
        assert (allocator.peak, allocator.touched) == (naive.peak, naive.touched)


def _allocate_block(allocator: Allocator, nbytes: int) -> int:
    offset = allocator.allocate(nbytes)
    assert offset is not None
    return offset


@given(st.permutations(range(20)))
def test_blocks_freed_in_any_order_join_to_one_hole(order):
    allocator = Allocator(SIZE)
    offsets = [_allocate_block(allocator, 3 * ALIGNMENT_BYTES) for _ in range(20)]

    for index in order:
        allocator.free(offsets[index])

    assert (allocator.holes, allocator.largest_hole, allocator.used, allocator.blocks) == (1, SIZE, 0, 0)


def test_equal_blocks_reuse_the_lowest_addresses():
    allocator = Allocator(SIZE)

    for _ in range(100):
        first, second = _allocate_block(allocator, 200), _allocate_block(allocator, 200)
        allocator.free(first)
        allocator.free(second)

    assert allocator.touched == 2 * 256


def test_a_block_cannot_be_freed_twice():
    allocator = Allocator(SIZE)
    offset = _allocate_block(allocator, 1)
    allocator.free(offset)

    with pytest.raises(KeyError):
        allocator.free(offset)


def test_an_arena_smaller_than_a_cache_line_holds_nothing():
    assert Allocator(ALIGNMENT_BYTES - 1).allocate(0) is None


@settings(max_examples=200, deadline=None)
@given(OPERATIONS)
def test_an_allocator_that_is_backed_as_needed_hands_out_only_what_is_backed_and_refuses_no_more(operations):
    growing = Allocator(SIZE, backed_size=0)
    offsets: list[int] = []

    for operation in operations:
        if operation >= 0:
            fits = max(operation, 1) <= growing.largest_hole
            offset = growing.allocate(operation)
            if offset is None and (end := growing.required_end(operation)) is not None:
                assert growing.backed < end <= SIZE
                growing.add_backed(end)
                offset = growing.allocate(operation)
            assert (offset is not None) == fits
            if offset is not None:
                offsets.append(offset)
        elif offsets:
            growing.free(offsets.pop(operation % len(offsets)))

        assert growing.touched <= growing.backed <= SIZE
        assert growing.free_bytes == SIZE - growing.used
    for offset in offsets:
        growing.free(offset)
    assert (growing.largest_hole, growing.used, growing.holes) == (SIZE, 0, int(growing.backed > 0))


def test_memory_that_is_backed_again_changes_nothing():
    allocator = Allocator(SIZE, backed_size=SIZE // 2)

    allocator.add_backed(SIZE // 4)
    allocator.add_backed(2 * SIZE)

    assert (allocator.backed, allocator.holes, allocator.largest_hole) == (SIZE, 1, SIZE)
    assert allocator.required_end(SIZE) == SIZE
    assert allocator.required_end(SIZE + 1) is None


def test_what_a_block_is_shrunk_by_is_free_and_joined_with_the_hole_behind_it():
    allocator = Allocator(SIZE)
    first, second = allocator.allocate(1000), allocator.allocate(1000)
    assert first is not None
    assert second is not None

    allocator.shrink(first, 100)
    allocator.shrink(first, 2000)
    assert (allocator.used, allocator.holes) == (128 + 1024, 2)
    allocator.shrink(second, 10)
    assert (allocator.used, allocator.holes) == (128 + 64, 2)
    allocator.free(first)
    allocator.free(second)

    assert (allocator.used, allocator.holes, allocator.largest_hole) == (0, 1, SIZE)


def test_data_of_large_blocks_has_one_place_in_its_page_and_the_gap_before_it_is_for_small_ones():
    header = ALIGNMENT_BYTES
    allocator = Allocator(4 * PLACED_BYTES, header=header)
    _allocate_block(allocator, 1)

    large = _allocate_block(allocator, PLACED_BYTES)
    assert (large + header) % 4096 == 256
    assert _allocate_block(allocator, ALIGNMENT_BYTES) < large

    allocator.free(large)
    assert _allocate_block(allocator, PLACED_BYTES) == large


def test_a_large_block_that_fits_only_elsewhere_in_its_page_is_granted():
    allocator = Allocator(PLACED_BYTES, header=ALIGNMENT_BYTES)

    assert allocator.allocate(PLACED_BYTES) == 0
    allocator.free(0)
    assert allocator.largest_hole == PLACED_BYTES
