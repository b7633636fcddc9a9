"""Prompts without a chat template: a text or token ids for the model to continue."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from omnibus import errors

#: Role of the only message of such a prompt: its ``content`` is a text, or a list of token ids.
PROMPT_ROLE = "prompt"


def is_plain_prompt(messages: Sequence[Any]) -> bool:
    """Return whether ``messages`` are one prompt without a template."""
    return len(messages) == 1 and isinstance(messages[0], Mapping) and messages[0].get("role") == PROMPT_ROLE


def tokenize_plain_prompt(
    content: Any, tokenizer: Any, placeholders: Collection[int], vocabulary: int
) -> tuple[int, ...]:
    """Return the ids of ``content``, with the tokeniser's prefix for a text.

    Special tokens in a text count as such, since the author of a prompt writes its template. Raises ``BadRequest`` for
    an empty prompt, for ids outside the ``vocabulary`` and for ``placeholders`` of media.
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
