"""Configuration of a session: updates are validated against the abilities of its model. Tokens open and resume it.

Audio of a session is converted here as well: bytes to samples, durations, and files for models.
"""

import time
from collections.abc import Mapping
from functools import cache
from secrets import compare_digest, token_hex, token_urlsafe
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from omnibus.api_key import hash_key
from omnibus.encoding.audio import OPENAI_VOICES, TelephoneFormat, encode_wav
from omnibus.errors import BadRequest, NotFound, Unauthorized
from omnibus.recording.sessions import SessionOrigin
from omnibus.settings import GatewaySettings
from omnibus.store import OVERHEAD_BYTES, SECRET_PREFIX, ClientSecretRecord, Store
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.openai.realtime.session import (
    G711_RATE_HERTZ,
    PCM_RATE_HERTZ,
    ALawFormat,
    AudioFormat,
    ClientSecret,
    ClientSecretRequest,
    InputAudioUpdate,
    InputTranscription,
    MuLawFormat,
    OutputAudioUpdate,
    PcmFormat,
    ResponseFields,
    ResponseOptions,
    SecretExpiry,
    ServerVad,
    SessionConfig,
    SessionKind,
    SessionUpdate,
    decode_update,
    encode_update,
    is_given,
    voice_name,
)
from omnibus_gateway.tenancy.tenant import current_tenant, tenant_account


class ModelAbilities(NamedTuple):
    """Abilities of a model of the plan. The model of an app counts as able to do everything."""

    speaks: bool = True
    hears: bool = True
    voices: tuple[str, ...] = ()

    @property
    def default_detection(self) -> ServerVad | None:
        return ServerVad() if self.hears else None

    @property
    def default_voice(self) -> str:
        if not self.speaks:
            return ""
        return self.voices[0] if self.voices else OPENAI_VOICES[0]


#: Fields with the same meaning in a session and in one response, and the value that null stands for.
_SHARED_DEFAULTS: dict[str, Any] = {
    "instructions": "",
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_output_tokens": "inf",
    "temperature": None,
    "seed": None,
}


#: Abilities of a session without responses: the model that the session names transcribes.
TRANSCRIBES = ModelAbilities(speaks=False)
#: Fields that an update of a transcription session may have, with its ``type``.
_TRANSCRIPTION_FIELDS = frozenset({"type", "audio", "include", "tracing"})


def default_config(model: str, abilities: ModelAbilities, kind: SessionKind = "realtime") -> SessionConfig:
    """Return the configuration of a session before its first update."""
    if kind == "transcription":
        input_transcription = InputTranscription(model) if model else None
        return SessionConfig(
            model=model, kind=kind, modality="text", turn_detection=ServerVad(), transcription=input_transcription
        )
    return SessionConfig(
        model=model,
        modality="audio" if abilities.speaks else "text",
        voice=abilities.default_voice,
        turn_detection=abilities.default_detection,
    )


def apply_update(
    config: SessionConfig, update: SessionUpdate, abilities: ModelAbilities, *, has_spoken: bool
) -> SessionConfig:
    """Return ``config`` with the fields of ``update``.

    Raises ``BadRequest`` that names the first invalid field.
    """
    if update.type != config.kind:
        raise BadRequest(f"The type of a session is fixed: it is {config.kind!r}.", param="session.type")
    if config.kind == "transcription":
        _check_transcription(update)
    if update.model and update.model != config.model:
        raise BadRequest(f"The model of a session is fixed: it is {config.model}.", param="session.model")
    _refuse(update, {"prompt": (None,), "include": (None, [])})
    changes = _shared_changes(update, abilities, "session")
    if is_given(update.truncation):
        if update.truncation not in (None, "auto", "disabled"):
            raise BadRequest("truncation must be 'auto' or 'disabled'.", param="session.truncation")
        changes["truncation"] = update.truncation or "auto"
    if update.audio is not None and update.audio is not UNSET:
        changes |= _input_changes(update.audio.input, abilities)
        changes |= _output_changes(update.audio.output, abilities, "session")
    if has_spoken and changes.get("voice", config.voice) != config.voice:
        raise BadRequest("The voice cannot be changed once it has spoken.", param="session.audio.output.voice")
    return msgspec.structs.replace(config, **changes)


def _check_transcription(update: SessionUpdate) -> None:
    """Raise ``BadRequest`` for a field that only sessions with responses have."""
    field_names = [name for name in update.__struct_fields__ if is_given(getattr(update, name))]
    other_fields = [name for name in field_names if name not in _TRANSCRIPTION_FIELDS]
    if update.audio is not None and update.audio is not UNSET and is_given(update.audio.output):
        other_fields.append("audio.output")
    if other_fields:
        raise BadRequest(
            "A transcription session accepts only audio.input: omit this field.", param=f"session.{other_fields[0]}"
        )


def check_update(update: SessionUpdate) -> None:
    """Raise ``BadRequest`` for an update that no model supports."""
    apply_update(SessionConfig(model="", kind=update.type), update, ModelAbilities(), has_spoken=False)


def apply_options(config: SessionConfig, options: ResponseOptions, abilities: ModelAbilities) -> SessionConfig:
    """Return ``config`` with the ``options`` of one response. Raises ``BadRequest``."""
    _refuse(options, {"prompt": (None,)}, "response")
    changes = _shared_changes(options, abilities, "response")
    if options.audio is not None and options.audio is not UNSET:
        changes |= _output_changes(options.audio.output, abilities, "response")
    return msgspec.structs.replace(config, **changes)


def _shared_changes(update: ResponseFields, abilities: ModelAbilities, place: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name, default in _SHARED_DEFAULTS.items():
        value = getattr(update, name)
        if is_given(value):
            changes[name] = default if value is None else value
    if is_given(update.tools):
        changes["tools"] = tuple(update.tools or ())
    if update.reasoning is not UNSET:
        changes["effort"] = update.reasoning.effort if update.reasoning is not None else None
    if is_given(update.output_modalities):
        modality = (update.output_modalities or ["audio" if abilities.speaks else "text"])[0]
        if modality == "audio" and not abilities.speaks:
            raise BadRequest("The model has no audio output: send ['text'].", param=f"{place}.output_modalities")
        changes["modality"] = modality
    return changes


def _input_changes(update: InputAudioUpdate | UnsetType | None, abilities: ModelAbilities) -> dict[str, Any]:
    if update is UNSET:
        return {}
    if update is None:
        return {"input_format": PcmFormat(), "transcription": None, "turn_detection": abilities.default_detection}
    _refuse(update, {"noise_reduction": (None,)}, "session.audio.input")
    changes: dict[str, Any] = {"input_format": update.format or PcmFormat()} if is_given(update.format) else {}
    if update.turn_detection is not UNSET:
        changes["turn_detection"] = update.turn_detection
    if update.transcription is not UNSET:
        changes["transcription"] = update.transcription
    return changes


def _output_changes(
    update: OutputAudioUpdate | UnsetType | None, abilities: ModelAbilities, place: str
) -> dict[str, Any]:
    if update is UNSET:
        return {}
    if update is None:
        return {"output_format": PcmFormat(), "voice": abilities.default_voice, "speed": 1.0}
    changes: dict[str, Any] = {}
    if is_given(update.format):
        changes["output_format"] = update.format or PcmFormat()
    if update.speed is not UNSET:
        changes["speed"] = 1.0 if update.speed is None else float(update.speed)
    if is_given(update.voice):
        changes["voice"] = _checked_voice(update.voice, abilities, f"{place}.audio.output.voice")
    return changes


def _checked_voice(voice: Any, abilities: ModelAbilities, param: str) -> str:
    name = voice_name(voice) if voice is not None else abilities.default_voice
    if abilities.voices and name not in (*abilities.voices, *OPENAI_VOICES):
        raise BadRequest(f"unknown voice {name[:64]!r}: use one of {', '.join(abilities.voices)}", param=param)
    return str(name)


def _refuse(update: Any, accepted_values: Mapping[str, tuple[Any, ...]], place: str = "session") -> None:
    """Raise ``BadRequest`` for a field with an unsupported value."""
    for name, values in accepted_values.items():
        value = getattr(update, name)
        if is_given(value) and value not in values:
            raise BadRequest(f"{name} is not supported with this value: omit it.", param=f"{place}.{name}")


_MU_LAW_BIAS = 0x84


def rate_of(format: AudioFormat) -> int:
    """Samples per second."""
    return PCM_RATE_HERTZ if isinstance(format, PcmFormat) else G711_RATE_HERTZ


def sample_bytes(format: AudioFormat) -> int:
    """Bytes of one sample."""
    return 2 if isinstance(format, PcmFormat) else 1


def to_milliseconds(nbytes: int, format: AudioFormat) -> int:
    """Return the duration of ``nbytes`` of audio in milliseconds."""
    return nbytes // sample_bytes(format) * 1000 // rate_of(format)


def to_bytes(milliseconds: int, format: AudioFormat) -> int:
    """Return the number of bytes of this much audio, in whole samples."""
    return milliseconds * rate_of(format) // 1000 * sample_bytes(format)


def encoder_format(format: AudioFormat) -> TelephoneFormat:
    """Return the name of this format in ``omnibus.encoding.audio``."""
    if isinstance(format, MuLawFormat):
        return "pcmu"
    return "pcma" if isinstance(format, ALawFormat) else "pcm24k"


def to_wav(data: bytes | bytearray, format: AudioFormat) -> bytes:
    """``data`` as a WAV file of 16-bit samples."""
    return encode_wav(to_pcm(data, format), rate_of(format))


def to_pcm(data: bytes | bytearray, format: AudioFormat) -> bytes:
    """Return ``data`` as 16-bit little-endian samples, without an incomplete last sample."""
    if isinstance(format, PcmFormat):
        return bytes(data[: len(data) // 2 * 2])
    table = _mu_law_samples() if isinstance(format, MuLawFormat) else _a_law_samples()
    return table[np.frombuffer(data, np.uint8)].tobytes()


@cache
def _mu_law_samples() -> NDArray[np.int16]:
    """The sample of each byte: int16 [256] (ITU-T G.711, table 2a)."""
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = (((mantissa << 3) + _MU_LAW_BIAS) << exponent) - _MU_LAW_BIAS
    return np.where(code & 0x80, -size, size).astype("<i2")


@cache
def _a_law_samples() -> NDArray[np.int16]:
    """The sample of each byte: int16 [256] (ITU-T G.711, table 1a)."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = np.where(exponent == 0, (mantissa << 4) + 8, ((mantissa << 4) + 0x108) << np.maximum(exponent - 1, 0))
    return np.where(code & 0x80, size, -size).astype("<i2")


#: Maximum number of valid client secrets of one tenant.
MAX_SECRETS = 1000


class ClientSecrets:
    """Creates and reads client secrets in the ``store``."""

    def __init__(self, settings: GatewaySettings, store: Store) -> None:
        self._settings = settings
        self._asks_for_keys = settings.keys or bool(settings.keys_file)
        self._store = store

    async def create(self, request: ClientSecretRequest, session_view: dict[str, Any]) -> ClientSecret:
        """Create a secret of the current tenant; ``session_view`` is its session for the response.

        Raises ``StoreUnavailable``, and ``Overloaded`` and ``LimitReached`` if the tenant has no room for it.
        """
        seconds = (request.expires_after or SecretExpiry()).seconds
        key, value = current_tenant().key, new_secret_id(SECRET_PREFIX)
        record = ClientSecretRecord(
            session=encode_update(request.session or SessionUpdate(type="realtime")),
            expires=time.time() + seconds,
            key=key.sha256 if key is not None else "",
            is_operators=self._asks_for_keys and key is None,
        )
        await self._store.reserve(
            tenant_account(self._settings),
            f"secret:{hash_key(value)[:24]}",
            len(record.session) + OVERHEAD_BYTES,
            seconds,
            MAX_SECRETS,
        )
        await self._store.put_client_secret(hash_key(value), record, seconds)
        return ClientSecret(value, int(record.expires), session_view)

    async def find_update(self, token: str) -> SessionUpdate | None:
        """Return the first update of sessions of ``token``; None if it is an API key.

        Raises ``Unauthorized`` for a secret that is unknown or expired.
        """
        if not token.startswith(SECRET_PREFIX):
            return None
        record = await self._store.client_secret(hash_key(token))
        if record is None:
            raise Unauthorized("this client secret is unknown or expired: create another one")
        return decode_update(record.session)


_UNKNOWN = "the session of this token is unknown or has expired: open another one"


class ResumeToken(NamedTuple):
    """Session ``id`` and the secret that authorizes its client."""

    id: str
    secret: str

    @classmethod
    def create(cls) -> "ResumeToken":
        return cls(new_session_id(), token_urlsafe(18))

    @classmethod
    def parse(cls, text: str) -> "ResumeToken":
        """Parse a token. Raises ``NotFound``."""
        id, _, secret = text.partition(".")
        if not id.startswith("sess_") or not secret:
            raise NotFound(_UNKNOWN, param="resume")
        return cls(id, secret)

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}"

    def check_opens(self, origin: SessionOrigin) -> None:
        """Raise ``NotFound`` if the session began with another token."""
        if not compare_digest(hash_key(str(self)), origin.token_sha256):
            raise NotFound(_UNKNOWN, param="resume")


def new_session_id() -> str:
    """Create an id for a session."""
    return f"sess_{token_hex(12)}"


def event_id(session: str, number: int) -> str:
    """Return the id of event ``number`` of ``session``, counted from 1."""
    return f"event_{session.removeprefix('sess_')}_{number}"


def parse_event_number(session: str, id: str, last: int) -> int:
    """Return the number of event ``id`` of ``session``, at most ``last``. Raises ``BadRequest``."""
    head, _, number = id.rpartition("_")
    if head != event_id(session, 0).rpartition("_")[0] or not number.isdecimal() or not 1 <= int(number) <= last:
        raise BadRequest(
            "last_event_id must be the event_id of the last event of this session that you read.", param="last_event_id"
        )
    return int(number)
