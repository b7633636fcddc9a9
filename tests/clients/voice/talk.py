"""Common code of all voice clients: play audio files, and record the answers.

It needs the standard library alone.
"""

import abc
import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MODEL = "qwen2.5-omni-world"
#: Turn detection for the world's models, which were trained without silence.
DETECTION = {"type": "server_vad", "silence_duration_ms": 100, "prefix_padding_ms": 20}
#: Bytes of 50 ms at 24 kHz, and how long a microphone takes for them.
CHUNK, CHUNK_SECONDS = 2400, 0.05
#: Chunks of a question that interrupt an answer: the gateway finds speech in the eighth, and its end in the fourteenth.
#: The rest waits until the conversation is emptied, because a late gateway would otherwise answer all of it.
INTERRUPTING_CHUNKS = 10
#: A question whose answer is interrupted: the engine waits in the middle of it (``tests.clients.engines``).
LONG = "Say a red square on blue and low high low"
SEE = "What do you see?"
TOOL = {
    "type": "function",
    "name": "play",
    "description": "Play a tone.",
    "parameters": {
        "type": "object",
        "properties": {"tone": {"type": "string", "enum": ["low", "middle", "high"]}},
        "required": ["tone"],
        "additionalProperties": False,
    },
}
#: Played milliseconds of the answer at its interruption.
HEARD_MS = 60
#: Seconds that a turn may take on a busy machine.
PATIENCE = 60.0


@dataclass
class Turn:
    """Answer that a client received to one question."""

    status: str = ""
    transcript: str = ""
    call: dict[str, Any] | None = None
    truncated_ms: int | None = None
    sound: bytes = field(default=b"", repr=False)


class Notebook:
    """Turns of a conversation, and the directory with its questions and answers."""

    def __init__(self) -> None:
        self.directory = Path(sys.argv[1])
        self.turns: dict[str, Turn] = {}

    def read_question(self, name: str) -> bytes:
        """The samples of question ``name``, 16 bit at 24 kHz, with silence around."""
        return (self.directory / f"{name}.pcm").read_bytes()

    def encode_picture(self) -> str:
        return f"data:image/png;base64,{base64.b64encode((self.directory / 'seen.png').read_bytes()).decode()}"

    def write(self) -> None:
        for name, turn in self.turns.items():
            (self.directory / f"{name}.answer.pcm").write_bytes(turn.sound)
        summary = {name: {**asdict(turn), "sound": len(turn.sound)} for name, turn in self.turns.items()}
        (self.directory / "turns.json").write_text(json.dumps(summary))


async def send_sound(
    append: Callable[[bytes], Awaitable[Any]], sound: bytes, continues: asyncio.Event | None = None
) -> None:
    """Send ``sound`` to ``append`` in real time; an interruption waits for ``continues``."""
    for number, at in enumerate(range(0, len(sound), CHUNK)):
        if number == INTERRUPTING_CHUNKS and continues is not None:
            await continues.wait()
        await append(sound[at : at + CHUNK])
        await asyncio.sleep(CHUNK_SECONDS)


class Talk(abc.ABC):
    """One session of a client, whose conversation is emptied between turns.

    The model was trained on single questions.
    """

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.items: list[str] = []

    @abc.abstractmethod
    async def next_event(self) -> dict[str, Any]:
        """Return the next event of the gateway; fails for an error."""

    @abc.abstractmethod
    async def append(self, chunk: bytes) -> None:
        """Send samples to the client."""

    @abc.abstractmethod
    async def delete(self, item: str) -> None:
        """Delete an item from the conversation."""

    async def note_heard(self, event: dict[str, Any]) -> None:  # noqa: B027 - not all have to
        """Start playback of an answer, with the first samples in ``event``."""

    async def note_cancelled(self, item: str) -> None:  # noqa: B027 - not all have to
        """Report how much of an interrupted answer was played.

        This is for clients that do not report it automatically.
        """

    async def say_question(self, name: str, continues: asyncio.Event | None = None) -> None:
        await send_sound(self.append, self.notebook.read_question(name), continues)

    async def empty(self) -> None:
        for item in self.items:
            await self.delete(item)
        self.items = []

    async def take_turn(self, name: str, interrupts: str = "") -> Turn:
        """Read a response as turn ``name``; play the question ``interrupts`` once its audio begins."""
        turn = self.notebook.turns[name] = Turn()
        speaking, item_id, continues = None, "", asyncio.Event()
        async with asyncio.timeout(PATIENCE):
            while not turn.status or (turn.status == "cancelled" and turn.truncated_ms is None):
                event = await self.next_event()
                self._note_event(turn, event)
                if event["type"] == "response.output_audio.delta" and not item_id:
                    item_id = event["item_id"]
                    await self.note_heard(event)
                    speaking = asyncio.create_task(self.say_question(interrupts, continues)) if interrupts else None
                elif event["type"] == "response.done" and turn.status == "cancelled":
                    await self.note_cancelled(item_id)
        if speaking:
            await self.empty()
            continues.set()
            await speaking
        return turn

    def _note_event(self, turn: Turn, event: dict[str, Any]) -> None:
        type = event["type"]
        if type == "conversation.item.added":
            self.items.append(event["item"]["id"])
        elif type == "response.output_audio.delta":
            turn.sound += base64.b64decode(event["delta"])
        elif type == "response.output_audio_transcript.delta":
            turn.transcript += event["delta"]
        elif type == "conversation.item.truncated":
            turn.truncated_ms = event["audio_end_ms"]
        elif type == "response.done":
            turn.status = event["response"]["status"]
            for item in event["response"]["output"]:
                if item["type"] == "function_call":
                    turn.call = {"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
