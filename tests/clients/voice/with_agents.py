"""A voice conversation with the sessions of ``openai-agents``.

The package itself calls the tool.
"""

import asyncio
import os
from typing import Any, Literal

from agents import function_tool
from agents.realtime import (
    RealtimeAgent,
    RealtimeModelSendRawMessage,
    RealtimePlaybackTracker,
    RealtimeRunner,
    RealtimeSession,
)

from tests.clients.voice.talk import DETECTION, HEARD_MS, LONG, MODEL, SEE, Notebook, Talk

RACES = ("item_retrieve_invalid_item_id", "item_truncate_invalid_item_id")


class AgentsTalk(Talk):
    """A session whose tracker reports played audio; the package truncates answers automatically."""

    def __init__(self, session: RealtimeSession, tracker: RealtimePlaybackTracker, notebook: Notebook) -> None:
        super().__init__(notebook)
        self.session, self.tracker = session, tracker
        self.events = aiter(session)

    async def next_event(self) -> dict[str, Any]:
        while True:
            event = await anext(self.events)
            # The package checks every item again, and truncates played ones, which may have been deleted.
            assert event.type != "error" or event.error.code in RACES, event
            if event.type == "raw_model_event" and event.data.type == "raw_server_event":
                return dict(event.data.data)

    async def append(self, chunk: bytes) -> None:
        await self.session.send_audio(chunk)

    async def delete(self, item: str) -> None:
        await self.send("conversation.item.delete", item_id=item)

    async def note_heard(self, event: dict[str, Any]) -> None:
        self.tracker.on_play_ms(event["item_id"], event["content_index"], HEARD_MS)

    async def send(self, type: str, **fields: Any) -> None:
        await self.session.model.send_event(RealtimeModelSendRawMessage(message={"type": type, "other_data": fields}))


async def main() -> None:
    notebook, tracker, tones = Notebook(), RealtimePlaybackTracker(), []
    plain = RealtimeAgent(name="plain", instructions="")

    @function_tool
    async def play(tone: Literal["low", "middle", "high"]) -> str:
        """Play a tone."""
        tones.append(tone)
        await talk.send("session.update", session={"type": "realtime", "tool_choice": "none"})
        return tone

    address = os.environ["OPENAI_BASE_URL"].replace("http", "ws", 1)
    settings = {"model_name": MODEL, "turn_detection": DETECTION}
    config = {
        "url": f"{address}/realtime?model={MODEL}",
        "playback_tracker": tracker,
        "initial_model_settings": settings,
    }
    async with await RealtimeRunner(plain).run(model_config=config) as session:  # type: ignore[arg-type]
        talk = AgentsTalk(session, tracker, notebook)
        for name in ("low", "high low"):
            await talk.say_question(name)
            await talk.take_turn(name)
            await talk.empty()
        picture = {"type": "input_image", "image_url": notebook.encode_picture()}
        await session.send_message(
            {"type": "message", "role": "user", "content": [picture, {"type": "input_text", "text": SEE}]}  # type: ignore[list-item]
        )
        await talk.take_turn("picture")
        await talk.empty()
        await session.update_agent(RealtimeAgent(name="player", instructions="", tools=[play]))
        await talk.send("session.update", session={"type": "realtime", "tool_choice": "required"})
        await talk.say_question("high")
        await talk.take_turn("tool")
        await talk.take_turn("told")
        await talk.empty()
        assert len(tones) == 1, tones
        await session.update_agent(plain)
        await session.send_message(LONG)
        await talk.take_turn("interrupted", "middle")
        await talk.take_turn("middle")
    notebook.write()


asyncio.run(main())
