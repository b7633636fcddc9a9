"""The engine of text-to-speech models: a text in, the calls of their vocoder out, sentence by sentence."""

import asyncio
import threading
from typing import Annotated, Any

import msgspec

from omnibus.errors import BadRequest, StageUnavailable
from omnibus.executor.runner import Item, Job
from omnibus_engines.component import Hosted
from omnibus_engines.vocoder_calls import pack_call
from omnibus_llm.engine.media_admission import admit_speaker
from omnibus_llm.engine.params import read_params
from omnibus_models.contract import Speaker, SpeakingOptions, VocoderCall
from omnibus_models.families.text_to_speech import ClassSpeaker

_SLOWEST, _FASTEST = 0.25, 4.0


class SpeakParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a request, see ``omnibus.task.library.SpeakingParams``."""

    speed: Annotated[float, msgspec.Meta(ge=_SLOWEST, le=_FASTEST)] = 1.0
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SpeakRunner(Hosted[Speaker]):
    """A ``Runner`` for text-to-speech models without their vocoders.

    Inputs: ``text``, ``voice``, ``params`` (``SpeakParams``). Output: ``calls``, a stream of packed ``VocoderCall``.
    One sentence is computed at a time; those of several requests take turns.
    """

    async def _set_up(self) -> None:
        if isinstance(self.model, ClassSpeaker):
            await self._compute(admit_speaker, self.model)

    async def run(self, job: Job) -> None:
        params = read_params(job.inputs.get("params"), SpeakParams)
        options = self._read_options(job, params)
        text = await _read_text(job)
        sentences = await self._compute(self.model.split_text, text)
        tokens = await self._compute(self.model.count_tokens, text, options)
        seed = job.seed if params.seed is None else params.seed
        for index, sentence in enumerate(sentences):
            await self._send_sentence(job, sentence, options, seed + index)
        job.close("calls", {"usage": {"prompt_tokens": tokens}})

    def stats(self) -> dict[str, Any]:
        return {"parameters": self.model.parameters, **self.memory_stats()}

    def _read_options(self, job: Job, params: SpeakParams) -> SpeakingOptions:
        voice = str(job.inputs.get("voice") or self.model.voices[0])
        options = SpeakingOptions(voice, params.speed, params.temperature, params.max_tokens)
        self.model.require_options(options)
        return options

    async def _send_sentence(self, job: Job, sentence: str, options: SpeakingOptions, seed: int) -> None:
        """Send the calls of one sentence while it is computed."""
        loop, cancelled = asyncio.get_running_loop(), threading.Event()
        calls: asyncio.Queue[VocoderCall | None] = asyncio.Queue()

        def send_call(call: VocoderCall) -> None:
            loop.call_soon_threadsafe(calls.put_nowait, call)

        def check_step() -> None:
            if cancelled.is_set():
                raise StageUnavailable("the request ended")

        own_speed = {"speed": options.speed} if self.model.sets_speed else {}
        speech = asyncio.create_task(self._compute(self.model.speak, sentence, options, seed, send_call, check_step))
        speech.add_done_callback(lambda _: calls.put_nowait(None))
        try:
            while (call := await calls.get()) is not None:
                data, array = pack_call(call)
                await job.send("calls", {**data, **own_speed}, array)
            await speech
        finally:
            cancelled.set()
            speech.cancel()  # if it has not begun
            await asyncio.gather(speech, return_exceptions=True)


async def _read_text(job: Job) -> str:
    text = job.inputs.get("text")
    if not isinstance(text, str):
        item = await job.value("text")
        text = item.data.get("value") if isinstance(item, Item) else item
    if not isinstance(text, str):
        raise BadRequest("the text must be a string", param="text")
    return text
