"""Tokens of a prompt, for requests that only tokenize."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from omnibus.executor.runner import Job

#: Tokens of one piece of the stream.
PIECE_TOKENS = 4096


class PromptTokens(NamedTuple):
    """Ids of a prompt, their entries in the vocabulary, and its text."""

    ids: list[int]
    tokens: list[str]
    text: str


def read_prompt_tokens(tokenizer: Any, ids: Sequence[int]) -> PromptTokens:
    """Look up ``ids``. An id that the vocabulary lacks, as in padded ones, has the entry ""."""
    plain_ids = list(ids)
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(plain_ids)]
    return PromptTokens(plain_ids, tokens, tokenizer.decode(plain_ids, skip_special_tokens=False))


async def send_prompt_tokens(job: Job, tokenizer: Any, ids: Sequence[int]) -> None:
    """Send the tokens of a prompt as pieces of ``text``; the first piece has the whole text."""
    prompt = await asyncio.to_thread(read_prompt_tokens, tokenizer, ids)
    for begin in range(0, len(prompt.ids), PIECE_TOKENS):
        end = begin + PIECE_TOKENS
        text = "" if begin else prompt.text
        await job.send_text("text", {"text": text, "ids": prompt.ids[begin:end], "tokens": prompt.tokens[begin:end]})
