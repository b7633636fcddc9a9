"""Token sequences of words that an answer may not have, by vLLM's rule (``SamplingParams.update_from_tokenizer``)."""

from collections.abc import Sequence
from typing import Any

from omnibus.errors import BadRequest

#: Sequences of one request.
MAX_SEQUENCES = 1000


def ban_words(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The sequences of ``words`` at the begin of a text, and behind a space where that makes other tokens.

    A word behind a space is not banned where it has another number of tokens than without. Raises ``BadRequest`` for a
    word without tokens.
    """
    banned: list[tuple[int, ...]] = []
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(f" {word.lstrip()}", add_special_tokens=False))
        if not bare:
            raise BadRequest(f"the bad word {word!r} has no tokens; leave it out", param="bad_words")
        banned.append(bare)
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            banned.append(spaced)
    if len(banned) > MAX_SEQUENCES:
        raise BadRequest(
            f"bad_words are {len(banned)} sequences of tokens; {MAX_SEQUENCES} are allowed", param="bad_words"
        )
    return tuple(banned)
