"""Accumulated parts of one answer, and the recorded summary of them.

They also show how smooth a streamed answer was: the time between tokens, and gaps in its audio playback. A request may
have several answers with one summary. The ids of tokens serve a gateway that generates the answer again.
"""

import hashlib
import time
from collections.abc import Sequence
from math import inf
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from omnibus.metrics import GATEWAY
from omnibus.pricing import RequestUsage
from omnibus.recording.records import RecordedAnswer
from omnibus.structured.calls import split_calls
from omnibus.task.library import TranscriptChunk
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.streams import MAX_RESUMED_VALUES
from omnibus_gateway.openai import chat_response


class StreamLatency:
    """Times of the pieces of one answer. A client plays its audio from the first piece on.

    ``created_at`` is when the request arrived, Unix seconds.
    """

    __slots__ = (
        "_born", "_first_audio", "_heard", "_last", "_longest", "_pauses", "_pieces", "_plays_until", "_said",
        "_seconds", "_silence",
    )  # fmt: skip

    def __init__(self, created_at: float) -> None:
        self._born = time.monotonic() - (time.time() - created_at)
        self._said = self._last = 0.0  # when the first and the last text were sent
        self._longest = 0.0
        self._pieces = 0
        self._first_audio = self._heard = 0.0  # when the first and the last audio were sent
        self._seconds = 0.0
        self._plays_until = inf
        self._pauses, self._silence = 0, 0.0

    def record_text(self) -> None:
        """Record text that is sent now."""
        now = time.monotonic()
        if self._pieces:
            self._longest = max(self._longest, now - self._last)
        else:
            self._said = now
        self._last = now
        self._pieces += 1

    def record_audio(self, seconds: float) -> None:
        """Record ``seconds`` of audio that are sent now."""
        now = self._heard = time.monotonic()
        self._first_audio = self._first_audio or now
        late = now - self._plays_until
        if late > 0:
            self._pauses += 1
            self._silence += late
        self._plays_until = (now if late > 0 or not self._seconds else self._plays_until) + seconds
        self._seconds += seconds

    def publish_metrics(self, model: str, tokens: int) -> dict[str, float]:
        """Publish the metrics of a sent answer with ``tokens`` of text.

        Returns the client's seconds by figure (``omnibus.cluster.latency_histogram.FIGURES``). Text in one piece has
        no time to the first token."""
        figures = {}
        if self._pieces > 1:
            figures["first_token"] = self._said - self._born
            figures["token"] = (self._last - self._said) / max(1, max(tokens, self._pieces) - 1)
            GATEWAY.tbt.labels(model).observe(figures["token"])
            GATEWAY.pause.labels(model).observe(self._longest)
        if self._seconds:
            figures["first_audio"] = self._first_audio - self._born
            figures["real_time"] = (self._heard - self._first_audio) / self._seconds
            GATEWAY.factor.labels(model).observe((self._heard - self._born) / self._seconds)
            GATEWAY.underruns.labels(model).inc(self._pauses)
            GATEWAY.silence.labels(model).inc(self._silence)
            GATEWAY.sound.labels(model).inc(self._seconds)
        return figures


class AnswerAccumulator:
    """Received parts of one answer: enough for the JSON body, the usage and the record."""

    def __init__(self, model: str, created_at: float) -> None:
        self.first = 0.0
        #: Why the answer ends. ``length`` if its speech is cut: its tokens are among those of the answer.
        self.finish = "stop"
        self.speech_cut = False  # whether a limit of codes or seconds has ended the speech
        self.rate = 24000
        self.model = model
        self._created = created_at
        self._begun: set[str] = set()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[str] = []
        self.structured = False  # whether there is more than text and audio
        self.logprobs: list[chat_response.TokenLogprob] = []
        self._pcm: list[bytes] = []
        self._samples = 0
        self._usage: dict[str, int] = {}
        #: GPU-seconds and money, if the client requested them and the answer is complete.
        self.price: RequestUsage | UnsetType = UNSET
        self._pace = StreamLatency(created_at)

    def add_transcript(self, chunk: TranscriptChunk) -> None:
        """Add the text of a transcript, and its usage with the last chunk."""
        closing = {"usage": chunk.usage, "finish_reason": chunk.finish_reason} if chunk.usage else {}
        self.add_item("text", {"text": chunk.text, **closing}, None)

    def add_batch(self, batch: Sequence[tuple[str, Item]]) -> None:
        """Add items, with the names of their streams."""
        for name, item in batch:
            self.add_item(name, item.data, item.array)

    def add_item(self, name: str, data: dict[str, Any], array: np.ndarray | None) -> None:
        if name not in self._begun:
            self._begun.add(name)
            now = time.time()
            self.first = self.first or now
            GATEWAY.first_output(self.model, name).observe(now - self._created)
        if name == "text":
            if text := data.get("text"):
                self._text.append(text)
                self._pace.record_text()
            if "calls" in data or "reasoning" in data:
                self._calls.append(data.get("calls", ""))
                self._reasoning.append(data.get("reasoning", ""))
                self.structured = self.structured or bool(self._calls[-1] or self._reasoning[-1])
            if data.get("logprobs"):
                self._add_logprobs(**data["logprobs"])
            if "usage" in data:  # the closing chunk
                reason = data.get("finish_reason", self.finish)
                self.finish = "length" if self.speech_cut and reason == "stop" else reason
                self._usage = data["usage"]
        elif array is None and data.get("finish_reason") == "length":  # the closing chunk of speech that is cut
            self.speech_cut = True
            self.finish = "length" if self.finish == "stop" else self.finish
            GATEWAY.speech_cut.labels(self.model).inc()
        elif array is not None:
            self.rate = data.get("rate", self.rate)
            self._samples += len(array)
            self._pace.record_audio(len(array) / self.rate)

    def _add_logprobs(self, at: int, tokens: list[Any]) -> None:
        """Append ``tokens``, which begin at number ``at``; a later attempt repeats some."""
        self.structured = True
        self.logprobs += [chat_response.token_logprob(*each) for each in tokens[max(0, len(self.logprobs) - at) :]]

    def record_latency(self) -> dict[str, float]:
        """Record a complete answer; returns the seconds that its client observed, by figure."""
        return self._pace.publish_metrics(self.model, self._usage.get("completion_tokens", 0))

    def add_pcm(self, pcm: bytes) -> None:
        """Add 16-bit samples that were sent."""
        self._pcm.append(pcm)

    @property
    def pcm(self) -> bytes:
        return b"".join(self._pcm)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def calls(self) -> tuple[tuple[str, str], ...]:
        """Names and arguments of the tool calls."""
        return tuple(split_calls("".join(self._calls)))

    def structured_parts(self, *, logprobs: bool) -> chat_response.StructuredParts:
        """Return parts other than text and audio; the client sees probabilities if ``logprobs``."""
        if not (self.structured or logprobs):
            return chat_response.NO_PARTS
        token_logprobs = self.logprobs if logprobs else None
        return chat_response.StructuredParts("".join(self._reasoning), self.calls, token_logprobs)

    def usage(self) -> chat_response.Usage:
        counts = self._usage
        image = counts.get("image_tokens", 0) + counts.get("video_tokens", 0)
        sound = counts.get("audio_tokens", 0)
        usage = chat_response.build_usage(
            prompt_text=counts.get("prompt_tokens", 0) - image - sound,
            prompt_image=image,
            prompt_audio=sound,
            cached=counts.get("cached_tokens", 0),
            text=counts.get("completion_tokens", 0),
            audio=self._samples * 50 // self.rate,
            reasoning=counts.get("reasoning_tokens", 0),
        )
        return usage if self.price is UNSET else msgspec.structs.replace(usage, omnibus=self.price)

    def to_answer(self) -> RecordedAnswer:
        text, calls, reasoning = self.text, "", ""
        if self.structured:
            calls, reasoning = "".join(self._calls), "".join(self._reasoning)
        return RecordedAnswer(
            text=text,
            text_sha256=hashlib.sha256(text.encode()).hexdigest(),
            calls=calls,
            calls_sha256=hashlib.sha256(calls.encode()).hexdigest() if calls else "",
            reasoning=reasoning,
            reasoning_sha256=hashlib.sha256(reasoning.encode()).hexdigest() if reasoning else "",
            audio_sha256=hashlib.sha256(self.pcm).hexdigest() if self._samples else "",
            audio_seconds=self._samples / self.rate,
            rate=self.rate if self._samples else 0,
            finish_reason=self.finish,
            usage=self._usage,
            characters=len(text),
        )


#: Separates the answers in the recorded text.
SEPARATOR = "\n\n"


class ChoicesAccumulator(AnswerAccumulator):
    """The answers, ``choices``, and their summary: concatenated texts and summed tokens.

    They have one prompt, which counts once.
    """

    def __init__(self, model: str, created_at: float, count: int) -> None:
        super().__init__(model, created_at)
        self.choices = [AnswerAccumulator(model, created_at) for _ in range(count)]

    def add_text(self, place: int, data: dict[str, Any]) -> None:
        """Add a chunk of the text of answer number ``place``."""
        choice = self.choices[place]
        choice.add_item("text", data, None)
        self.first = self.first or choice.first
        if "usage" in data:
            self.finish = self.choices[0].finish
            self._add_usage(data["usage"])

    def _add_usage(self, counts: dict[str, int]) -> None:
        totals = self._usage or dict.fromkeys(_SUMMED, 0)
        sums = {name: totals.get(name, 0) + counts.get(name, 0) for name in _SUMMED}
        self._usage = {**counts, **sums}

    def record_latency(self) -> dict[str, float]:
        """Record all answers; returns the seconds of the slowest one by figure."""
        latencies: dict[str, float] = {}
        for choice in self.choices:
            for figure, seconds in choice.record_latency().items():
                latencies[figure] = max(seconds, latencies.get(figure, 0.0))
        return latencies

    @property
    def text(self) -> str:
        return SEPARATOR.join(choice.text for choice in self.choices)


#: Tokens that each answer has separately.
_SUMMED = ("completion_tokens", "reasoning_tokens")


#: The largest token id that is stored.
MAX_TOKEN_ID = 2**32 - 1


class TokenIds:
    """Counter of the tokens of one attempt; the ``known_ids`` ones are stored already.

    An answer whose tokens have no valid ids is generated again from its beginning.
    """

    def __init__(self, known_ids: Sequence[int] = ()) -> None:
        self._unmade = len(known_ids)  # known tokens that were not generated again yet
        self._count = 0
        self._numbered = True

    def add(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Add the next tokens; returns those to store."""
        if not self._numbered or self._count >= MAX_RESUMED_VALUES:
            return ()
        if not all(type(id) is int and 0 <= id <= MAX_TOKEN_ID for id in ids):
            self._numbered = False
            return ()
        self._count += len(ids)
        skip_count = min(self._unmade, len(ids))
        self._unmade -= skip_count
        return tuple(ids[skip_count:])
