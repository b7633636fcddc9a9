"""Recorded passes: those of fixed shapes with padding and CUDA graphs, and those on a CPU, whose bits are the same."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus_llm.engine.decode_pass import (
    DecodePass,
    FixedPass,
    PassShape,
    PromptPass,
    RecordedPass,
    record_cuda_graphs,
)
from omnibus_llm.engine.slot_cache import SlotCache
from omnibus_models import tiny
from omnibus_models.contract import Thinker
from omnibus_models.families import load_family
from tests.close import BOUND, assert_close

_LENGTHS = (7, 30, 12)
_SLOTS, _CONTEXT = 5, 300


def _fill_cache(decoder: Thinker) -> SlotCache:
    """Return a cache with a sequence of each of the lengths."""
    cache = SlotCache(_SLOTS, _CONTEXT)
    for seed, length in enumerate(_LENGTHS):
        prompt = DynamicCache()
        places = torch.arange(length, device=decoder.device)[None, None].expand(decoder.axes, 1, length)
        decoder.forward(_make_inputs(decoder, length, seed)[None], places, prompt, None)
        cache.insert(cache.filled_layers(prompt, None))
    return cache


def _make_inputs(decoder: Thinker, count: int, seed: int) -> Tensor:
    ids = torch.randint(10, 40, (count,), generator=torch.Generator().manual_seed(seed))
    return decoder.embed(ids.to(decoder.device))


@torch.inference_mode()
def _decode_steps(decoder: Thinker, make: Callable[[Thinker, SlotCache], DecodePass], rounds: int = 1) -> list[Tensor]:
    """Return hidden rows of several steps with varying participants."""
    cache = _fill_cache(decoder)
    run, hidden_rows = make(decoder, cache), []
    for seed, slots in enumerate([[0, 1, 2], [1], [0, 2], [0], [0, 1, 2], [2], [1, 2]] * rounds):
        inputs = _make_inputs(decoder, len(slots), 100 + seed)
        hidden_rows.append(run.run(slots, inputs, [cache.lengths[slot] for slot in slots]).float().cpu())
        cache.advance_slots(slots)
    return hidden_rows


def _keep_plain(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return compute


def test_rows_that_nobody_asked_for_change_nothing(thinker: Thinker) -> None:
    passes: list[FixedPass] = []

    def make_pass(decoder: Thinker, cache: SlotCache) -> FixedPass:
        passes.append(FixedPass(decoder, cache, _keep_plain))
        return passes[0]

    for actual, reference in zip(_decode_steps(thinker, make_pass), _decode_steps(thinker, DecodePass), strict=True):
        assert_close(actual, reference)
    width = thinker.width
    assert sorted(passes[0].shapes) == [PassShape(rows, 256, width) for rows in (1, 2, 4)]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_omni_moe"])
def test_a_recorded_pass_on_a_cpu_gives_the_same_bits(family: str, tmp_path: Path) -> None:
    decoder = load_family(family).load("thinker", tiny.build(family, tmp_path / family))
    passes: list[RecordedPass] = []

    def make_pass(decoder: Thinker, cache: SlotCache) -> RecordedPass:
        passes.append(RecordedPass(decoder, cache))
        return passes[0]

    rows = _decode_steps(decoder, make_pass, rounds=6)

    for actual, reference in zip(rows, _decode_steps(decoder, DecodePass, rounds=6), strict=True):
        assert torch.equal(actual, reference)
    calls = passes[0].calls
    assert calls.recordings == 4, "of one slot and of several, which are the first ones or not"
    assert calls.compared >= 5


@torch.inference_mode()
def test_a_recorded_prompt_gives_the_same_bits(thinker: Thinker) -> None:
    run = PromptPass(thinker)

    for length in (5, 5, 5, 7, 6, 30, 31, 29, 1, 1):
        inputs = _make_inputs(thinker, length, length)[None]
        places = torch.arange(length)[None, None].expand(thinker.axes, 1, length)
        hidden, cache = run.run(inputs, places)
        plain_cache = DynamicCache()
        assert torch.equal(hidden, thinker.forward(inputs, places, plain_cache, None))
        for layer, plain_layer in zip(cache.layers, plain_cache.layers, strict=True):
            assert torch.equal(layer.keys, plain_layer.keys)
            assert torch.equal(layer.values, plain_layer.values)

    assert (run.calls.recordings, run.calls.compared) == (2, 2)


@torch.inference_mode()
def test_shapes_end_where_the_cache_does(thinker: Thinker) -> None:
    cache = SlotCache(3, 300)
    cache.insert(cache.filled_layers(_fill_prompt(thinker), None))
    cache.occupy_slots(3, 298)
    run = FixedPass(thinker, cache, _keep_plain)

    run.run([0, 1, 2], _make_inputs(thinker, 3, 0), [298] * 3)

    assert run.shapes == [PassShape(3, 300, thinker.width)]


def _fill_prompt(decoder: Thinker) -> DynamicCache:
    prompt = DynamicCache()
    places = torch.arange(5)[None, None].expand(decoder.axes, 1, 5)
    decoder.forward(_make_inputs(decoder, 5, 0)[None], places, prompt, None)
    return prompt


def test_a_decoder_that_cannot_be_recorded_runs_all_the_same(
    thinker: Thinker, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = []

    def refuse_recording(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        attempts.append(compute())
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    hidden_rows = _decode_steps(thinker, lambda decoder, cache: FixedPass(decoder, cache, refuse_recording))

    for one, other in zip(hidden_rows, _decode_steps(thinker, DecodePass), strict=True):
        assert torch.equal(one, other)
    assert len(attempts) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "decode steps are not recorded as CUDA graphs: operation not permitted when stream is capturing"
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("family", ["qwen2", "qwen2_5_vl", "qwen3_vl", "gemma3", "internvl", "llava"])
def test_graphs_of_a_gpu_compute_what_single_operations_do(family, tmp_path, caplog):
    decoder = load_family(family).load("thinker", tiny.build(family, tmp_path / "model"), "cuda", "float32")
    recorded_rows = _decode_steps(decoder, lambda of, cache: FixedPass(of, cache, record_cuda_graphs()))

    for actual, reference in zip(recorded_rows, _decode_steps(decoder, DecodePass), strict=True):
        assert_close(actual, reference, 10 * BOUND)  # a GPU adds in yet another order
    assert not caplog.records
