"""Numbers and symbols become words, and sentences are cut as they arrive."""

from collections.abc import AsyncIterator

import pytest

from omnibus.errors import BadRequest
from omnibus_real.spoken_text import MAX_SENTENCE, spell_out, split_sentences


@pytest.mark.real
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$7.20", "seven dollars and twenty cents"),
        ("0.05 EUR, £0.50, $1", "five cents, fifty pence, one dollar"),
        ("€3 million", "three million euros"),
        ("-3.5°", "minus three point five degrees"),
        ("1,250 and 1250", "one thousand two hundred fifty and twelve fifty"),
        ("1905, 1900, 2005", "nineteen oh five, nineteen hundred, two thousand five"),
        ("9:05, 10:00 or 14:00", "nine oh five, ten o'clock or fourteen hundred"),
        ("3/4 of ½", "three quarters of one half"),
        ("the 21st", "the twenty first"),
        ("version 1.2.3", "version one point two point three"),
        ("agent 007", "agent zero zero seven"),
        ("A & B: 20%", "A and B: twenty percent"),
        ("Dr. No vs. Mr. Bean, e.g. at example.com", "Dr No versus Mr Bean, for example at example dot com"),
        ("**really**?! (yes)", "really? yes,"),
        ("naïve “café” ßø…", "naive cafe sso."),
    ],
)
def test_text_is_written_as_it_is_spoken(text: str, words: str):
    assert spell_out(text) == words


def test_letters_of_other_scripts_are_named():
    with pytest.raises(BadRequest, match="cannot pronounce Ω; send the text in Latin letters"):
        spell_out("5 kΩ")


async def stream_text(*parts: str) -> AsyncIterator[str]:
    for part in parts:
        yield part


@pytest.mark.parametrize(
    ("parts", "sentences"),
    [
        (("One. Two", "! Three"), ["One.", "Two!", "Three"]),
        (("Dr. No met J. Bond at 3.", "5 km. He", " left."), ["Dr. No met J. Bond at 3.5 km.", "He left."]),
        (('He said "Go." And', " went\n- a list\n\n- of two"), ['He said "Go."', "And went", "- a list", "- of two"]),
    ],
)
async def test_sentences_are_cut_at_their_ends(parts: tuple[str, ...], sentences: list[str]):
    assert [each async for each in split_sentences(stream_text(*parts))] == sentences


async def test_a_long_sentence_is_cut_at_punctuation_then_at_spaces_then_anywhere():
    clause, words, letters = "these words end with a comma, ", "word " * 100, "a" * 2 * MAX_SENTENCE

    pieces = [each async for each in split_sentences(stream_text(clause * 20, words, letters))]

    assert "".join(pieces) == clause * 20 + words + letters
    assert max(map(len, pieces)) <= MAX_SENTENCE + 1
    assert pieces[0].endswith("comma, ")
