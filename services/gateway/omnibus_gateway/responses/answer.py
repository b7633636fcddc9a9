"""Conversion of a chat's answer to the events of a response."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from omnibus.encoding.audio import SoundFormat
from omnibus.structured.calls import CallPart, CallReader
from omnibus.task import ChatOutput
from omnibus_gateway.dispatch.streams import merge_streams
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.media.spoken_answers import SpokenAnswers
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_response import call_id
from omnibus_gateway.openai.responses.events import AnswerEvents, Event
from omnibus_gateway.openai.responses.items import OutputAudio
from omnibus_gateway.request.accumulator import AnswerAccumulator
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.responses.drawing import ImageDrawer
from omnibus_gateway.tasks.chat_response import ACCEPTED_STREAM, AcceptanceStream, AudioOutputFile, open_output_streams


class AnswerStep(NamedTuple):
    """Events that belong together, and the ids of their tokens."""

    events: list[Event]
    token_ids: list[int]


class AnswerReader:
    """Converts the answer of ``run`` to ``request`` to ``events``; ``drawer`` generates the images of its calls."""

    def __init__(
        self,
        run: ClientRequest,
        request: ChatRequest,
        events: AnswerEvents,
        spoken_answers: SpokenAnswers | None,
        drawer: ImageDrawer | None = None,
    ) -> None:
        self._run = run
        self._drawer = drawer
        self._request = request
        self._events = events
        self._got = run.answer or AnswerAccumulator(run.model_name, run.created)
        format: SoundFormat = request.audio.format if request.audio is not None else "pcm16"
        self._format = format
        self._calls = CallReader()
        self._sound = AudioOutputFile(format, spoken_answers, new_secret_id("audio_"))

    async def read(self, output: ChatOutput) -> AsyncGenerator[AnswerStep, None]:
        """Yield the steps of the answer.

        The first step comes once all executors have accepted the request, or with the first output if that is earlier.
        The last step contains the end. Raises the errors of the request.
        """
        parts = open_output_streams(output)
        acceptance = AcceptanceStream()
        if self._run.notify_when_accepted(acceptance.mark_accepted):
            parts[ACCEPTED_STREAM] = acceptance
        has_begun = False
        async for batch in merge_streams(parts):
            events = [] if has_begun else self._events.begin()
            if not has_begun:
                has_begun = True
                acceptance.end()
                batch = [each for each in batch if each[0] != ACCEPTED_STREAM]
            yield await self._read_batch(batch, events)
        if self._drawer is not None:
            async with aclosing(self._drawer.draw_called(self._run, self._events)) as steps:
                async for image_step in steps:
                    yield AnswerStep(image_step, [])
        events = [] if has_begun else self._events.begin()
        yield AnswerStep([*events, *await self._finish(output)], [])

    async def _read_batch(self, batch: Sequence[tuple[str, Any]], events: list[Event]) -> AnswerStep:
        ids: list[int] = []
        for name, item in batch:
            self._got.add_item(name, item.data, item.array)
            if name == "text":
                events += self._read_text(item.data)
                ids += item.data.get("ids", ())
        samples = [item.array for _, item in batch if item.array is not None]
        if samples and (data := await self._sound.push_samples(samples, self._got)):
            events += self._events.add_audio(data)
        return AnswerStep(events, ids)

    def _read_text(self, data: dict[str, Any]) -> list[Event]:
        reasoning, text, calls = data.get("reasoning"), data.get("text"), data.get("calls")
        events = self._events.add_reasoning(reasoning) if reasoning else []
        if text:
            events += self._events.add_text(text) if self._request.wants_text else self._events.add_transcript(text)
        for part in self._calls.read(calls) if calls else ():
            events += self._read_call(part)
        return events

    def _read_call(self, part: CallPart) -> list[Event]:
        if self._drawer is not None and self._drawer.take_call(part):
            return []
        begin_events = (
            self._events.begin_call(part.name, call_id(self._events.response.id, part.number)) if part.name else []
        )
        return [*begin_events, *(self._events.add_arguments(part.arguments) if part.arguments else ())]

    async def _finish(self, output: ChatOutput) -> list[Event]:
        events: list[Event] = []
        output_audio = None
        if output.audio is not None:
            events += self._events.add_audio(await self._sound.close(self._got))
            await self._sound.store_answer(self._got.text)
            output_audio = OutputAudio(self._got.text, self._sound.id, "", self._format)
        return [*events, *self._events.finish(self._got.finish, self._got.usage(), time.time(), output_audio)]
