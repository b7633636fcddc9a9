"""``omnibus demo --real``: a voice assistant, a receipt and a search by meaning, with trained models of packages."""

import argparse
import asyncio
import base64
import io
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from omnibus.cli import demo_media
from omnibus.cli.demo_output import (
    MODEL,
    PROMPT,
    check_output,
    find_ended,
    print_commands,
    print_line,
    print_record,
    print_stream,
    program_name,
)
from omnibus.cli.format.models import packaged_lines
from omnibus.cli.gateway import Gateway
from omnibus.cli.invocations import replay_and_print
from omnibus.cli.progress import ProgressBar
from omnibus.cli.up import register_everywhere
from omnibus.errors import BadRequest, Rejected
from omnibus.process.logs import Log
from omnibus.up.real_models import REAL_APPS, real_models, real_settings, require_real_set
from omnibus.up.stack import Stack

#: The question that the voice speaks, and most tokens of an answer.
QUESTION, _ANSWER_TOKENS = "What can I see in Paris?", 45
#: Lines of the receipt, and its total.
RECEIPT = (("CORNER BAKERY", ""), ("2026-11-28", ""), ("Bread", "3.40"), ("Coffee", "2.80"), ("Cake", "4.10"))
TOTAL = 10.30
#: A query, and the sentences for it. No word is in both.
QUERY = "Where can I eat something sweet?"
SENTENCES = (
    "The library closes at six in the evening.",
    "Try the chocolate cake of the bakery on Main Street.",
    "Trains to the airport leave every ten minutes.",
)


async def run_real_demo(options: argparse.Namespace) -> int:
    """Run the demo with trained models. Raises ``NotFound`` with the remedy if they are not installed."""
    require_real_set()
    if options.video or options.model != MODEL:
        raise BadRequest("--real chooses its models and reads no video: omit --model and --video")
    out = Path(options.out)
    check_output(out)
    print_line("Omnibus demo with trained models of packages. They are small: expect simple answers and mistakes.\n")
    print_line("\n".join(packaged_lines()))
    print_line("\nstarting NATS, Valkey, the services, the models and the apps on them ...")
    log = io.StringIO()
    began = time.monotonic()
    try:
        async with real_stack(log) as stack:
            took = time.monotonic() - began
            print_line(f"up after {took:.1f} s: {len(stack.supervisor.pids)} processes, API at {stack.url}/v1\n")
            await _show_apps(stack, options, out)
    except Exception as error:
        if not isinstance(error, Rejected):
            print(log.getvalue(), file=sys.stderr)
        raise
    print_line(f"\neverything is stopped; `{program_name()} up --real` starts it again, until Ctrl-C")
    return 0


@asynccontextmanager
async def real_stack(log: io.StringIO, profile: str = "") -> AsyncIterator[Stack]:
    """Run the trained models and the apps on them; ``log`` gets the lines of all processes.

    ``profile`` is that of ``real_models``.
    """
    with ProgressBar() as bar:

        async def register_apps(stack: Stack) -> None:
            await register_everywhere(stack, REAL_APPS, bar.update)

        models, settings = real_models(profile=profile), real_settings()
        async with Stack(
            models, env=settings, log=Log(log), passing=True, set_up=register_apps, report=bar.update
        ) as stack:
            bar.close()
            yield stack


async def _show_apps(stack: Stack, options: argparse.Namespace, out: Path) -> None:
    client = DemoClient(stack)
    id = await asyncio.to_thread(_ask_assistant, client, options, out)
    await asyncio.to_thread(_read_receipt, client, options, out.with_name("receipt.png"))
    await asyncio.to_thread(_search_sentences, client)
    await _print_route(stack, id)


class DemoClient:
    """Client of the three apps at a gateway."""

    def __init__(self, stack: Stack) -> None:
        import openai

        self.openai = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none")
        self.gateway = Gateway(stack.url, stack.admin_token, "", stack.certificate)

    def generate_speech(self, text: str) -> bytes:
        """Return ``text`` as a WAV file."""
        return self.openai.audio.speech.create(
            model="assistant", voice="joe", input=text, response_format="wav"
        ).content

    def recognize_speech(self, wav: bytes) -> str:
        return self.openai.audio.transcriptions.create(model="assistant", file=("speech.wav", wav)).text

    def stream_chat(self, content: list[dict[str, Any]]) -> Any:
        """Return the stream of the assistant's answer, as text and audio."""
        messages: Any = [{"role": "user", "content": content}]
        return self.openai.chat.completions.create(
            model="assistant", messages=messages, stream=True, temperature=0, max_tokens=_ANSWER_TOKENS,
            modalities=["text", "audio"], audio={"voice": "joe", "format": "wav"},
        )  # fmt: skip

    def read_receipt(self, png: bytes) -> str:
        """Return the JSON that a receipt's image contains."""
        url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        messages: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        answer = self.openai.chat.completions.create(model="receipt", messages=messages, temperature=0)
        return answer.choices[0].message.content or ""

    def search_texts(self, query: str, texts: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return ``texts`` with their scores, best first."""
        body = {"query": query, "texts": texts}
        results: list[dict[str, Any]] = self.gateway.call("POST", "/v1/apps/search/invoke", body)
        return results


def _ask_assistant(client: DemoClient, options: argparse.Namespace, out: Path) -> str:
    """Ask by voice, and print the answer as it streams. Returns the invocation's id."""
    if options.audio:
        question = Path(options.audio).read_bytes()
    else:
        text = QUESTION if options.prompt == PROMPT else options.prompt
        question = client.generate_speech(text)
        file = out.with_name("question.wav")
        file.write_bytes(question)
        print_line(f"the voice speaks a question into {file}: {text}")
    print_line(f"recognized in it: {client.recognize_speech(question)}")
    print_line("asking assistant with this audio")
    data = base64.b64encode(question).decode()
    began = time.monotonic()
    stream = client.stream_chat([{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}])
    print_stream(stream, began, out)
    print_line(f"recognized in {out}: {client.recognize_speech(out.read_bytes())}")
    return str(stream.response.headers["x-request-id"])


def _read_receipt(client: DemoClient, options: argparse.Namespace, out: Path) -> None:
    png = Path(options.image).read_bytes() if options.image else demo_media.draw_receipt(RECEIPT, TOTAL)
    if not options.image:
        out.write_bytes(png)
    print_line(f"\nasking receipt to read {options.image or out}")
    began = time.monotonic()
    answer = client.read_receipt(png)
    print_line(f"{answer}\nread after {time.monotonic() - began:.2f} s")
    if not options.image:
        total = json.loads(answer)["total"]
        print_line(f"expected total: {TOTAL:.2f}: {'right' if total == TOTAL else 'wrong'}")


def _search_sentences(client: DemoClient) -> None:
    print_line(f"\nasking search: {QUERY}")
    began = time.monotonic()
    for result in client.search_texts(QUERY, SENTENCES):
        print_line(f"  {result['score']:.2f}  {result['text']}")
    print_line(f"found after {time.monotonic() - began:.2f} s")


async def _print_route(stack: Stack, id: str) -> None:
    """Print the routes of a request's segments, and replay the last one."""
    _, end = await find_ended(stack, id)
    segments = end.segments if end is not None else []
    for segment in [id, *segments]:
        await print_record(stack, segment)
    invocation, _ = await find_ended(stack, segments[-1] if segments else id)
    print_line(f"\n$ {program_name()} replay {invocation.id}")
    await replay_and_print(stack.bus, invocation, plain=False)
    print_commands(invocation.id)
