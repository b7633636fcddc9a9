"""Cross-attention rows: each sequence sees its own, in any slot."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from omnibus_llm.engine import slot_cache as kv_codec
from omnibus_llm.engine.cross_attention_cache import CrossCache
from omnibus_models.attention import BidirectionalAttention, Crossing

#: Two of four layers use cross-attention.
CROSSED = (1, 3)
CPU = torch.device("cpu")


def make_sequence(seed: int, length: int, rows: int) -> list[tuple[Tensor, Tensor]]:
    """Return a prefill's cache: the self-attention layers, then the cross-attention layers."""
    numbers = torch.Generator().manual_seed(seed)
    sizes = (length, length, rows, rows)
    return [tuple(torch.randn(2, size, 3, generator=numbers) for _ in range(2)) for size in sizes]  # type: ignore[misc]


def read_cross_layers(cache: CrossCache) -> list[tuple[Tensor, Tensor]]:
    return [(cache.layers[layer].keys, cache.layers[layer].values) for layer in CROSSED]


def test_each_row_of_a_step_sees_its_own_rows_and_one_without_any_sees_nothing():
    cache = CrossCache(4, 16, 4, CROSSED)
    sequences = [make_sequence(1, 5, 0), make_sequence(2, 3, 4), make_sequence(3, 7, 6), make_sequence(4, 2, 0)]
    for one in sequences:
        cache.insert(one)

    cache.begin_pass([0, 1, 2, 3])
    mask = cache.attention_mask()

    assert isinstance(mask, Crossing)
    assert mask.rows is None
    assert mask.seen[:, 0, 0].sum(-1).tolist() == [1, 4, 6, 1]
    assert mask.fed[:, 0].tolist() == [False, True, True, False]
    assert mask.mask is not None
    assert mask.mask[:, 0, 0].sum(-1).tolist() == [6, 4, 8, 3]
    for place, pair in enumerate(read_cross_layers(cache)):
        for tensor, index in zip(pair, (0, 1), strict=True):
            for row, rows in ((1, 4), (2, 6)):
                assert torch.equal(tensor[row, :, :rows], sequences[row][2 + place][index])
            assert not tensor[0, :, 0].any()
            assert not tensor[3, :, 0].any()


def test_a_step_of_text_alone_looks_at_nothing_aside():
    cache = CrossCache(3, 16, 4, CROSSED)
    for one in (make_sequence(1, 5, 0), make_sequence(2, 3, 4), make_sequence(3, 2, 0)):
        cache.insert(one)

    cache.begin_pass([0, 2])

    assert cache.layers == []
    assert isinstance(cache.attention_mask(), Tensor)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_rows_move_along_when_a_slot_is_freed(left: int):
    cache = CrossCache(4, 16, 4, CROSSED)
    sequences = [make_sequence(1, 5, 6), make_sequence(2, 3, 0), make_sequence(3, 7, 4)]
    for one in sequences:
        cache.insert(one)

    cache.remove(left)
    sequences[left] = sequences[-1]
    sequences.pop()
    cache.begin_pass([0, 1])

    mask: Any = cache.attention_mask()
    rows = [one[2][0].shape[1] for one in sequences]
    assert cache.rows == rows
    assert mask.fed[:, 0].tolist() == [count > 0 for count in rows]
    for place, pair in enumerate(read_cross_layers(cache)):
        for row, count in enumerate(rows):
            assert torch.equal(pair[0][row, :, :count], sequences[row][2 + place][0])
            assert count or not pair[0][row, :, 0].any()


def test_a_slot_that_was_wiped_holds_no_number_of_before():
    cache = CrossCache(2, 16, 4, CROSSED)
    cache.insert([(keys * torch.nan, values) for keys, values in make_sequence(1, 5, 6)])

    cache.remove(0, wipe=True)
    cache.insert(make_sequence(2, 3, 2))

    assert not any(bool(torch.isnan(tensor).any()) for tensor in cache._stored)


def test_who_has_no_rows_does_not_see_those_that_the_slot_had_before():
    cache = CrossCache(2, 16, 4, CROSSED)
    cache.insert(make_sequence(1, 5, 6))
    cache.remove(0)
    cache.insert(make_sequence(2, 5, 0))
    cache.insert(make_sequence(3, 5, 2))

    cache.begin_pass([0, 1])

    assert not any(bool(tensor[0, :, 0].any()) for pair in read_cross_layers(cache) for tensor in pair)


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_packed_cache_is_the_same_bit_for_bit(dtype: torch.dtype, rows: int):
    cache = CrossCache(1, 16, 4, CROSSED)
    layers = [(keys.to(dtype), values.to(dtype)) for keys, values in make_sequence(1, 7, rows)]
    cache.insert(layers)

    about, packed_cache = cache.pack(layers)
    back = cache.unpack(about, packed_cache, 7)

    assert cache.layout == kv_codec.CacheLayout(2, 2, 3, 2)
    assert about["rows"] == rows
    for pair, other in zip(layers, back, strict=True):
        assert all(torch.equal(one, two) for one, two in zip(pair, other, strict=True))


def test_of_a_prompt_without_pictures_there_is_nothing_aside_to_keep():
    cache, prompt_cache = CrossCache(2, 16, 4, CROSSED), DynamicCache()
    for layer in (0, 2):  # the library skips the others, including the last one
        prompt_cache.update(torch.ones(1, 2, 5, 3), torch.ones(1, 2, 5, 3), layer)

    cached_layers = cache.filled_layers(prompt_cache, None)

    assert [tuple(keys.shape) for keys, _ in cached_layers] == [(2, 5, 3), (2, 5, 3), (2, 0, 3), (2, 0, 3)]


def test_positions_look_to_the_end_of_their_span_and_all_others_back():
    attention = BidirectionalAttention([(1, 3), (5, 8)], CPU)

    first, middle, last = attention.mask(0, 4), attention.mask(4, 5), attention.mask(4, 9)

    def count_visible(mask: Tensor | None) -> list[int]:
        assert mask is not None
        assert mask.dtype == torch.bool
        counts: list[int] = mask[0, 0].sum(-1).tolist()
        assert all(row[:count].all() for row, count in zip(mask[0, 0], counts, strict=True))
        return counts

    assert count_visible(first) == [1, 3, 3, 4]
    assert middle is None
    assert count_visible(last) == [5, 8, 8, 8, 9]


@pytest.mark.parametrize("share", [(0, 2), (2, 4), (6, 7)])
def test_a_share_that_cuts_a_span_is_a_mistake(share: tuple[int, int]):
    with pytest.raises(ValueError, match="cuts a span"):
        BidirectionalAttention([(1, 3), (5, 8)], CPU).mask(*share)
