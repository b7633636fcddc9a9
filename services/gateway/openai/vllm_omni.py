"""Chats as clients of vLLM-Omni send and read them, where a request says so: ``X-Omnibus-Dialect: vllm-omni``.

Source: its examples and its server, 2026. What differs from ``requests``, ``answers`` and ``stream``:

- What is to be made need not be said: it is what the model makes. Nor need the model, where there is but one.
- Pictures are asked for by fields beside the messages, or in a field ``extra_body``, and sound by ``speaker``; each
  stage has its own sampling in ``sampling_params_list``: text, then sound.
- Pictures are the ``content`` of an answer, as a list of parts. Sound is a choice of its own, behind that of the text.
- Chunks of a stream name their ``modality``. The ``content`` of those of sound is a whole WAV file, base64.
"""

import base64
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from omnibus.encoding.audio import encode_wav
from omnibus.errors import BadRequest
from services.gateway.openai import chat_response
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.chat_response import (
    NO_PARTS,
    ChatCompletion,
    ChatCompletionAudio,
    ChatCompletionChoice,
    ChatCompletionImage,
    FinishReason,
    StructuredParts,
    Usage,
)
from services.gateway.openai.chat_stream import ChatStream
from services.gateway.openai.density import check_values
from services.gateway.openai.parse import check_chat, convert_json, invalid_request

HEADER, NAME = "x-omnibus-dialect", "vllm-omni"

#: Of a model, "" where none is named: its name, and what it makes unless something else is asked for.
About = Callable[[str], tuple[str, list[str]]]

#: What pictures are asked for by, and what that is called in ``image_config``.
_IMAGE_FIELDS = {
    "size": "size",
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "true_cfg_scale": "guidance",
    "negative_prompt": "negative_prompt",
    "num_outputs_per_prompt": "n",
}
#: What a stage may say of its sampling, and what of that a request has in any case.
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens")
_STAGE_FIELDS = frozenset({*_SAMPLING_FIELDS, "seed", "detokenize", "stop_token_ids"})
#: Bytes of the header of a WAV file, and where in it the rate is.
_WAV_HEADER_BYTES, _WAV_RATE_SLICE = 44, slice(24, 28)

_encode = msgspec.json.Encoder().encode


class OmniRequest(ChatRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request in this dialect, in the words of all others. Its answer is in this dialect too."""


# Requests


def translate_request(body: bytes, about: About) -> OmniRequest:
    """Decode, translate and check a request. Raises ``BadRequest`` with ``param``, and what ``about`` raises."""
    said = _merge_extra_body(_decode_object(body))
    model = said.get("model")
    said["model"], made = about(model if isinstance(model, str) else "")
    if said.get("modalities") is None:
        said["modalities"] = made
    wanted = said["modalities"] if isinstance(said["modalities"], list) else []
    _translate_sampling(said, "audio" in wanted)
    if "image" in wanted:
        _translate_images(said)
    if "audio" in wanted:
        _translate_audio(said)
    try:
        request = convert_json(said, OmniRequest)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), OmniRequest, said) from None
    check_chat(request)
    if request.choice_count > 1:
        raise BadRequest("A chat of this dialect has one answer: leave n out.", param="n")
    if request.stream and request.audio is not None and request.audio.format != "wav":
        raise BadRequest("A stream of this dialect holds WAV files: leave audio.format out.", param="audio.format")
    return request


def _decode_object(body: bytes) -> dict[str, Any]:
    check_values(body)
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None
    if not isinstance(found, dict):
        raise BadRequest("The request body must be a JSON object.")
    return found


def _merge_extra_body(said: dict[str, Any]) -> dict[str, Any]:
    """``said`` and its ``extra_body``, which the ``openai`` client puts in there by itself."""
    more = said.pop("extra_body", None) or {}
    if not isinstance(more, dict):
        raise BadRequest("It holds more fields of the request, as an object.", param="extra_body")
    for name in more.keys() & said.keys():
        raise BadRequest(f"'{name}' is in the request and in its extra_body: send it once.", param=f"extra_body.{name}")
    return {**more, **said}


def _translate_images(said: dict[str, Any]) -> None:
    width, height = said.pop("width", None), said.pop("height", None)
    if width is not None or height is not None:
        if said.get("size") is not None or not (_is_count(width) and _is_count(height)):
            raise BadRequest("Say a width and a height, or a size.", param="size")
        said["size"] = f"{width}x{height}"
    wish = said["image_config"] = said.get("image_config") or {}
    for name, called in _IMAGE_FIELDS.items():
        value = said.pop(name, None)
        if value is not None and isinstance(wish, dict):
            if called in wish:
                raise BadRequest(f"Duplicate field '{name}': send it once.", param=name)
            wish[called] = value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _translate_audio(said: dict[str, Any]) -> None:
    speaker = said.pop("speaker", None)
    spoken = said.get("audio") or {}
    if isinstance(spoken, dict):
        said["audio"] = {"voice": "alloy" if speaker is None else speaker, "format": "wav", **spoken}


def _translate_sampling(said: dict[str, Any], speaks: bool) -> None:
    """Sampling of text is that of the request, that of sound goes to ``audio``; a vocoder samples nothing."""
    stages = said.pop("sampling_params_list", None)
    if stages is None:
        return
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise BadRequest("It is a list of objects, one for each stage.", param="sampling_params_list")
    for place, stage in enumerate(stages):
        _check_stage(stage, f"sampling_params_list[{place}]", place)
    seeds = {stage["seed"] for stage in stages if _is_count(stage.get("seed")) or stage.get("seed") == 0}
    if len(seeds) > 1:
        raise BadRequest("All stages sample from one seed: send the same.", param="sampling_params_list")
    first, second = [*stages, {}, {}][:2]
    _merge_fields(said, {**_sampling_fields(first), **({"seed": seeds.pop()} if seeds else {})})
    if speaks and _sampling_fields(second):
        spoken = said["audio"] = said.get("audio") or {}
        if isinstance(spoken, dict):
            _merge_fields(spoken, _sampling_fields(second))


def _check_stage(stage: dict[str, Any], param: str, place: int) -> None:
    for name in stage:
        if name not in _STAGE_FIELDS or (name == "stop_token_ids" and not place and stage[name]):
            raise BadRequest(f"'{name}' is not supported here: leave it out.", param=f"{param}.{name}")
    if stage.get("detokenize") is False:
        raise BadRequest("Answers are text: leave it out.", param=f"{param}.detokenize")


def _sampling_fields(stage: dict[str, Any]) -> dict[str, Any]:
    return {name: stage[name] for name in _SAMPLING_FIELDS if stage.get(name) is not None}


def _merge_fields(said: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if said.setdefault(name, value) != value:
            raise BadRequest(f"'{name}' has two different values.", param="sampling_params_list")


# Answers


class OmniMessage(chat_response.ChatCompletionMessage, frozen=True):
    """Variant of ``answers.Message`` in which pictures are the content."""

    content: str | list[ChatCompletionImage] | None = None  # type: ignore[assignment]


def encode_completion(  # noqa: PLR0913 - named one by one, and never passed by place
    *,
    id: str,
    model: str,
    created: int,
    text: str | None,
    finish_reason: FinishReason,
    usage: Usage,
    audio: ChatCompletionAudio | None = None,
    fingerprint: str = "",
    parts: StructuredParts = NO_PARTS,
) -> bytes:
    """Encode a whole answer, with the arguments of ``answers.completion``."""
    choices = [] if text is None else [_text_choice(id, text, finish_reason, parts)]
    if audio is not None:
        choices.append(ChatCompletionChoice(OmniMessage(audio=audio), "stop"))
    return _encode(ChatCompletion(id, created, model, choices, usage, system_fingerprint=fingerprint or None))


def _text_choice(id: str, text: str, reason: FinishReason, parts: StructuredParts) -> ChatCompletionChoice:
    made = chat_response.build_choice(id, text, None, reason, parts)
    said = msgspec.structs.asdict(made.message)
    return msgspec.structs.replace(made, message=OmniMessage(**said))


def encode_image_completion(
    *, id: str, model: str, created: int, text: str | None, usage: Usage, images: list[ChatCompletionImage]
) -> bytes:
    """Encode pictures, with the arguments of ``answers.drawn``. ``text`` is left out: pictures take its place."""
    return _encode(ChatCompletion(id, created, model, [ChatCompletionChoice(OmniMessage(images), "stop")], usage))


class OmniStream(ChatStream):
    """Variant of ``ChatStream``. Sound comes as the pieces of one WAV file, and leaves as a file for each piece."""

    _begun = b""

    def role(self, content: str | None = "") -> bytes:
        return _with_modality(super().role("" if content is None else content), "text")

    def text(self, *deltas: str) -> bytes:
        encode = super().text
        return b"".join([_with_modality(encode(delta), "text") for delta in deltas])

    def spoken_text(self, *deltas: str) -> bytes:
        return self.text(*deltas)

    def transcript(self, *deltas: str) -> bytes:
        return b""

    def audio_start(self, audio_id: str) -> bytes:
        return b""

    def audio(self, data: bytes) -> bytes:
        if len(self._begun) < _WAV_HEADER_BYTES:
            missing = _WAV_HEADER_BYTES - len(self._begun)
            self._begun, data = self._begun + data[:missing], data[missing:]
        if not data:
            return b""
        file = encode_wav(data, int.from_bytes(self._begun[_WAV_RATE_SLICE], "little"))
        return _with_modality(super().text(base64.b64encode(file).decode()), "audio")

    def audio_end(self, expires_at: int) -> bytes:
        return b""

    def images(self, images: list[ChatCompletionImage]) -> bytes:
        return _with_modality(b"".join((self._text, _encode(images), self._end_text)), "image")

    def finish(self, reason: FinishReason) -> bytes:
        return _with_modality(super().finish(reason), "text")


def _with_modality(frame: bytes, modality: str) -> bytes:
    """``frame`` with its modality."""
    return b'%b,"modality":"%b"}\n\n' % (frame.removesuffix(b"}\n\n"), modality.encode())


class AnswerEncoders(NamedTuple):
    """Encoders of answers: of a whole one, of one of pictures, of a stream."""

    completion: Callable[..., bytes]
    drawn: Callable[..., bytes]
    stream: type[ChatStream]


_OPENAI_ENCODERS, _OMNI_ENCODERS = (
    AnswerEncoders(chat_response.encode_completion, chat_response.encode_image_completion, ChatStream),
    AnswerEncoders(encode_completion, encode_image_completion, OmniStream),
)


def answer_encoders(request: ChatRequest) -> AnswerEncoders:
    """The shapes of the answer to ``request``."""
    return _OMNI_ENCODERS if isinstance(request, OmniRequest) else _OPENAI_ENCODERS
