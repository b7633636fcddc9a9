"""Output that all demos have, and defaults of their options."""

import asyncio
import base64
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from omnibus.cli.format.tables import fit_text
from omnibus.cli.help_texts import example_lines
from omnibus.cli.invocations import invocation_lines
from omnibus.errors import BadRequest
from omnibus.recording.records import Record, find_record
from omnibus.up.stack import Stack

#: The default question, and the default model.
PROMPT, MODEL = "What do you see and hear?", "qwen2.5-omni-world"
#: Characters of the answer that are printed.
MAX_PRINTED_CHARS = 400
_NATS_CLI = "https://github.com/nats-io/natscli/releases"


def check_output(out: Path) -> None:
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise BadRequest(f"--out {out}: cannot write a file there")


def print_line(text: str) -> None:
    print(text, flush=True)


def print_stream(stream: Any, began: float, out: Path) -> str:
    """Print text as it arrives and write the audio to ``out``. Returns the text."""
    samples, text = bytearray(), ""
    first: dict[str, float] = {}
    last_text = 0.0
    for chunk in stream:
        delta = chunk.choices[0].delta if chunk.choices else None
        if delta is not None and delta.content:
            last_text = time.monotonic() - began
            first.setdefault("text", last_text)
            print(delta.content[: max(0, MAX_PRINTED_CHARS - len(text))], end="", flush=True)
            text += delta.content
        if delta is not None and (audio := getattr(delta, "audio", None)) and audio.data:
            first.setdefault("sound", time.monotonic() - began)
            samples += base64.b64decode(audio.data)
    print_line(f" … and {len(text) - MAX_PRINTED_CHARS} more characters" if len(text) > MAX_PRINTED_CHARS else "")
    print_line(f"\nfirst text after {first.get('text', 0):.2f} s, last text after {last_text:.2f} s")
    if samples:
        out.write_bytes(samples)
        print_line(f"first audio after {first['sound']:.2f} s; all of it is in {out} ({len(samples)} bytes)")
    return text


async def find_ended(stack: Stack, id: str) -> Record:
    """Return the record of a request, after a second perhaps without its end."""
    for _ in range(20):
        record = await find_record(stack.bus, id)
        if record.ended is not None:
            break
        await asyncio.sleep(0.05)
    return record


async def print_record(stack: Stack, id: str) -> None:
    """Print the route of the request, from its record."""
    record = await find_ended(stack, id)
    print_line(fit_text("\nits route\n" + "\n".join(invocation_lines(*record))))


def print_commands(id: str) -> None:
    """Print the commands that inspect a request."""
    program = program_name()
    commands = {"tail": "watch requests begin and end", f"show {id}": "graph, route and waterfall"}
    commands[f"replay {id}"] = "run it again, compare the answers"
    width = max(len(command) for command in commands)
    examples = [f"{program} {command:<{width}}  # {purpose}" for command, purpose in commands.items()]
    lines = [line for each in examples for line in example_lines(each)]
    lines.append(f"  nats stream view OMNIBUS_INVOCATIONS \\\n    --subject 'omnibus.inv.*.{id}'")
    if shutil.which("nats") is None:
        lines.append(f"  # the `nats` CLI is not installed: {_NATS_CLI}")
    print_line(f"\nto inspect any request while `{program} up` runs, use\n" + "\n".join(lines))


def program_name() -> str:
    """Return this command as you would type it in this directory."""
    program = Path(sys.argv[0])
    if program.name != "omnibus":
        return "omnibus"
    inside = program.is_absolute() and program.is_relative_to(Path.cwd())
    return str(program.relative_to(Path.cwd())) if inside else str(program)
