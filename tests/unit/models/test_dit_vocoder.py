"""A waveform is independent of its codes' cuts, and begins early."""

import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from omnibus_models import dit_vocoder
from tests.nightly import mark_nightly

SEED = 11


def some_codes(count: int, seed: int = 0) -> list[int]:
    return [random.Random(seed + index).randrange(64) for index in range(count)]


def one_shot(vocoder: Any, codes: list[int], voice: str = "Chelsie") -> Tensor:
    """Return the library's waveform of all codes at once."""
    speaker = vocoder.voices[voice]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        mel = vocoder.dit.sample(speaker["cond"], speaker["ref_mel"], torch.tensor([codes]))
    return vocoder.bigvgan(mel)


def cut_codes(codes: list[int], seed: int) -> list[list[int]]:
    """Return pieces of 0 to 20 codes."""
    sizes, pieces = random.Random(seed), []
    while codes:
        size = sizes.randrange(21)
        pieces.append(codes[:size])
        codes = codes[size:]
    return pieces


@pytest.mark.parametrize("count", [1, 12, 13, 49, *mark_nightly(11, 36, 97, 150)])
@pytest.mark.parametrize("seed", [0, *mark_nightly(1)])
def test_a_streamed_waveform_is_the_whole_one_however_it_is_cut(
    omni_parts: dict[str, Any], count: int, seed: int
) -> None:
    vocoder = omni_parts["vocoder"]
    codes = some_codes(count, seed)
    stream = vocoder.open("Chelsie", SEED)

    pieces = [stream.push(piece, last=False) for piece in cut_codes(codes, seed)]
    pieces.append(stream.push([], last=True))

    wave = torch.cat(pieces)
    assert wave.shape == (count * vocoder.samples_per_code,)
    torch.testing.assert_close(wave, one_shot(vocoder, codes), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def reference_waveform(omni_parts: dict[str, Any]) -> Tensor:
    return one_shot(omni_parts["vocoder"], some_codes(60))


@pytest.mark.parametrize("examples", [8, *mark_nightly(40)])
def test_no_sample_is_lost_or_doubled_in_any_cut(
    omni_parts: dict[str, Any], reference_waveform: Tensor, examples: int
) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(cuts=st.lists(st.integers(0, 60), max_size=6).map(sorted), ends_empty=st.booleans())
    def any_cut(cuts: list[int], ends_empty: bool) -> None:
        check_cut(omni_parts, reference_waveform, cuts, ends_empty)

    any_cut()


def check_cut(omni_parts: dict[str, Any], sixty: Tensor, cuts: list[int], ends_empty: bool) -> None:
    vocoder, codes = omni_parts["vocoder"], some_codes(60)
    ends = [*cuts, 60, 60] if ends_empty else [*cuts, 60]
    stream, wave = vocoder.open("Chelsie", SEED), torch.empty(0)

    for place, (begin, end) in enumerate(pairwise([0, *ends])):
        wave = torch.cat([wave, stream.push(codes[begin:end], last=place == len(ends) - 1)])
        assert len(wave) <= end * vocoder.samples_per_code

    torch.testing.assert_close(wave, sixty, rtol=0, atol=1e-5)


def test_code_by_code_is_the_same_too(omni_parts: dict[str, Any]) -> None:
    vocoder = omni_parts["vocoder"]
    codes = some_codes(60)
    stream = vocoder.open("Ethan", SEED)

    pieces = [stream.push([code], last=index == 59) for index, code in enumerate(codes)]

    torch.testing.assert_close(torch.cat(pieces), one_shot(vocoder, codes, "Ethan"), rtol=0, atol=1e-5)


def test_many_codes_at_once_pass_through_bounded_windows(omni_parts: dict[str, Any]) -> None:
    vocoder = omni_parts["vocoder"]
    codes = some_codes(30 * 12)

    wave = vocoder.open("Chelsie", SEED).push(codes, last=True)

    torch.testing.assert_close(wave, one_shot(vocoder, codes), rtol=0, atol=1e-5)


def test_the_first_sound_comes_after_three_blocks(omni_parts: dict[str, Any]) -> None:
    stream = omni_parts["vocoder"].open("Chelsie", SEED)

    silent, sound = stream.push(some_codes(35), last=False), stream.push([5], last=False)

    assert len(silent) == 0
    assert len(sound) > 0


def test_no_codes_make_no_sound(omni_parts: dict[str, Any]) -> None:
    assert omni_parts["vocoder"].open("Chelsie", SEED).push([], last=True).shape == (0,)


@pytest.mark.numeric
def test_waveforms_that_alternate_do_not_disturb_each_other(omni_parts: dict[str, Any]) -> None:
    vocoder = omni_parts["vocoder"]
    streams = [vocoder.open("Chelsie", SEED), vocoder.open("Ethan", SEED)]
    codes = [some_codes(50, 3), some_codes(50, 4)]

    pieces: list[list[Tensor]] = [[], []]
    for start in range(0, 50, 10):
        for index, stream in enumerate(streams):
            pieces[index].append(stream.push(codes[index][start : start + 10], last=start == 40))

    for index, voice in enumerate(("Chelsie", "Ethan")):
        whole = one_shot(vocoder, codes[index], voice)
        torch.testing.assert_close(torch.cat(pieces[index]), whole, rtol=0, atol=1e-5)


def test_the_process_wide_generator_is_left_alone(omni_parts: dict[str, Any]) -> None:
    before = torch.random.get_rng_state()

    omni_parts["vocoder"].open("Chelsie", SEED).push(some_codes(20), last=True)

    assert torch.equal(torch.random.get_rng_state(), before)


def test_another_seed_makes_other_noise(omni_parts: dict[str, Any]) -> None:
    waves = [omni_parts["vocoder"].open("Chelsie", seed).push(some_codes(20), last=True) for seed in (1, 1, 2)]

    assert torch.equal(waves[0], waves[1])
    assert not torch.allclose(waves[0], waves[2], atol=1e-3)


def test_a_sample_depends_on_no_frame_beyond_the_reach(omni_parts: dict[str, Any]) -> None:
    bigvgan = omni_parts["vocoder"].bigvgan
    reach = dit_vocoder.context_frames(bigvgan.config)
    mel = torch.randn(1, 8, 200, generator=torch.Generator().manual_seed(1))
    near, far = mel.clone(), mel.clone()
    near[..., 100 + 1] += 1
    far[..., 100 + reach + 1 :] += 1
    samples = slice(100 * 240, 101 * 240)

    whole = bigvgan(mel)[samples]

    torch.testing.assert_close(bigvgan(far)[samples], whole, rtol=0, atol=1e-6)
    assert not torch.allclose(bigvgan(near)[samples], whole, atol=1e-4)


def test_the_reach_of_the_released_vocoder() -> None:
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniBigVGANConfig

    assert 32 <= dit_vocoder.context_frames(Qwen2_5OmniBigVGANConfig()) <= 48


def test_the_waveform_is_neither_silent_nor_clipped(omni_parts: dict[str, Any]) -> None:
    wave = omni_parts["vocoder"].open("Chelsie", SEED).push(some_codes(50), last=True)

    assert wave.dtype == torch.float32
    assert 0.02 < float(wave.std()) < 0.5
    assert float((wave.abs() >= 1).float().mean()) < 0.01


@pytest.mark.parametrize("sent_codes", [1, 40, 97, *mark_nightly(0, 24, 70)])
@pytest.mark.parametrize("last", [False, True])
def test_a_waveform_begins_behind_what_somebody_has(omni_parts: dict[str, Any], sent_codes: int, last: bool) -> None:
    vocoder, codes = omni_parts["vocoder"], some_codes(97)
    stream = vocoder.open("Chelsie", SEED)

    begin = stream.skip(sent_codes * vocoder.samples_per_code)
    pieces = [] if last else [stream.push(piece, last=False) for piece in cut_codes(codes, 3)]
    pieces.append(stream.push(codes if last else [], last=True))

    assert begin == sent_codes * vocoder.samples_per_code
    torch.testing.assert_close(torch.cat(pieces), one_shot(vocoder, codes)[begin:], rtol=0, atol=1e-5)


def test_a_voice_is_embedded_once_for_all_its_waveforms(omni_parts: dict[str, Any]) -> None:
    vocoder, count = omni_parts["vocoder"], 0
    vocoder.open("Chelsie", SEED)

    def count_call(*_: Any) -> None:
        nonlocal count
        count += 1

    hook = vocoder.dit.input_embed.spk_encoder.encoder.register_forward_hook(count_call)
    for seed in (SEED, SEED + 1):
        vocoder.open("Chelsie", seed).push(some_codes(13), last=True)
    hook.remove()

    assert count == 0
