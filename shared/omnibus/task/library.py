"""The unit tasks of multimodal models, and the composite tasks that join them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from omnibus.errors import BadRequest
from omnibus.task.base import STREAM, TENSOR, CompositeTask, UnitTask


@dataclass(frozen=True)
class EncodeInput:
    media: Any  # Media: a handle, with modality, mime type and content hash


class Encode(UnitTask[EncodeInput]):
    """Image, video or audio to an embedding, [tokens, width] float32."""

    kind: ClassVar[str] = "encode"
    outputs: ClassVar[Mapping[str, str]] = {"embedding": TENSOR}


@dataclass(frozen=True)
class ThinkInput:
    messages: Any  # list of chat messages, or a handle of their JSON when they are long
    items: Any  # list of embeddings, in the order in which the messages mention them
    params: Any  # a dict, or its JSON as ``msgspec.Raw``
    voice: str | None = None


class Think(UnitTask[ThinkInput]):
    """The LLM: prompt and embeddings to text, and to hidden rows for a talker.

    ``text`` streams ``{"text", "ids"}``; ``prompt`` [T + 3, width], ``layout`` [axes, T] and ``rows``
    [tokens, width] exist only when a talker consumes them.
    """

    kind: ClassVar[str] = "think"
    outputs: ClassVar[Mapping[str, str]] = {"text": STREAM, "prompt": TENSOR, "layout": TENSOR, "rows": STREAM}


@dataclass(frozen=True)
class TalkInput:
    prompt: Any
    layout: Any
    rows: Any
    params: Any  # a dict, or its JSON as ``msgspec.Raw``
    voice: str


class Talk(UnitTask[TalkInput]):
    """The talker: hidden rows to codec codes, streamed as ``{"codes": [...]}``."""

    kind: ClassVar[str] = "talk"
    outputs: ClassVar[Mapping[str, str]] = {"codes": STREAM}


@dataclass(frozen=True)
class VocodeInput:
    codes: Any
    voice: str


class Vocode(UnitTask[VocodeInput]):
    """The vocoder: codes to waveform, streamed as float32 samples in [-1, 1]."""

    kind: ClassVar[str] = "vocode"
    outputs: ClassVar[Mapping[str, str]] = {"audio": STREAM}


@dataclass(frozen=True)
class ChatInput:
    """A chat as a composite task sees it: ``media`` in the order in which ``messages`` mention them."""

    messages: Any
    media: tuple[Any, ...]
    modalities: tuple[str, ...]
    params: Any  # a dict, or its JSON as ``msgspec.Raw``
    voice: str = ""
    speech: Any = None  # the talker's params; None: no speech


@dataclass(frozen=True)
class ChatOutput:
    text: Any
    audio: Any = None


class MLLM(CompositeTask):
    """A multimodal LLM: encoders by modality, then one LLM (Cornserve listing 1)."""

    encoders: dict[str, Encode]
    thinker: Think

    def invoke(self, request: ChatInput) -> ChatOutput:
        return ChatOutput(self.think(request).text)

    def think(self, request: ChatInput) -> Any:
        items = [
            self.encoder(modality).invoke(EncodeInput(media=media)).embedding
            for modality, media in zip(request.modalities, request.media, strict=True)
        ]
        voice = request.voice or None
        return self.thinker.invoke(
            ThinkInput(messages=request.messages, items=items, params=request.params, voice=voice)
        )

    def encoder(self, modality: str) -> Encode:
        if modality not in self.encoders:
            taken = ", ".join(sorted(self.encoders)) or "text only"
            raise BadRequest(f"this model takes no {modality} input (it takes: {taken})", param="messages")
        return self.encoders[modality]


class Omni(MLLM):
    """Thinker, talker and vocoder: text and speech out. The three run pipelined by chunks."""

    talker: Talk
    vocoder: Vocode

    def invoke(self, request: ChatInput) -> ChatOutput:
        thought = self.think(request)
        if request.speech is None:
            return ChatOutput(thought.text)
        spoken = self.talker.invoke(
            TalkInput(
                prompt=thought.prompt,
                layout=thought.layout,
                rows=thought.rows,
                params=request.speech,
                voice=request.voice,
            )
        )
        return ChatOutput(thought.text, self.vocoder.invoke(VocodeInput(codes=spoken.codes, voice=request.voice)).audio)
