"""Every text-to-speech model of transformers runs as the stored outcomes say."""

import pytest

from tests.auto_families import speakers, trials

#: A type that streams codes, and one whose vocoder is another model.
TYPICAL = ("csm", "speecht5")


def test_every_type_has_an_expected_outcome():
    assert trials.read_outcomes(speakers.KIND).keys() == {*speakers.list_types()}


@pytest.mark.parametrize("model_type", TYPICAL)
def test_a_typical_type_speaks_as_expected(model_type: str):
    check_type(model_type)


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", sorted({*speakers.list_types()} - {*TYPICAL}))
def test_a_type_speaks_as_expected(model_type: str):
    check_type(model_type)


def check_type(model_type: str) -> None:
    trial = trials.try_apart(model_type, speakers.try_type)

    assert trial.way == trials.read_outcomes(speakers.KIND)[model_type], trial.reason
