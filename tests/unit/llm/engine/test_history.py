"""Prompts without their oldest messages: the fewest are left out, and no call loses its results."""

from typing import Any

import pytest

from omnibus.errors import ContextTooLong
from omnibus_llm.engine.history import droppable_groups, fit_history
from omnibus_models.contract import TokenizedPrompt


def make_message(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def tokenize_words(messages: Any) -> TokenizedPrompt:
    """One token per word. Raises as a model's tokenizer for 50 words and more."""
    words = [word for message in messages for word in str(message["content"]).split()]
    if len(words) >= 50:
        raise ContextTooLong("too long", param="messages")
    return TokenizedPrompt(tuple(map(int, words)), (), None)


CHAT = [
    make_message("system", "0"),
    make_message("user", "1 2"),
    make_message("assistant", "3 4"),
    make_message("user", "5"),
    make_message("assistant", "6"),
    make_message("user", "7"),
    make_message("assistant", "8"),
    make_message("tool", "9"),
    make_message("tool", "10"),
    make_message("assistant", "11"),
    make_message("tool", "12"),
]


@pytest.mark.parametrize(
    ("longest", "ids"),
    [
        (99, [*range(13)]),
        (13, [*range(13)]),
        (12, [0, *range(5, 13)]),
        (9, [0, *range(5, 13)]),
        (8, [0, *range(7, 13)]),
        (6, [0, 7, 11, 12]),
        (4, [0, 7, 11, 12]),
        (1, [0, 7, 11, 12]),
    ],
)
def test_the_fewest_oldest_messages_are_left_out(longest: int, ids: list[int]):
    assert list(fit_history(tokenize_words, CHAT, longest).ids) == ids


def test_a_prompt_that_the_tokenizer_refuses_is_shortened_too():
    long_chat = [make_message("user", "1 " * 60), make_message("assistant", "2"), make_message("user", "3")]

    assert fit_history(tokenize_words, long_chat, 10).ids == (3,)


def test_the_last_message_alone_may_be_too_long():
    with pytest.raises(ContextTooLong):
        fit_history(tokenize_words, [make_message("user", "1 " * 60)], 10)


def test_messages_with_media_stay():
    picture = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "1"}]}
    chat = [picture, make_message("assistant", "2"), make_message("user", "3"), make_message("assistant", "4")]

    assert droppable_groups([*chat, make_message("user", "5")]) == [[2, 3]]
    assert droppable_groups([make_message("assistant", "1")]) == []
