"""``omnibus demo``: sends an image, an audio clip and a question, prints and plays the answer, generates an image."""

import argparse
import asyncio
import base64
import io
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from omnibus.cli import demo_drawing, demo_media, demo_world
from omnibus.cli.demo_output import (
    MODEL,
    PROMPT,
    check_output,
    print_commands,
    print_line,
    print_record,
    print_stream,
    program_name,
)
from omnibus.cli.demo_real import run_real_demo
from omnibus.cli.progress import ProgressBar
from omnibus.errors import BadRequest, Rejected
from omnibus.families import catalog
from omnibus.process import run_module
from omnibus.process.logs import Log
from omnibus.process.spec import python_path
from omnibus.up.stack import Stack
from omnibus.up.tiny_models import tiny_models

#: Length of an answer of random weights: long enough that the first audio is sent well before the last word.
RANDOM_ANSWER_TOKENS, RANDOM_SPEECH_CODES = 1500, 400
#: Most tokens of an answer of a trained model, which stops before that.
TRAINED_ANSWER_TOKENS = 40
_CHECK_SECONDS = 60.0


async def run_demo(options: argparse.Namespace) -> int:
    """Run the demo that ``options`` choose."""
    return await (run_real_demo(options) if options.real else _run_small_demo(options))


async def _run_small_demo(options: argparse.Namespace) -> int:
    models = {**catalog.TINY, **catalog.WORLD}
    speaking = {name: "talker" in catalog.FAMILIES[family]["components"] for name, family in models.items()}
    chatting = [name for name, family in models.items() if "thinker" in catalog.FAMILIES[family]["components"]]
    if options.model not in chatting:
        raise BadRequest(f"the demo runs {' or '.join(chatting)}, not {options.model}")
    is_trained, speaks = options.model in catalog.WORLD, speaking[options.model]
    await _check_files(options, speaks)
    sample = (
        await _make_sample(options)
        if is_trained
        else demo_world.DemoSample(demo_media.make_image(), demo_media.make_audio())
    )
    content = _message_content(options, speaks, sample)
    print_line(_TRAINED if is_trained else _RANDOM)
    began = time.monotonic()
    print_line("starting NATS, Valkey, the services and the model ...")
    log = io.StringIO()
    try:
        async with _demo_stack(options.model, sample, log) as stack:
            took = time.monotonic() - began
            print_line(f"up after {took:.1f} s: {len(stack.supervisor.pids)} processes, API at {stack.url}/v1\n")
            id, answer = await asyncio.to_thread(_send_request, stack.url, options, content, speaks)
            if is_trained and speaks:
                await _print_verdict(options, sample.answer, answer)
            if sample.wish:
                await demo_drawing.draw_and_describe(
                    stack.url, sample.wish, options.model, Path(options.out).with_suffix(".png")
                )
            await print_record(stack, id)
            print_commands(id)
    except Exception as error:
        if not isinstance(error, Rejected):  # the request is invalid: the log does not help
            print(log.getvalue(), file=sys.stderr)
        raise
    print_line(f"\neverything is stopped; `{program_name()} up` starts it again, until Ctrl-C")
    return 0


async def _check_files(options: argparse.Namespace, speaks: bool) -> None:
    """Check your files and the output's path before anything starts. Raises ``BadRequest``."""
    if options.audio and not speaks:
        raise BadRequest(f"{options.model} does not accept audio: omit --audio or use --model {MODEL}")
    check_output(Path(options.out))
    files = [f"{name}={path}" for name in ("image", "audio", "video") if (path := getattr(options, name))]
    if files:
        await run_module.call_module(
            "omnibus_gateway.media", *files, within=_CHECK_SECONDS, env={"PYTHONPATH": python_path()}
        )


@asynccontextmanager
async def _demo_stack(model: str, sample: demo_world.DemoSample, log: io.StringIO) -> AsyncIterator[Stack]:
    """Run a stack with ``model``. If the demo generates an image, also run the model for that."""
    with ProgressBar() as bar:
        declarations = await tiny_models([model, *([demo_drawing.MODEL] if sample.wish else [])], report=bar.update)
        async with Stack(declarations, log=Log(log), passing=True, report=bar.update) as stack:
            bar.close()
            yield stack


_RANDOM = "Omnibus demo. Real services and architectures, tiny random weights: expect gibberish, not sense.\n"
_TRAINED = """Omnibus demo. Real services and architectures; tiny models that have learnt a small world: coloured
shapes to see and to draw, tones to hear, and a language of tones to speak.
"""


async def _make_sample(options: argparse.Namespace) -> demo_world.DemoSample:
    """Make a scene and tones that the model was not trained on. The right answer is unknown if you bring your own media
    or question."""
    with tempfile.TemporaryDirectory() as directory:
        sample = await demo_world.make_sample(Path(directory), options.seed)
    own = options.image or options.audio or options.video or options.prompt != PROMPT
    return demo_world.DemoSample(sample.picture, sample.sound) if own else sample


async def _print_verdict(options: argparse.Namespace, right: str, answer: str) -> None:
    """Print whether the answer is right. Also print the words that a decoder of tones finds in its audio."""
    description = await demo_world.describe_media(Path(options.out))
    if right:
        print_line(f"expected answer: {right}: {demo_world.verdict_text(answer == right)}")
    same = "the same" if description == answer else "something else"
    print_line(f"tones decoded without a model: {description}: {same}")


def _message_content(options: argparse.Namespace, speaks: bool, sample: demo_world.DemoSample) -> list[dict[str, Any]]:
    """Return the content parts of the request: your files, or a generated image and audio clip."""
    image = Path(options.image).read_bytes() if options.image else sample.picture
    if not options.image and sys.stdout.isatty():
        print_line(f"{demo_world.terminal_image(image)}\n")
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": _data_url("image/jpeg", image)}}]
    if options.video:
        parts.append(
            {"type": "video_url", "video_url": {"url": _data_url("video/mp4", Path(options.video).read_bytes())}}
        )
    if speaks:
        audio = Path(options.audio).read_bytes() if options.audio else sample.sound
        format = Path(options.audio).suffix[1:].lower() if options.audio else "wav"
        data = base64.b64encode(audio).decode()
        parts.append({"type": "input_audio", "input_audio": {"data": data, "format": format}})
    return [*parts, {"type": "text", "text": options.prompt}]


def _data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _send_request(
    url: str, options: argparse.Namespace, content: list[dict[str, Any]], speaks: bool
) -> tuple[str, str]:
    """Send the request and print the answer as it streams. Returns the invocation's id and the answer."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    body: dict[str, Any] = {"model": options.model, "messages": [{"role": "user", "content": content}]}
    if speaks:
        body |= {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}}
    print_line(f"asking {options.model}: {options.prompt!r} with {len(content) - 1} media items")
    began = time.monotonic()
    try:
        body |= _length_params(options.model, speaks)
        stream = client.chat.completions.create(**body, stream=True)
        answer = print_stream(stream, began, Path(options.out))
    except openai.APIStatusError as error:
        raise BadRequest(f"the gateway answered {error.status_code}: {error.message}") from error
    return str(stream.response.headers["x-request-id"]), answer


def _length_params(model: str, speaks: bool) -> dict[str, Any]:
    """Return the request parameters for the answer's length and sampling."""
    if model in catalog.WORLD:
        return {"max_tokens": TRAINED_ANSWER_TOKENS, "temperature": 0}
    speech = {"audio": {"voice": "Chelsie", "format": "wav", "max_tokens": RANDOM_SPEECH_CODES}} if speaks else {}
    return {
        "max_tokens": RANDOM_ANSWER_TOKENS,
        "temperature": 0.7,
        "seed": 1,
        "extra_body": {"ignore_eos": True},
        **speech,
    }
