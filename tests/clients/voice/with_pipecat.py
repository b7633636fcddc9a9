"""A voice conversation with pipecat's ``OpenAIRealtimeLLMService``, in one of its pipelines."""

import asyncio
import base64
import json
import os
from typing import Any

from PIL import Image
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    Frame,
    InputAudioRawFrame,
    InputImageRawFrame,
    LLMRunFrame,
    LLMUpdateSettingsFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.workers.runner import WorkerRunner
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from tests.clients.voice.talk import DETECTION, LONG, MODEL, PATIENCE, SEE, TOOL, Notebook, Talk

RATE = 24000
DETECTED = events.AudioConfiguration(input=events.AudioInput(turn_detection=events.TurnDetection(**DETECTION)))


class Relay:
    """Relay events between the package and the gateway, and record the gateway's.

    The package forwards few of them: neither how a response ended, nor where an item was truncated.
    """

    def __init__(self) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._gateway = os.environ["OPENAI_BASE_URL"].replace("http", "ws", 1).removesuffix("/v1")

    async def relay_session(self, client: ServerConnection) -> None:
        assert client.request is not None
        headers = {"Authorization": client.request.headers["Authorization"]}
        url = self._gateway + client.request.path
        async with connect(url, additional_headers=headers, max_size=None) as gateway:
            copy_task = asyncio.create_task(_copy_messages(client, gateway))
            async for text in gateway:
                self.events.put_nowait(json.loads(text))
                await client.send(text)
            copy_task.cancel()


async def _copy_messages(client: ServerConnection, gateway: ClientConnection) -> None:
    async for text in client:
        await gateway.send(text)
    await gateway.close()


class PipecatSpeaker(FrameProcessor):
    """Substitute for a transport's output that plays at once.

    It reports start and stop, as a transport does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sound = bytearray()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSStartedFrame):
            await self.broadcast_frame(BotStartedSpeakingFrame)
        elif isinstance(frame, TTSStoppedFrame):
            await self.broadcast_frame(BotStoppedSpeakingFrame)
        elif isinstance(frame, TTSAudioRawFrame):
            assert (frame.sample_rate, frame.num_channels) == (RATE, 1)
            self.sound += frame.audio
        await self.push_frame(frame, direction)


class PipecatTalk(Talk):
    """A pipeline with the service, which truncates answers automatically."""

    def __init__(self, notebook: Notebook, worker: PipelineWorker, service: Any, relay: Relay, speaker: PipecatSpeaker):
        super().__init__(notebook)
        self.worker, self.service, self.relay, self.speaker = worker, service, relay, speaker
        self.sent = bytearray()

    async def next_event(self) -> dict[str, Any]:
        event = await self.relay.events.get()
        assert event["type"] != "error", event
        if event["type"] == "response.created":
            self.sent.clear()
            self.speaker.sound.clear()
        elif event["type"] == "response.output_audio.delta":
            self.sent += base64.b64decode(event["delta"])
        elif event["type"] == "response.done" and event["response"]["status"] == "completed":
            await self._wait_played()
        return event

    async def _wait_played(self) -> None:
        """Wait until all sent frames have passed through the pipeline."""
        async with asyncio.timeout(PATIENCE):
            while len(self.speaker.sound) < len(self.sent):
                await asyncio.sleep(0.01)
        assert self.speaker.sound == self.sent

    async def wait_event(self, type: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while (event := await self.next_event())["type"] != type:
                pass
        if type == "conversation.item.done":
            self.items.append(event["item"]["id"])

    async def append(self, chunk: bytes) -> None:
        await self.worker.queue_frame(InputAudioRawFrame(audio=chunk, sample_rate=RATE, num_channels=1))

    async def delete(self, item: str) -> None:
        await self.service.send_client_event(events.ConversationItemDeleteEvent(item_id=item))

    async def show_image(self, image: Image.Image) -> None:
        """Send a camera frame, which the package adds to the conversation."""
        await self.worker.queue_frame(InputImageRawFrame(image=image.tobytes(), size=image.size, format=image.mode))
        await self.wait_event("conversation.item.done")

    async def write(self, text: str) -> None:
        content = [events.ItemContent(type="input_text", text=text)]
        item = events.ConversationItem(type="message", role="user", content=content)
        await self.service.send_client_event(events.ConversationItemCreateEvent(item=item))
        await self.service.send_client_event(events.ResponseCreateEvent(response=events.ResponseProperties()))

    async def configure_session(self, **properties: Any) -> None:
        settings = OpenAIRealtimeLLMService.Settings(
            session_properties=events.SessionProperties(audio=DETECTED, **properties)
        )
        await self.worker.queue_frame(LLMUpdateSettingsFrame(delta=settings))
        await self.wait_event("session.updated")


async def hold_conversation(talk: PipecatTalk) -> None:
    """Run the conversation, beginning with the request of the pipeline's context."""
    tones = []

    async def play_tone(call: FunctionCallParams) -> None:
        tones.append(call.arguments["tone"])
        none = events.SessionProperties(tool_choice="none")
        await talk.service.send_client_event(events.SessionUpdateEvent(session=none))
        await call.result_callback(call.arguments["tone"])

    await talk.worker.queue_frame(LLMRunFrame())
    await talk.take_turn("interrupted", "middle")
    await talk.take_turn("middle")
    await talk.empty()
    for name in ("low", "high low"):
        await talk.say_question(name)
        await talk.take_turn(name)
        await talk.empty()
    await talk.show_image(Image.open(talk.notebook.directory / "seen.png").convert("RGB"))
    await talk.write(SEE)
    await talk.take_turn("picture")
    await talk.empty()
    talk.service.register_function("play", play_tone)
    # The package omits ``additionalProperties`` from its schemas, so a tiny model never ends.
    await talk.configure_session(tools=[TOOL], tool_choice="required")
    await talk.say_question("high")
    await talk.take_turn("tool")
    await talk.take_turn("told")
    assert len(tones) == 1, tones


async def main() -> None:
    notebook, relay, speaker = Notebook(), Relay(), PipecatSpeaker()
    async with serve(relay.relay_session, "127.0.0.1", 0, max_size=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        service = OpenAIRealtimeLLMService(
            api_key=os.environ["OPENAI_API_KEY"],
            base_url=f"ws://127.0.0.1:{port}/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(
                model=MODEL, session_properties=events.SessionProperties(audio=DETECTED)
            ),
        )
        pair = LLMContextAggregatorPair(
            LLMContext([{"role": "user", "content": LONG}]),
            # Otherwise it loads a turn detection model, although the gateway detects turns.
            user_params=LLMUserAggregatorParams(user_turn_strategies=ExternalUserTurnStrategies()),
        )
        pipeline = Pipeline([pair.user(), service, speaker, pair.assistant()])
        worker = PipelineWorker(pipeline, params=PipelineParams(audio_in_sample_rate=RATE))
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        running = asyncio.create_task(runner.run())
        await hold_conversation(PipecatTalk(notebook, worker, service, relay, speaker))
        await runner.cancel()
        await running
    notebook.write()


asyncio.run(main())
