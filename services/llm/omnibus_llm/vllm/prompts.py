"""Tokenization of prompts: short ones inline, others in a thread."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from omnibus_engines.component import run_in_pool
from omnibus_models.contract import PLAIN_PROMPT, PromptOptions, Reader, TokenizedPrompt

P = ParamSpec("P")
R = TypeVar("R")

Messages = Sequence[Mapping[str, Any]]
#: Most characters of a prompt that is tokenized inline: waking another thread would take longer.
MAX_SHORT_CHARS = 1024


class PromptTokenizer:
    """The thread that tokenizes prompts. A tokenizer is not safe for two threads at once."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._free = threading.Lock()

    async def tokenize(
        self, reader: Reader, messages: Messages, context: int, options: PromptOptions
    ) -> TokenizedPrompt:
        """Return the prompt of ``messages`` from ``reader``; raises as that does."""
        if options is PLAIN_PROMPT and _is_short(messages) and self._free.acquire(blocking=False):
            try:
                return reader.prompt(messages, context)
            finally:
                self._free.release()
        return await self.run(self._tokenize_long, reader, messages, context, options)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``function`` in the thread. Raises ``StageUnavailable`` after ``close``."""
        return await run_in_pool(self._pool, function, *args, **kwargs)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _tokenize_long(
        self, reader: Reader, messages: Messages, context: int, options: PromptOptions
    ) -> TokenizedPrompt:
        with self._free:
            return reader.prompt(messages, context, options)


def _is_short(messages: Messages) -> bool:
    """True for a short plain text."""
    texts = [message.get("content") for message in messages]
    return all(type(text) is str for text in texts) and sum(map(len, texts)) <= MAX_SHORT_CHARS  # type: ignore[arg-type]
