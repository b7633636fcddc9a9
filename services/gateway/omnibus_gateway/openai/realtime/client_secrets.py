"""Requests to ``/v1/realtime/client_secrets`` and their responses."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus_gateway.openai.parse import decode_body
from omnibus_gateway.openai.realtime.session import SessionUpdate

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
