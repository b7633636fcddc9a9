"""Prompts without a template, and texts with a gap to fill in.

A model that fills in has three control tokens: before the text, before its end, and before the answer. Sources: the
model cards of Qwen2.5-Coder, StarCoder2 and DeepSeek-Coder.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from omnibus import errors

#: Role of the only message of such a prompt: its ``content`` is a text, or a list of token ids.
PROMPT_ROLE = "prompt"
#: Control tokens by model family, in the order of the prompt.
_FILL_TOKENS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


def is_plain_prompt(messages: Sequence[Any]) -> bool:
    """Return whether ``messages`` are one prompt without a template."""
    return len(messages) == 1 and isinstance(messages[0], Mapping) and messages[0].get("role") == PROMPT_ROLE


def tokenize_plain_prompt(
    message: Mapping[str, Any], tokenizer: Any, placeholders: Collection[int], vocabulary: int
) -> tuple[int, ...]:
    """Return the ids of ``message``; texts have the tokeniser's prefix.

    Special tokens in a text count as such, since the author of a prompt writes its template. Raises ``BadRequest`` for
    an empty prompt, for ids outside the ``vocabulary``, for ``placeholders`` of media, and for a ``suffix`` that the
    model cannot take.
    """
    content = message.get("content")
    if suffix := message.get("suffix"):
        content = _frame_gap(content, suffix, tokenizer)
    if isinstance(content, str):
        adds_marks = message.get("add_special_tokens") is not False
        ids = list(tokenizer(content, add_special_tokens=adds_marks)["input_ids"])
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


def _frame_gap(content: Any, suffix: str, tokenizer: Any) -> str:
    """Return the text for the gap between ``content`` and ``suffix``. Raises ``BadRequest``."""
    if not isinstance(content, str):
        raise errors.BadRequest("a suffix needs a prompt of text: send the prompt as text", param="suffix")
    known_tokens = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    for before, after, answer in _FILL_TOKENS:
        if {before, after, answer} <= known_tokens:
            return f"{before}{content}{after}{suffix}{answer}"
    raise errors.BadRequest(
        "this model cannot fill in, because its tokenizer has no tokens for a gap; omit suffix", param="suffix"
    )
