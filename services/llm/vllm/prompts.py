"""Tokenises prompts: few words at once, others in a thread."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from omnibus_models.contract import PLAIN_PROMPT, PromptOptions, Reader, TokenizedPrompt
from services.component import run_in_pool

P = ParamSpec("P")
R = TypeVar("R")

Messages = Sequence[Mapping[str, Any]]
#: Characters of a prompt that is tokenised at once: another thread would take longer to hear of it.
MAX_SHORT_CHARS = 1024


class PromptTokenizer:
    """The thread in which prompts become tokens. A tokeniser is not made for two threads at once."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._free = threading.Lock()

    async def tokenize(
        self, reader: Reader, messages: Messages, context: int, options: PromptOptions
    ) -> TokenizedPrompt:
        """The prompt of ``messages`` by ``reader``; raises as that does."""
        if options is PLAIN_PROMPT and _is_short(messages) and self._free.acquire(blocking=False):
            try:
                return reader.prompt(messages, context)
            finally:
                self._free.release()
        return await self.run(self._tokenize_long, reader, messages, context, options)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``function`` in the thread. Raises ``StageUnavailable`` once it is closed."""
        return await run_in_pool(self._pool, function, *args, **kwargs)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _tokenize_long(
        self, reader: Reader, messages: Messages, context: int, options: PromptOptions
    ) -> TokenizedPrompt:
        with self._free:
            return reader.prompt(messages, context, options)


def _is_short(messages: Messages) -> bool:
    """True for a few words of plain text."""
    texts = [message.get("content") for message in messages]
    return all(type(text) is str for text in texts) and sum(map(len, texts)) <= MAX_SHORT_CHARS  # type: ignore[arg-type]
