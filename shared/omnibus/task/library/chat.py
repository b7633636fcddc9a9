"""Chat models: multimodal LLMs, and omni models that also speak.

Several answers to one chat: media are encoded once, the language model is called for each answer.
"""

from collections.abc import AsyncIterable, Sequence
from typing import TYPE_CHECKING, Self, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, SkipValidation

from omnibus.errors import BadRequest
from omnibus.task.base import CompositeTask
from omnibus.task.library.language import (
    Messages,
    Params,
    PrefillDecode,
    TextChunk,
    TextParams,
    Think,
    ThinkInput,
    Thought,
)
from omnibus.task.library.media import Encode, EncodeInput, PlacedMedia
from omnibus.task.library.speech import Audio, SpeakParams, Talk, TalkInput, Vocode, VocodeInput
from omnibus.task.record import pinned
from omnibus.task.types import Stream, Tensor


class ChatInput(BaseModel):
    """A chat for a composite task."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: As ``ThinkInput.messages``.
    messages: Messages
    #: In the order in which ``messages`` mention them, each as ``EncodeInput.media``.
    media: tuple[PlacedMedia, ...] = ()
    #: Of each of ``media``: ``image``, ``video`` or ``audio``.
    modalities: tuple[str, ...] = ()
    #: Of the text, as ``ThinkInput.params``.
    params: Params = {}
    #: Of speech; empty for models without one.
    voice: str = ""
    #: As ``TalkInput.params``; None asks for text alone.
    speech: SpeakParams | None = None
    #: Expected tokens of each of ``media``, for load estimates.
    tokens: tuple[int, ...] = ()
    #: Expected tokens of the text of the messages, for load estimates.
    prompt: int = 32
    #: Expected tokens of the answer, for load estimates.
    answer: int = 256

    @classmethod
    def of(  # noqa: PLR0913 - named one by one, editors show them
        cls,
        text: str,
        system: str = "",
        *,
        media: Sequence[PlacedMedia] = (),
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        repetition_penalty: float | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
        ignore_eos: bool | None = None,
        say: str | None = None,
    ) -> Self:
        """Return a chat of one user message, after ``system`` if given.

        ``media`` come before the text: handles from ``Media.of``, or images of another task of the graph. For units of
        the parameters see ``TextParams``.
        """
        options = {
            "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k,
            "repetition_penalty": repetition_penalty, "stop": stop, "seed": seed, "ignore_eos": ignore_eos, "say": say,
        }  # fmt: skip
        params = cast(TextParams, {name: value for name, value in options.items() if value is not None})
        system_messages = [{"role": "system", "content": system}] if system else []
        modalities = tuple(str(each["modality"]) if isinstance(each, dict) else "image" for each in media)
        parts = [*({"type": modality} for modality in modalities), {"type": "text", "text": text}]
        return cls(
            messages=[*system_messages, {"role": "user", "content": parts if media else text}],
            media=tuple(media),
            modalities=modalities,
            params=params,
            answer=max_tokens or 256,
        )


if TYPE_CHECKING:
    ChatText = Stream[TextChunk] | Stream[str] | AsyncIterable[TextChunk | str] | TextChunk | str
    ChatAudio = Stream[Audio] | Stream[np.ndarray] | AsyncIterable[Audio | np.ndarray] | Audio | np.ndarray


class ChatOutput(BaseModel):
    """The answer's streams: ``text`` of ``TextChunk``, ``audio`` of ``Audio``.

    A request for text alone has no audio. An app may also return its own text or samples (float [n]), at once or as an
    async iterator of parts.
    """

    #: Stream of ``TextChunk``.
    text: SkipValidation[Stream[TextChunk]]
    #: Stream of ``Audio``, where the request has ``speech``.
    audio: SkipValidation[Stream[Audio] | None] = None

    if TYPE_CHECKING:  # an app may return its own answer, whole or in parts

        def __init__(self, *, text: ChatText | None, audio: ChatAudio | None = None) -> None: ...


class MLLM(CompositeTask[ChatInput, ChatOutput]):
    """A multimodal LLM: encoders by modality, then one LLM, whole or in two halves (Cornserve listing 1).

    Raises ``BadRequest`` for a modality without an encoder.
    """

    #: Encoder of each modality: ``image``, ``video``, ``audio``.
    encoders: dict[str, Encode]
    #: The language model.
    thinker: Think | PrefillDecode
    #: True keeps encoders on executors of their own, False keeps each request on one executor, None leaves it to the
    #: plan.
    encoder_fission: bool | None = None
    #: True for a language model that attends to media across, and does not read their tokens as a prompt.
    attends_across: bool = False
    #: Name of one of the plan's paths, for example ``E>L``; empty leaves it to the plan.
    path: str = ""

    def invoke(self, request: ChatInput) -> ChatOutput:
        return ChatOutput(text=self.think(request).text)

    def think(self, request: ChatInput) -> Thought:
        return self.think_about(request, self.encode_media(request))

    def encode_media(self, request: ChatInput) -> list[Tensor]:
        """Encode the request's media; returns their embeddings in order."""
        with pinned(self.pin):
            return [
                self.encoder_for(modality).invoke(EncodeInput(media=media), work=tokens).embedding
                for modality, media, tokens in zip(
                    request.modalities, request.media, self._media_tokens(request), strict=True
                )
            ]

    def think_about(self, request: ChatInput, items: Sequence[Tensor]) -> Thought:
        """Call the language model; ``items`` are the embeddings of the request's media."""
        with pinned(self.pin):
            return self.thinker.think(
                ThinkInput(
                    messages=request.messages,
                    items=list(items),
                    params=request.params,
                    voice=request.voice or None,
                ),
                work=request.prompt if self.attends_across else sum(request.tokens) + request.prompt,
                answer=request.answer,
            )

    @property
    def pin(self) -> str:
        if self.path:
            return f"path:{self.path}"
        return "" if self.encoder_fission is None else "apart" if self.encoder_fission else "together"

    def encoder_for(self, modality: str) -> Encode:
        if modality not in self.encoders:
            modalities = ", ".join(sorted(self.encoders)) or "text only"
            raise BadRequest(f"this model takes no {modality} input (it takes: {modalities})", param="messages")
        return self.encoders[modality]

    def _media_tokens(self, request: ChatInput) -> tuple[int, ...]:
        return request.tokens if len(request.tokens) == len(request.media) else (256,) * len(request.media)


class Omni(MLLM):
    """Thinker, talker and vocoder, with text and speech as outputs. The three are pipelined by chunks."""

    #: From the thinker's hidden rows to codes.
    talker: Talk
    #: From codes to a waveform.
    vocoder: Vocode
    #: Expected codec codes of speech, about 20 s.
    codes: int = 1024

    def invoke(self, request: ChatInput) -> ChatOutput:
        thought = self.think(request)
        if request.speech is None:
            return ChatOutput(text=thought.text)
        with pinned(self.pin):
            speech_codes = self.talker.invoke(
                TalkInput(
                    prompt=thought.prompt,
                    layout=thought.layout,
                    rows=thought.rows,
                    params=request.speech,
                    voice=request.voice,
                ),
                work=self.codes,
            )
            sound = self.vocoder.invoke(VocodeInput(codes=speech_codes.codes, voice=request.voice), work=self.codes)
        return ChatOutput(text=thought.text, audio=sound.audio)


class ChoicesInput(ChatInput):
    """A chat for several answers in text."""

    #: Parameters of each answer, in the place of ``params``. Answers whose parameters are equal differ in their random
    #: numbers.
    choices: tuple[Params, ...] = ()


class ChatChoices(BaseModel):
    """The answers, in the order of ``ChoicesInput.choices``."""

    #: A stream of ``TextChunk`` for each.
    texts: Sequence[SkipValidation[Stream[TextChunk]]]


class ChatFanOut(CompositeTask[ChoicesInput, ChatChoices]):
    """Several answers of the task ``chat``. A task with its own ``invoke`` records its graph for each answer."""

    #: A task whose ``invoke`` awaits nothing.
    chat: SkipValidation[CompositeTask[ChatInput, ChatOutput]]

    def invoke(self, request: ChoicesInput) -> ChatChoices:
        requests = [request.model_copy(update={"params": params}) for params in request.choices]
        chat = self.chat
        if isinstance(chat, MLLM) and type(chat).invoke in (MLLM.invoke, Omni.invoke):
            items = chat.encode_media(request)
            return ChatChoices(texts=[chat.think_about(each, items).text for each in requests])
        return ChatChoices(texts=[cast(ChatOutput, chat.invoke(each)).text for each in requests])
