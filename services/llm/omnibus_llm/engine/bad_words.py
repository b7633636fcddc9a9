"""Token sequences of banned words, by vLLM's rule.

See ``SamplingParams.update_from_tokenizer``.
"""

from collections.abc import Sequence
from typing import Any

from omnibus.errors import BadRequest

#: Most sequences of one request.
MAX_SEQUENCES = 1000


def ban_words(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the sequences of ``words``, with and without a leading space.

    The first form is that of a text that starts with the word. The form with a space is banned only if it has other
    tokens but the same number of them. Raises ``BadRequest`` for a word without tokens.
    """
    sequences: list[tuple[int, ...]] = []
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced_ids = tuple(tokenizer.encode(f" {word.lstrip()}", add_special_tokens=False))
        if not bare:
            raise BadRequest(f"the bad word {word!r} has no tokens; remove it", param="bad_words")
        sequences.append(bare)
        if spaced_ids and spaced_ids[0] != bare[0] and len(spaced_ids) == len(bare):
            sequences.append(spaced_ids)
    if len(sequences) > MAX_SEQUENCES:
        raise BadRequest(
            f"bad_words are {len(sequences)} sequences of tokens; at most {MAX_SEQUENCES} are allowed",
            param="bad_words",
        )
    return tuple(sequences)
