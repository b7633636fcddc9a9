"""Hostile media decode or get one typed error, and never crash.

Memory and time stay within bounds.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import seeds
from tests.fuzz.corpus import read_saved, save_failing
from tests.fuzz.decoder import DecodeOutcome, Decoder
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.profile import limit_examples
from tests.fuzz.seeds import MODALITIES

#: The most that one file may take: an image of 50 megapixels has 150 MB in each of its forms.
PEAK_BYTES = 768 << 20
CPU_SECONDS = 20.0
REFUSALS = {"bad_media", "too_large"}


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    new_decoder = Decoder()
    yield new_decoder
    new_decoder.close()


def find_fault(outcome: DecodeOutcome) -> str:
    """Describe the broken promise; empty if there is none."""
    if outcome.word != "ok" and outcome.word not in REFUSALS:
        return "neither decoded nor refused"
    if outcome.peak_bytes > PEAK_BYTES:
        return "too much memory"
    return "too much time" if outcome.seconds > CPU_SECONDS else ""


def assert_bounds(outcome: DecodeOutcome) -> None:
    assert not find_fault(outcome), outcome


@pytest.mark.parametrize("modality", MODALITIES)
def test_each_hostile_file_is_decoded_or_refused_within_bounds(decoder: Decoder, modality: str):
    faults = []
    for case in seeds.list_hostiles():
        if case.modality == modality:
            outcome = decoder.decode(modality, case.data)
            if complaint := find_fault(outcome) or ("refused" if case.fine and outcome.word != "ok" else ""):
                faults.append(f"{case.name}: {complaint}: {outcome}")

    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_damaged_file_is_decoded_or_refused_within_bounds(decoder: Decoder, modality: str):
    @limit_examples(150, cost=10)
    @given(mutate_bytes(seeds.make_files()[modality]))
    def check_damaged(data: bytes) -> None:
        with save_failing(f"decoder-{modality}", data):
            assert_bounds(decoder.decode(modality, data))

    check_damaged()


@pytest.mark.parametrize("modality", MODALITIES)
def test_files_that_did_harm_once_are_decoded_or_refused(decoder: Decoder, modality: str):
    for data in [*read_saved(f"decoder-{modality}"), b"", b"\0"]:
        assert_bounds(decoder.decode(modality, data))


def test_a_crash_of_a_decoder_is_seen_and_the_next_file_is_decoded(decoder: Decoder):
    process = decoder._start_process()
    process.kill()

    assert decoder.decode("image", seeds.make_files()["image"][0]).word.startswith("died")
    assert decoder.decode("image", seeds.make_files()["image"][0]).word == "ok"


@limit_examples(50)
@given(st.binary(max_size=300), st.sampled_from(MODALITIES))
def test_bytes_are_refused(decoder: Decoder, data: bytes, modality: str):
    assert_bounds(decoder.decode(modality, data))
