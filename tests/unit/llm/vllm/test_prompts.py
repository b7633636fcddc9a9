"""Tokenizing prompts: few words at once, others in a thread, and never two at a time."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnibus.errors import StageUnavailable
from omnibus_llm.vllm.request import MAX_SHORT_CHARS, PromptTokenizer
from omnibus_models.contract import PLAIN_PROMPT, PromptOptions, TokenizedPrompt

SHORT = [{"role": "user", "content": "a few words"}]
LONG = [{"role": "user", "content": "x" * MAX_SHORT_CHARS}, *SHORT]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a few words"}]}]


class Reader:
    """A tokenizer that records its threads and its concurrency."""

    def __init__(self) -> None:
        self.threads: list[bool] = []  # whether each was read in the event loop's own
        self.most = self._now = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.began = threading.Event()

    def prompt(self, messages: Any, context: int = 0, options: PromptOptions = PLAIN_PROMPT) -> TokenizedPrompt:
        self._now += 1
        self.most = max(self.most, self._now)
        self.threads.append(threading.current_thread() is threading.main_thread())
        self.began.set()
        assert self.go_on.wait(30)
        self._now -= 1
        return TokenizedPrompt((len(messages), context), ())


@pytest.fixture
async def tokenizer() -> AsyncIterator[PromptTokenizer]:
    prompt_tokenizer = PromptTokenizer("words")
    yield prompt_tokenizer
    await prompt_tokenizer.close()


@pytest.mark.parametrize(
    ("messages", "options", "at_once"),
    [
        (SHORT, PLAIN_PROMPT, True),
        (LONG, PLAIN_PROMPT, False),
        (PARTS, PLAIN_PROMPT, False),
        (SHORT, PromptOptions(({"name": "weather"},), {}), False),
    ],
    ids=["few words", "many words", "parts", "tools"],
)
async def test_few_plain_words_need_no_thread(
    tokenizer: PromptTokenizer, messages: Any, options: PromptOptions, at_once: bool
) -> None:
    reader: Any = Reader()

    prompt = await tokenizer.tokenize(reader, messages, 100, options)

    assert prompt.ids == (len(messages), 100)
    assert reader.threads == [at_once]


async def test_few_words_wait_for_the_thread_while_it_tokenises(tokenizer: PromptTokenizer) -> None:
    reader: Any = Reader()
    reader.go_on.clear()
    long = asyncio.create_task(tokenizer.tokenize(reader, LONG, 100, PLAIN_PROMPT))
    await asyncio.to_thread(reader.began.wait, 30)
    short = asyncio.create_task(tokenizer.tokenize(reader, SHORT, 100, PLAIN_PROMPT))
    await asyncio.sleep(0)
    reader.go_on.set()

    assert [(await task).ids for task in (long, short)] == [(2, 100), (1, 100)]
    assert (reader.threads, reader.most) == ([False, False], 1)


async def test_a_closed_one_takes_no_long_prompts() -> None:
    reader: Any = Reader()
    tokenizer = PromptTokenizer("words")
    await tokenizer.close()

    with pytest.raises(StageUnavailable):
        await tokenizer.tokenize(reader, LONG, 100, PLAIN_PROMPT)
