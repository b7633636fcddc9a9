"""Hostile media decode or get one typed error, and never crash.

Memory and time stay within bounds.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import seeds
from tests.fuzz.corpus import recorded, saved
from tests.fuzz.decoder import Decoder, Outcome
from tests.fuzz.mutate import mutated
from tests.fuzz.profile import examples
from tests.fuzz.seeds import MODALITIES

#: The most that one file may take: an image of 50 megapixels has 150 MB in each of its forms.
PEAK_BYTES = 768 << 20
CPU_SECONDS = 20.0
REFUSALS = {"bad_media", "too_large"}


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    made = Decoder()
    yield made
    made.close()


def fault(outcome: Outcome) -> str:
    """Describe the broken promise; empty if there is none."""
    if outcome.word != "ok" and outcome.word not in REFUSALS:
        return "neither decoded nor refused"
    if outcome.peak_bytes > PEAK_BYTES:
        return "too much memory"
    return "too much time" if outcome.seconds > CPU_SECONDS else ""


def check(outcome: Outcome) -> None:
    assert not fault(outcome), outcome


@pytest.mark.parametrize("modality", MODALITIES)
def test_each_hostile_file_is_decoded_or_refused_within_bounds(decoder: Decoder, modality: str):
    faults = []
    for case in seeds.hostiles():
        if case.modality == modality:
            outcome = decoder.decode(modality, case.data)
            if complaint := fault(outcome) or ("refused" if case.fine and outcome.word != "ok" else ""):
                faults.append(f"{case.name}: {complaint}: {outcome}")

    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("modality", MODALITIES)
def test_a_damaged_file_is_decoded_or_refused_within_bounds(decoder: Decoder, modality: str):
    @examples(150, cost=10)
    @given(mutated(seeds.files()[modality]))
    def damaged(data: bytes) -> None:
        with recorded(f"decoder-{modality}", data):
            check(decoder.decode(modality, data))

    damaged()


@pytest.mark.parametrize("modality", MODALITIES)
def test_files_that_did_harm_once_are_decoded_or_refused(decoder: Decoder, modality: str):
    for data in [*saved(f"decoder-{modality}"), b"", b"\0"]:
        check(decoder.decode(modality, data))


def test_a_crash_of_a_decoder_is_seen_and_the_next_file_is_decoded(decoder: Decoder):
    process = decoder._start()
    process.kill()

    assert decoder.decode("image", seeds.files()["image"][0]).word.startswith("died")
    assert decoder.decode("image", seeds.files()["image"][0]).word == "ok"


@examples(50)
@given(st.binary(max_size=300), st.sampled_from(MODALITIES))
def test_bytes_are_refused(decoder: Decoder, data: bytes, modality: str):
    check(decoder.decode(modality, data))
