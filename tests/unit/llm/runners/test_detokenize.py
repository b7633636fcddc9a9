"""Characters that span tokens, and stop strings that span token boundaries."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus_llm.runners.detokenize import Detokeniser, Reply, StopGuard
from omnibus_llm.runners.talker import SpokenTokens

EOS = 256


def decode_bytes(ids: Sequence[int]) -> str:
    """Decode as a tokeniser whose tokens are single bytes; 256 is a control token."""
    return bytes(token for token in ids if token != EOS).decode("utf-8", "replace")


def read_deltas(text: Detokeniser, tokens: Sequence[int]) -> list[str]:
    return [*(text.push(token) for token in tokens), text.flush()]


def test_a_character_split_over_tokens_comes_out_whole() -> None:
    tokens = list("a€😀b".encode())

    pieces = read_deltas(Detokeniser(decode_bytes), tokens)

    assert pieces == ["a", "", "", "€", "", "", "", "😀", "b", ""]


def test_bytes_that_never_become_a_character_are_replaced_at_the_end() -> None:
    text = Detokeniser(decode_bytes)

    pieces = read_deltas(text, [ord("a"), 0xE2, 0x82])

    assert "".join(pieces) == "a\ufffd"
    assert pieces[:3] == ["a", "", ""]


@given(st.lists(st.integers(0, EOS), max_size=200))
def test_any_bytes_give_the_same_text_piece_by_piece_as_at_once(tokens: list[int]) -> None:
    assert "".join(read_deltas(Detokeniser(decode_bytes), tokens)) == decode_bytes(tokens)


def test_a_long_run_of_broken_bytes_keeps_the_window_short() -> None:
    longest = 0

    def decode_counted(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode_bytes(ids)

    pieces = read_deltas(Detokeniser(decode_counted), [0x80] * 500)

    assert "".join(pieces) == "\ufffd" * 500
    assert longest < 50


def test_a_decoder_that_drops_the_first_space_loses_no_space() -> None:
    words = ["▁the", "▁cat", "▁sat", "s"]

    def decode_words(ids: Sequence[int]) -> str:
        return "".join(words[token] for token in ids).replace("▁", " ").removeprefix(" ")

    assert "".join(read_deltas(Detokeniser(decode_words), [0, 1, 2, 3, 0])) == "the cat sats the"


@pytest.mark.parametrize(
    ("pieces", "stops", "sent_text", "hit"),
    [
        (["hello ST", "OP world"], ["STOP"], "hello ", True),
        (["hello S", "T", "O", "ne"], ["STOP"], "hello STOne", False),
        (["aab", "aabc"], ["aabc"], "aab", True),
        (["one\n", "\ntwo"], ["\n\n", "two"], "one", True),
        (["xSTOPySTOP"], ["STOP"], "x", True),
        (["abc"], [], "abc", False),
    ],
)
def test_a_stop_string_ends_the_text_wherever_it_is_cut(
    pieces: list[str], stops: list[str], sent_text: str, hit: bool
) -> None:
    guard = StopGuard(stops)

    out = [guard.push(piece) for piece in pieces]

    assert "".join(out) + guard.flush() == sent_text
    assert guard.hit == hit


@given(st.text("ab", max_size=40), st.text("ab", min_size=1, max_size=4), st.data())
def test_no_part_of_a_stop_string_is_ever_sent(text: str, stop: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    guard = StopGuard([stop])

    out = "".join(guard.push(piece) for piece in pieces) + guard.flush()

    assert out == text.partition(stop)[0]


def test_a_reply_carries_every_id_and_no_control_text() -> None:
    reply = Reply(decode_bytes, (), speech=SpokenTokens())
    chunks = []

    for token in [*b"hi", EOS]:
        reply.add(token, "stop" if token == EOS else None)
        chunks.append(reply.next_chunk())

    assert chunks == [
        {"text": "h", "ids": [ord("h")]},
        {"text": "i", "ids": [ord("i")]},
        {"text": "", "ids": [EOS]},
    ]
    assert reply.speech is not None
    assert (reply.finish, reply.tokens, reply.speech.end) == ("stop", 3, 2)


def test_tokens_of_a_stop_string_are_counted_but_not_spoken() -> None:
    reply = Reply(decode_bytes, ["END"], speech=SpokenTokens())
    chunks = []

    for token in b"ok END more":
        if reply.finish is None:
            reply.add(token, None)
            chunks.append(reply.next_chunk())

    assert [chunk for chunk in chunks if chunk] == [
        {"text": "o", "ids": [ord("o")]},
        {"text": "k", "ids": [ord("k")]},
        {"text": " ", "ids": [ord(" ")]},
        {"text": "", "ids": list(b"END")},
    ]
    assert reply.speech is not None
    assert (reply.finish, reply.tokens, reply.speech.end) == ("stop", 6, 3)


def test_text_held_for_a_stop_string_comes_out_at_the_end() -> None:
    reply = Reply(decode_bytes, ["END"])

    for token, finish in zip(b"aEN", [None, None, "length"], strict=True):
        reply.add(token, finish)

    assert reply.next_chunk() == {"text": "aEN", "ids": list(b"aEN")}
    assert reply.finish == "length"
