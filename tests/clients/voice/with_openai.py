"""A conversation by voice with the package ``openai``."""

import asyncio
import base64
from typing import Any

import openai
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from tests.clients.voice.talk import DETECTION, HEARD_MS, LONG, MODEL, SEE, TOOL, Notebook, Talk


class OpenAITalk(Talk):
    """A session of ``client.realtime``."""

    def __init__(self, session: AsyncRealtimeConnection, notebook: Notebook) -> None:
        super().__init__(notebook)
        self.session = session

    async def next_event(self) -> dict[str, Any]:
        event = await self.session.recv()
        assert event.type != "error", event
        return event.model_dump()

    async def append(self, chunk: bytes) -> None:
        await self.session.input_audio_buffer.append(audio=base64.b64encode(chunk).decode())

    async def delete(self, item: str) -> None:
        await self.session.conversation.item.delete(item_id=item)

    async def note_cancelled(self, item: str) -> None:
        await self.session.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=HEARD_MS)

    async def write(self, *content: Any) -> None:
        item = {"type": "message", "role": "user", "content": list(content)}
        await self.session.conversation.item.create(item=item)  # type: ignore[arg-type]
        await self.session.response.create()


async def main() -> None:
    notebook = Notebook()
    async with openai.AsyncOpenAI().realtime.connect(model=MODEL) as session:
        await session.session.update(session={"type": "realtime", "audio": {"input": {"turn_detection": DETECTION}}})  # type: ignore[typeddict-item]
        talk = OpenAITalk(session, notebook)
        for name in ("low", "high low"):
            await talk.say_question(name)
            await talk.take_turn(name)
            await talk.empty()
        picture = {"type": "input_image", "image_url": notebook.encode_picture()}
        await talk.write(picture, {"type": "input_text", "text": SEE})
        await talk.take_turn("picture")
        await talk.empty()
        await session.session.update(session={"type": "realtime", "tools": [TOOL], "tool_choice": "required"})  # type: ignore[list-item]
        await talk.say_question("high")
        turn = await talk.take_turn("tool")
        await session.session.update(session={"type": "realtime", "tool_choice": "none"})
        assert turn.call
        output = {"type": "function_call_output", "call_id": turn.call["id"], "output": "high"}
        await session.conversation.item.create(item=output)  # type: ignore[arg-type]
        await session.response.create()
        await talk.take_turn("told")
        await talk.empty()
        await talk.write({"type": "input_text", "text": LONG})
        await talk.take_turn("interrupted", "middle")
        await talk.take_turn("middle")
    notebook.write()


asyncio.run(main())
