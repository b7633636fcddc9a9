"""A waveform is independent of its frames' cuts, and begins early."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from omnibus.errors import BadRequest
from omnibus_models import families, tiny
from omnibus_models.families import _code2wav
from tests.nightly import mark_nightly

VOICE = "Ethan"
SAMPLES, LOST = 1920, 555  # of a frame, and samples missing at the end


@pytest.fixture(scope="module")
def vocoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    checkpoint = tiny.build("qwen3_omni_moe", tmp_path_factory.mktemp("models") / "omni")
    return families.family_of(checkpoint).load("vocoder", checkpoint)


def some_frames(count: int, seed: int = 0) -> list[list[int]]:
    frames: list[list[int]] = torch.randint(64, (count, 4), generator=torch.Generator().manual_seed(seed)).tolist()
    return frames


@torch.no_grad()
def one_shot(vocoder: Any, frames: list[list[int]]) -> Tensor:
    """Return the library's waveform of all frames at once."""
    wave: Tensor = vocoder.code2wav(torch.tensor(frames).T[None])
    return wave.reshape(-1)


def stream_frames(vocoder: Any, frames: list[list[int]], size: int) -> Tensor:
    stream = vocoder.open(VOICE, 0)
    pieces = [stream.push(frames[start : start + size], last=False) for start in range(0, len(frames), size)]
    return torch.cat([*pieces, stream.push([], last=True)])


@pytest.mark.parametrize("count", [1, 11, 40, *mark_nightly(2, 90)])
@pytest.mark.parametrize("size", [3, 25, *mark_nightly(1, 7)])
def test_a_streamed_waveform_is_the_whole_one_however_it_is_cut(vocoder: Any, count: int, size: int) -> None:
    frames = some_frames(count, count)

    wave = stream_frames(vocoder, frames, size)

    assert wave.shape == (count * SAMPLES - LOST,)
    torch.testing.assert_close(wave, one_shot(vocoder, frames), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def reference_waveform(vocoder: Any) -> Tensor:
    return one_shot(vocoder, some_frames(30))


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 30), max_size=6).map(sorted), ends_empty=st.booleans())
def test_no_sample_is_lost_or_doubled_in_any_cut(
    vocoder: Any, reference_waveform: Tensor, cuts: list[int], ends_empty: bool
) -> None:
    frames, ends = some_frames(30), [*cuts, 30, 30] if ends_empty else [*cuts, 30]
    stream, wave = vocoder.open(VOICE, 0), torch.empty(0)

    for place, (begin, end) in enumerate(pairwise([0, *ends])):
        wave = torch.cat([wave, stream.push(frames[begin:end], last=place == len(ends) - 1)])
        assert len(wave) == max(0, end * SAMPLES - LOST)

    torch.testing.assert_close(wave, reference_waveform, rtol=0, atol=1e-5)


def test_the_library_loses_samples_where_it_cuts_a_waveform(vocoder: Any) -> None:
    frames = some_frames(20)

    wave = vocoder.code2wav.chunked_decode(torch.tensor(frames).T[None], chunk_size=10, left_context_size=5)

    # If this fails, the library's own waveform works for answers of any length.
    assert wave.shape[-1] == 20 * SAMPLES - 2 * LOST


def test_frames_are_seen_once_and_no_more_of_them_is_kept_than_is_needed(vocoder: Any) -> None:
    stream = vocoder.open(VOICE, 0)
    frame_counts: list[int] = []
    transformer = vocoder.code2wav.pre_transformer
    hook = transformer.register_forward_pre_hook(
        lambda _module, _args, kwargs: frame_counts.append(kwargs["inputs_embeds"].shape[1]), with_kwargs=True
    )

    for start in range(0, 80, 8):
        stream.push(some_frames(80)[start : start + 8], last=False)
    hook.remove()

    assert frame_counts == [8] * 10
    assert stream._frames.shape[1] <= 8 + _code2wav.warmup_samples(vocoder.code2wav.config) / SAMPLES + 2


def test_a_sample_depends_on_no_frame_beyond_the_reach(vocoder: Any) -> None:
    reach = _code2wav.warmup_samples(vocoder.code2wav.config)
    stream = vocoder.open(VOICE, 0)
    frames = torch.randn(1, 24, 32, generator=torch.Generator().manual_seed(1))

    stream._frames = frames
    whole = stream._render_samples()[8 * SAMPLES :]
    stream._frames = frames[:, 8:]
    late = stream._render_samples()

    torch.testing.assert_close(late[reach:], whole[reach:], rtol=0, atol=1e-5)
    assert not torch.allclose(late[: reach - SAMPLES], whole[: reach - SAMPLES], rtol=0, atol=1e-4)


def test_the_geometry_of_the_released_vocoder() -> None:
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

    config = Qwen3OmniMoeCode2WavConfig()

    assert (_code2wav.per_frame(config), _code2wav.trailing_samples(config)) == (SAMPLES, LOST)
    assert 9 < _code2wav.warmup_samples(config) / SAMPLES < 10


def test_no_frames_make_no_sound(vocoder: Any) -> None:
    assert vocoder.open(VOICE, 0).push([], last=True).shape == (0,)


@pytest.mark.numeric
def test_waveforms_that_alternate_do_not_disturb_each_other(vocoder: Any) -> None:
    streams = [vocoder.open(VOICE, 0), vocoder.open("Chelsie", 0)]
    frames = [some_frames(20, 3), some_frames(20, 4)]

    pieces: list[list[Tensor]] = [[], []]
    for start in range(0, 20, 5):
        for index, stream in enumerate(streams):
            pieces[index].append(stream.push(frames[index][start : start + 5], last=start == 15))

    for index in range(2):
        torch.testing.assert_close(torch.cat(pieces[index]), one_shot(vocoder, frames[index]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "wrong", [[[1, 2, 3]], [[1, 2, 3, 64]], [[-1, 2, 3, 4]], [1, 2, 3, 4], [[1, 2, 3, 4], [1, 2]], [[2**70, 1, 1, 1]]]
)
def test_codes_that_there_are_not_are_refused(vocoder: Any, wrong: Any) -> None:
    with pytest.raises(BadRequest, match="4 codes below 64"):
        vocoder.open(VOICE, 0).push(wrong, last=False)


def test_the_waveform_is_neither_silent_nor_clipped(vocoder: Any) -> None:
    wave = vocoder.open(VOICE, 0).push(some_frames(20), last=True)

    assert wave.dtype == torch.float32
    assert 0.02 < float(wave.std()) < 0.5
    assert float((wave.abs() >= 1).float().mean()) < 0.01


@pytest.mark.parametrize("sent_frames", [0, 30, 89, *mark_nightly(1, 60)])
@pytest.mark.parametrize("size", [7, 90, *mark_nightly(1)])
def test_a_waveform_begins_behind_what_somebody_has(vocoder: Any, sent_frames: int, size: int) -> None:
    frames = some_frames(90, 5)
    stream = vocoder.open(VOICE, 0)
    frame_counts: list[int] = []
    see = stream._run_transformer
    stream._run_transformer = lambda codes: (frame_counts.append(codes.shape[-1]), see(codes))

    begin = stream.skip(max(0, sent_frames * SAMPLES - LOST))
    pieces = [stream.push(frames[start : start + size], last=False) for start in range(0, len(frames), size)]
    wave = torch.cat([*pieces, stream.push([], last=True)])

    torch.testing.assert_close(wave, one_shot(vocoder, frames)[begin:], rtol=0, atol=1e-5)
    assert sum(frame_counts) <= 90 - sent_frames + stream._window + stream._reach // SAMPLES + 3
