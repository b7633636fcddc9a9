"""A mix has changed if its shares differ by more than chance."""

import pytest

from omnibus_planner.autoscale.autoscaler import without_chance
from omnibus_planner.optimize.load import ModelLoad

PLANNED = ModelLoad(0.0, {"image": 9.0, "text": 1.0})  # shares may be in any unit
SIZES = {"text": {"completion_tokens": 50.0}}


@pytest.mark.parametrize(
    ("rate", "text", "same"),
    [
        (12.0, 0.16, True),  # of 180 requests, a standard deviation is 0.022
        (12.0, 0.18, False),
        (120.0, 0.13, False),  # a tenth of that chance, nearly
        (12.0, 0.04, True),
        (12.0, 0.02, False),
    ],
)
def test_shares_that_chance_explains_are_those_that_were_planned_for(rate: float, text: float, same: bool):
    measurement = ModelLoad(rate, {"image": 1 - text, "text": text}, SIZES)

    load = without_chance(measurement, PLANNED, 15.0)

    assert load.shares == pytest.approx({"image": 0.9, "text": 0.1} if same else measurement.shares)
    assert (load.rate, load.quantities) == (rate, SIZES)


def test_a_type_that_was_not_planned_for_counts_from_the_fourth_request_on():
    few, more = (ModelLoad(2.0, {"image": 27 - count, "text": 3, "sound": count}) for count in (3, 4))

    assert "sound" not in without_chance(few, PLANNED, 15.0).shares
    assert without_chance(more, PLANNED, 15.0) == more


def test_what_nobody_planned_for_or_sent_is_left_as_it_is():
    assert without_chance(ModelLoad(0.0), PLANNED, 15.0) == ModelLoad(0.0)
    assert without_chance(ModelLoad(3.0, {"text": 1.0}), ModelLoad(0.0), 15.0).shares == {"text": 1.0}
