"""Text decoded token by token equals the text of all tokens."""

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from omnibus_llm.runners.detokenize import Detokeniser, StopGuard, StreamDetokeniser, TokenDecoder, open_detokeniser

END = "<|end|>"
CALL = "<tool_call>"
WORDS = ["▁the", "▁cat", "▁sat", "s", "▁", "▁▁", "é", "▁😀", " ", ".", "▁n't", "你好", "\ufffd"]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=20)


def reader_of(tokenizer: Any) -> Any:
    return SimpleNamespace(
        tokenizer=tokenizer, decode_ids=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)
    )


def wrap_backend(backend: Tokenizer, cleans: bool = False) -> PreTrainedTokenizerFast:
    backend.add_tokens([AddedToken(CALL, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)
    tokenizer.clean_up_tokenization_spaces = cleans
    return tokenizer


def bytes_and_words(strips: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words, with bytes as fallback.

    With ``strips`` its decoder removes the first space as Llama's does, otherwise it is like Gemma's.
    """
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    backend = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, [], byte_fallback=True))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    return wrap_backend(backend)


def byte_level() -> PreTrainedTokenizerFast:
    """Return a tokenizer like GPT-2's. Some tokens end one character and begin the next."""
    visible_bytes = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible_bytes]
    names = {byte: chr(byte) for byte in visible_bytes} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}
    longer = [b"\xa0\xe4\xbd", b" a", b"a\xe4", b"\xf0\x9f", "\ufffd".encode(), "你好".encode()]
    tokens = ["".join(names[byte] for byte in each) for each in [*(bytes([byte]) for byte in range(256)), *longer]]
    backend = Tokenizer(models.BPE({name: id for id, name in enumerate(tokens)}, []))
    backend.decoder, backend.pre_tokenizer = decoders.ByteLevel(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    return wrap_backend(backend)


def word_pieces(cleans: bool) -> PreTrainedTokenizerFast:
    names = ["[UNK]", "it", "'s", ",", "ok", "'", "s", "##ing", "n't", "re", ".", "你"]
    backend = Tokenizer(models.WordPiece({name: id for id, name in enumerate(names)}))
    backend.decoder = decoders.WordPiece(cleanup=False)
    return wrap_backend(backend, cleans)


def build_unigram(cleans: bool) -> PreTrainedTokenizerFast:
    names = ["<unk>", "▁it", "'s", "▁'", "s", "▁", ".", "▁.", "▁'re", "▁n't", "'", "▁你"]
    backend = Tokenizer(models.Unigram([(name, -1.0) for name in names], 0))
    backend.decoder = decoders.Metaspace()
    return wrap_backend(backend, cleans)


class SlowTokenizer(PreTrainedTokenizer):
    """A pure Python tokenizer of bytes whose decoder strips outer spaces."""

    @property
    def vocab_size(self) -> int:
        return 256

    def get_vocab(self) -> dict[str, int]:
        return {chr(byte): byte for byte in range(256)}

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return bytes(ord(token) for token in tokens).decode(errors="replace").strip(" ")


LLAMA, GEMMA = bytes_and_words(strips=True), bytes_and_words(strips=False)
WHOLE = {
    "byte level": byte_level(),
    "word pieces": word_pieces(False),
    "word pieces that are cleaned": word_pieces(True),
    "unigram": build_unigram(False),
    "unigram that is cleaned": build_unigram(True),
    "slow": SlowTokenizer(),
}


def read_deltas(detokeniser: TokenDecoder, tokens: Sequence[int]) -> list[str]:
    return [*(detokeniser.push(token) for token in tokens), detokeniser.flush()]


def read_bytes(run: bytes) -> str:
    """Decode ``run``, with a replacement for each byte outside a character."""
    text = run.decode(errors="surrogateescape")
    return re.sub("[\udc80-\udcff]", "\ufffd", text)


def read_tokens(tokenizer: PreTrainedTokenizerFast, tokens: Sequence[int]) -> str:
    """Decode tokens with byte fallback by the rule of ``sentencepiece``."""
    run, text = b"", ""
    for name in map(tokenizer.convert_ids_to_tokens, tokens):
        if re.fullmatch("<0x..>", name):
            run += bytes([int(name[3:5], 16)])
        elif name != END:
            text, run = text + read_bytes(run) + name.replace("▁", " "), b""
    text += read_bytes(run)
    return text.removeprefix(" ") if tokenizer is LLAMA else text


def has_replaced_space(tokens: Sequence[int]) -> bool:
    """Return True if the first byte is a space. It has no text without the tokens before it."""
    return next(iter(token for token in tokens if token != len(LLAMA) - 1), 0) == 0x20


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_any_tokens_of_any_tokenizer(kind: str, data: st.DataObject):
    tokenizer = WHOLE[kind]
    tokens = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=60))

    pieces = read_deltas(open_detokeniser(reader_of(tokenizer)), tokens)

    assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.behaviour(
    "tokenizers 0.23",
    "replaces every byte of a run of byte tokens that holds one stray byte, whole characters included",
    "replaces only the bytes that are part of no character, so text that was sent stays right",
    source="decoders::byte_fallback of tokenizers; sentencepiece replaces only the stray bytes",
)
@given(st.sampled_from([LLAMA, GEMMA]), st.booleans(), st.data())
def test_bytes_of_fallback_are_replaced_one_by_one(tokenizer: Any, window: bool, data: st.DataObject):
    ids = st.one_of(
        st.integers(0, len(tokenizer) - 1).map(lambda token: [token]),
        st.sampled_from([0xE4, 0xBD, 0xA0, 0x80, 0x20]).map(lambda token: [token]),
        TEXTS.map(lambda text: list(text.encode())),
    )
    tokens = [token for piece in data.draw(st.lists(ids, max_size=40)) for token in piece]
    if has_replaced_space(tokens) or [0xEF, 0xBF, 0xBD] in [tokens[at : at + 3] for at in range(len(tokens))]:
        tokens = [256, *(token for token in tokens if token != 0xEF)]
    reader = reader_of(tokenizer)

    pieces = read_deltas(Detokeniser(reader.decode_ids) if window else open_detokeniser(reader), tokens)

    assert "".join(pieces) == read_tokens(tokenizer, tokens)


@given(st.sampled_from([LLAMA, GEMMA]), st.booleans(), TEXTS)
def test_text_in_bytes_comes_as_it_is(tokenizer: Any, window: bool, text: str):
    tokens = [256, *text.encode(), 257]
    reader = reader_of(tokenizer)

    pieces = read_deltas(Detokeniser(reader.decode_ids) if window else open_detokeniser(reader), tokens)

    assert "".join(pieces) == tokenizer.decode(tokens)
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.behaviour(
    "tokenizers 0.23",
    "DecodeStream raises at every further token once a stray byte has changed text that it gave out",
    "decodes a window instead until the text is whole again, and goes on with a new stream",
    source="tokenizers, step_decode_stream: InvalidPrefix",
)
def test_text_behind_a_stray_byte_is_right_and_streamed():
    detokeniser = open_detokeniser(reader_of(LLAMA))
    tokens = [256, *"你".encode(), 0x80, 257, *"好".encode(), 258]

    pieces = read_deltas(detokeniser, tokens)

    assert pieces == ["the", "", "", "你", "", "\ufffd cat", "", "", "好", " sat", ""]
    assert isinstance(detokeniser, StreamDetokeniser)
    assert detokeniser._window is None


@pytest.mark.parametrize("text", ["你", "é", "你好", "😀", "한국어", "नमस्ते"])
def test_a_character_of_bytes_is_whole_in_windows(text: str):
    tokens = [256, *text.encode(), 257]

    assert "".join(read_deltas(Detokeniser(reader_of(LLAMA).decode_ids), tokens)) == f"the{text} cat"


def test_words_and_bytes_come_as_soon_as_they_are_characters():
    ids = [256 + WORDS.index("▁cat"), *"€".encode(), 256 + WORDS.index("s"), 0xE2]

    assert read_deltas(open_detokeniser(reader_of(LLAMA)), ids) == ["cat", "", "", "€", "s", "", "\ufffd"]


def test_a_tokenizer_that_takes_spaces_out_of_its_text_changes_none_that_was_sent():
    names = WHOLE["word pieces that are cleaned"].convert_tokens_to_ids
    tokens = [names(name) for name in ["it", "'", "s", "ok", "##ing", "."]]

    pieces = read_deltas(open_detokeniser(reader_of(WHOLE["word pieces that are cleaned"])), tokens)

    assert pieces == ["", "it", "", "'s", "", " oking", "."]


def test_special_tokens_have_text_where_they_are_kept():
    tokens = [256, len(LLAMA) - 1, *"你".encode(), 257]

    pieces = read_deltas(open_detokeniser(reader_of(LLAMA), skip_special=False), tokens)

    assert "".join(pieces) == LLAMA.decode(tokens, skip_special_tokens=False)
    assert LLAMA.convert_ids_to_tokens(len(LLAMA) - 1) in "".join(pieces)


@given(TEXTS.filter(bool), TEXTS.filter(bool), TEXTS)
def test_a_stop_string_in_bytes_ends_the_text(before: str, stop: str, behind: str):
    detokeniser, guard = open_detokeniser(reader_of(GEMMA)), StopGuard([stop])

    pieces = [guard.push(piece) for piece in read_deltas(detokeniser, list(f"{before}{stop}{behind}".encode()))]

    assert "".join(pieces) + guard.flush() == f"{before}{stop}{behind}".partition(stop)[0]


def test_broken_bytes_without_end_are_given_out_all_the_same():
    pieces = read_deltas(open_detokeniser(reader_of(LLAMA)), [0x80] * 300)

    assert "".join(pieces) == "\ufffd" * 300
    assert len("".join(pieces[:250])) > 200


@pytest.mark.parametrize(
    "tokens",
    [
        [0x80] * 400,
        [0xE4, 0xBD] * 200,
        [len(LLAMA) - 1] * 400,
        [256 + WORDS.index("▁")] * 400,
        [256 + WORDS.index("\ufffd")] * 400,
        [*"你".encode(), 0x80] * 100,
    ],
    ids=["strays", "halves", "special", "spaces", "replacements", "between"],
)
def test_a_token_costs_the_same_wherever_it_is(tokens: list[int]):
    costs: list[int] = []

    def decode_counted(ids: Sequence[int]) -> str:
        costs[-1] += len(ids)
        return str(LLAMA.decode(list(ids), skip_special_tokens=True))

    for detokeniser in (Detokeniser(decode_counted), StreamDetokeniser(LLAMA.backend_tokenizer, decode_counted)):
        for token in tokens:
            costs.append(0)
            detokeniser.push(token)

    assert max(costs) < 1000
    assert sum(costs) < 100 * len(costs)


def test_tokens_that_never_end_with_a_character_stay_cheap_and_come_out():
    longest = 0

    def decode_longest(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return str(WHOLE["byte level"].decode(list(ids)))

    pieces = read_deltas(Detokeniser(decode_longest), [0xE4, 0xBD, *[256] * 300, 0xA0])

    assert "".join(pieces) == "你" * 301
    assert longest < 50
    assert len("".join(pieces[:250])) > 200
