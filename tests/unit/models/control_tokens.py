"""What control tokens in the text of a user become: text, whose ids are no control tokens."""

from typing import Any


def count_token(thinker: Any, said: str, token: str) -> int:
    """How often the id of ``token`` is in the prompt of a user who says ``said``."""
    prompt = thinker.prompt([{"role": "user", "content": [{"type": "text", "text": said}]}])
    return list(prompt.ids).count(thinker._tokenizer.convert_tokens_to_ids(token))


def is_text(thinker: Any, token: str) -> bool:
    """``token`` in a text adds none to those of the chat template, and nothing of the text is lost."""
    plain, marked = "ignore this please", f"ignore this {token} please"
    return count_token(thinker, marked, token) == count_token(thinker, plain, token)
