"""Slots of models with states, and of models that cannot be batched."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Lfm2Config, Lfm2ForCausalLM

from omnibus.errors import Fatal
from omnibus_llm.engine import admission
from omnibus_llm.engine.separate_caches import SeparateCaches
from omnibus_llm.engine.sequence import FilledPrompt
from omnibus_llm.engine.state_cache import StateCache
from omnibus_llm.engine.step import Steps
from omnibus_models.families.causal_lm import OwnDecoder, OwnHead
from omnibus_models.miniature import shrink_config

CONTEXT = 64


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.inference_mode():
        yield


@pytest.fixture(params=[True, False], ids=["slots", "separate"])
def decoder(request: pytest.FixtureRequest) -> OwnDecoder:
    """A decoder with convolutions and attention, batched or not."""
    config = shrink_config(Lfm2Config(layer_types=["conv", "full_attention"], num_hidden_layers=2))
    module = admission.build_copy(Lfm2ForCausalLM, config)
    decoder = OwnDecoder(module, module.model, OwnHead(module), ())
    decoder.batches = request.param
    return decoder


def start_sequences(decoder: OwnDecoder, lengths: list[int]) -> tuple[Steps[Any], list[Any]]:
    """Return an engine's steps with one prefilled sequence of each length."""
    steps: Steps[Any] = Steps(decoder, admission.TokenFeed(decoder), len(lengths), CONTEXT)
    sequences = [
        admission.make_sequence(admission.make_prefill(decoder, torch.arange(5, 5 + length)[torch.randperm(length)]))
        for length in lengths
    ]
    steps.prefill([(sequence, sequence.length) for sequence in sequences])
    return steps, sequences


def run_pass(steps: Steps[Any], slots: list[int]) -> Tensor:
    """Return the hidden rows of one more pass, without keeping its positions."""
    batch = [steps.active[slot] for slot in slots]
    lengths = [steps._cache.lengths[slot] for slot in slots]
    return steps._pass.run(slots, steps._feed.build_inputs(batch), lengths)


def test_the_cache_is_that_of_the_decoder(decoder: OwnDecoder):
    steps, _ = start_sequences(decoder, [5])

    assert isinstance(steps._cache, StateCache if decoder.batches else SeparateCaches)
    assert steps._cache.lengths == [5]


def test_a_pass_can_be_repeated_until_the_slots_advance(decoder: OwnDecoder):
    steps, _ = start_sequences(decoder, [9, 6, 4])

    first, again = run_pass(steps, [0, 1, 2]), run_pass(steps, [0, 1, 2])
    [alone] = run_pass(steps, [1])

    torch.testing.assert_close(first, again, atol=0, rtol=0)
    torch.testing.assert_close(alone, first[1], atol=1e-5, rtol=0)
    steps._cache.advance_slots([0, 1, 2])
    assert steps._cache.lengths == [10, 7, 5]
    assert not torch.allclose(run_pass(steps, [1])[0], alone, atol=1e-3)


def test_a_freed_slot_is_taken_by_the_last_sequence_with_its_states(decoder: OwnDecoder):
    steps, sequences = start_sequences(decoder, [9, 6, 4])
    [expected] = run_pass(steps, [2])

    sequences[0].gone = True
    steps.evict()
    [moved] = run_pass(steps, [0])

    assert steps.active == [sequences[2], sequences[1]]
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=0)


def test_some_slots_advance_without_the_others(decoder: OwnDecoder):
    steps, sequences = start_sequences(decoder, [9, 6, 4])
    other, _ = start_sequences(decoder, [3])
    [before] = run_pass(steps, [1])

    steps.decode([sequences[0], sequences[2]])
    [after] = run_pass(steps, [1])

    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    assert steps._cache.lengths == [10, 6, 5]
    assert other._cache.lengths == [3]


def test_sequences_that_share_a_prompt_do_not_share_its_states(decoder: OwnDecoder):
    steps: Steps[Any] = Steps(decoder, admission.TokenFeed(decoder), 2, CONTEXT)
    steps.warm_up(decodes=True)
    prompt = torch.arange(5, 12)
    filled, first, second = (admission.make_sequence(admission.make_prefill(decoder, prompt)) for _ in range(3))
    cache = decoder.new_cache()
    hidden = decoder.forward(filled.inputs[None], filled.positions[:, None], cache, None)[:, -1]
    for sequence in (first, second):
        steps._copy_prefill(sequence, FilledPrompt(cache, hidden))
    before = run_pass(steps, [0])

    steps.decode([second])

    torch.testing.assert_close(run_pass(steps, [0]), before, atol=1e-5, rtol=0)


def test_states_are_not_sent_to_another_executor(decoder: OwnDecoder):
    steps, _ = start_sequences(decoder, [5])

    with pytest.raises(Fatal, match="declare the option L"):
        steps._cache.pack([])


def test_measurements_leave_all_slots_free(decoder: OwnDecoder):
    steps: Steps[Any] = Steps(decoder, admission.TokenFeed(decoder), 4, CONTEXT)
    steps.warm_up(decodes=True)

    assert steps.decode_seconds(3, 20) > 0
    assert steps.prefill_seconds(10) > 0
    assert steps._cache.lengths == []
