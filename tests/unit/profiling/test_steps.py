"""Steps of a load: finding the bottleneck, and the seconds that follow."""

import pytest

from omnibus.profiling.client import TimedAnswer
from omnibus.profiling.load_generator import LoadRequest, LoadResult
from omnibus.profiling.loaded_option import StepMeasurement, bottleneck_notes, option_loads
from omnibus.profiling.monitor import BusySample, EngineWindow, compare_stats, reports_busy
from tests.unit.profiling.test_load_generator import make_request

SEEN = LoadResult(32, 8.0, [(LoadRequest(make_request()), TimedAnswer(done=1.0))])
OTHERS = {"V": 0.9}


def make_step(busy: dict[str, float] | None, fill: float | None = None, waiting: bool = False, other_options=OTHERS):
    return StepMeasurement(SEEN, busy, EngineWindow(fill, waiting), other_options)


def test_what_was_not_busy_has_no_seconds_whatever_was_served():
    idle = make_step({"vision": 0.0, "thinker": 0.0})

    assert idle.seconds is None
    assert idle.component_seconds(("vision",)) == {}
    assert idle.component_seconds(("vision", "thinker")) == {}


def test_a_language_model_that_is_busy_with_few_sequences_is_not_the_bottleneck():
    few, most, full = (make_step({"thinker": 1.0}, fill) for fill in (0.3, 0.85, 0.95))
    queued_step = make_step({"thinker": 1.0}, 0.3, True)

    assert [each.is_bottleneck for each in (few, most, full, queued_step)] == [False, False, True, True]
    [note] = bottleneck_notes("Th", {"thinker": few})
    assert note.startswith("Th was not the bottleneck for thinker (100% busy, batches 30% full)")
    assert list(bottleneck_notes("Th", {})) == []


def test_an_option_that_runs_everything_is_the_bottleneck_when_it_is_busy():
    assert make_step({"thinker": 0.9}, 0.3, other_options={}).is_bottleneck
    assert not make_step({"thinker": 0.5}, 0.3, other_options={}).is_bottleneck


def test_seconds_are_busy_time_per_request_where_others_hold_requests_back():
    assert make_step({"thinker": 0.4}).seconds == pytest.approx(0.4 / 8)
    assert make_step({"thinker": 0.9}).seconds == pytest.approx(1 / 8)
    assert make_step(None).seconds == pytest.approx(1 / 8)
    assert make_step({"vision": 0.1, "thinker": 0.3}).component_seconds(("vision", "thinker")) == {
        "vision": pytest.approx(0.1 / 8), "thinker": pytest.approx(0.3 / 8),
    }  # fmt: skip


def test_the_load_of_an_option_is_the_mean_of_its_replicas():
    before = {"v-0": BusySample(10.0, {"v": 1.0}), "v-1": BusySample(10.0, {"v": 5.0}), "x": BusySample(10.0, None)}
    after = {"v-0": BusySample(20.0, {"v": 9.0}), "v-1": BusySample(20.0, {"v": 9.0}), "x": BusySample(20.0, None)}

    assert option_loads({"v-0": "V", "v-1": "V", "x": "X"}, before, after) == {"V": pytest.approx(0.6), "X": 1.0}


def test_batches_of_a_window_are_held_against_the_slots_that_requests_can_fill():
    before = {"thinker": {"slots": 16, "batches": {"1": 100}, "steps": {"1": 50}, "waiting": 0}}
    after = {"thinker": {"slots": 16, "batches": {"1": 300}, "steps": {"1": 50, "8": 10, "16": 10}, "waiting": 3}}

    assert compare_stats(before, after, 64).fill == pytest.approx(12 / 16)
    assert compare_stats(before, after, 12).fill == pytest.approx(1.0)
    assert not compare_stats(before, after, 64).waiting
    assert compare_stats(after, after, 64) == EngineWindow(None, True, 0)


def test_sequences_at_both_looks_stand_for_batches_that_an_engine_does_not_count():
    assert compare_stats({"t": {"slots": 8, "used": 4}}, {"t": {"slots": 8, "used": 8}}, 64).fill == pytest.approx(0.75)
    assert compare_stats({"vision": {"batches": {"4": 1}}}, {"vision": {"batches": {"4": 9}}}, 64).fill is None


def test_results_out_of_caches_are_counted():
    before = {"vision": {"cache": {"hits": 5, "coalesced": 1}}, "thinker": {"prefix_hits": 100}}
    after = {"vision": {"cache": {"hits": 7, "coalesced": 2}}, "thinker": {"prefix_hits": 104}}

    assert compare_stats(before, after, 1).hits == 7


def test_an_engine_that_does_not_count_its_time_is_told_from_one_that_is_idle():
    assert reports_busy({"thinker": {"busy": 0.0}})
    assert not reports_busy({"vision": {"busy": 0.1}, "thinker": {"busy": None}})
    assert reports_busy({})
