"""The shape of TriInfer's ablation: stage scheduling raises goodput, and the planned shape raises it further."""

import pytest

from tests.lab.goodput import best_listed, chosen_method, planned
from tests.lab.staged_cluster import ALL, NAIVE, TABLE_5, TEXTCAPS, Replay, StageGoals, goodput, monolith

REPLAY = Replay(20.0, 0.25)  # seconds of load; req/s per GPU
MORE = 1.15


@pytest.mark.nightly
def test_goodput_rises_with_the_schedule_of_stages_and_again_with_the_planned_shape():
    shape, best = planned(TEXTCAPS, REPLAY)

    naive, staged_rate = (goodput(monolith(option), TEXTCAPS, REPLAY) for option in (NAIVE, ALL))

    assert naive * MORE < staged_rate
    assert staged_rate * MORE < best
    assert set(shape.replicas) > {ALL} or ALL not in shape.replicas


@pytest.mark.nightly
def test_slots_that_are_free_take_no_goodput():
    few, *more = (goodput(monolith(ALL), TEXTCAPS._replace(slots=slots), REPLAY) for slots in (32, 128, 256))

    assert min(more) >= few - REPLAY.precision


@pytest.mark.nightly
def test_an_encoder_beside_the_decoder_is_the_best_method_for_slower_tokens():
    name, replicas, _ = chosen_method(StageGoals(8.0, 0.1), REPLAY)

    assert (name, replicas) == ("ED+P", {"ED": 2, "P": 6})


@pytest.mark.nightly
@pytest.mark.parametrize("setting", TABLE_5, ids=str)
def test_the_planned_shape_is_as_good_as_all_that_an_exhaustive_search_lists(setting: StageGoals):
    shape, rate = planned(setting, REPLAY)

    better, most = best_listed(setting, REPLAY, beyond=rate)

    assert not better, f"{better} serves {most}, the planned {shape.replicas} {rate} req/s per GPU"
