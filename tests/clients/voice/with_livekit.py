"""A conversation by voice with the ``RealtimeModel`` of ``livekit-plugins-openai``."""

import asyncio
from typing import Any

from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai.realtime import RealtimeModel, RealtimeSession
from openai.types.realtime.realtime_audio_input_turn_detection import ServerVad

from tests.clients.voice.talk import DETECTION, HEARD_MS, LONG, MODEL, SEE, TOOL, Notebook, Talk

RATE = 24000
#: Seconds of silence that end a turn with the defaults of the package.
PAUSE = 1.5


class LiveKitTalk(Talk):
    """A session of the model."""

    def __init__(self, session: RealtimeSession, notebook: Notebook) -> None:
        super().__init__(notebook)
        self.session = session
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        session.on("openai_server_event_received", self.events.put_nowait)

    async def next_event(self) -> dict[str, Any]:
        event = await self.events.get()
        assert event["type"] != "error", event
        return event

    async def append(self, chunk: bytes) -> None:
        self.session.push_audio(rtc.AudioFrame(chunk, RATE, 1, len(chunk) // 2))

    async def delete(self, item: str) -> None:
        raise NotImplementedError

    async def empty(self) -> None:
        await self.session.update_chat_ctx(llm.ChatContext.empty())

    async def note_cancelled(self, item: str) -> None:
        self.session.truncate(message_id=item, modalities=["audio"], audio_end_ms=HEARD_MS)

    async def write(self, *content: Any) -> None:
        chat = llm.ChatContext.empty()
        chat.add_message(role="user", content=list(content))
        await self.session.update_chat_ctx(chat)
        self.session.generate_reply()


#: The package omits ``additionalProperties`` from its schemas, so a tiny model never ends.
@llm.function_tool(raw_schema={key: value for key, value in TOOL.items() if key != "type"})
async def play(raw_arguments: dict[str, Any]) -> str:
    return str(raw_arguments["tone"])


async def main() -> None:
    notebook, model = Notebook(), RealtimeModel(model=MODEL)
    session = model.session()
    talk = LiveKitTalk(session, notebook)
    await talk.say_question("high")  # all as the package has it
    silence = asyncio.create_task(talk.append(bytes(int(PAUSE * RATE) * 2)))
    await talk.take_turn("default")
    await silence
    await talk.empty()
    session.update_options(turn_detection=ServerVad(**DETECTION))
    for name in ("low", "high low"):
        await talk.say_question(name)
        await talk.take_turn(name)
        await talk.empty()
    await talk.write(llm.ImageContent(image=notebook.encode_picture()), SEE)
    await talk.take_turn("picture")
    await talk.empty()
    await session.update_tools([play])
    session.update_options(tool_choice="required")
    await talk.say_question("high")
    turn = await talk.take_turn("tool")
    session.update_options(tool_choice="none")
    assert turn.call
    chat = session.chat_ctx.copy()
    chat.items.append(llm.FunctionCallOutput(call_id=turn.call["id"], name="play", output="high", is_error=False))
    await session.update_chat_ctx(chat)
    session.generate_reply()
    await talk.take_turn("told")
    await talk.empty()
    await session.update_tools([])
    await talk.write(LONG)
    await talk.take_turn("interrupted", "middle")
    await talk.take_turn("middle")
    await session.aclose()
    await model.aclose()
    notebook.write()


asyncio.run(main())
