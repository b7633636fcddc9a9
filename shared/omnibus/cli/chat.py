"""Chat with a model in the terminal: reads lines, streams answers, keeps the conversation."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from omnibus.up.tls import trusted_context

_EXIT = "/exit"
_READ_BYTES = 1 << 16


async def chat(url: str, model: str, certificate: str = "") -> None:
    """Chat with ``model`` at the base URL ``url`` until the end of stdin or ``/exit``.

    Prompts are printed on terminals only. An error of the server is printed on stderr, and the question is forgotten.
    """
    import openai

    is_shown = sys.stdin.isatty()
    if is_shown:
        print(f"Chat with {model}. {_EXIT} or Ctrl-D stops everything.")
    trusted = trusted_context(certificate)
    messages: list[dict[str, str]] = []
    http = openai.DefaultAsyncHttpxClient(verify=trusted) if trusted else None
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as client:
        _print_prompt(is_shown)
        async for line in _read_lines():
            if line.strip() == _EXIT:
                return
            if line.strip():
                messages.append({"role": "user", "content": line})
                try:
                    messages.append({"role": "assistant", "content": await _print_answer(client, model, messages)})
                except openai.OpenAIError as error:
                    messages.pop()
                    print(getattr(error, "message", str(error)), file=sys.stderr)
            _print_prompt(is_shown)
    if is_shown:
        print()


async def _print_answer(client: Any, model: str, messages: list[dict[str, str]]) -> str:
    """Print the answer as it arrives, and return it."""
    answer = ""
    stream = await client.chat.completions.create(model=model, messages=messages, stream=True)
    async for chunk in stream:
        text = (chunk.choices[0].delta.content if chunk.choices else None) or ""
        print(text, end="", flush=True)
        answer += text
    print(flush=True)
    return answer


def _print_prompt(is_shown: bool) -> None:
    if is_shown:
        print(">>> ", end="", flush=True)


async def _read_lines() -> AsyncIterator[str]:
    """Yield the lines of stdin.

    A daemon thread reads the descriptor, so that a signal ends the command while it waits. A file cannot be read in an
    event loop, and Python's own stdin would be locked at exit.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def put(line: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lines.put_nowait, None if line is None else line.decode(errors="replace"))

    def read() -> None:
        rest = b""
        while data := os.read(sys.stdin.fileno(), _READ_BYTES):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                put(line)
        if rest:
            put(rest)
        put(None)

    threading.Thread(target=read, daemon=True, name="stdin").start()
    while (line := await lines.get()) is not None:
        yield line
