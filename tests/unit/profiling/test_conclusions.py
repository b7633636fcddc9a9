"""Conclusions from measurements: sizes of the timed requests, memory, and contradictions."""

import msgspec
import pytest

from omnibus.profile import CostLine, EdgeProfile, KeyValues, ModelProfile, OptionProfile, RoleCost, TypeProfile
from omnibus.profiling.client import TimedAnswer
from omnibus.profiling.conclusions import (
    contradictions,
    key_values,
    lined_components,
    mean_sizes,
    measured_edges,
    scale_work,
    seconds_to_first_token,
)
from omnibus.profiling.experiments import choose_options
from omnibus.profiling.measurements import CostSample, OptionMeasurement
from tests.unit.profiling.subjects import make_omni_subject, make_vl_subject

ALONE = {"t": {"prompt_tokens": 60.0, "completion_tokens": 57.3, "speech_seconds": 3.6}}


def make_sample(
    count: int, share: float = 1.0, role: tuple[str, ...] = ("thinker",), short: bool = False, **sizes: float
):
    return CostSample("t", sizes, {}, role, share, count, short)


def make_measurement(*samples: CostSample, **more) -> OptionMeasurement:
    return OptionMeasurement(OptionProfile(("thinker",)), samples=samples, quantities=ALONE, **more)


def test_sizes_are_those_of_the_requests_that_gave_the_seconds():
    means = mean_sizes(
        [
            make_measurement(make_sample(300, completion_tokens=48.0)),
            make_measurement(make_sample(100, completion_tokens=44.0)),
        ]
    )

    assert means["t"]["completion_tokens"] == pytest.approx(47.0)


def test_small_and_large_requests_count_by_their_shares():
    small, large = make_sample(500, 0.25, completion_tokens=10.0), make_sample(10, 0.75, completion_tokens=50.0)

    assert mean_sizes([make_measurement(small, large)])["t"]["completion_tokens"] == pytest.approx(40.0)


def test_answers_of_one_token_and_other_sizes_say_nothing_of_the_length_of_answers():
    encoder = make_sample(400, role=("vision",), short=True, completion_tokens=1.0, image_tokens=64.0)
    other = make_sample(0, 0.0, completion_tokens=500.0, image_tokens=9.0)
    means = mean_sizes(
        [
            make_measurement(encoder, other),
            make_measurement(make_sample(100, completion_tokens=48.0, image_tokens=64.0)),
        ]
    )

    assert means["t"]["completion_tokens"] == pytest.approx(48.0)
    assert means["t"]["image_tokens"] == pytest.approx(64.0)


def test_what_no_loaded_request_shows_is_that_of_requests_one_at_a_time():
    assert mean_sizes([make_measurement(make_sample(400, short=True, completion_tokens=1.0))])["t"] == {
        "completion_tokens": 57.3, "speech_seconds": 3.6,
    }  # fmt: skip
    assert mean_sizes([make_measurement()]) == ALONE


def test_rows_of_edges_are_those_of_requests_of_the_profiles_sizes():
    codes = EdgeProfile("talker", "vocoder", 600.0, "t", rows=180.0, bunch=32.0)
    image = EdgeProfile("vision", "thinker", 9000.0, "other")
    sizes = {"t": {"completion_tokens": 48.0, "speech_seconds": 2.88}}

    codes_edge, image_edge = measured_edges(
        [make_measurement(edges=(codes, image)), make_measurement(edges=(codes,))], sizes
    )

    assert codes_edge == msgspec.structs.replace(codes, rows=pytest.approx(180.0 * 2.88 / 3.6))  # 50 codes a second
    assert image_edge == image


def test_seconds_are_brought_to_the_sizes_of_the_profile():
    work = (RoleCost(("thinker",), 0.053, "t"), RoleCost(("thinker",), 0.01, "other"))
    option, samples = OptionProfile(("thinker",), work=work), (make_sample(100, completion_tokens=42.0),)
    line = {"thinker": CostLine(0.01, {"completion_tokens": 0.001})}

    costs = scale_work(option, samples, line, {"t": {"completion_tokens": 48.0}})

    assert [each.seconds for each in costs] == [pytest.approx(0.053 * 0.058 / 0.052), 0.01]
    assert scale_work(option, samples, {}, {"t": {"completion_tokens": 48.0}}) == work


def test_the_first_token_comes_when_the_rest_of_the_text_takes_what_is_left_of_the_latency():
    answers = [
        TimedAnswer(done=0.9, first_token=0.15, gaps=[0.2, 0.4]),
        TimedAnswer(done=1.1, first_token=0.25, gaps=[0.8]),
    ]

    first, beside = seconds_to_first_token(0.8, answers)

    assert first == pytest.approx(0.8 - 0.7)
    assert beside == pytest.approx(0.2 - 0.1)
    assert seconds_to_first_token(0.8, [TimedAnswer(done=0.9, first_token=0.9, gaps=[])]) == (0.0, 0.0)


def test_lines_are_measured_on_the_smallest_option_that_has_a_component():
    assert lined_components(make_vl_subject(), choose_options(make_vl_subject())) == {"E": ["vision"], "L": ["thinker"]}
    assert lined_components(make_vl_subject(), choose_options(make_vl_subject(), ["EL"])) == {
        "EL": ["vision", "thinker"]
    }
    assert lined_components(make_omni_subject(), choose_options(make_omni_subject(), ["M", "EV"]))["M"] == [
        "audio", "thinker", "talker", "vocoder",
    ]  # fmt: skip


def make_profile(rate: float, *seconds: float) -> ModelProfile:
    kinds = ("a", "b")
    work = tuple(RoleCost(("thinker",), each, kind) for kind, each in zip(kinds, seconds, strict=False))
    return ModelProfile(
        "m", "f", ("thinker",), {kind: TypeProfile(("thinker",), 0.5) for kind in kinds},
        {"Th": OptionProfile(("thinker",), rate=rate, work=work)},
    )  # fmt: skip


def test_a_rate_that_is_not_that_of_the_work_is_said():
    assert [note for note in contradictions(make_profile(10.0, 0.09, 0.11)) if note.startswith("Th")] == []
    [note] = [note for note in contradictions(make_profile(16.14, 0.09, 0.107)) if note.startswith("Th")]
    assert note.startswith("Th serves 16.1 req/s of the mix, but its seconds of each type alone add up to 10.2 req/s")
    assert [note for note in contradictions(make_profile(16.14, 0.09)) if note.startswith("Th")] == []


def test_components_without_a_line_are_said():
    assert list(contradictions(make_profile(10.0, 0.1, 0.1)))[-1].startswith("thinker: no line over sizes")


def test_keys_and_values_are_those_of_a_gpu_or_their_size_alone():
    kv = {"thinker": (2e5, 4e9)}
    gpu = make_measurement(kv=kv)
    gpu = msgspec.structs.replace(
        gpu, option=msgspec.structs.replace(gpu.option, gpus=2, gpu_memory_gb=60.0, weights_gb=16.0)
    )

    assert key_values([make_measurement(kv=kv)]) == KeyValues("thinker", pytest.approx(2e-4), 0.0)
    assert key_values([make_measurement(), gpu]) == KeyValues("thinker", pytest.approx(2e-4), pytest.approx(10.0))
    assert key_values([make_measurement()]) is None
