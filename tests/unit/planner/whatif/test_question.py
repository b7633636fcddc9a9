"""Options of ``omnibus whatif`` with a special syntax."""

import pytest

from omnibus.errors import BadRequest
from omnibus_planner.whatif.question import RateChange, parse_duration, parse_gpus, parse_rate


def test_rates_are_factors_or_requests_per_second():
    assert parse_rate("2x") == RateChange(factor=2.0)
    assert parse_rate("12.5") == RateChange(rate=12.5)
    assert parse_rate("") == RateChange(factor=1.0)


def test_gpus_are_counts_by_type():
    assert parse_gpus("8 H100, 4 L40S") == {"H100": 8, "L40S": 4}
    assert parse_gpus("") == {}


def test_durations_have_units():
    assert [parse_duration(text) for text in ("90", "90s", "10m", "2h", "1d")] == [90, 90, 600, 7200, 86400]


@pytest.mark.parametrize("text", ["x", "0", "-1", "2y", "fast"])
def test_a_rate_that_is_none_is_said(text: str):
    with pytest.raises(BadRequest, match="--rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["8", "H100", "x H100", "1 A, 2 A"])
def test_gpus_that_are_none_are_said(text: str):
    with pytest.raises(BadRequest, match="--gpus"):
        parse_gpus(text)


@pytest.mark.parametrize("text", ["", "soon", "0s", "3 weeks"])
def test_a_duration_that_is_none_is_said(text: str):
    with pytest.raises(BadRequest, match="--from"):
        parse_duration(text)
