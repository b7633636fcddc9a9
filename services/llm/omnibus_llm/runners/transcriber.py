"""The engine of a recognizer's decoder: rows of an audio encoder in, text and segments out, window by window.

Windows are sequences of the batching engine, so windows of several recordings share a step.
"""

import zlib
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from omnibus.errors import BadRequest
from omnibus.executor.runner import Item, Job
from omnibus_engines.component import ComponentSource
from omnibus_llm.engine.engine import EngineLimits, HostedDecoder
from omnibus_llm.engine.params import Count, Temperature, read_params
from omnibus_llm.engine.recognizer_admission import admit_recognizer
from omnibus_llm.engine.sampler import Picker, TokenLogprobs
from omnibus_llm.engine.sequence import DecoderSequence
from omnibus_llm.runners.detokenize import open_detokeniser
from omnibus_models.contract import (
    AudioWindow,
    LogitRule,
    PrefillInputs,
    RecognitionOptions,
    SpeechDecoder,
    TimedWord,
    TokenSamplingParams,
    read_windows,
)
from omnibus_models.device import copy_to_device
from omnibus_models.families.speech_to_text import PairedDecoder

#: Windows of one recording that are in the engine at once, so that a long one leaves slots to others.
_MOST_WINDOWS = 4


class TranscriptParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a transcript, see ``omnibus.task.library.recognition.TranscribeParams``."""

    language: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    translate: bool = False
    prompt: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    segments: bool = False
    words: bool = False
    temperature: Temperature = 0.0
    max_tokens: Count | None = None
    seed: int | None = None

    @property
    def options(self) -> RecognitionOptions:
        return RecognitionOptions(self.language, self.translate, self.prompt, self.segments or self.words, self.words)


@dataclass(frozen=True)
class TranscribeSettings:
    """Limits of one recognizer. ``slots`` and ``threads`` are as for a thinker, in windows."""

    slots: int = 16
    threads: int = 1


class RulePicker(Picker):
    """A ``Picker`` with the rules of a recognizer: ``rule`` changes the logits after ``ids`` and the text so far."""

    def __init__(
        self, settings: TokenSamplingParams, vocabulary: int, ids: Sequence[int], rule: LogitRule | None
    ) -> None:
        super().__init__(settings, vocabulary)
        self._ids = [*ids]
        self._rule = rule
        self._changed: Tensor | None = None

    @property
    def changes_logits(self) -> bool:
        """See ``Picker``."""
        return True

    def change_logits(self, logits: Tensor) -> Tensor:
        """See ``Picker``."""
        self._changed = logits if self._rule is None else self._rule(self._ids, logits)
        return self._changed

    def report_logprobs(self, logits: Tensor, token: int) -> None:
        """Record the probability of ``token`` by the changed logits, if requested."""
        if self.settings.logprobs is not None and self._changed is not None:
            self.logprobs = TokenLogprobs(float(self._changed.log_softmax(-1)[token]), [], [])

    def record_token(self, token: int) -> None:
        """See ``Picker``."""
        self._ids.append(token)


class Transcribing(DecoderSequence):
    """A window in the engine. ``silence`` is the probability that it has no speech, after the token at ``start``."""

    def __init__(self, prefill: PrefillInputs, picker: Picker, ends: frozenset[int], start: int) -> None:
        super().__init__(prefill, picker, picker.settings.max_tokens, ends)
        self.start = start
        self.silence = 0.0


class TranscribeFeed:
    """Feeds a recognizer with its own last token."""

    always_ready = True

    def __init__(self, decoder: SpeechDecoder) -> None:
        self._decoder = decoder

    def is_ready(self, sequence: Transcribing) -> bool:
        return True

    def build_inputs(self, batch: Sequence[Transcribing]) -> Tensor:
        return self._decoder.embed(torch.tensor([sequence.token for sequence in batch], device=self._decoder.device))

    def observe_prefill(self, sequence: Transcribing, hidden: Tensor) -> None:
        token = self._decoder.no_speech
        if token is not None and sequence.picker.settings.logprobs is not None:
            sequence.silence = float(hidden[sequence.start].float().softmax(-1)[token])

    def first_side(self, sequence: Transcribing) -> None:
        return None

    def step_sides(self, batch: Sequence[Transcribing], inputs: Tensor, hidden: Tensor) -> list[np.ndarray | None]:
        return [None] * len(batch)

    def token_sides(
        self, batch: Sequence[Transcribing], hidden: Tensor, tokens: list[int], sides: list[np.ndarray | None]
    ) -> list[np.ndarray | None]:
        return sides


class _WindowRequest(NamedTuple):
    """A window in the engine, its rows and its prompt."""

    window: AudioWindow
    sequence: Transcribing
    prompt: Sequence[int]
    rows: np.ndarray


class TranscribeRunner(HostedDecoder[SpeechDecoder, Transcribing]):
    """A ``Runner`` for the decoders of recognizers.

    Inputs: ``audio``, an ``Item`` of rows [R, H] with their ``windows``, and ``params`` (``TranscriptParams``). Output:
    ``text``, streamed, with ``segments`` after each window if they are requested.
    """

    def __init__(
        self, component: str, family: str, checkpoint: Path, device: str, dtype: str, settings: TranscribeSettings
    ) -> None:
        source = ComponentSource(component, family, checkpoint, device, dtype)
        super().__init__(source, settings.threads, EngineLimits(settings.slots, 0, 512), TranscribeFeed)

    async def _set_up(self) -> None:
        if isinstance(self.model, PairedDecoder):
            await self._compute(admit_recognizer, self.model)
        await super()._set_up()

    async def run(self, job: Job) -> None:
        params = read_params(job.inputs.get("params"), TranscriptParams)
        options = params.options
        self.model.require_options(options)
        windows, rows = _read_audio(await job.value("audio"))
        token = None
        if options.language is None and self.model.detects:
            token = await self._detect_language(rows[0].copy())
        language = self.model.language_name(options, token)
        writer = _TranscriptWriter(job, self.model, params)

        async def finish_window(request: _WindowRequest) -> None:
            ids = await writer.add_window(request)
            if params.words and ids:
                writer.add_words(request, await self._compute(self._align_words, request, ids, language))

        with ExitStack() as stack:
            waiting = deque[_WindowRequest]()
            for index, (window, view) in enumerate(zip(windows, rows, strict=True)):
                part = view.copy()  # the view ends with the job, and a step in progress may end a moment later
                ids = self.model.window_prompt(options, not index, token)
                sequence = await self._build_sequence(ids, part, params, job.seed + index)
                stack.enter_context(self.engine.admit(sequence))
                waiting.append(_WindowRequest(window, sequence, ids, part))
                if len(waiting) == _MOST_WINDOWS:
                    await finish_window(waiting.popleft())
            while waiting:
                await finish_window(waiting.popleft())
        about = {"language": language, "seconds": windows[-1].end}
        job.close("text", {**writer.summary(), **about})

    async def _detect_language(self, rows: np.ndarray) -> int:
        ids, rule = self.model.detection_prompt()
        picker = RulePicker(TokenSamplingParams(max_tokens=1), self.model.vocabulary, ids, rule)
        sequence = Transcribing(await self._compute(self._start, ids, rows), picker, frozenset(), 0)
        with self.engine.admit(sequence):
            [step] = await sequence.inbox.take_steps()
        return step.token

    async def _build_sequence(
        self, ids: Sequence[int], rows: np.ndarray, params: TranscriptParams, seed: int
    ) -> Transcribing:
        room = self.context - len(ids)
        settings = TokenSamplingParams(
            max_tokens=min(room, params.max_tokens or room),
            temperature=params.temperature,
            seed=seed if params.seed is None else params.seed,
            logprobs=0 if params.segments else None,
        )
        rule = self.model.logit_rule(params.options, len(ids))
        picker = RulePicker(settings, self.model.vocabulary, ids, rule)
        start = next((at for at, id in enumerate(ids) if id == self.model.start_token), 0)
        return Transcribing(await self._compute(self._start, ids, rows), picker, self.model.eos, start)

    def _align_words(self, request: _WindowRequest, ids: Sequence[int], language: str) -> list[TimedWord]:
        [rows] = copy_to_device([request.rows], self.model.device, self.model.dtype)
        window = request.window
        return self.model.align_words(request.prompt, ids, rows, window.end - window.begin, language)

    def _start(self, ids: Sequence[int], rows: np.ndarray) -> PrefillInputs:
        [tensor] = copy_to_device([rows], self.model.device, self.model.dtype)
        return self.model.start(ids, tensor)


class _TranscriptWriter:
    """Writes text and segments of windows in their order."""

    def __init__(self, job: Job, decoder: SpeechDecoder, params: TranscriptParams) -> None:
        self._job = job
        self._decoder = decoder
        self._params = params
        self._begun = False  # whether there is any text
        self._finish = "stop"
        self._counts = {"prompt_tokens": 0, "audio_tokens": 0, "completion_tokens": 0}

    async def add_window(self, request: _WindowRequest) -> list[int]:
        """Write a window until it is complete; returns its tokens."""
        detokeniser = open_detokeniser(self._decoder)
        ids: list[int] = []
        logprobs: list[float] = []
        finish, separator = None, self._decoder.joint if self._begun else ""
        while finish is None:
            pieces = []
            for step in await request.sequence.inbox.take_steps():
                finish = step.finish
                logprobs += [step.logprobs.chosen] if step.logprobs is not None else []
                if finish == "stop":
                    continue
                ids.append(step.token)
                if self._decoder.is_text(step.token):
                    pieces.append(detokeniser.push(step.token))
            pieces += [detokeniser.flush()] if finish is not None else []
            if text := "".join(pieces):
                separator = self._write_text(separator + text)
        self._finish = "length" if finish == "length" else self._finish
        self._count_tokens(request, len(logprobs or ids))
        if self._params.segments and (segments := self._describe_segments(request, ids, logprobs)):
            self._job.write_text("text", {"segments": segments})
        return ids

    def add_words(self, request: _WindowRequest, words: Sequence[TimedWord]) -> None:
        """Write the words of a window."""
        begin = request.window.begin
        timed_words = [
            {"word": word.text, "start": round(begin + word.begin, 3), "end": round(begin + word.end, 3)}
            for word in words
        ]
        if timed_words:
            self._job.write_text("text", {"words": timed_words})

    def summary(self) -> dict[str, Any]:
        """Return the reason for the end, and the usage."""
        return {"finish_reason": self._finish, "usage": self._counts}

    def _write_text(self, text: str) -> str:
        """Write ``text``, without spaces before the first; returns the separator that is still to be written."""
        text = text if self._begun else text.lstrip()
        if text:
            self._begun = True
            self._job.write_text("text", {"text": text})
        return ""

    def _count_tokens(self, request: _WindowRequest, completion: int) -> None:
        rows = request.window.rows
        counts = {
            "prompt_tokens": len(request.prompt) + rows,
            "audio_tokens": rows,
            "completion_tokens": completion,
        }
        self._counts = {name: count + counts[name] for name, count in self._counts.items()}

    def _describe_segments(
        self, request: _WindowRequest, ids: Sequence[int], logprobs: Sequence[float]
    ) -> list[dict[str, Any]]:
        begin, end, _ = request.window
        text = self._decoder.decode_ids([id for id in ids if self._decoder.is_text(id)]).encode()
        about = {
            "temperature": self._params.temperature,
            "avg_logprob": round(sum(logprobs) / max(1, len(logprobs)), 4),
            "compression_ratio": round(len(text) / len(zlib.compress(text)), 4),
            "no_speech_prob": round(request.sequence.silence, 4),
            "seek": round(begin * 100),
        }
        return [
            {
                "start": round(begin + segment.begin, 3),
                "end": round(begin + segment.end, 3),
                "text": self._decoder.decode_ids(segment.ids),
                "tokens": [*segment.ids],
                **about,
            }
            for segment in self._decoder.split_segments(ids, end - begin)
        ]


def _read_audio(item: Any) -> tuple[list[AudioWindow], list[np.ndarray]]:
    """Return the windows of an encoded recording, and the rows of each. Raises ``BadRequest``."""
    try:
        if not isinstance(item, Item) or item.array is None or item.array.ndim != 2:
            raise ValueError("the audio has no rows of an encoder")
        windows = read_windows(item.data)
        if not windows or sum(window.rows for window in windows) != len(item.array):
            raise ValueError("the windows of the audio do not match its rows")
    except ValueError as error:
        raise BadRequest(f"{error}; use the encoder of the same model", param="audio") from None
    return windows, np.split(item.array, np.cumsum([window.rows for window in windows])[:-1])
