"""Requests of a simulation."""

from itertools import pairwise
from statistics import mean, stdev

import pytest

from omnibus.errors import BadRequest
from omnibus_planner.simulate.arrivals import (
    SIZE_VARIATION,
    Arrival,
    TypeRate,
    even_arrivals,
    poisson_arrivals,
    repeat_arrivals,
    scale_arrivals,
)

RATES = [TypeRate("m", "a", 3.0, {"completion_tokens": 100.0, "prompt_tokens": 50.0}), TypeRate("m", "b", 1.0)]


def test_random_arrivals_have_the_rate_the_mix_and_the_mean_sizes():
    arrivals = list(poisson_arrivals(RATES, 2000.0))

    gaps = [after.at - before.at for before, after in pairwise(arrivals)]
    sizes = [each.sizes["completion_tokens"] for each in arrivals if each.kind == "a"]
    assert len(arrivals) == pytest.approx(8000, rel=0.05)
    assert stdev(gaps) / mean(gaps) == pytest.approx(1.0, rel=0.05)
    assert sum(each.kind == "a" for each in arrivals) / len(arrivals) == pytest.approx(0.75, rel=0.03)
    assert mean(sizes) == pytest.approx(100.0, rel=0.02)
    assert stdev(sizes) / mean(sizes) == pytest.approx(SIZE_VARIATION, rel=0.05)
    assert {each.sizes.get("prompt_tokens") for each in arrivals if each.kind == "a"} == {50.0}


def test_even_arrivals_are_of_each_type_as_many_as_its_rate_says():
    arrivals = list(even_arrivals(RATES, 100.0))

    kinds = [each.kind for each in arrivals]
    assert (kinds.count("a"), kinds.count("b")) == (300, 100)
    assert {round(after.at - before.at, 9) for before, after in pairwise(arrivals)} == {0.25}


def test_a_trace_is_sped_up_and_repeated():
    trace = [Arrival(at, "m", "a", {}) for at in (5.0, 6.0, 8.0)]

    fast = list(scale_arrivals(trace, 2.0))
    arrivals = list(repeat_arrivals(fast, 4.0))

    assert [each.at for each in fast] == [2.5, 3.0, 4.0]
    assert [each.at for each in arrivals] == [0.0, 0.5, 1.5, 2.25, 2.75, 3.75]


def test_no_rate_is_an_error():
    with pytest.raises(BadRequest, match="above 0"):
        list(poisson_arrivals([TypeRate("m", "a", 0.0)], 1.0))
