"""Chats in the format of vLLM-Omni, for requests with the header ``X-Omnibus-Dialect: vllm-omni``.

Source: its examples and its server, 2026. Differences from the requests, responses and streams of OpenAI:

- ``modalities`` is optional and defaults to the model's output. ``model`` is optional if there is only one.
- Fields next to the messages, or inside ``extra_body``, request images; ``speaker`` requests audio. Each stage has its
  own sampling in ``sampling_params_list``: text, then audio.
- Images are the ``content`` of an answer, as a list of parts. Audio is a separate choice after that of the text.
- Chunks of a stream have a ``modality``. The ``content`` of audio chunks is a complete WAV file, base64.
"""

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from omnibus.encoding.audio import encode_wav
from omnibus.errors import BadRequest
from omnibus_gateway.openai import chat_response
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.chat_response import (
    NO_PARTS,
    AnswerEncoders,
    ChatCompletion,
    ChatCompletionAudio,
    ChatCompletionChoice,
    ChatCompletionImage,
    ChatStream,
    FinishReason,
    StructuredParts,
    Usage,
)
from omnibus_gateway.openai.parse import check_chat, check_values, convert_json, invalid_request

HEADER, NAME = "x-omnibus-dialect", "vllm-omni"

#: Returns the name and the default modalities of a model; "" stands for the only one.
About = Callable[[str], tuple[str, list[str]]]

#: Fields that request images, with their names in ``image_config``.
_IMAGE_FIELDS = {
    "size": "size",
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "true_cfg_scale": "guidance",
    "negative_prompt": "negative_prompt",
    "num_outputs_per_prompt": "n",
}
#: Sampling fields of a stage, and those that all requests also have.
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens")
_STAGE_FIELDS = frozenset({*_SAMPLING_FIELDS, "seed", "detokenize", "stop_token_ids"})
#: Size of the header of a WAV file in bytes, and the position of the rate in it.
_WAV_HEADER_BYTES, _WAV_RATE_SLICE = 44, slice(24, 28)

_encode = msgspec.json.Encoder().encode


class OmniRequest(ChatRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request in this dialect with OpenAI's fields. Its response uses this dialect too."""

    @property
    def encoders(self) -> AnswerEncoders:
        return _ENCODERS


# Requests


def translate_request(body: bytes, about: About) -> OmniRequest:
    """Decode, translate and check a request. Raises ``BadRequest`` with ``param``, and the errors of ``about``."""
    fields = _merge_extra_body(_decode_object(body))
    model = fields.get("model")
    fields["model"], default_modalities = about(model if isinstance(model, str) else "")
    if fields.get("modalities") is None:
        fields["modalities"] = default_modalities
    modalities = fields["modalities"] if isinstance(fields["modalities"], list) else []
    _translate_sampling(fields, "audio" in modalities)
    if "image" in modalities:
        _translate_images(fields)
    if "audio" in modalities:
        _translate_audio(fields)
    try:
        request = convert_json(fields, OmniRequest)
    except msgspec.ValidationError as error:
        raise invalid_request(str(error), OmniRequest, fields) from None
    check_chat(request)
    if request.choice_count > 1:
        raise BadRequest("n must be 1 in this dialect: omit it.", param="n")
    if request.stream and request.audio is not None and request.audio.format != "wav":
        raise BadRequest("audio.format must be wav in a stream of this dialect: omit it.", param="audio.format")
    return request


def _decode_object(body: bytes) -> dict[str, Any]:
    check_values(body)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The request body is not valid JSON in UTF-8.") from None
    if not isinstance(document, dict):
        raise BadRequest("The request body must be a JSON object.")
    return document


def _merge_extra_body(fields: dict[str, Any]) -> dict[str, Any]:
    """Merge ``extra_body``, which the ``openai`` client puts next to the other fields."""
    more = fields.pop("extra_body", None) or {}
    if not isinstance(more, dict):
        raise BadRequest("extra_body must be an object with more fields of the request.", param="extra_body")
    for name in more.keys() & fields.keys():
        raise BadRequest(f"'{name}' is in the request and in its extra_body: send it once.", param=f"extra_body.{name}")
    return {**more, **fields}


def _translate_images(fields: dict[str, Any]) -> None:
    width, height = fields.pop("width", None), fields.pop("height", None)
    if width is not None or height is not None:
        if fields.get("size") is not None or not (_is_count(width) and _is_count(height)):
            raise BadRequest("Send either width and height as positive integers, or size.", param="size")
        fields["size"] = f"{width}x{height}"
    wish = fields["image_config"] = fields.get("image_config") or {}
    for name, field_name in _IMAGE_FIELDS.items():
        value = fields.pop(name, None)
        if value is not None and isinstance(wish, dict):
            if field_name in wish:
                raise BadRequest(f"Duplicate field '{name}': send it once.", param=name)
            wish[field_name] = value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _translate_audio(fields: dict[str, Any]) -> None:
    speaker = fields.pop("speaker", None)
    audio = fields.get("audio") or {}
    if isinstance(audio, dict):
        fields["audio"] = {"voice": "alloy" if speaker is None else speaker, "format": "wav", **audio}


def _translate_sampling(fields: dict[str, Any], speaks: bool) -> None:
    """Move sampling of text to the request, and of audio to ``audio``.

    A vocoder has no sampling.
    """
    stages = fields.pop("sampling_params_list", None)
    if stages is None:
        return
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise BadRequest(
            "sampling_params_list must be a list of objects, one for each stage.", param="sampling_params_list"
        )
    for place, stage in enumerate(stages):
        _check_stage(stage, f"sampling_params_list[{place}]", place)
    seeds = {stage["seed"] for stage in stages if _is_count(stage.get("seed")) or stage.get("seed") == 0}
    if len(seeds) > 1:
        raise BadRequest("All stages must have the same seed.", param="sampling_params_list")
    first, second = [*stages, {}, {}][:2]
    _merge_fields(fields, {**_sampling_fields(first), **({"seed": seeds.pop()} if seeds else {})})
    if speaks and _sampling_fields(second):
        audio = fields["audio"] = fields.get("audio") or {}
        if isinstance(audio, dict):
            _merge_fields(audio, _sampling_fields(second))


def _check_stage(stage: dict[str, Any], param: str, place: int) -> None:
    for name in stage:
        if name not in _STAGE_FIELDS or (name == "stop_token_ids" and not place and stage[name]):
            raise BadRequest(f"'{name}' is not supported: omit it.", param=f"{param}.{name}")
    if stage.get("detokenize") is False:
        raise BadRequest("detokenize must be true: omit it.", param=f"{param}.detokenize")


def _sampling_fields(stage: dict[str, Any]) -> dict[str, Any]:
    return {name: stage[name] for name in _SAMPLING_FIELDS if stage.get(name) is not None}


def _merge_fields(fields: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if fields.setdefault(name, value) != value:
            raise BadRequest(f"'{name}' has two different values: send it once.", param="sampling_params_list")


# Answers


class OmniMessage(chat_response.ChatCompletionMessage, frozen=True):
    """Variant of ``chat_response.ChatCompletionMessage`` with images as the content."""

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
    """Encode a complete response, with the arguments of ``chat_response.encode_completion``."""
    choices = [] if text is None else [_text_choice(id, text, finish_reason, parts)]
    if audio is not None:
        choices.append(ChatCompletionChoice(OmniMessage(audio=audio), "stop"))
    return _encode(ChatCompletion(id, created, model, choices, usage, system_fingerprint=fingerprint or None))


def _text_choice(id: str, text: str, reason: FinishReason, parts: StructuredParts) -> ChatCompletionChoice:
    choice = chat_response.build_choice(id, text, None, reason, parts)
    message_fields = msgspec.structs.asdict(choice.message)
    return msgspec.structs.replace(choice, message=OmniMessage(**message_fields))


def encode_image_completion(
    *, id: str, model: str, created: int, text: str | None, usage: Usage, images: list[ChatCompletionImage]
) -> bytes:
    """Encode images as ``chat_response.encode_image_completion`` does, but ignore ``text``: images replace it."""
    return _encode(ChatCompletion(id, created, model, [ChatCompletionChoice(OmniMessage(images), "stop")], usage))


class OmniStream(ChatStream):
    """Variant of ``ChatStream`` that sends each piece of audio as WAV."""

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
    """Add the modality to ``frame``."""
    return b'%b,"modality":"%b"}\n\n' % (frame.removesuffix(b"}\n\n"), modality.encode())


_ENCODERS = AnswerEncoders(encode_completion, encode_image_completion, OmniStream)
