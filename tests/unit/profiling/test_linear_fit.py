"""Lines of seconds over tokens: exact if possible, never negative, absent without spread."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus.profiling.conclusions import fit_line, quantity_names, solve_nonnegative
from tests.unit.profiling.subjects import make_omni_subject, make_vl_subject

TOKENS = [(100, 10), (100, 50), (400, 10), (400, 50), (900, 30)]


def make_line(base: float, prompt: float, completion: float) -> list[tuple[dict[str, float], float]]:
    return [
        ({"prompt_tokens": p, "completion_tokens": c, "image_tokens": 64}, base + prompt * p + completion * c)
        for p, c in TOKENS
    ]


def test_a_line_is_found_again():
    fit = fit_line(make_line(0.02, 1e-4, 3e-3), ["prompt_tokens", "completion_tokens"])

    assert fit.base == pytest.approx(0.02)
    assert fit.per == pytest.approx({"prompt_tokens": 1e-4, "completion_tokens": 3e-3})


def test_what_would_cost_less_than_nothing_costs_nothing():
    fit = fit_line(make_line(0.5, -1e-4, 3e-3), ["prompt_tokens", "completion_tokens"])

    assert fit.base >= 0
    assert set(fit.per) == {"completion_tokens"}


def test_quantities_that_do_not_differ_are_left_out():
    assert set(fit_line(make_line(0.02, 1e-4, 3e-3), ["image_tokens", "completion_tokens"]).per) == {
        "completion_tokens"
    }


@pytest.mark.parametrize("samples", [[], make_line(0.1, 0, 1e-3)[:1]])
def test_without_two_samples_there_is_no_line(samples):
    assert fit_line(samples, ["completion_tokens"]) is None


def test_without_spread_there_is_no_line():
    assert fit_line(make_line(0.1, 0, 1e-3), ["image_tokens"]) is None
    assert fit_line(make_line(0.1, 0, 0), ["completion_tokens"]) is None


def test_two_samples_give_two_unknowns():
    fit = fit_line(make_line(0.02, 1e-4, 3e-3)[1:3], ["prompt_tokens", "completion_tokens"])

    assert len(fit.per) == 1


@given(
    # Quantities are counts and seconds over their largest: none is 1e-38, where a solution overflows.
    rows=st.lists(
        st.lists(st.floats(0, 10).map(lambda x: round(x, 3)), min_size=3, max_size=3), min_size=3, max_size=8
    ),
    wanted=st.lists(st.floats(-5, 10), min_size=8, max_size=8),
)
def test_nothing_that_is_not_negative_fits_better(rows, wanted):
    matrix, goal = np.array(rows), np.array(wanted[: len(rows)])
    solution = solve_nonnegative(matrix, goal)
    rest = np.sum((matrix @ solution - goal) ** 2)

    assert (solution >= 0).all()
    for step in (*np.eye(3) * 0.01, *-np.eye(3) * 0.01, np.zeros(3)):
        other = np.maximum(solution + step, 0)
        assert rest <= np.sum((matrix @ other - goal) ** 2) + 1e-6


def test_components_follow_what_they_read():
    assert quantity_names(make_vl_subject(), "vision") == ("image_tokens", "video_tokens")
    assert quantity_names(make_omni_subject(), "audio") == ("audio_tokens",)
    assert quantity_names(make_omni_subject(), "thinker") == ("prompt_tokens", "completion_tokens")
    assert quantity_names(make_omni_subject(), "vocoder") == ("speech_seconds",)
