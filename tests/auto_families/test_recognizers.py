"""Every recognizer of transformers runs as the stored outcomes say."""

import pytest

from tests.auto_families import recognizers, trials

#: One type for each way to run.
TYPICAL = ("whisper", "moonshine", "speech_to_text")


def test_every_type_has_an_expected_outcome():
    assert trials.read_outcomes(recognizers.KIND).keys() == {*recognizers.list_types()}


@pytest.mark.behaviour(
    "transformers 5.19",
    "EncoderDecoderCache masks by its length, not by the query offset of the cache inside, so rows of a batch may not "
    "have different lengths",
    "returns the offset of each row, and tries classes with rows of different lengths",
    source="cache_utils.EncoderDecoderCache has get_seq_length and get_mask_sizes, but not get_query_offset",
)
@pytest.mark.parametrize("model_type", TYPICAL)
def test_a_typical_type_runs_as_expected(model_type: str):
    check_type(model_type)


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", sorted({*recognizers.list_types()} - {*TYPICAL}))
def test_a_type_runs_as_expected(model_type: str):
    check_type(model_type)


def check_type(model_type: str) -> None:
    trial = trials.try_apart(model_type, recognizers.try_type)

    assert trial.way == trials.read_outcomes(recognizers.KIND)[model_type], trial.reason
