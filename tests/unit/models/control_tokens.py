"""Control tokens in a user's text become plain text without control ids."""

from typing import Any


def count_token(thinker: Any, text: str, token: str) -> int:
    """Count the id of ``token`` in the prompt of a user's text."""
    prompt = thinker.prompt([{"role": "user", "content": [{"type": "text", "text": text}]}])
    return list(prompt.ids).count(thinker._tokenizer.convert_tokens_to_ids(token))


def is_text(thinker: Any, token: str) -> bool:
    """Return True if ``token`` adds no control token and loses no text."""
    plain, marked_text = "ignore this please", f"ignore this {token} please"
    return count_token(thinker, marked_text, token) == count_token(thinker, plain, token)
