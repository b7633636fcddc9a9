"""``omnibus deadletters``: lists, shows and retries inputs that crashed or failed an engine."""

import argparse
import time
from typing import Any

import msgspec

from omnibus.bus.nats import NatsBus
from omnibus.cli.format.tables import fit_text, table_lines
from omnibus.cli.invocations import connect_bus, replay_and_print
from omnibus.cli.output import print_json, print_names
from omnibus.errors import ProtocolError
from omnibus.recording import dead_letters
from omnibus.recording.dead_letters import DeadLetter

#: Messages in one read.
READ_BATCH_COUNT = 256


async def run_dead_letters(options: argparse.Namespace) -> int:
    bus = await connect_bus(options)
    try:
        command = {
            None: _list_letters,
            "list": _list_letters,
            "show": _show_letter,
            "retry": _retry_letter,
            "remove": _remove_letter,
        }
        return await command[options.dead_command](bus, options)
    finally:
        await bus.drain()


async def _list_letters(bus: NatsBus, options: argparse.Namespace) -> int:
    letters = await _read_letters(bus, options.limit)
    if options.json:
        print_json(letters)
        return 0
    if options.quiet:
        print_names(letter.inv for letter in letters)
        return 0
    rows = [
        (_time_text(each), each.inv, each.model, each.reason, _component_text(each), _problem_text(each))
        for each in letters
    ]
    print("\n".join(table_lines(("when", "invocation", "model", "reason", "where", "why"), rows)) if rows else "none")
    return 0


async def _read_letters(bus: NatsBus, limit: int) -> list[DeadLetter]:
    """Return the last ``limit`` letters, newest first, without those of other versions."""
    letters: list[DeadLetter] = []
    below = 0
    while len(letters) < limit and (messages := await dead_letters.list_dead_letters(bus, READ_BATCH_COUNT, below)):
        below = messages[-1].number
        for each in messages:
            try:
                letters.append(dead_letters.decode_dead_letter(each.data))
            except ProtocolError:
                continue
        if below <= 1:
            break
    return letters[:limit]


def _time_text(letter: DeadLetter) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(letter.at))


def _component_text(letter: DeadLetter) -> str:
    return f"{letter.component or '?'} on {letter.lost[-1] if letter.lost else letter.problem.executor or '?'}"


def _problem_text(letter: DeadLetter) -> str:
    return f"{letter.problem.code}: {letter.problem.message}"[:100]


async def _show_letter(bus: NatsBus, options: argparse.Namespace) -> int:
    letter = await dead_letters.read_dead_letter(bus, options.id)
    if options.json:
        print_json(letter)
        return 0
    print(fit_text("\n".join(letter_lines(letter))))
    return 0


def letter_lines(letter: DeadLetter) -> list[str]:
    """Return a letter with all its fields, as lines."""
    again = f"  replay of {letter.replay_of}" if letter.replay_of else ""
    lines = [
        f"{letter.inv}  {letter.model}  {letter.type}  via {letter.path}{again}",
        f"when    {_time_text(letter)}, {letter.at - letter.created:.3f} s after it came, attempt {letter.attempts}",
        f"reason  {letter.reason} {_component_text(letter)}",
        f"problem {letter.problem.code}: {letter.problem.message}",
    ]
    lines += [f"moved   attempt {move.attempt}: {move.reason} {move.executor}".rstrip() for move in letter.moves]
    for index, node in enumerate(letter.invocation.nodes if letter.invocation is not None else ()):
        mark = "!" if index == letter.node else " "
        inputs = ", ".join(f"{name} {_value_size_text(value)}" for name, value in node.inputs.items())
        lines.append(f" {mark}[{index}] {node.component:<8} {inputs}")
    return [*lines, f"try it again with `omnibus deadletters retry {letter.inv}`"]


def _value_size_text(value: Any) -> str:
    if isinstance(value, dict) and "nbytes" in value:
        digest = value.get("$digest") or value.get("sha256", "")
        return f"{value['nbytes']} bytes {str(digest)[:12]}".rstrip()
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{len(text)} characters"


async def _retry_letter(bus: NatsBus, options: argparse.Namespace) -> int:
    letter = await dead_letters.read_dead_letter(bus, options.id)
    last = await replay_and_print(bus, await dead_letters.resolve_invocation(bus, letter), options.json)
    if last.get("status") != "done":
        return 1
    if not options.keep:
        await dead_letters.delete_dead_letter(bus, letter)
        if not options.json:
            print(f"the dead letter {letter.inv} is removed")
    return 0


async def _remove_letter(bus: NatsBus, options: argparse.Namespace) -> int:
    letter = await dead_letters.read_dead_letter(bus, options.id)
    await dead_letters.delete_dead_letter(bus, letter)
    if options.json:
        print_json(letter)
    else:
        print(f"the dead letter {options.id} is removed")
    return 0
