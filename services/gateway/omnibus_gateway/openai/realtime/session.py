"""The session object: the fields that clients may change, and its configuration.

Items of a realtime conversation in the format of clients.

Requests to ``/v1/realtime/client_secrets`` and their responses.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus_gateway.openai.chat_request import Effort, ImageDetail, Temperature, VoiceId
from omnibus_gateway.openai.options import MAX_TOOLS, Description, Name
from omnibus_gateway.openai.parse import decode_body
from omnibus_gateway.openai.responses.items import FlatNamedChoice
from omnibus_gateway.openai.responses.request import Metadata

#: Sample rates of the audio formats.
PCM_RATE_HERTZ, G711_RATE_HERTZ = 24000, 8000
#: Largest token limit of a response that a client may set.
MAX_OUTPUT_TOKENS = 4096
#: Conversations, and sessions that only transcribe.
SessionKind = Literal["realtime", "transcription"]
Modalities = Annotated[list[Literal["text", "audio"]], Meta(min_length=1, max_length=1)]
Instructions = Annotated[str, Meta(max_length=1 << 20)]
TokenLimit = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"]
Voice = Annotated[str, Meta(min_length=1, max_length=128)] | VoiceId
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Speed = Annotated[float, Meta(ge=0.25, le=1.5)]


class PcmFormat(Struct, frozen=True, tag_field="type", tag="audio/pcm", forbid_unknown_fields=True):
    """16-bit little-endian mono."""

    rate: Literal[24000] = 24000


class MuLawFormat(Struct, frozen=True, tag_field="type", tag="audio/pcmu", forbid_unknown_fields=True):
    """G.711 mu-law, 8 kHz."""


class ALawFormat(Struct, frozen=True, tag_field="type", tag="audio/pcma", forbid_unknown_fields=True):
    """G.711 A-law, 8 kHz."""


AudioFormat = PcmFormat | MuLawFormat | ALawFormat


_Milliseconds = Annotated[int, Meta(ge=0, le=10_000)]


class ServerVad(Struct, frozen=True, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    """Ends turns after some silence. ``idle_timeout_ms`` must be null."""

    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: _Milliseconds = 300
    silence_duration_ms: _Milliseconds = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: None = None


class SemanticVad(Struct, frozen=True, tag_field="type", tag="semantic_vad", forbid_unknown_fields=True):
    """Ends turns after some silence. A lower ``eagerness`` waits longer."""

    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class InputTranscription(Struct, frozen=True, forbid_unknown_fields=True):
    """Transcription of users' audio by ``model``. OpenAI's names for such models stand for the session's model."""

    model: Annotated[str, Meta(min_length=1, max_length=256)] = "whisper-1"
    language: Annotated[str, Meta(max_length=64)] | None = None
    prompt: Annotated[str, Meta(max_length=4096)] | None = None


class RealtimeTool(Struct, frozen=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    """A function that the model may call. ``parameters`` is a JSON schema."""

    name: Name
    description: Description | None = None
    parameters: dict[str, Any] | None = None


RealtimeToolChoice = Literal["none", "auto", "required"] | FlatNamedChoice
Tools = Annotated[list[RealtimeTool], Meta(max_length=MAX_TOOLS)]


class RealtimeReasoning(Struct, frozen=True, forbid_unknown_fields=True):
    effort: Effort | None = None


class InputAudioUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    format: AudioFormat | UnsetType | None = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET
    transcription: InputTranscription | UnsetType | None = UNSET
    noise_reduction: Any = UNSET


class OutputAudioUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    format: AudioFormat | UnsetType | None = UNSET
    voice: Voice | UnsetType | None = UNSET
    speed: Speed | UnsetType | None = UNSET


class AudioUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    input: InputAudioUpdate | UnsetType | None = UNSET
    output: OutputAudioUpdate | UnsetType | None = UNSET


class ResponseFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of a session that each response can override. Null resets a field to its default."""

    instructions: Instructions | UnsetType | None = UNSET
    output_modalities: Modalities | UnsetType | None = UNSET
    tools: Tools | UnsetType | None = UNSET
    tool_choice: RealtimeToolChoice | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    max_output_tokens: TokenLimit | UnsetType | None = UNSET
    reasoning: RealtimeReasoning | UnsetType | None = UNSET

    # Extras, with the same meaning as in chats.
    temperature: Temperature | UnsetType | None = UNSET
    seed: Seed | UnsetType | None = UNSET

    #: Accepted only with a value that has no effect.
    prompt: Any = UNSET


class SessionUpdate(ResponseFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that a client sets. Absent fields keep their value; null resets a field to its default."""

    type: SessionKind
    model: str | UnsetType | None = UNSET
    audio: AudioUpdate | UnsetType | None = UNSET
    truncation: Any = UNSET

    #: Accepted and ignored: it changes OpenAI's dashboard, never the answer.
    tracing: Any = UNSET

    #: Accepted only with a value that has no effect.
    include: Any = UNSET


class ResponseAudioUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    output: OutputAudioUpdate | UnsetType | None = UNSET


class ResponseOptions(ResponseFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of ``response.create``, which override the session's fields for one response."""

    conversation: Literal["auto", "none"] | UnsetType | None = UNSET
    input: Any = UNSET
    audio: ResponseAudioUpdate | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class SessionConfig(Struct, frozen=True, kw_only=True):
    """Configuration of a session or of one of its responses."""

    model: str
    kind: SessionKind = "realtime"
    instructions: str = ""
    modality: Literal["text", "audio"] = "audio"
    input_format: AudioFormat = PcmFormat()
    output_format: AudioFormat = PcmFormat()
    turn_detection: TurnDetection | None = None
    transcription: InputTranscription | None = None
    voice: str = ""
    speed: float = 1.0
    tools: tuple[RealtimeTool, ...] = ()
    tool_choice: RealtimeToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | Literal["inf"] = "inf"
    truncation: Literal["auto", "disabled"] = "auto"
    effort: Effort | None = None
    temperature: float | None = None
    seed: int | None = None

    def to_event(self, id: str | None, expires_at: int) -> dict[str, Any]:
        """Return the complete session in the format of events."""
        fields = self._transcription_event() if self.kind == "transcription" else self._realtime_event()
        return {"type": self.kind, "id": id, "expires_at": expires_at, **fields}

    def _input_event(self) -> dict[str, Any]:
        return {
            "format": self.input_format,
            "turn_detection": self.turn_detection,
            "transcription": self.transcription,
            "noise_reduction": None,
        }

    def _transcription_event(self) -> dict[str, Any]:
        return {
            "object": "realtime.transcription_session",
            "audio": {"input": self._input_event()},
            "include": None,
        }

    def _realtime_event(self) -> dict[str, Any]:
        return {
            "object": "realtime.session",
            "model": self.model,
            "output_modalities": [self.modality],
            "instructions": self.instructions,
            "audio": {
                "input": self._input_event(),
                "output": {"format": self.output_format, "voice": self.voice or None, "speed": self.speed},
            },
            "tools": list(self.tools),
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "max_output_tokens": self.max_output_tokens,
            "truncation": self.truncation,
            "reasoning": {"effort": self.effort} if self.effort else None,
            "temperature": self.temperature,
            "seed": self.seed,
            "tracing": None,
            "prompt": None,
            "include": None,
        }


def is_given(value: Any) -> bool:
    """Return whether a client sent the field."""
    return value is not UNSET


def voice_name(voice: Any) -> str:
    """Return the name or id of ``voice``."""
    return voice.id if isinstance(voice, VoiceId) else voice


encode_event = msgspec.json.Encoder().encode


ItemId = Annotated[str, Meta(min_length=1, max_length=128)]
#: Limits: characters of the text of one part, and parts of one message.
MAX_TEXT_CHARS, MAX_PARTS = 1 << 20, 64
_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
_Status = Literal["completed", "incomplete", "in_progress"]


class RealtimeInputText(Struct, frozen=True, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    text: _Text


class RealtimeInputAudio(Struct, frozen=True, tag_field="type", tag="input_audio", forbid_unknown_fields=True):
    """Base64 audio in the session's input format. The model does not read ``transcript``."""

    audio: Annotated[str, Meta(min_length=1)]
    transcript: _Text | None = None


class RealtimeInputImage(Struct, frozen=True, tag_field="type", tag="input_image", forbid_unknown_fields=True):
    """An image as a data URL or an https URL."""

    image_url: Annotated[str, Meta(min_length=1)]
    detail: ImageDetail | None = None


class RealtimeOutputText(Struct, frozen=True, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    text: _Text


class RealtimeOutputAudio(Struct, frozen=True, tag_field="type", tag="output_audio", forbid_unknown_fields=True):
    """The transcript of an assistant's speech. ``audio`` is rejected: no model can continue it."""

    transcript: _Text
    audio: str | None = None


RealtimePart = RealtimeInputText | RealtimeInputAudio | RealtimeInputImage | RealtimeOutputText | RealtimeOutputAudio


class RealtimeMessage(Struct, frozen=True, tag_field="type", tag="message", forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[RealtimePart], Meta(min_length=1, max_length=MAX_PARTS)]
    id: ItemId | UnsetType | None = UNSET
    object: Literal["realtime.item"] | UnsetType = UNSET
    status: _Status | UnsetType | None = UNSET


class RealtimeFunctionCall(Struct, frozen=True, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    """A function call. ``arguments`` is JSON text."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: _Text
    call_id: ItemId | UnsetType = UNSET
    id: ItemId | UnsetType | None = UNSET
    object: Literal["realtime.item"] | UnsetType = UNSET
    status: _Status | UnsetType | None = UNSET


class RealtimeFunctionOutput(
    Struct, frozen=True, tag_field="type", tag="function_call_output", forbid_unknown_fields=True
):
    call_id: ItemId
    output: _Text
    id: ItemId | UnsetType | None = UNSET
    object: Literal["realtime.item"] | UnsetType = UNSET
    status: _Status | UnsetType | None = UNSET


class RealtimeReference(Struct, frozen=True, tag_field="type", tag="item_reference", forbid_unknown_fields=True):
    """A reference to an item of the conversation by its id."""

    id: ItemId


RealtimeItem = RealtimeMessage | RealtimeFunctionCall | RealtimeFunctionOutput


PATH = "/v1/realtime"
CLIENT_SECRETS = f"{PATH}/client_secrets"
#: Default lifetime of a client secret, in seconds.
DEFAULT_SECONDS = 600


class SecretExpiry(Struct, frozen=True, forbid_unknown_fields=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7200)] = DEFAULT_SECONDS


class ClientSecretRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a secret. None means that a field is not set. Without a model, the session's client must set it."""

    expires_after: SecretExpiry | None = None
    session: SessionUpdate | None = None


class ClientSecret(Struct, frozen=True):
    """A client secret. ``expires_at`` is in Unix seconds; ``session`` is the configuration of its session."""

    value: str
    expires_at: int
    session: dict[str, Any]


_DECODER = msgspec.json.Decoder(ClientSecretRequest)
_UPDATE = msgspec.json.Decoder(SessionUpdate)
_encode = msgspec.json.Encoder().encode


def parse_client_secret_request(body: bytes) -> ClientSecretRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``."""
    return decode_body(_DECODER, body)


def encode_client_secret(secret: ClientSecret) -> bytes:
    """Encode the response as JSON."""
    return _encode(secret)


def encode_update(update: SessionUpdate) -> bytes:
    """Encode a session update for storage."""
    return _encode(update)


def decode_update(body: bytes) -> SessionUpdate:
    """Decode a stored session update. Raises ``msgspec.MsgspecError``."""
    return _UPDATE.decode(body)
