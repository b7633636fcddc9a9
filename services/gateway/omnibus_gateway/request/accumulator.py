"""Accumulated parts of one answer, and the recorded summary of them."""

import hashlib
import time
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from omnibus.metrics import GATEWAY
from omnibus.pricing import RequestUsage
from omnibus.recording.records import RecordedAnswer
from omnibus.structured.calls import split_calls
from omnibus.task.library import TranscriptChunk
from omnibus_gateway.openai import chat_response
from omnibus_gateway.request.latency import StreamLatency


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
