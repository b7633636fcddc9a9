"""Text token by token is the text of all tokens, whatever the tokenizer and the tokens."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from services.llm.runners.detokenize import Detokeniser
from services.llm.runners.token_stream import StreamDetokeniser, open_detokeniser

END = "<|end|>"
WORDS = ["▁the", "▁cat", "▁sat", "s", "▁", "é", "▁😀", " ", ".", "▁n't"]


def reader_of(tokenizer: PreTrainedTokenizerFast) -> Any:
    return SimpleNamespace(
        tokenizer=tokenizer, decode_ids=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)
    )


def wrap(backend: Tokenizer, cleans: bool = False) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
    made.clean_up_tokenization_spaces = cleans
    return made


def bytes_and_words() -> PreTrainedTokenizerFast:
    """As Llama's: words, bytes for what is no word, and a decoder that drops the first space."""
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    backend = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrap(backend)


def word_pieces() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece({name: id for id, name in enumerate(["[UNK]", "it", "'s", ",", "ok"])}))
    backend.decoder = decoders.WordPiece()
    return wrap(backend, cleans=True)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    from omnibus_models import tiny

    checkpoint = tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("models") / "vl")
    return PreTrainedTokenizerFast.from_pretrained(checkpoint)


LLAMA, PIECES = bytes_and_words(), word_pieces()


def deltas(detokeniser: Detokeniser | StreamDetokeniser, tokens: Sequence[int]) -> list[str]:
    return [*(detokeniser.push(token) for token in tokens), detokeniser.flush()]


@given(st.data())
def test_of_byte_level_tokens(byte_level: PreTrainedTokenizerFast, data: st.DataObject):
    reader = reader_of(byte_level)
    tokens = data.draw(st.lists(st.integers(0, len(byte_level) - 1), max_size=60))

    detokeniser = open_detokeniser(reader)

    assert isinstance(detokeniser, StreamDetokeniser)
    assert "".join(deltas(detokeniser, tokens)) == reader.decode_ids(tokens)


#: Tokens of a character in bytes, of a word, or of an end: what becomes of bytes that are no character depends on those
#: beside them, which a stream has sent by then.
PIECES_OF_LLAMA = st.one_of(
    st.characters(codec="utf-8").map(lambda character: list(character.encode())),
    st.integers(256, 256 + len(WORDS)).map(lambda word: [word]),
)


@given(st.lists(PIECES_OF_LLAMA, max_size=40).map(lambda pieces: [token for piece in pieces for token in piece]))
def test_of_words_and_bytes(tokens: list[int]):
    reader = reader_of(LLAMA)

    detokeniser = open_detokeniser(reader)

    assert isinstance(detokeniser, StreamDetokeniser)
    assert "".join(deltas(detokeniser, tokens)) == reader.decode_ids(tokens)


@given(st.lists(st.integers(0, 256 + len(WORDS)), max_size=60))
def test_bytes_that_are_no_character_change_no_other_one(tokens: list[int]):
    reader = reader_of(LLAMA)

    found = "".join(deltas(open_detokeniser(reader), tokens))

    words = [WORDS[token - 256].replace("▁", " ") for token in tokens if 256 <= token < 256 + len(WORDS)]
    place = 0
    for word in words:
        at = found.find(word.strip(" "), place)
        assert at >= 0, (found, word)
        place = at + len(word.strip(" "))


def test_words_and_bytes_come_as_soon_as_they_are_characters():
    ids = [256 + WORDS.index("▁cat"), *"€".encode(), 256 + WORDS.index("s"), 0xE2]

    assert deltas(open_detokeniser(reader_of(LLAMA)), ids) == ["cat", "", "", "€", "s", "", "\ufffd"]


def test_a_tokenizer_that_takes_spaces_out_of_its_text_decodes_windows():
    detokeniser = open_detokeniser(reader_of(PIECES))

    assert isinstance(detokeniser, Detokeniser)


def test_broken_bytes_without_end_are_given_out_all_the_same():
    pieces = deltas(open_detokeniser(reader_of(LLAMA)), [0x80] * 300)

    assert "".join(pieces) == "\ufffd" * 300
    assert len("".join(pieces[:250])) > 200
