"""Requests to recognizers, and to text-to-speech models.

Recordings are read by recognizers of the plan, and by apps with a function ``transcribe``. A model that chats and hears
transcribes in a chat instead.
"""

from collections.abc import AsyncIterator, Callable

from omnibus.app.routes import TRANSCRIPTIONS
from omnibus.errors import BadRequest, NotFound
from omnibus.plan import Plan
from omnibus.task import CompositeTask, use
from omnibus.task.library import (
    RecordingInput,
    SpeakingParams,
    SpeechOutput,
    TextToSpeechInput,
    TranscribeParams,
    Transcript,
    TranscriptChunk,
)
from omnibus.task.result import decode_part
from omnibus.task.runtime import run as run_task
from omnibus_gateway.dispatch.streams import merge_streams
from omnibus_gateway.media.inspect import InspectedMedia, estimate_tokens
from omnibus_gateway.pricing.meter import PriceOptions
from omnibus_gateway.request.request import ClientRequest, RequestFactory
from omnibus_gateway.tasks.chat import AppRoutes
from omnibus_gateway.tasks.prepared_chat import TaskCache, place_media
from omnibus_gateway.tasks.resolve import create_recognition_task, create_speech_task

#: Expected tokens of text in a token of audio: a person speaks about three words in a second.
_TEXT_SHARE = 0.2


class AudioModels:
    """Models of the plan for one task of audio. Other models do the same in a chat."""

    def __init__(self, runs: RequestFactory, app: str, create: Callable[[str, Plan], CompositeTask]) -> None:
        self._runs, self._app = runs, app
        self._tasks = TaskCache(runs.router, create)

    def find_task(self, model: str) -> CompositeTask | None:
        """Return the task of ``model``; None for an app, and for a model without the task."""
        plan = self._runs.router.plan
        if plan is None or model not in plan.models:
            return None
        try:
            return self._tasks.get_task(model)
        except BadRequest:
            return None

    def open_request(
        self, model: str, task: CompositeTask, seed: int | None, pinned_path: str, prices: PriceOptions
    ) -> ClientRequest:
        """Open a request to ``model``. Raises ``Overloaded``, and as ``Quotes.open_check``."""
        run = self._runs.open_request(self._app, model, seed=seed, pinned_path=pinned_path)
        run.price = self._runs.quotes.open_check(prices, task)
        return run


class Recognizers(AudioModels):
    """The recognizers of the plan."""

    def __init__(self, runs: RequestFactory) -> None:
        super().__init__(runs, "transcriptions", create_recognition_task)

    async def transcribe(
        self, run: ClientRequest, task: CompositeTask, item: InspectedMedia, params: TranscribeParams
    ) -> Transcript:
        """Send the recording ``item`` with ``params``; return the transcript, which you must read."""
        request = await self.place_recording(run, item, params)
        with use(run):
            transcript: Transcript = await run_task(task.invoke, request)
        return transcript

    async def place_recording(
        self, run: ClientRequest, item: InspectedMedia, params: TranscribeParams
    ) -> RecordingInput:
        """Return the input of a recognizer for ``item``, which is placed for ``run``."""
        media = await place_media(self._runs, run, item)
        tokens = estimate_tokens(item.info)
        return RecordingInput(media=media, params=params, work=tokens, answer=max(1, int(tokens * _TEXT_SHARE)))


class Speakers(AudioModels):
    """The text-to-speech models of the plan."""

    def __init__(self, runs: RequestFactory) -> None:
        super().__init__(runs, "speech", create_speech_task)

    async def speak(
        self, run: ClientRequest, task: CompositeTask, text: str, voice: str, params: SpeakingParams
    ) -> SpeechOutput:
        """Send ``text`` with ``voice`` and ``params``; return the speech, which you must read."""
        with use(run):
            speech: SpeechOutput = await run_task(
                task.invoke, TextToSpeechInput(text=text, voice=voice, params=params, work=len(text))
            )
        return speech


_NO_PRICES = PriceOptions()


class RecordingReader:
    """Reads recordings with models of the plan, and of ``apps`` once they are set."""

    def __init__(self, runs: RequestFactory) -> None:
        self._runs = runs
        self._recognizers = Recognizers(runs)
        self.apps: AppRoutes | None = None

    def reads(self, model: str) -> bool:
        """Return True if ``model`` is a recognizer, or an app that transcribes."""
        return self._recognizers.find_task(model) is not None or self._is_app(model)

    def open_request(
        self, model: str, seed: int | None = None, pinned_path: str = "", prices: PriceOptions = _NO_PRICES
    ) -> ClientRequest:
        """Open a request to ``model``. Raises as ``AudioModels.open_request`` and ``AppChats.open_request``."""
        task = self._recognizers.find_task(model)
        if task is not None:
            return self._recognizers.open_request(model, task, seed, pinned_path, prices)
        if self.apps is None:
            raise NotFound(f"unknown model {model[:80]!r}", param="model")
        run = self.apps.open_request(model, seed, pinned_path, route=TRANSCRIPTIONS)
        run.price = self._runs.quotes.open_check(prices, None)
        return run

    async def read(
        self, run: ClientRequest, model: str, item: InspectedMedia, params: TranscribeParams
    ) -> AsyncIterator[TranscriptChunk]:
        """Yield the transcript of ``item`` by ``model``, for which ``run`` was opened."""
        task = self._recognizers.find_task(model)
        if task is not None:
            transcript = await self._recognizers.transcribe(run, task, item, params)
            async for chunk in transcript.text:
                yield chunk
        elif self.apps is not None:
            request = await self._recognizers.place_recording(run, item, params)
            streams = await self.apps.call_route(run, TRANSCRIPTIONS, request, [request.media])
            async for batch in merge_streams(streams):
                for _, part in batch:
                    yield decode_part(TranscriptChunk, part)

    def _is_app(self, model: str) -> bool:
        return self.apps is not None and self.apps.is_served_by_app(model, TRANSCRIPTIONS)
