"""The engine of a text-to-speech model's vocoder: its calls in, samples out."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from omnibus_engines.component import ComponentSource, Hosted
from omnibus_engines.vocoder_calls import unpack_call
from omnibus_generator.vocoder import piece_sizes
from omnibus_models.contract import Synthesizer, VocoderCall
from omnibus_models.device import copy_to_host

#: Most frames of codes in a piece.
_MOST_FRAMES = 48


class SynthesizeRunner(Hosted[Synthesizer]):
    """A ``Runner`` for the vocoders of text-to-speech models.

    Inputs: ``calls``, the stream of the model's own. Output: ``audio``, streamed, ``{"rate", "speed"}`` with float32
    [n] in [-1, 1]. A stream of codes is synthesized from its beginning for each piece, so that all samples are those of
    the whole.
    """

    def __init__(self, source: ComponentSource, threads: int) -> None:
        super().__init__(source, threads)
        self._samples = 0

    async def run(self, job: Job) -> None:
        total = 0
        usage: dict[str, int] = {}
        series = CodeSeries(self.model)
        async for item in job.stream("calls"):
            usage = item.data.get("usage", usage)
            if item.array is None:
                continue
            call = series.add_call(_read_call(item))
            if call is None:
                continue
            samples = copy_to_host(await self._compute(self.model.synthesize, call))[series.sent :]
            series.record_sent(samples.size, call.partial)
            total += samples.size
            if samples.size:
                await job.send("audio", {"rate": self.model.rate, "speed": item.data.get("speed", 1.0)}, samples)
        self._samples += total
        job.close("audio", {"samples": total, "usage": usage})

    def stats(self) -> dict[str, Any]:
        return {"parameters": self.model.parameters, "samples": self._samples, **self.memory_stats()}


class CodeSeries:
    """Codes of one sentence that arrive in parts. ``sent`` samples of them are with the client."""

    def __init__(self, synthesizer: Synthesizer) -> None:
        self._rate = synthesizer.codes_per_second
        self._begin()

    def _begin(self) -> None:
        self.sent = 0
        self._codes: list[Tensor] = []
        self._sizes = piece_sizes(self._rate, _MOST_FRAMES) if self._rate else iter(())
        self._enough = next(self._sizes, 0)

    def add_call(self, call: VocoderCall) -> VocoderCall | None:
        """Return the call to synthesize now: the whole, or all parts until now if they are enough for a piece."""
        if not call.partial:
            return call
        self._codes += call.args
        if len(self._codes) < self._enough:
            return None
        self._enough += next(self._sizes, 0)
        return VocoderCall([torch.cat(self._codes, -1)], {}, partial=True)

    def record_sent(self, samples: int, partial: bool) -> None:
        """Count ``samples``; without ``partial`` the next sentence begins."""
        self.sent += samples
        if not partial:
            self._begin()


def _read_call(item: Item) -> VocoderCall:
    try:
        return unpack_call(item.data, np.asarray(item.array, np.uint8))
    except ValueError as error:
        raise BadRequest(f"{error}; use the speaker of the same model", param="calls") from None
