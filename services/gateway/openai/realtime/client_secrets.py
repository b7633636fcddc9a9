"""Requests to ``/v1/realtime/client_secrets`` and their answers."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from services.gateway.openai.parse import decode_body
from services.gateway.openai.realtime.session import SessionUpdate

PATH = "/v1/realtime"
CLIENT_SECRETS = f"{PATH}/client_secrets"
#: Seconds that a client secret opens sessions unless it is said otherwise.
DEFAULT_SECONDS = 600


class SecretExpiry(Struct, frozen=True, forbid_unknown_fields=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7200)] = DEFAULT_SECONDS


class ClientSecretRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """None means that the client did not say. The session's model may be left out: then its client names it."""

    expires_after: SecretExpiry | None = None
    session: SessionUpdate | None = None


class ClientSecret(Struct, frozen=True):
    """``value`` is the secret, ``expires_at`` in Unix seconds, ``session`` what it opens."""

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
    """The answer as JSON."""
    return _encode(secret)


def encode_update(update: SessionUpdate) -> bytes:
    """A session update as it is kept."""
    return _encode(update)


def decode_update(body: bytes) -> SessionUpdate:
    """A session update that was kept. Raises ``msgspec.MsgspecError``."""
    return _UPDATE.decode(body)
