"""The body of ``POST /v1/chat/completions``, as in the ``openai`` client, plus extras.

Source: the request types of the ``openai`` package, 3.52. Unknown fields inside messages are ignored, because clients
send complete responses back as history. At the top level an unknown field is an error: it is a typing mistake, or an
option that the gateway would silently ignore.

Plain chats: text messages without references, answered in text or speech.

A chat with any field that is not listed here is not plain. This includes fields added in the future.
"""

from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from omnibus.encoding.audio import SoundFormat
from omnibus_gateway.openai.chat_response import OPENAI_ENCODERS, AnswerEncoders
from omnibus_gateway.openai.options import (
    MAX_TOOLS,
    AllowedToolChoice,
    FunctionTool,
    Id,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    ResponseFormat,
    ToolCall,
    ToolChoice,
    VllmParams,
)

ImageDetail = Literal["auto", "low", "high", "original"]
#: Short names of the formats in which audio is accepted: those of ``omnibus_gateway.media.inspect``.
InputFormat = Literal[
    "wav", "mp3", "flac", "ogg", "opus", "aac", "m4a", "mp4", "webm", "mpeg", "mpga", "oga", "mka", "mkv", "mov", "3gp",
    "aiff", "au", "caf", "amr", "w64", "avi",
]  # fmt: skip
Modality = Literal["text", "audio", "image"]
Size = Annotated[str, Meta(max_length=16, pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$")]
Guidance = Annotated[float, Meta(ge=0, le=100)]
Steps = Annotated[int, Meta(ge=1, le=1000)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=0.01, le=10)]
Presence = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenId = Annotated[str, Meta(pattern=r"^[0-9]{1,10}$")]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
#: Limit of generated tokens; -1 is the rest of the context.
TokenLimit = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
#: Limit of the tokens whose probability a request may change, and of the alternatives returned for each token.
MAX_BIASES, MAX_TOP_LOGPROBS = 1024, 20
#: Value of a limit of tokens for the rest of the context.
NO_TOKEN_LIMIT = -1
#: Limit of the answers to one chat.
MAX_CHOICES = 8


class Url(Struct, frozen=True):
    """An https or data URL."""

    url: Annotated[str, Meta(min_length=1)]


class ImageUrl(Url, frozen=True):
    detail: ImageDetail | None = None


class InputAudio(Struct, frozen=True):
    """Base64 audio. OpenAI defines wav and mp3; the other formats are extras. Browsers record webm and mp4."""

    data: Annotated[str, Meta(min_length=1)]
    format: InputFormat


class FileReference(Struct, frozen=True):
    """A file of images, audio or video: its id from ``/v1/files``, or a data URL."""

    file_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    file_data: Annotated[str, Meta(min_length=1)] | None = None
    filename: str | None = None


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class VideoPart(Struct, frozen=True, tag_field="type", tag="video_url"):
    """An extra that every open server accepts."""

    video_url: Url


class AudioUrlPart(Struct, frozen=True, tag_field="type", tag="audio_url"):
    """An extra that every open server accepts."""

    audio_url: Url


class InputAudioPart(Struct, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: InputAudio


class FilePart(Struct, frozen=True, tag_field="type", tag="file"):
    file: FileReference


UserPart = TextPart | ImagePart | VideoPart | AudioUrlPart | InputAudioPart | FilePart
Texts = Annotated[list[TextPart], Meta(min_length=1, max_length=1024)]


class SystemMessage(Struct, frozen=True, tag_field="role", tag="system"):
    content: str | Texts


class DeveloperMessage(Struct, frozen=True, tag_field="role", tag="developer"):
    content: str | Texts


class UserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    content: str | Annotated[list[UserPart], Meta(min_length=1, max_length=1024)]


class AudioId(Struct, frozen=True):
    """The id of an earlier spoken answer. Its transcript replaces missing content."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]


class AssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant"):
    content: str | Annotated[list[TextPart | RefusalPart], Meta(min_length=1, max_length=1024)] | None = None
    refusal: str | None = None
    audio: AudioId | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    function_call: Any = None
    reasoning_content: str | None = None


class ToolMessage(Struct, frozen=True, tag_field="role", tag="tool"):
    """The result of a tool call."""

    content: str | Texts
    tool_call_id: Id


class FunctionMessage(Struct, frozen=True, tag_field="role", tag="function"):
    """A deprecated message, decoded only so that the error can name it."""


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class VoiceId(Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=128)]


class AudioOutput(Struct, frozen=True):
    """Options of spoken output.

    ``max_tokens`` is an extra: the limit of codec codes, which bounds the seconds of audio. The sampling fields after
    it are extras too.
    """

    voice: Annotated[str, Meta(min_length=1, max_length=128)] | VoiceId
    format: SoundFormat
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    repetition_penalty: Penalty | None = None


class ImageConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the images in an answer, an extension. The fields are those of ``POST /v1/images/generations``."""

    size: Size | None = None
    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    #: ``b64_json``, which is a data URL here, unless the client requests the URL of a file.
    response_format: Literal["url", "b64_json"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    negative_prompt: Annotated[str, Meta(max_length=32_000)] | None = None
    steps: Steps | None = None
    guidance: Guidance | None = None


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted; no padding is sent


class ChatRequest(VllmParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One chat request. None means that the client did not set the field."""

    #: Whether the oldest messages may be left out, so that the others fit the context.
    drops_history: ClassVar[bool] = False

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=2048)]
    modalities: Annotated[list[Modality], Meta(min_length=1, max_length=3)] | None = None
    audio: AudioOutput | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=4)] | None = None

    # Extras that other open servers also accept.
    top_k: TopK | None = None
    repetition_penalty: Penalty | None = None
    ignore_eos: bool | None = None
    image_config: ImageConfig | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Fields of vLLM, in addition to those of ``VllmParams``.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: Any = None
    best_of: Any = None

    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    frequency_penalty: Presence | None = None
    presence_penalty: Presence | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=MAX_BIASES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning_effort: Effort | None = None

    #: Number of answers.
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None

    # Accepted only with values that change nothing; see ``requests``.
    functions: list[Any] | None = None
    function_call: Any = None
    verbosity: str | None = None
    web_search_options: Any = None
    moderation: Any = None

    #: Equal for requests with a common prefix: they go to the executor that has the previous prompt in its cache.
    prompt_cache_key: str | None = None
    # Accepted and ignored: elsewhere they change cost, storage or speed, never the answer.
    metadata: Any = None
    prediction: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None

    @property
    def encoders(self) -> AnswerEncoders:
        """Encoders of the response; a dialect has its own."""
        return OPENAI_ENCODERS

    @property
    def token_limit(self) -> int | None:
        """Limit of generated tokens; None for the rest of the context."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return None if limit == NO_TOKEN_LIMIT else limit

    @property
    def choice_count(self) -> int:
        """Number of answers."""
        return self.n or 1

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_text(self) -> bool:
        """True if the client requests text."""
        return self.modalities is None or "text" in self.modalities

    @property
    def wants_audio(self) -> bool:
        """True if the client requests audio; ``audio`` is then set."""
        return self.modalities is not None and "audio" in self.modalities

    @property
    def wants_images(self) -> bool:
        """True if the client requests images."""
        return self.modalities is not None and "image" in self.modalities

    @property
    def calls_required(self) -> bool:
        """True if the answer must be tool calls."""
        choice = self.tool_choice
        if isinstance(choice, AllowedToolChoice):
            return choice.allowed_tools.mode == "required"
        return choice == "required" or isinstance(choice, NamedToolChoice)

    @property
    def is_shaped(self) -> bool:
        """True if a grammar constrains the answer."""
        return (
            isinstance(self.response_format, JsonObjectFormat | JsonSchemaFormat)
            or self.calls_required
            or self.has_vllm_shape
        )

    @property
    def voice_name(self) -> str:
        """The name or id of the voice, or "" without audio output."""
        if not self.wants_audio or self.audio is None:
            return ""
        return self.audio.voice if isinstance(self.audio.voice, str) else self.audio.voice.id

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class AppChatRequest(ChatRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat request to an app that declares its own models: ``model`` is optional."""

    model: Annotated[str, Meta(max_length=256)] = ""


#: Fields that a plain chat may have.
PLAIN_FIELDS = frozenset(
    {"model", "messages", "modalities", "audio", "stream", "stream_options", "max_tokens", "max_completion_tokens",
     "temperature", "top_p", "seed", "stop", "top_k", "repetition_penalty", "ignore_eos", "metadata", "user", "store"}
)  # fmt: skip
_OTHER_FIELDS = tuple(name for name in ChatRequest.__struct_fields__ if name not in PLAIN_FIELDS)
_read_other_fields = attrgetter(*_OTHER_FIELDS)  # all of them in one call
_NO_OTHER_FIELDS = (None,) * len(_OTHER_FIELDS)
#: Fields of an assistant's message other than its text; a plain chat has none of them.
_BESIDES = tuple(name for name in AssistantMessage.__struct_fields__ if name != "content")
_read_besides = attrgetter(*_BESIDES)
_NOTHING_BESIDES = (None,) * len(_BESIDES)
_TEXT_MESSAGES = (UserMessage, SystemMessage, DeveloperMessage)


def is_plain_chat(request: ChatRequest) -> bool:
    """Return whether ``request`` has only plain fields and messages of text alone."""
    return (
        _read_other_fields(request) == _NO_OTHER_FIELDS
        and not request.wants_images
        and all(map(_is_text_message, request.messages))
    )


def _is_text_message(message: Any) -> bool:
    kind = type(message)
    if kind is AssistantMessage:
        return type(message.content) is str and _read_besides(message) == _NOTHING_BESIDES
    return kind in _TEXT_MESSAGES and type(message.content) is str
