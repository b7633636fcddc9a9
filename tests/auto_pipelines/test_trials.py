"""Every pipeline that diffusers has in blocks runs as the stored outcomes say."""

import diffusers
import pytest

from omnibus_models.modular import trial
from omnibus_models.tiny import _pipelines
from tests.auto_pipelines import trials

#: A pipeline for each kind of output: an image, a video, and one whose text encoder has a list of tensors.
TYPICAL = ("flux", "ltx", "z-image")


def test_every_pipeline_has_an_expected_outcome():
    assert trials.read_outcomes().keys() == {*trials.list_names()}


@pytest.mark.parametrize("name", TYPICAL)
def test_a_typical_pipeline_gives_the_same_bits_in_components(name: str):
    outcome = trials.try_apart(name)

    assert outcome == trials.read_outcomes()[name]
    assert outcome in trials.EQUAL.values()


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted({*trials.list_names()} - {*TYPICAL}))
def test_a_pipeline_runs_as_expected(name: str):
    assert trials.try_apart(name) == trials.read_outcomes()[name]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "cls", sorted(_pipelines.COPIES.keys() - {trials.find_class(each).__name__ for each in trials.list_names()})
)
def test_a_class_that_a_checkpoint_chooses_by_a_setting_gives_the_same_bits(cls: str):
    assert trial.try_class(getattr(diffusers, cls)).text == ""
