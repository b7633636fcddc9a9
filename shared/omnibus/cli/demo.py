"""``omnibus demo``: a picture, a sound and a question are answered in text and speech, then a picture is drawn."""

import argparse
import asyncio
import base64
import io
import sys
import time
from pathlib import Path
from typing import Any

from omnibus import catalog
from omnibus.cli import drawing, samples
from omnibus.cli.look import describe, read
from omnibus.errors import BadRequest
from omnibus.up.logs import Log
from omnibus.up.stack import Stack
from omnibus.up.tiny import tiny_models

#: What is asked when nothing else is.
PROMPT = "What do you see and hear?"
#: Length of the answer: so long that the first sound leaves well before the last word.
TOKENS, CODES = 1500, 400
#: Characters of it that are shown.
SHOWN = 400


async def demo(options: argparse.Namespace) -> int:
    if options.model not in catalog.TINY:
        raise BadRequest(f"the demo runs {' or '.join(catalog.TINY)}, not {options.model}")
    speaks = "talker" in catalog.FAMILIES[catalog.TINY[options.model]]["components"]
    content = _content(options, speaks)
    _say(
        "Omnibus demo. Real services and architectures. Answers come from tiny random weights: expect gibberish; a\n"
        "picture comes from tiny weights that have learnt to draw coloured shapes: expect what was asked for.\n"
    )
    began = time.monotonic()
    _say("building tiny models (first run only) and starting NATS, Valkey and the services ...")
    own = options.image or options.audio or options.video or options.prompt != PROMPT
    models = await tiny_models([options.model, *([] if own else [drawing.MODEL])])
    log = io.StringIO()
    try:
        async with Stack(models, log=Log(log), passing=True) as stack:
            took = time.monotonic() - began
            _say(f"up after {took:.1f} s: {len(stack.supervisor.pids)} processes, API at {stack.url}/v1\n")
            id = await asyncio.to_thread(_ask, stack.url, options, content, speaks)
            await _explain(stack, id)
            if not own:
                await drawing.show(stack.url, options.seed, Path(options.out).with_suffix(".png"))
    except BaseException:
        print(log.getvalue())
        raise
    _say(f"\neverything is stopped; `{_program()} up` starts it again, until Ctrl-C")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _content(options: argparse.Namespace, speaks: bool) -> list[dict[str, Any]]:
    """The request's parts: the files that were named, or a picture and a sound made here."""
    image = _file(options.image) if options.image else samples.picture()
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": _data_url("image/jpeg", image)}}]
    if options.video:
        parts.append({"type": "video_url", "video_url": {"url": _data_url("video/mp4", _file(options.video))}})
    if options.audio and not speaks:
        raise BadRequest(f"{options.model} does not listen: leave AUDIO out or ask qwen2.5-omni-tiny")
    if speaks:
        sound = _file(options.audio) if options.audio else samples.sound()
        format = Path(options.audio).suffix[1:].lower() if options.audio else "wav"
        data = base64.b64encode(sound).decode()
        parts.append({"type": "input_audio", "input_audio": {"data": data, "format": format}})
    return [*parts, {"type": "text", "text": options.prompt}]


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from error


def _data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _ask(url: str, options: argparse.Namespace, content: list[dict[str, Any]], speaks: bool) -> str:
    """Send the request with the openai client, print the answer as it streams; returns the invocation's id."""
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    wanted: dict[str, Any] = {"model": options.model, "messages": [{"role": "user", "content": content}]}
    if speaks:
        voice = {"voice": "Chelsie", "format": "wav", "max_tokens": CODES}
        wanted |= {"modalities": ["text", "audio"], "audio": voice}
    _say(f"asking {options.model}: {options.prompt!r} with {len(content) - 1} media items")
    began = time.monotonic()
    try:
        wanted |= {"max_tokens": TOKENS, "temperature": 0.7, "seed": 1, "extra_body": {"ignore_eos": True}}
        stream = client.chat.completions.create(**wanted, stream=True)
        _print_stream(stream, began, Path(options.out))
    except openai.APIStatusError as error:
        raise BadRequest(f"the gateway answered {error.status_code}: {error.message}") from error
    return str(stream.response.headers["x-request-id"])


def _print_stream(stream: Any, began: float, out: Path) -> None:
    sound = bytearray()
    first: dict[str, float] = {}
    last_text = 0.0
    shown = 0
    for chunk in stream:
        delta = chunk.choices[0].delta if chunk.choices else None
        if delta is not None and delta.content:
            last_text = time.monotonic() - began
            first.setdefault("text", last_text)
            if shown < SHOWN:
                print(delta.content, end="", flush=True)
            shown += len(delta.content)
        if delta is not None and (audio := getattr(delta, "audio", None)) and audio.data:
            first.setdefault("sound", time.monotonic() - began)
            sound += base64.b64decode(audio.data)
    _say(f" … and {shown - SHOWN} more characters" if shown > SHOWN else "")
    _say(f"\nfirst text after {first.get('text', 0):.2f} s, last text after {last_text:.2f} s")
    if sound:
        out.write_bytes(sound)
        _say(f"first sound after {first['sound']:.2f} s; all of it is in {out} ({len(sound)} bytes)")


async def _explain(stack: Stack, id: str) -> None:
    """The way that the request took, from its own record."""
    invocation, ended = await read(stack.bus, id)
    for _ in range(20):
        if ended is not None:
            break
        await asyncio.sleep(0.05)
        invocation, ended = await read(stack.bus, id)
    _say("\nthe way it took\n" + "\n".join(describe(invocation, ended)))
    program = _program()
    looks = {"tail": "watch requests begin and end", f"show {id}": "graph, route and waterfall"}
    looks[f"replay {id}"] = "run it again, compare the answers"
    lines = [f"  {f'{program} {look}':<36} {what}" for look, what in looks.items()]
    lines.append(f"  nats stream view OMNIBUS_INVOCATIONS --subject 'omnibus.inv.*.{id}'")
    _say(f"\nits record; while `{program} up` runs, look at any request with\n" + "\n".join(lines))


def _program() -> str:
    """This command as the reader can type it here."""
    program = Path(sys.argv[0])
    if program.name != "omnibus":
        return "omnibus"
    inside = program.is_absolute() and program.is_relative_to(Path.cwd())
    return str(program.relative_to(Path.cwd())) if inside else str(program)
