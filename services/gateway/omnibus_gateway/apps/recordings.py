"""Recordings to text: by recognizers of the plan, and by apps with a function ``transcribe``.

A model that chats and hears transcribes in a chat instead.
"""

from collections.abc import AsyncIterator

from omnibus.app.routes import TRANSCRIPTIONS
from omnibus.errors import NotFound
from omnibus.task.library import TranscribeParams, TranscriptChunk
from omnibus.task.result import decode_part
from omnibus_gateway.apps.chat import AppChats
from omnibus_gateway.dispatch.streams import merge_streams
from omnibus_gateway.media.inspect import InspectedMedia
from omnibus_gateway.pricing.headers import PriceOptions
from omnibus_gateway.request.request import ClientRequest, RequestFactory
from omnibus_gateway.tasks.recognition import Recognizers

_NO_PRICES = PriceOptions()


class RecordingReader:
    """Reads recordings with models of the plan, and of ``apps`` once they are set."""

    def __init__(self, runs: RequestFactory) -> None:
        self._runs = runs
        self._recognizers = Recognizers(runs)
        self.apps: AppChats | None = None

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
