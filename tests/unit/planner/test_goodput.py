"""TriInfer's ablation in shape: the schedule of stages serves more in time, and the planned shape more than that."""

import pytest

from tests.bench.goodput import ALL, NAIVE, goodput, monolith, planned

pytestmark = pytest.mark.slow

LASTS, PRECISION = 30.0, 0.25  # seconds of load; req/s per GPU
MORE = 1.15


def test_goodput_rises_with_the_schedule_of_stages_and_again_with_the_planned_shape():
    shape = planned()

    naive, staged, best = (goodput(each, LASTS, PRECISION) for each in (monolith(NAIVE), monolith(ALL), shape))

    assert naive * MORE < staged
    assert staged * MORE < best
    assert set(shape.replicas) > {ALL} or ALL not in shape.replicas
