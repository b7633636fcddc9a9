"""Prompts without a chat template: a text, or the ids of its tokens, that a model goes on with as it stands."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from omnibus import errors

#: Role of the one message that holds such a prompt: its ``content`` is a text, or a list of token ids.
PROMPT_ROLE = "prompt"


def is_plain_prompt(messages: Sequence[Any]) -> bool:
    """Return whether ``messages`` are one prompt that takes no template."""
    return len(messages) == 1 and isinstance(messages[0], Mapping) and messages[0].get("role") == PROMPT_ROLE


def tokenize_plain_prompt(
    content: Any, tokenizer: Any, placeholders: Collection[int], vocabulary: int
) -> tuple[int, ...]:
    """The ids of ``content``; of a text with what the tokeniser itself puts before it.

    Special tokens in a text are read as such: whoever writes a prompt writes its template. Raises ``BadRequest`` for
    an empty prompt, for ids outside of the ``vocabulary`` and for ``placeholders`` of media.
    """
    if isinstance(content, str):
        ids = list(tokenizer(content)["input_ids"])
    elif isinstance(content, list | tuple) and all(type(token) is int for token in content):
        ids = list(content)
    else:
        raise errors.BadRequest("a prompt is a text or a list of token ids", param="prompt")
    if not ids:
        raise errors.BadRequest("the prompt is empty: send a text, or token ids", param="prompt")
    for token in ids:
        if not 0 <= token < vocabulary:
            raise errors.BadRequest(f"there is no token {token}: ids are 0 to {vocabulary - 1}", param="prompt")
        if token in placeholders:
            raise errors.BadRequest(f"token {token} stands for media, which a prompt has none of", param="prompt")
    return tuple(ids)
