"""The spoken tokens of an answer with cuts in its text. Stop strings, calls and reasoning cause cuts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnibus_llm.runners.answer_parser import AnswerParser
from omnibus_llm.runners.detokenize import Reply
from omnibus_llm.runners.talker import SpokenTokens
from omnibus_models.tool_calls.hermes import FORMAT

EOS = "<eos>"


def finish_reply(
    pieces: list[str], stops: tuple[str, ...] = (), parser: AnswerParser | None = None, limit: int = 0
) -> Reply:
    """Return the finished answer of tokens with these texts."""
    texts = ["" if piece == EOS else piece for piece in pieces]
    reply = Reply(lambda ids: "".join(texts[id] for id in ids), stops, parser, limit=limit, speech=SpokenTokens())
    for token, piece in enumerate(pieces):
        if reply.finish is None:
            reply.add(token, "stop" if piece == EOS else None)
    return reply


def read_reply(reply: Reply) -> tuple[str, int, str]:
    """Return the transcript, the tokens spoken whole, and the remaining transcript."""
    assert reply.speech is not None
    chunk = reply.next_chunk() or {"text": ""}
    return str(chunk["text"]), reply.speech.end, reply.speech.rest


def test_all_tokens_of_a_complete_answer_are_spoken_but_the_one_that_ends_it() -> None:
    assert read_reply(finish_reply(["two", " red", EOS])) == ("two red", 2, "")


def test_the_last_token_before_the_limit_is_spoken() -> None:
    assert read_reply(finish_reply(["two", " red", " circles"], limit=2)) == ("two red", 2, "")


@pytest.mark.parametrize(
    ("stop", "text", "whole", "rest"),
    [
        (" circles", "two red", 2, ""),
        ("circles", "two red ", 2, ""),
        ("ircles", "two red c", 2, " c"),
        ("d circles", "two re", 1, " re"),
        ("two", "", 0, ""),
        ("wo", "t", 0, "t"),
        (" red circ", "two", 1, ""),
    ],
)
def test_a_stop_string_is_not_spoken_and_all_before_it_is(stop: str, text: str, whole: int, rest: str) -> None:
    assert read_reply(finish_reply(["two", " red", " circles", " on"], (stop,))) == (text, whole, rest)


def test_tokens_that_were_held_for_a_stop_string_are_spoken_once_they_cannot_be_part_of_it() -> None:
    assert read_reply(finish_reply(["a", "a", "a", "b"], ("aab",))) == ("a", 1, "")


def test_words_before_a_call_are_spoken_and_the_call_is_not() -> None:
    parser = AnswerParser(False, False, FORMAT.open_parser())
    pieces = ["I", " look", ".", "\n", "<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>", EOS]

    assert read_reply(finish_reply(pieces, parser=parser)) == ("I look.", 3, "")


def test_text_after_a_call_is_spoken_too() -> None:
    parser = AnswerParser(False, False, FORMAT.open_parser())
    pieces = ["I", "<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>", " Done", "!", EOS]

    assert read_reply(finish_reply(pieces, parser=parser)) == ("I Done!", 1, " Done!")


def test_reasoning_is_not_spoken() -> None:
    reply = finish_reply(
        ["<think>", "hm", "</think>", "\n\n", "two", " red", EOS], parser=AnswerParser(True, False, None)
    )

    assert read_reply(reply) == ("two red", 6, "")
    assert reply.speech is not None
    assert reply.speech.begin == 4


@given(
    st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=2),
    st.integers(1, 12),
)
def test_what_is_spoken_is_the_transcript(pieces: list[str], stops: list[str], limit: int) -> None:
    reply = finish_reply([*pieces, EOS], tuple(stops), limit=limit)

    text, whole, rest = read_reply(reply)
    assert "".join(pieces[:whole]) + rest == text or (rest == "" and "".join(pieces[:whole]).strip() == text.strip())
